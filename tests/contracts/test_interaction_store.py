"""Every interaction store keeps every promise, and one that breaks a promise is found out."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.llm import (
    Durability,
    JsonFileInteractionStore,
    LLMInteraction,
    MemoryInteractionStore,
    RecordConflictError,
    RecordError,
)
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import ChainedRecord, LogEntry, Record, Verification
from agentic_trading.llm.stores.jsonl.reader import LogReader
from agentic_trading.llm.stores.record_codec import id_of, record_of
from tests.build import event
from tests.contracts import store_promises as promises
from tests.contracts.store_promises import PROMISES
from tests.contracts.store_subject import Promise, Subject
from tests.llm.stores.jsonl_logs import change_line


def flipped(line: bytes) -> bytes:
    return line.replace(b"BTCUSDT", b"BTCUSDC", 1)


def in_memory(store: MemoryInteractionStore) -> Subject:
    async def found() -> list[Record]:
        return [record_of(read_line(line).record) for line in store._lines]

    def damage(number: int) -> None:
        store._lines[number - 1] = flipped(store._lines[number - 1])

    return Subject(store, found, damage)


def in_a_file(store: JsonFileInteractionStore, path: Path) -> Subject:
    def read() -> list[Record]:
        reader = LogReader(path, may_be_missing=True)
        return [reader.record(line) for line, _ in reader.walk()]

    def damage(number: int) -> None:
        change_line(path, number, flipped)

    return Subject(store, lambda: asyncio.to_thread(read), damage)


def memory(folder: Path) -> Subject:
    return in_memory(MemoryInteractionStore())


def jsonl_group(folder: Path) -> Subject:
    path = folder / "log.jsonl"
    return in_a_file(JsonFileInteractionStore(path), path)


def jsonl_relaxed(folder: Path) -> Subject:
    path = folder / "log.jsonl"
    store = JsonFileInteractionStore(path, durability=Durability.RELAXED)
    subject = in_a_file(store, path)
    subject.acknowledged = store.flush
    return subject


def jsonl_segments(folder: Path) -> Subject:
    path = folder / "log.jsonl"
    return in_a_file(JsonFileInteractionStore(path, segment_bytes=1), path)  # each line in its own segment


def jsonl_segments_relaxed(folder: Path) -> Subject:
    path = folder / "log.jsonl"
    store = JsonFileInteractionStore(path, segment_bytes=1, durability=Durability.RELAXED)
    subject = in_a_file(store, path)
    subject.acknowledged = store.flush
    return subject


def jsonl_compressed(folder: Path) -> Subject:
    path = folder / "log.jsonl"
    return in_a_file(JsonFileInteractionStore(path, segment_bytes=9_000, compress=True), path)


ADAPTERS = [memory, jsonl_group, jsonl_relaxed, jsonl_segments, jsonl_segments_relaxed, jsonl_compressed]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
async def test_interaction_store_keeps_promise(
    adapter: Callable[[Path], Subject], promise: Promise, tmp_path: Path
) -> None:
    subject = adapter(tmp_path)
    async with aclosing(subject.store):
        await promise(subject)


class LosesOrder(MemoryInteractionStore):
    """Write the second record before the first."""

    _held: Record | None = None

    def _keep(self, record: Record) -> int:
        if self._held is None:
            self._held = record
            return 0
        super()._keep(record)
        return super()._keep(self._held)


class StoresTwice(MemoryInteractionStore):
    """Keep a record as often as it is given."""

    def _keep(self, record: Record) -> int:
        self._known.clear()
        return super()._keep(record)


class KeepsTheLast(MemoryInteractionStore):
    """Let a record that is given again take the place of the first."""

    async def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        async for entry in super().scan(after):
            record = entry.record
            if isinstance(record, LLMInteraction):
                record = LLMInteraction(
                    envelope=record.envelope, result=record.result, stored_at=record.stored_at
                )
                record.result.__dict__["latency_ms"] = 2.0
            yield LogEntry(entry.seq, record, entry.hash)


class AcknowledgesBeforeItIsSafe(JsonFileInteractionStore):
    """Return while the newest record is still in memory."""

    _held: Record | None = None

    async def _keep(self, record: Record) -> int:
        held, self._held = self._held, record
        return 0 if held is None else await super()._keep(held)


class KeepsWhatItWasGiven(MemoryInteractionStore):
    """Hold on to the caller's own objects."""

    def __init__(self) -> None:
        super().__init__()
        self._given: list[Record] = []

    def _keep(self, record: Record) -> int:
        kept = super()._keep(record)
        self._given.append(record)
        return kept

    async def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        async for entry in super().scan(after):
            yield LogEntry(entry.seq, self._given[entry.seq - 1], entry.hash)


class RoundsNumbers(MemoryInteractionStore):
    """Give numbers back as floats."""

    async def get_by_envelope_id(
        self, envelope_id: str, *, tenant: str | None = None
    ) -> LLMInteraction | None:
        found = await super().get_by_envelope_id(envelope_id)
        assert found is not None
        for name, value in found.result.parsed_output.items():
            found.result.parsed_output[name] = float(value) if isinstance(value, Decimal) else value
        return found


class GivesTheFirstAttempt(MemoryInteractionStore):
    """Return the oldest attempt at an envelope."""

    async def get_by_envelope_id(
        self, envelope_id: str, *, tenant: str | None = None
    ) -> LLMInteraction | None:
        return next(iter(await self.records.by_envelope(envelope_id)), None)


