"""Options that several commands share, and the lookup of the log to read."""

import shlex
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Final

import typer

LOG_NAME: Final = "interactions.jsonl"

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="A log, or the folder of a session.  [default: AGENTIC_STORE, or the newest session in AGENTIC_RUNS]",
    ),
]

OfTenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="ID", help="Read only records of this tenant.  [default: all tenants]"),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]


def log_of(store: Path | None) -> Path:
    """Return the log at `store`, or at AGENTIC_STORE, or the newest log in AGENTIC_RUNS.

    Raises:
        OptionError: If there is no log.
        SettingsError: If an environment variable is wrong.

    """
    from agentic_trading.cli.settings import start
    from agentic_trading.platform.errors import OptionError

    settings = start()
    named = store or settings.store
    if named is None:
        return _newest_log(settings.runs)
    log = _log_at(named)
    if log is None:
        option = "--store" if store else "AGENTIC_STORE"
        raise OptionError(option, f"{named}, where there is no log", f"a log, or a folder with {LOG_NAME}")
    return log


def trace_list(log: Path, tenant: str | None) -> str:
    """Return the command that lists the chains of a log, of `tenant` or of all tenants."""
    tenant_option = "" if tenant is None else f" --tenant {shlex.quote(tenant)}"
    return f"agentic-trading trace list --store {log}{tenant_option}"


def _log_at(path: Path) -> Path | None:
    try:
        log = path / LOG_NAME if path.is_dir() else path
        return log if log.is_file() else None
    except OSError:  # an invalid file name, or a folder without read permission
        return None


def _newest_log(runs: Path) -> Path:
    """Return the log in `runs` that was written last. Raises `OptionError` if there is none."""
    from agentic_trading.platform.errors import OptionError

    logs = list(runs.glob(f"*/{LOG_NAME}"))
    if not logs:
        raise OptionError(
            "--store",
            f"missing, and there is no session in {runs}",
            "a log, or the folder of a session, which `run` creates",
        )
    return max(logs, key=lambda log: log.stat().st_mtime_ns)


BusUrl = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="URL",
        help="The bus: kafka://HOST:PORT or redis://HOST:PORT.  [default: from the configuration]",
    ),
]


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration, a TOML file.  [default: AGENTIC_CONFIG, or ./agentic-trading.toml]",
    ),
]


def usd_amount(text: str) -> Decimal:
    """Parse an amount in dollars without a conversion to float."""
    try:
        return Decimal(text)
    except InvalidOperation as e:
        raise typer.BadParameter(f"{text!r} is not an amount in dollars. Use a number such as 2.50.") from e


Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", help="The model to ask, from `models list`.  [default: the provider's]"
    ),
]


BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="URL of your own server with the API of the provider. A backtest with it does not need --record.",
    ),
]


PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="IN,OUT",
        help="Prices of a --model of your own, in US dollars per million input and output tokens, such as 0,0. Requires --context.",
    ),
]


ContextTokens = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="N",
        min=1,
        help="Context window of a --model of your own: the maximum of prompt and answer tokens together. Requires --price.",
    ),
]


RunBus = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="URL",
        help="Let workers on this bus make the calls, kafka://HOST:PORT or redis://HOST:PORT.  [default: from the configuration, or this process]",
    ),
]


AnswersFrom = Annotated[
    list[Path] | None,
    typer.Option(
        "--answers-from",
        metavar="PATH",
        help="A worker's log or an archive with answers that did not arrive over the bus. Requires --resume. Can be repeated.",
    ),
]


OfProvider = Annotated[
    str, typer.Option("--provider", metavar="NAME", help="Show only models of this provider.")
]


def loaded_with_bus(config: Path | None, bus: str | None) -> Any:
    """Return the configuration, with `bus` if given. Raises `OptionError` if there is no bus."""
    from agentic_trading.cli.settings import start
    from agentic_trading.platform.errors import OptionError
    from agentic_trading.platform.settings import load_config

    start()
    loaded = load_config(config, flags={"bus": "--bus"}, bus={"url": bus} if bus else None)
    if loaded.bus.url is None:
        raise OptionError(
            "--bus", "missing", "kafka://HOST:PORT, redis://HOST:PORT, or url in [bus] of the configuration"
        )
    return loaded
