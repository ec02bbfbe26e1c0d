"""The options of commands that read a log, and the log they mean: the one named, or that of the newest session."""

import shlex
from pathlib import Path
from typing import Annotated, Final

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
    from agentic_trading.app.options import OptionError
    from agentic_trading.app.settings import start

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
    from agentic_trading.app.options import OptionError

    logs = list(runs.glob(f"*/{LOG_NAME}"))
    if not logs:
        raise OptionError(
            "--store",
            f"left out, and no session is below {runs}",
            "a log or a session's folder; `run` makes one",
        )
    return max(logs, key=lambda log: log.stat().st_mtime_ns)