class GivesEventsForAttempts(MemoryInteractionStore):
    """Return everything of a trace."""

    async def get_by_trace_id(self, trace_id: str, *, tenant: str | None = None) -> Any:
        return await self.records.trace(trace_id)


class GivesTheOldestFirst(MemoryInteractionStore):
    """Return the newest in the wrong order."""

    async def recent(self, limit: int = 10, *, tenant: str | None = None) -> list[LLMInteraction]:
        return (await super().recent(limit))[::-1]


class ScansOneTooMany(MemoryInteractionStore):
    """Give the entry at the number too."""

    def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        return super().scan(after - 1)


class StopsFollowing(MemoryInteractionStore):
    """End a `follow` where the log ends."""

    async def follow(self, after: int = 0) -> AsyncGenerator[Sequence[ChainedRecord]]:
        yield [read_line(raw) for raw in self._lines[after:]]


class DropsTheRest(MemoryInteractionStore):
    """End a `follow` when the store is closed, wherever it is."""

    async def follow(self, after: int = 0) -> AsyncGenerator[Sequence[ChainedRecord]]:
        async for batch in super().follow(after):
            if self._is_closed:
                return
            yield batch


class BelievesItself(MemoryInteractionStore):
    """Verify without looking."""

    async def verify(self) -> Verification:
        return Verification(len(self._lines), self._head.hash)


class KeepsWhatItRefused(MemoryInteractionStore):
    """Leave a gap where a record could not be spelled."""

    def _keep(self, record: Record) -> int:
        try:
            return super()._keep(record)
        except RecordError:
            super()._keep(event())
            raise


class KeepsAnswersOfOthers(MemoryInteractionStore):
    """Give a result the id of the envelope that it was handed in with."""

    async def store(self, interaction: LLMInteraction) -> int:
        asked = {"envelope_id": interaction.envelope.envelope_id}
        return await super().store(
            interaction.model_copy(update={"result": interaction.result.model_copy(update=asked)})
        )


class SwallowsConflicts(MemoryInteractionStore):
    """Drop another record under a known id without a word."""

    def _keep(self, record: Record) -> int:
        with suppress(RecordConflictError):
            return super()._keep(record)
        return 0


class HasOneSpaceOfIds(MemoryInteractionStore):
    """Take an event for the interaction that has its id."""

    def _keep(self, record: Record) -> int:
        taken = {key.partition(":")[2] for key in self._known}
        if id_of(record) not in taken:
            return super()._keep(record)
        return 0


class CountsWhatItWasGiven(MemoryInteractionStore):
    """Number records that are kept already as if they got lines of their own."""

    _given = 0

    def _keep(self, record: Record) -> int:
        super()._keep(record)
        self._given += 1
        return self._given


class NeverCloses(MemoryInteractionStore):
    """Take records for ever."""

    async def aclose(self) -> None:
        return


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (LosesOrder, promises.keeps_records_in_the_order_given),
        (LosesOrder, promises.keeps_the_order_of_calls_that_wait_together),
        (StoresTwice, promises.keeps_a_record_once_and_as_it_was_first_given),
        (StoresTwice, promises.keeps_a_record_once_when_it_is_given_twice_at_once),
        (CountsWhatItWasGiven, promises.says_where_a_record_stands),
        (KeepsTheLast, promises.keeps_a_record_once_and_as_it_was_first_given),
        (AcknowledgesBeforeItIsSafe, promises.has_made_safe_what_it_acknowledged),
        (KeepsWhatItWasGiven, promises.is_not_changed_by_changes_to_what_it_was_given),
        (RoundsNumbers, promises.gives_back_equal_records),
        (GivesTheFirstAttempt, promises.finds_the_last_attempt_at_an_envelope),
        (GivesEventsForAttempts, promises.finds_the_attempts_of_a_trace_oldest_first),
        (GivesTheOldestFirst, promises.gives_the_newest_attempts_newest_first),
        (ScansOneTooMany, promises.scans_what_stands_behind_a_number_and_ends),
        (StopsFollowing, promises.follows_what_is_there_and_what_comes_until_it_is_closed),
        (DropsTheRest, promises.lets_a_follower_finish_when_it_is_closed),
        (BelievesItself, promises.names_the_first_broken_line),
        (KeepsWhatItRefused, promises.refuses_what_it_cannot_spell_and_goes_on),
        (KeepsAnswersOfOthers, promises.refuses_an_answer_to_another_envelope),
        (SwallowsConflicts, promises.refuses_another_event_under_a_known_id_and_goes_on),
        (SwallowsConflicts, promises.refuses_another_answer_under_a_known_attempt_and_goes_on),
        (HasOneSpaceOfIds, promises.keeps_an_event_and_an_interaction_with_the_same_id),
        (NeverCloses, promises.takes_nothing_once_it_is_closed),
    ],
)
async def test_broken_interaction_store_is_detected(
    broken: type[MemoryInteractionStore | JsonFileInteractionStore], promise: Promise, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    subject = (
        in_a_file(broken(path), path) if issubclass(broken, JsonFileInteractionStore) else in_memory(broken())
    )

    with pytest.raises((AssertionError, IndexError, TimeoutError, pytest.fail.Exception)):
        await promise(subject)

    await subject.store.aclose()
