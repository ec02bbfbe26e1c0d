"""Options that several commands share, and the lookup of the log to read."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="A log, or the folder of a session.  [default: AGENTIC_STORE, or the newest session in AGENTIC_RUNS]",
    ),
]

Stores = Annotated[
    list[Path] | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="A log, the folder of a session, or a folder of sessions. Can be repeated.  "
        "[default: AGENTIC_STORE, or the newest session in AGENTIC_RUNS]",
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
    from agentic_trading.llm.store import LOG_NAME
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


def logs_of(stores: Sequence[Path] | None) -> list[Path]:
    """Return the logs at `stores`, or at AGENTIC_STORE, or the newest log in AGENTIC_RUNS.

    Raises:
        OptionError: If there is no log at one of them.
        SettingsError: If an environment variable is wrong.

    """
    from agentic_trading.audit.logs import logs_at
    from agentic_trading.cli.settings import start
    from agentic_trading.llm.store import LOG_NAME
    from agentic_trading.platform.errors import OptionError

    settings = start()
    named = stores or ([settings.store] if settings.store else [])
    found: dict[Path, None] = {}
    for path in named:
        logs = logs_at(path)
        if not logs:
            option = "--store" if stores else "AGENTIC_STORE"
            allowed = f"a log, a folder with {LOG_NAME}, or a folder of such folders"
            raise OptionError(option, f"{path}, where there is no log", allowed)
        found |= dict.fromkeys(logs)
    return [*found] or [_newest_log(settings.runs)]


def trace_command(what: str, logs: Sequence[Path], tenant: str | None) -> str:
    """Return a command of `trace` for logs, for the records of `tenant` or of all tenants."""
    stores = "".join(f" --store {shlex.quote(str(log))}" for log in logs)
    tenant_option = "" if tenant is None else f" --tenant {shlex.quote(tenant)}"
    return f"agentic-trading trace {what}{stores}{tenant_option}"


def _log_at(path: Path) -> Path | None:
    from agentic_trading.audit.logs import has_log
    from agentic_trading.llm.store import LOG_NAME

    return next((log for log in (path / LOG_NAME, path) if has_log(log)), None)


def _newest_log(runs: Path) -> Path:
    """Return the log in `runs` that was written last. Raises `OptionError` if there is none."""
    from agentic_trading.llm.store import LOG_NAME
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


def decimal_number(text: str) -> Decimal:
    """Parse a finite number without a conversion to float."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise typer.BadParameter(f"{text!r} is not a number. Use a number such as 0.2 or -100.")
    return number


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


def moment_in(option: str, text: str) -> datetime:
    """Return the time in an option. Raises `OptionError` if it is not one of `MOMENTS`."""
    from agentic_trading.clock import MOMENTS, SystemClock, parse_moment
    from agentic_trading.platform.errors import OptionError

    try:
        return parse_moment(text, SystemClock().now())
    except ValueError as e:
        raise OptionError(option, repr(text), MOMENTS) from e


def duration_in(option: str, text: str) -> timedelta:
    """Return the duration in an option. Raises `OptionError` if it is not one of `DURATIONS`."""
    from agentic_trading.clock import DURATIONS, parse_duration
    from agentic_trading.platform.errors import OptionError

    try:
        return parse_duration(text)
    except ValueError as e:
        raise OptionError(option, f"{text!r:.100}", DURATIONS) from e


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


# Filters of records. Each can be repeated, or have several values with commas.

Agents = Annotated[
    list[str] | None, typer.Option("--agent", metavar="IDS", help="Only calls of these agents.")
]
Workflows = Annotated[
    list[str] | None, typer.Option("--workflow", metavar="NAMES", help="Only calls of these workflows.")
]
Models = Annotated[
    list[str] | None, typer.Option("--model", metavar="NAMES", help="Only calls to these models.")
]
FromProviders = Annotated[
    list[str] | None, typer.Option("--provider", metavar="NAMES", help="Only calls to these providers.")
]
Subjects = Annotated[
    list[str] | None,
    typer.Option("--subject", metavar="NAMES", help="Only records about these subjects, such as symbols."),
]
EventKinds = Annotated[
    list[str] | None,
    typer.Option("--kind", metavar="NAMES", help="Only these kinds of events, or interaction for calls."),
]
Verdicts = Annotated[
    list[str] | None, typer.Option("--verdict", metavar="NAMES", help="Only events with these verdicts.")
]
Failures = Annotated[
    list[str] | None,
    typer.Option("--failure", metavar="NAMES", help="Only records with these kinds of failure. * means any."),
]
Trace = Annotated[
    str,
    typer.Option("--trace", metavar="ID", help="Only this trace. Its first 8 or more characters are enough."),
]
Since = Annotated[
    str,
    typer.Option(
        "--since",
        "-S",
        metavar="TIME",
        help="Only from this time on: 2026-06-20, 2026-06-20T10:00Z, today, yesterday, or an age such as 2h or 7d. UTC.",
    ),
]
Until = Annotated[str, typer.Option("--until", "-U", metavar="TIME", help="Only before this time.")]
Where = Annotated[
    str,
    typer.Option(
        "--where", metavar="SQL", help="A condition over the fields of facts, such as 'latency_ms > 20000'."
    ),
]


def listed_names(texts: Iterable[str] | None) -> tuple[str, ...]:
    """Return the values of a repeated option, of which each may be several with commas."""
    return tuple(name.strip() for text in texts or () for name in text.split(","))


def record_query(
    names: Mapping[str, Iterable[str] | None],
    *,
    trace: str = "",
    since: str = "",
    until: str = "",
    where: str = "",
) -> Any:
    """Return the `RecordQuery` of options. Raises `OptionError` if a time is wrong."""
    from agentic_trading.llm.facts import RecordQuery
    from agentic_trading.platform.errors import OptionError

    first = moment_in("--since", since) if since else None
    end = moment_in("--until", until) if until else None
    if first is not None and end is not None and first >= end:
        raise OptionError("--until", f"{until}, at or before --since {since}", "a later time")
    filters: dict[str, Any] = {name: listed_names(texts) for name, texts in names.items()}
    return RecordQuery(**filters, since=first, until=end, trace_id=trace, where=where)
