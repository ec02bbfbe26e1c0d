"""The archive: all lines of all logs of a bus in one log, each held against its own hash, and none of them lost unnoticed."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from agentic_trading.audit import verify
from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.codec import dead_letter_message
from agentic_trading.bus.errors import (
    BusError,
    BusUnavailableError,
    MessageTooLargeError,
    PartitionsElsewhereError,
    UnreadableMessageError,
)
from agentic_trading.bus.log_stream import LogHead, StreamedLine
from agentic_trading.bus.message import Delivery
from agentic_trading.clock import Clock
from agentic_trading.governance.events import WARNINGS
from agentic_trading.ids import derived_id, random_id
from agentic_trading.llm.errors import RecordConflictError, RecordError, StoreError
from agentic_trading.llm.event import PLATFORM, ArchiveStarted, Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.log_line import IndexRow, index_row_of
from agentic_trading.llm.store import ChainedRecord, Records
from agentic_trading.logger import get_logger

log = get_logger()

ARCHIVE_GROUP: Final = "archive"
AT_ONCE: Final = 1000
"""The most lines between two waits for the disk."""

LOOKS_EVERY_S: Final = 0.5
HEAD_EVERY_S: Final = 60.0
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0

_ONCE: Final = frozenset(warning.KIND for warning in WARNINGS)

ASSIGNED_WITHIN_S: Final = 30.0
"""How long an archiver may have fewer partitions than the topic. After a kill, the group moves them within 15 seconds."""

PARTITIONS_EVERY_S: Final = 10.0


class ArchiveLog(verify.ReadableLog, Protocol):
    """The log of an archive: a store that also keeps lines of other logs."""

    @property
    def records(self) -> Records:
        """What the log knows."""
        ...

    async def copy(self, line: ChainedRecord) -> int:
        """Keep the record in a line of another log; return the number of its line here."""
        ...

    async def record(self, event: Event) -> int:
        """Keep one event."""
        ...

    async def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last line."""
        ...

    async def flush(self) -> None:
        """Return when all that was accepted is on disk."""
        ...


@dataclass(slots=True)
class ArchiveSummary:
    """What an archiver did: messages that came, records that were new, dead letters; and the logs that the archive knows."""

    messages: int = 0
    records: int = 0
    dead_letters: int = 0
    logs: int = 0

    @property
    def known(self) -> int:
        """How many messages held a record that the archive had before."""
        return max(self.messages - self.records - self.dead_letters, 0)


