"""The options of commands that read a log, and the log they mean: the one named, or that of the newest session."""

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
        help="A log or a session's folder; if left out, AGENTIC_STORE, else the newest session below AGENTIC_RUNS.",
    ),
]

OfTenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="ID", help="Only this tenant's records; if left out, all tenants'."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def log_of(store: Path | None) -> Path:
    """Return the log at `store`; without it that at AGENTIC_STORE, else the newest below AGENTIC_RUNS.

    Raises `OptionError` if there is none, `SettingsError` for a wrong environment variable.
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
        raise OptionError(option, f"{named}, where no log is", f"a log, or a folder that holds {LOG_NAME}")
    return log


def trace_list(log: Path, tenant: str | None) -> str:
    """Return the command line that lists the chains of a log: those of `tenant`, or all."""
    tenant_option = "" if tenant is None else f" --tenant {shlex.quote(tenant)}"
    return f"agentic-trading trace list --store {log}{tenant_option}"


def _log_at(path: Path) -> Path | None:
    try:
        log = path / LOG_NAME if path.is_dir() else path
        return log if log.is_file() else None
    except OSError:  # a name that no file can have, or a folder that may not be read
        return None


def _newest_log(runs: Path) -> Path:
    """Return the log below `runs` that was written last; raises `OptionError` if there is none."""
    from agentic_trading.platform.errors import OptionError

    logs = list(runs.glob(f"*/{LOG_NAME}"))
    if not logs:
        raise OptionError(
            "--store",
            f"left out, and no session is below {runs}",
            "a log or a session's folder; `run` makes one",
        )
    return max(logs, key=lambda log: log.stat().st_mtime_ns)


BusUrl = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="URL",
        help="kafka://HOST:PORT or redis://HOST:PORT; if left out, the configuration's.",
    ),
]


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file; if left out, the one of AGENTIC_CONFIG, else ./agentic-trading.toml.",
    ),
]


def usd_amount(text: str) -> Decimal:
    """Read an amount of dollars without going through a float."""
    try:
        return Decimal(text)
    except InvalidOperation as e:
        raise typer.BadParameter(f"{text!r} is not an amount; allowed is a number such as 2.50") from e


Model = Annotated[str, typer.Option("--model", metavar="NAME", help="Which model; see `models list`.")]


BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="A server of your own that speaks the provider's API; a backtest with it needs no --record.",
    ),
]


PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="IN,OUT",
        help="With --context: what --model costs, in US dollars per million tokens, such as 0,0.",
    ),
]


ContextTokens = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="N",
        min=1,
        help="With --price: how many tokens prompt and answer of --model may have together.",
    ),
]


RunBus = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="URL",
        help="Let workers in other processes make the calls, kafka://HOST:PORT; if left out, the configuration's, else this process.",
    ),
]


AnswersFrom = Annotated[
    list[Path] | None,
    typer.Option(
        "--answers-from",
        metavar="PATH",
        help="With --resume, over a bus: a worker's log, or an archive, with answers that did not arrive; may be given again.",
    ),
]


OfProvider = Annotated[
    str, typer.Option("--provider", metavar="NAME", help="Only the models of this provider.")
]


def loaded_with_bus(config: Path | None, bus: str | None) -> Any:
    """Return the configuration, with the bus that is named; without one it has to have a bus."""
    from agentic_trading.cli.settings import start
    from agentic_trading.platform.errors import OptionError
    from agentic_trading.platform.settings import load_config

    start()
    loaded = load_config(config, flags={"bus": "--bus"}, bus={"url": bus} if bus else None)
    if loaded.bus.url is None:
        raise OptionError(
            "--bus", "left out", "kafka://HOST:PORT, redis://HOST:PORT, or url in [bus] of the configuration"
        )
    return loaded
