"""The places whose budgets a running process uses: what a command without a place may mean."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from agentic_trading.governance.status_feed import BudgetStatus
from agentic_trading.operate.budgets import BudgetLocationOptions
from agentic_trading.operate.choices import host_of
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import LOG_NAME


def live_place(config: PlatformConfig, runs: Path, named: Path | None) -> BudgetLocationOptions:
    """Return the one place whose budgets are in use; a wrong place would stop nothing.

    A place is the ledger of the configuration, or a folder in which a process runs with budgets of its own: below
    `runs`, the folder of the configuration, or that of the log `named` by the environment. Without a live place it is
    the folder of `named`.

    Raises:
        OptionError: If there is none or more than one, with the places.

    """
    url = config.ledger.url
    logs = {log.resolve(): log for log in _logs(config, runs, named)}
    found = [BudgetLocationOptions(log.parent, log=log) for log in logs.values() if is_running(log.parent)]
    if url is not None:
        found.insert(0, BudgetLocationOptions(None, url, named))
    if not found and named is not None:
        return BudgetLocationOptions(named.parent, log=named)
    if len(found) == 1:
        return found[0]
    allowed = "--store PATH for the folder of a session, or --ledger URL for a server"
    if not found:
        state = f"left out, and no session runs below {runs}; no ledger is configured"
        raise OptionError("the place", state, allowed)
    options = ", ".join(
        f"--store {one.folder}" if one.ledger_url is None else f"--ledger {host_of(one.ledger_url)}"
        for one in found
    )
    raise OptionError("the place", f"left out, and {len(found)} places are live", f"one of {options}")


def is_running(folder: Path) -> bool:
    """Whether a process runs in a folder with budgets of its own: it has the log, and its last report is not its end."""
    return _reports_running(folder) and is_locked(folder)


def _logs(config: PlatformConfig, runs: Path, named: Path | None) -> Iterator[Path]:
    yield from sorted(runs.glob(f"*/{LOG_NAME}"))
    if config.folder is not None:
        yield config.folder / config.name / LOG_NAME
    if named is not None:
        yield named


def _reports_running(folder: Path) -> bool:
    for path in folder.glob("budget-*.json"):
        with suppress(OSError, ValidationError):
            if BudgetStatus.model_validate_json(path.read_bytes()).is_running:
                return True
    return False


def is_locked(folder: Path) -> bool:
    """Whether a process has the log in a folder."""
    try:
        handle = os.open(folder / LOG_NAME, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