class Archiver:
    """Keep what comes on the stream of records; `opened_archive` makes one.

    A line is acknowledged when its record is on disk, and so is what the archive has of the line's log: after a crash
    lines come twice, and none is missing. A record is kept once; the same one from another log is known by its id, and one
    with other content under a known id becomes a dead letter, `conflict`. One archiver at a time reads for an archive.
    """

    def __init__(
        self,
        store: ArchiveLog,
        state: verify.ArchiveState,
        folder: Path | None,
        broker: topic_api.Broker,
        clock: Clock,
    ) -> None:
        self._store = store
        self._state = state
        self._folder = folder
        self._broker = broker
        self._clock = clock
        self._earlier = self._last = state.lines
        self._summary = ArchiveSummary(logs=len(state.sources))
        self._head_at = clock.monotonic()
        self._head_of = 0
        self._named: set[tuple[str, str]] = set()
        self._is_stopped = False

    @property
    def state(self) -> verify.ArchiveState:
        """What the archive has of each log."""
        return self._state

    def stop(self) -> None:
        """Let `run` end after the lines at hand. Harmless twice."""
        self._is_stopped = True

    async def run(self, *, until_end: bool = False) -> ArchiveSummary:
        """Archive what comes until `stop`, or with `until_end` all that the topic has at the start; return what was done.

        A bus that cannot be reached is tried again. An archiver that does not have all partitions of the topic warns; with
        `until_end` it raises `PartitionsElsewhereError`. Raises `StoreError` for a disk that takes no more, and with
        `until_end` what the bus raises at the start.
        """
        async with aclosing(await self._subscribed(tries=not until_end)) as reader:
            partitions = _Partitions(reader, self._clock)
            while not self._is_stopped and not (until_end and await partitions.are_at_end()):
                if batch := await _batch(reader):
                    await self._archive(reader, batch)
                if not until_end:
                    await partitions.warn()
                if self._clock.monotonic() - self._head_at >= HEAD_EVERY_S:
                    await self._publish_head()
            await self._publish_head(is_last=True)
        return self._summary

    async def _subscribed(self, *, tries: bool) -> topic_api.Subscription:
        if not tries:
            return await self._broker.subscribe([topic_api.RECORDS], ARCHIVE_GROUP)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(BusUnavailableError),
            wait=wait_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
            stop=lambda _: self._is_stopped,
            sleep=self._clock.sleep,
            before_sleep=_log_away,
            reraise=True,
        )
        return await retrying(self._broker.subscribe, [topic_api.RECORDS], ARCHIVE_GROUP)

    async def _archive(self, reader: topic_api.Subscription, batch: Sequence[Delivery]) -> None:
        """Keep a batch and acknowledge it; where its dead letters cannot be sent, it comes again."""
        try:
            for delivery in batch:
                await self._keep(delivery)
        except BusError as e:
            log.warning("archive_waits", reason=str(e))
            for delivery in batch:
                await reader.give_back(delivery)
            await self._clock.sleep(LOOKS_EVERY_S)
            return
        await self._store.flush()
        await self._note()
        for delivery in batch:
            await reader.ack(delivery)
        self._summary.messages += len(batch)

    async def _keep(self, delivery: Delivery) -> None:
        try:
            streamed = StreamedLine.of(delivery.message)
        except UnreadableMessageError as e:
            await self._dead_letter(delivery, e.reason, e.detail)
            return
        line, kind, is_new = streamed.line, "", False
        try:
            row = index_row_of(line.line)  # without one, no query could be answered any more
            kind = row.kind
            seq = await self._store.copy(line)
            is_new = seq > self._last
            self._last = max(self._last, seq)
            if seq <= self._earlier and row.attempt:
                await self._check_same(line, row)
        except RecordConflictError as e:
            if kind not in _ONCE:  # else another worker gave the same warning, half a second apart
                await self._dead_letter(delivery, "conflict", str(e))
                self._state.conflicts += 1
        except (RecordError, ValueError, LookupError, TypeError) as e:
            await self._dead_letter(delivery, "unrecordable", str(e))
        self._summary.records += is_new
        source = self._state.sources.setdefault(streamed.log_id, verify.SourceLog())
        if problem := source.add(line, is_new=is_new):
            log.error("archive_line_wrong", log_id=streamed.log_id, problem=problem)

    async def _check_same(self, line: ChainedRecord, row: IndexRow) -> None:
        """Raise `RecordConflictError` for an attempt that an earlier process kept with other content.

        Of records of an earlier process the log itself compares the request alone. When an attempt was recorded may
        differ: two workers have written it.
        """
        kept = await self._store.records.find(row.id, tenant=row.tenant)
        if not isinstance(kept, LLMInteraction):
            return
        other = LLMInteraction.from_wire(line.record)
        differs = [
            name
            for name, one, another in (
                ("envelope", kept.envelope.envelope_hash, other.envelope.envelope_hash),
                ("result", _without_time(kept), _without_time(other)),
            )
            if one != another
        ]
        if differs:
            hint = "the first one is kept; see which of the two was acted on"
            raise RecordConflictError(row.id, ", ".join(differs), hint)

    async def _note(self) -> None:
        """Put on disk what the archive has now."""
        self._state.lines, self._state.hash = await self._store.head()
        self._summary.logs = len(self._state.sources)
        if self._folder is not None:
            await asyncio.to_thread(verify.write_state, self._folder, self._state)

    async def _dead_letter(self, delivery: Delivery, reason: str, detail: str) -> None:
        letter = topic_api.DeadLetter.of(delivery, reason=reason, detail=detail, time=self._clock.now())
        log.warning(
            "dead_letter", reason=reason, detail=detail, topic=delivery.topic, position=delivery.position
        )
        try:
            await self._broker.publish(topic_api.DEAD_LETTERS, dead_letter_message(letter))
        except MessageTooLargeError:
            await self._broker.publish(topic_api.DEAD_LETTERS, dead_letter_message(letter.small()))
        self._summary.dead_letters += 1

    async def _publish_head(self, *, is_last: bool = False) -> None:
        """Say on the bus where the archive's log ends, and in the program's log what it lacks for longer, at the end all."""
        self._head_at = self._clock.monotonic()
        found = set(self._state.findings())
        for log_id, problem in sorted(found if is_last else found & self._named):
            log.error("archive_incomplete", log_id=log_id, problem=problem)
        self._named = found
        if self._state.lines == self._head_of:
            return
        head = LogHead.now(self._state.archive_id, (self._state.lines, self._state.hash), self._clock.now())
        try:
            await self._broker.publish(topic_api.HEADS, head.message())
            self._head_of = self._state.lines
        except BusError as e:
            log.warning("archive_head_unpublished", reason=str(e))


