"""The page of the fleet: workers, the lag and the dead letters of the bus, and logs."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from agentic_trading.bus.topic import DEAD_LETTERS, ConsumerLag, DeadLetter
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.errors import TradingError
from agentic_trading.llm.facts import Fact
from agentic_trading.monitor.budget_rows import NONE, WorkerRow, span_text, worker_rows
from agentic_trading.monitor.page import PageAnswer, PageRequest
from agentic_trading.monitor.sources import ShownLog, Sources
from agentic_trading.operate.choices import host_of, pluralize
from agentic_trading.operate.dead_letters import LetterFilter, LetterScan
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.port_adapters import broker_of, consumer_lags

READ_EVERY_S: Final = 5.0
"""Seconds between two readings of the bus and of the ends of logs."""
SCANNED_EVERY_S: Final = 30.0
"""Seconds between two readings of all dead letters."""
MOST_LETTERS: Final = 5_000
"""Dead letters that are read. More are only noted."""
MOST_LISTED: Final = 12
MOST_LOGS: Final = 50
DETAIL_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class LagRow:
    """The messages of a topic that a group has not finished."""

    group: str
    topic: str
    waiting: str
    in_flight: str
    tone: str


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter."""

    time: str
    reason: str
    detail: str
    topic: str
    envelope: str


@dataclass(frozen=True, slots=True)
class LogRow:
    """A log and its last record."""

    name: str
    kind: str
    lines: str
    last: str
    age: str


@dataclass(frozen=True, slots=True)
class FleetView:
    """The page, with texts that are ready to print. `bus` is an empty text without a bus."""

    now: str
    workers: tuple[WorkerRow, ...]
    shows_calls: bool
    bus: str
    lags: tuple[LagRow, ...]
    letters_title: str
    reasons: tuple[tuple[str, str], ...]
    letters: tuple[LetterRow, ...]
    links_calls: bool
    logs: tuple[LogRow, ...]
    more_logs: str


@dataclass(frozen=True, slots=True)
class FoundLetters:
    """The dead letters of a bus: counts by reason, and the newest ones."""

    total: int
    reasons: tuple[tuple[str, int], ...]
    newest: tuple[DeadLetter, ...]
    is_cut: bool


NO_LETTERS: Final = FoundLetters(0, (), (), is_cut=False)


