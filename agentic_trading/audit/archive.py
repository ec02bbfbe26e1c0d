"""The archive: all lines of all logs of a bus, in one log. Missing and changed lines are detected."""

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
"""How long an archiver may lack partitions. After a kill, the group moves them within 15 seconds."""

PARTITIONS_EVERY_S: Final = 10.0


class ArchiveLog(verify.ReadableLog, Protocol):
    """The log of an archive: a store that also keeps lines of other logs."""

    @property
    def records(self) -> Records:
        """The records of the log."""
        ...

    async def copy(self, line: ChainedRecord) -> int:
        """Store the record of a line of another log. Return the number of its line here."""
        ...

    async def record(self, event: Event) -> int:
        """Store an event. Return the number of its line."""
        ...

    async def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last line."""
        ...

    async def flush(self) -> None:
        """Return when all accepted records are on disk."""
        ...


@dataclass(slots=True)
class ArchiveSummary:
    """Counts of an archiver.

    Attributes:
        messages: Messages received.
        records: New records.
        dead_letters: Dead letters sent.
        logs: Logs in the archive.

    """

    messages: int = 0
    records: int = 0
    dead_letters: int = 0
    logs: int = 0

    @property
    def known(self) -> int:
        """Messages with a record that was in the archive already."""
        return max(self.messages - self.records - self.dead_letters, 0)


class Archiver:
    """Archives the stream of records. Create it with `opened_archive`.

    A line is acknowledged after its record and the state of its log are on disk. After a crash, lines are
    delivered again, and none is missing. Each record is stored once. A record with a known id and different
    content becomes a dead letter, `conflict`. Run one archiver at a time per archive.
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
        """The state of each log in the archive."""
        return self._state

    def stop(self) -> None:
        """End `run` after the current lines. Calling it twice is harmless."""
        self._is_stopped = True

    async def run(self, *, until_end: bool = False) -> ArchiveSummary:
        """Archive records until `stop`, retrying if the bus is unreachable.

        A warning is logged if partitions of the topic are assigned elsewhere.

        Args:
            until_end: Whether to stop after all records that the topic had at the start.

        Returns:
            The counts.

        Raises:
            StoreError: If the disk is full or fails.
            PartitionsElsewhereError: With `until_end`, if another archiver has partitions of the topic.
            BusError: With `until_end`, if the bus cannot be used at the start.

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
        """Store a batch and acknowledge it. If dead letters cannot be sent, return the batch to the bus."""
        try:
            for delivery in batch:
                await self._keep(delivery)
        except BusError as e:
            log.warning("archive_waits", reason=str(e))
            for delivery in batch:
                await reader.give_back(delivery)
            await self._clock.sleep(LOOKS_EVERY_S)
            return
        # Acknowledged only after this, because the bus may delete acknowledged lines.
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
            row = index_row_of(line.line)  # raises here, because a line without index would break all queries
            kind = row.kind
            seq = await self._store.copy(line)
            is_new = seq > self._last
            self._last = max(self._last, seq)
            if seq <= self._earlier and row.attempt:
                await self._check_same(line, row)
        except RecordConflictError as e:
            if kind not in _ONCE:  # otherwise two workers gave the same warning at slightly different times
                await self._dead_letter(delivery, "conflict", str(e))
                self._state.conflicts += 1
        except (RecordError, ValueError, LookupError, TypeError) as e:
            await self._dead_letter(delivery, "unrecordable", str(e))
        self._summary.records += is_new
        source = self._state.sources.setdefault(streamed.log_id, verify.SourceLog())
        if problem := source.add(line, is_new=is_new):
            log.error("archive_line_wrong", log_id=streamed.log_id, problem=problem)

    async def _check_same(self, line: ChainedRecord, row: IndexRow) -> None:
        """Raise `RecordConflictError` if an earlier process stored other content for this attempt."""
        # For records of an earlier process, the log itself compares only the request. The time of the result is left
        # out, because two workers may have written the same attempt.
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
            hint = "the first one is kept. Check which of the two was acted on"
            raise RecordConflictError(row.id, ", ".join(differs), hint)

    async def _note(self) -> None:
        """Write the state of the archive to disk."""
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
        """Publish the end of the archive on the bus, and log missing lines that persist.

        At the end, log all.
        """
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
    """The partitions of the stream that this reader has, and their progress."""

    def __init__(self, reader: topic_api.Subscription, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._ends: dict[int, int] = {}
        self._missing: list[int] = []
        self._complete_at = self._asked_at = clock.monotonic()
        self._has_warned = False

    async def are_at_end(self) -> bool:
        """Whether all records that the topic had at the first call are archived.

        False if the bus does not answer. Raises `PartitionsElsewhereError`.
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
        """Log when partitions have been missing for a while, and when all are back."""
        if self._clock.monotonic() - self._asked_at < PARTITIONS_EVERY_S:
            return
        try:
            found = await self._reader.progress()
        except BusError:  # the reader logs it
            found = []
        self._asked_at = self._clock.monotonic()
        if found:
            self._note(found)
        is_incomplete = bool(self._missing) and self._missing_s > ASSIGNED_WITHIN_S
        if is_incomplete and not self._has_warned:
            why = "another archiver reads them, or the group does not assign them. Stop the other one, or restart this one"
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
    """Return the available deliveries, after a short wait for the first one."""
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
    """Return the archiver of a log. An empty log becomes an archive.

    Args:
        store: The log of the archive.
        folder: The folder of the archive's state. None keeps the state in memory.
        broker: The bus.
        clock: The clock.

    Raises:
        StoreError: If the log is not an archive, or is shorter than its state, so that acknowledged records
            are lost.

    """
    lines, _ = await store.head()
    state = None if folder is None else await asyncio.to_thread(verify.read_state, folder)
    if lines == 0 and state is None:
        state = await _begun(store, clock)
    else:
        archive_id = await verify.archive_id_of(store)
        place = folder or Path()
        if not archive_id:
            raise StoreError(place, "it contains a log that is not an archive. Choose an empty folder")
        state = state or verify.ArchiveState(archive_id)
        if state.archive_id != archive_id or await verify.hash_of(store, state.lines) != state.hash:
            reason = f"its log has {lines} lines, and does not contain the {state.lines} lines that the archive had. Restore the log, or choose another folder"
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
