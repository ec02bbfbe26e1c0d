"""The logs, budgets and bus that a dashboard shows."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agentic_trading.audit.logs import has_log, logs_at
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.store import LOG_NAME
from agentic_trading.monitor.readings import BudgetReadings, BudgetSource
from agentic_trading.operate import budgets as budget_api
from agentic_trading.operate.choices import host_of
from agentic_trading.operate.lines import printable
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import LogRecords, records_of

SCANNED_EVERY_S: Final = 2.0
"""Seconds between two searches for new logs in the folders."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The sources of a dashboard.

    Attributes:
        stores: Logs, folders of sessions, or folders of such folders.
        archive: The folder of an archive. It is a log too.
        ledger_url: The server of budgets. Without it, budgets are those of the folders in `stores`.
        bus: The configuration of a bus, or None.
        tenant: The only tenant that is shown. None shows all.

    """

    stores: tuple[Path, ...] = ()
    archive: Path | None = None
    ledger_url: str | None = None
    bus: PlatformConfig | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class ShownLog:
    """A log that is open for queries.

    Attributes:
        name: Its name on pages, unique in a dashboard. It shows no path of the machine.
        path: The log.
        records: Its records. Pass `Sources.tenant` to every query.
        is_archive: Whether it is that of the archive.

    """

    name: str
    path: Path
    records: LogRecords
    is_archive: bool = False


class Sources:
    """The open sources of a dashboard. `open_sources` makes it, and closes it.

    Attributes:
        tenant: The only tenant that is shown. None shows all.
        bus: The configuration of the bus, or None.
        readings: The budgets as they were read last.

    """

    def __init__(
        self, options: SourceOptions, opened: AsyncExitStack, ledger: budget_api.BudgetLocation | None
    ) -> None:
        self.tenant = options.tenant
        self.bus = options.bus
        self.readings = BudgetReadings(self.budgets, options.tenant)
        self._ledger = ledger
        self._paths = (*options.stores, *([options.archive] if options.archive else ()))
        self._options = options
        self._opened = opened
        self._clock: Clock = SystemClock()
        self._scanning = asyncio.Lock()
        self._scanned_at: float | None = None
        self._logs: dict[Path, ShownLog] = {}
        self._folders: dict[Path, BudgetSource] = {}
        self._gone: frozenset[Path] = frozenset()

    @property
    def place(self) -> str:
        """The ledger and the folders as a text, without paths of the machine and without passwords."""
        names = [*map(_name, self._options.stores)]
        if self._options.ledger_url:
            names.insert(0, host_of(self._options.ledger_url))
        return ", ".join(names) or "no source"

    @property
    def has_logs(self) -> bool:
        """Whether there are folders of logs."""
        return bool(self._paths)

    async def logs(self) -> tuple[ShownLog, ...]:
        """Return the logs, with those that are new in the folders. A log that has vanished stays."""
        await self._scan()
        return tuple(self._logs.values())

    async def budgets(self) -> tuple[BudgetSource, ...]:
        """Return the places of budgets: the server, or otherwise the folders of sessions."""
        if self._ledger is not None:
            return (BudgetSource("", self._ledger),)
        await self._scan()
        return tuple(self._folders.values())

    async def problems(self) -> tuple[str, ...]:
        """Return a text for each log that has vanished."""
        await self._scan()
        return tuple(
            f"The log of {log.name} is gone" for path, log in self._logs.items() if path in self._gone
        )

    def without_paths(self, text: str) -> str:
        """Return a text with the names of logs and folders in place of their paths on this machine."""
        names = {str(path): f"{log.name}/{path.name}" for path, log in self._logs.items()}
        names |= {str(path.parent): log.name for path, log in self._logs.items()}
        names |= {str(path): _name(path) for path in self._paths}
        for path in sorted(names, key=len, reverse=True):
            text = text.replace(path, names[path])
        return text

    async def _scan(self) -> None:
        async with self._scanning:
            now = self._clock.monotonic()
            if self._scanned_at is not None and now - self._scanned_at < SCANNED_EVERY_S:
                return
            found, gone = await asyncio.to_thread(_scanned, self._paths, [*self._logs])
            for path in found:
                if path not in self._logs:
                    await self._open(path)
            self._gone = gone
            self._scanned_at = now

    async def _open(self, path: Path) -> None:
        records = records_of(path)
        self._opened.push_async_callback(records.aclose)
        taken = {log.name for log in self._logs.values()}
        is_archive = _is_below(path, self._options.archive)
        self._logs[path] = ShownLog(_unique(_log_name(path), taken), path, records, is_archive=is_archive)
        if self._ledger is None and not is_archive:
            where = budget_api.BudgetLocationOptions(path.parent, log=path)
            place = await self._opened.enter_async_context(budget_api.open_location(where))
            self._folders[path.parent] = BudgetSource(self._logs[path].name, place)


@asynccontextmanager
async def open_sources(options: SourceOptions) -> AsyncGenerator[Sources]:
    """Open the sources of a dashboard while the block runs.

    Raises:
        OptionError: If a folder or log cannot be read.

    """
    options = await asyncio.to_thread(_with_absolute_paths, options)
    async with AsyncExitStack() as opened:
        ledger = None
        if options.ledger_url is not None:
            where = budget_api.BudgetLocationOptions(None, options.ledger_url)
            ledger = await opened.enter_async_context(budget_api.open_location(where))
        yield Sources(options, opened, ledger)


def _with_absolute_paths(options: SourceOptions) -> SourceOptions:
    """Return the options with absolute paths. Raises `OptionError` for a folder or log that cannot be read."""
    named = [("--store", path) for path in options.stores]
    if options.archive is not None:
        named.append(("--archive", options.archive))
    for option, path in named:
        if (problem := _problem(path)) and not has_log(path):
            allowed = f"a log, a folder with {LOG_NAME}, or a folder of such folders"
            raise OptionError(option, f"{path}, which {problem}", allowed)
    archive = None if options.archive is None else _absolute(options.archive)
    return replace(options, stores=tuple(map(_absolute, options.stores)), archive=archive)


def _problem(folder: Path) -> str:
    """Return why a folder cannot be read, or an empty text."""
    try:
        next(folder.iterdir(), None)
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as e:
        return f"cannot be read ({e.strerror})"
    return ""


def _absolute(path: Path) -> Path:
    """Return the absolute path. Its last part is a name, and a link is followed only for this."""
    # A relative path such as `.` is part of other words and sentences, where `without_paths` would find it.
    return path.resolve() if path.name in {"", ".."} else path.absolute()


def _scanned(paths: Iterable[Path], known: Iterable[Path]) -> tuple[list[Path], frozenset[Path]]:
    """Return the logs in the folders, and the known logs that are gone. Blocks."""
    found = {log: None for path in paths for log in logs_at(path)}
    return [*found], frozenset(path for path in known if path not in found and not has_log(path))


def _name(path: Path) -> str:
    return printable(path.name)


def _log_name(log: Path) -> str:
    return _name(log.parent if log.name == LOG_NAME else log)


def _is_below(log: Path, folder: Path | None) -> bool:
    return folder is not None and log.is_relative_to(folder)


def _unique(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found