class FleetPage:
    """Shows workers and logs, and the bus if there is one.

    A dashboard of one tenant has neither the bus nor numbers of lines, because these are of all tenants. It
    names no log without a record of the tenant.

    Args:
        sources: The sources.
        clock: The clock of ages and readings.

    """

    name = "Fleet"
    paths = ("/fleet",)

    def __init__(self, sources: Sources, *, clock: Clock | None = None) -> None:
        self._sources = sources
        self._clock = clock or SystemClock()
        self._bus = sources.bus if sources.tenant is None else None
        self._lags: Sequence[ConsumerLag] = ()
        self._letters = NO_LETTERS
        self._ends: list[tuple[ShownLog, Fact | None]] = []
        self._read_at: float | None = None
        self._scanned_at: float | None = None

    async def refresh(self) -> None:
        """Read the ends of the logs and the bus, unless they were read a moment ago."""
        now = self._clock.monotonic()
        if self._sources.readings.read_at is None:
            await self._sources.readings.read()  # later it is read for the page of budgets
        if self._read_at is not None and now - self._read_at < READ_EVERY_S:
            return
        self._ends = await self._read_ends()
        if self._bus is not None:
            self._lags = await consumer_lags(self._bus)
            if self._scanned_at is None or now - self._scanned_at >= SCANNED_EVERY_S:
                self._letters = await find_letters(self._bus)
                self._scanned_at = now
        self._read_at = now

    async def answer(self, request: PageRequest) -> PageAnswer:  # noqa: ARG002 - as pages are asked
        """Return the page."""
        logs = len(await self._sources.logs()) if self._sources.tenant is None else len(self._ends)
        return PageAnswer("agentic_trading.monitor/fleet.html.j2", self._page(logs))

    async def _read_ends(self) -> list[tuple[ShownLog, Fact | None]]:
        """Return the first logs, each with its last record. For one tenant, only those with a record of it."""
        found = list[tuple[ShownLog, Fact | None]]()
        for log in await self._sources.logs():
            if len(found) == MOST_LOGS:
                break
            end = await self._end_of(log)
            if end is not None or self._sources.tenant is None:
                found.append((log, end))
        return found

    async def _end_of(self, log: ShownLog) -> Fact | None:
        """Return the last record of a log, or None if it is empty or cannot be read."""
        try:
            query = log.records.select(newest_first=True, limit=1, tenant=self._sources.tenant)
            async with aclosing(query) as found:
                return await anext(found, None)
        except TradingError:
            return None  # a banner names a log that is gone

    def _page(self, logs: int) -> FleetView:
        readings, now = self._sources.readings, self._clock.now()
        named = [(each.name if readings.sources > 1 else "", each.view) for each in readings.views]
        letters = self._letters
        total = f"more than {MOST_LETTERS:,}" if letters.is_cut else f"{letters.total:,}"
        return FleetView(
            now=f"{now:%Y-%m-%d %H:%M:%S}",
            workers=tuple(worker_rows(named, now)),
            shows_calls=self._sources.tenant is None,
            bus="" if self._bus is None else host_of(self._bus.bus.url or ""),
            # No group reads dead letters. They have a table of their own.
            lags=tuple(_lag_row(lag) for lag in self._lags if lag.group or lag.topic != DEAD_LETTERS.name),
            letters_title=f"Dead letters: {total}",
            reasons=tuple((reason, f"{count:,}") for reason, count in letters.reasons),
            letters=tuple(map(_letter_row, letters.newest)),
            links_calls=self._sources.has_logs,
            logs=tuple(self._log_row(log, end, now) for log, end in self._ends),
            more_logs=f"{pluralize(logs - MOST_LOGS, 'more log')} not listed." if logs > MOST_LOGS else "",
        )

    def _log_row(self, log: ShownLog, end: Fact | None, now: datetime) -> LogRow:
        kind = "archive" if log.is_archive else "log"
        if end is None:
            return LogRow(log.name, kind, NONE, "no record", NONE)
        lines = f"{end.seq:,}" if self._sources.tenant is None else NONE
        return LogRow(
            log.name, kind, lines, f"{end.time:%Y-%m-%d %H:%M:%S}", f"{span_text(now - end.time)} ago"
        )


async def find_letters(config: PlatformConfig) -> FoundLetters:
    """Return the dead letters on a bus. At most `MOST_LETTERS` are read.

    Raises:
        BusUnavailableError: If the bus is unreachable.

    """
    scan = LetterScan()
    newest: list[DeadLetter] = []
    is_cut = False
    async with (
        aclosing(await asyncio.to_thread(broker_of, config)) as broker,
        aclosing(scan.letters(broker, LetterFilter())) as letters,
    ):
        async for letter in letters:
            newest = _newest([*newest, letter])
            if scan.reasons.total() >= MOST_LETTERS:
                is_cut = True
                break
    return FoundLetters(scan.reasons.total(), tuple(scan.reasons.most_common()), tuple(newest), is_cut=is_cut)


def _newest(letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    return sorted(letters, key=lambda each: each.time, reverse=True)[:MOST_LISTED]


def _lag_row(lag: ConsumerLag) -> LagRow:
    group = lag.group or "not read by any group"
    return LagRow(group, lag.topic, f"{lag.waiting:,}", f"{lag.in_flight:,}", "warn" if lag.waiting else "")


def _letter_row(letter: DeadLetter) -> LetterRow:
    detail = letter.detail if len(letter.detail) <= DETAIL_CHARS else f"{letter.detail[:DETAIL_CHARS]}…"
    return LetterRow(
        f"{letter.time:%Y-%m-%d %H:%M:%S}", letter.reason, detail, letter.source_topic, letter.envelope_id
    )