class _Partitions:
    """The partitions of the stream of records: which of them this reader has, and whether it is at their ends."""

    def __init__(self, reader: topic_api.Subscription, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._ends: dict[int, int] = {}
        self._missing: list[int] = []
        self._complete_at = self._asked_at = clock.monotonic()
        self._has_warned = False

    async def are_at_end(self) -> bool:
        """Whether all that the topic had at the first call is archived; raises `PartitionsElsewhereError`.

        A bus that does not answer is asked again.
        """
        try:
            found = await self._reader.progress()
        except BusUnavailableError as e:
            log.warning("archive_waits", reason=str(e))
            return False
        self._note(found)
        if self._missing and self._missing_s > ASSIGNED_WITHIN_S:
            raise PartitionsElsewhereError(topic_api.RECORDS.name, self._missing, len(found))
        for each in found:
            if each.done is not None:
                self._ends.setdefault(each.partition, each.end)
        return bool(found) and all(
            each.done is not None and each.done >= self._ends[each.partition] for each in found
        )

    async def warn(self) -> None:
        """Log when this archiver has not had all partitions for a while, and when it has them again."""
        if self._clock.monotonic() - self._asked_at < PARTITIONS_EVERY_S:
            return
        try:
            found = await self._reader.progress()
        except BusError:  # the reader itself says so
            found = []
        self._asked_at = self._clock.monotonic()
        if found:
            self._note(found)
        is_incomplete = bool(self._missing) and self._missing_s > ASSIGNED_WITHIN_S
        if is_incomplete and not self._has_warned:
            why = "another archiver has the others, or the group does not assign them; stop the other one, or restart this one"
            log.warning("archive_partitions_missing", missing=self._missing, of=len(found), perhaps=why)
        elif self._has_warned and not self._missing:
            log.warning("archive_partitions_complete", of=len(found))
        self._has_warned = bool(self._missing) and (is_incomplete or self._has_warned)

    @property
    def _missing_s(self) -> float:
        return self._clock.monotonic() - self._complete_at

    def _note(self, found: Sequence[topic_api.PartitionProgress]) -> None:
        self._missing = [each.partition for each in found if each.done is None]
        if found and not self._missing:
            self._complete_at = self._clock.monotonic()


async def _batch(reader: topic_api.Subscription) -> list[Delivery]:
    """Return what is ready, waiting a little for the first of it."""
    batch: list[Delivery] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOKS_EVERY_S):
            batch.append(await reader.take())
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            while 0 < len(batch) < AT_ONCE:
                batch.append(await reader.take())
    return batch


def _without_time(interaction: LLMInteraction) -> dict[str, object]:
    return interaction.result.model_dump(exclude={"timestamp"})


def _log_away(state: RetryCallState) -> None:
    log.warning("archive_waits", reason=str(state.outcome.exception()) if state.outcome else "")


async def opened_archive(
    store: ArchiveLog, folder: Path | None, broker: topic_api.Broker, clock: Clock
) -> Archiver:
    """Return the archiver of the log `store`, whose `folder` also says what it has of each log.

    An empty log becomes an archive. Raises `StoreError` for a log that is none, and for one that ends before the line
    that it had: what was acknowledged is then gone.
    """
    lines, _ = await store.head()
    state = None if folder is None else await asyncio.to_thread(verify.read_state, folder)
    if lines == 0 and state is None:
        state = await _begun(store, clock)
    else:
        archive_id = await verify.archive_id_of(store)
        place = folder or Path()
        if not archive_id:
            raise StoreError(place, "it holds a log that is no archive; choose a folder of its own")
        state = state or verify.ArchiveState(archive_id)
        if state.archive_id != archive_id or await verify.hash_of(store, state.lines) != state.hash:
            reason = f"it holds {lines} lines, and not the {state.lines} that the archive had; restore its log, or choose another folder"
            raise StoreError(place, reason)
    state.lines, state.hash = await store.head()
    if folder is not None:
        await asyncio.to_thread(verify.write_state, folder, state)
    return Archiver(store, state, folder, broker, clock)


async def _begun(store: ArchiveLog, clock: Clock) -> verify.ArchiveState:
    archive_id = random_id()
    started = ArchiveStarted(archive_id=archive_id).as_event(
        event_id=derived_id(ArchiveStarted.KIND, archive_id),
        trace_id=archive_id,
        tenant_id=PLATFORM,
        time=clock.now(),
    )
    await store.record(started)
    await store.flush()
    return verify.ArchiveState(archive_id)
