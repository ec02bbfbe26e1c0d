"""A log against a plain list: records, duplicates, crashes, other segment sizes, compression and queries in any order."""

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentic_trading.llm import (
    Event,
    JsonFileInteractionStore,
    LLMInteraction,
    LLMResult,
    MemoryInteractionStore,
    RecordConflictError,
)
from agentic_trading.llm.store import Record, Records
from agentic_trading.llm.stores.record_codec import id_of
from tests.build import event, interaction
from tests.contracts.records_opening import put

TENANTS = ("acme", "beta")
TRACES = ("t-1", "t-2", "t-3")


class LogMachine(RuleBasedStateMachine):
    """Keep records in a store and in a list, and compare them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(mkdtemp(prefix="agentic-log-"))
        self.crashes = 0
        self.kept: list[Record] = []

    @initialize(segment_bytes=st.sampled_from([None, 1, 2_000, 20_000]))
    def open(self, segment_bytes: int | None) -> None:
        self.store: MemoryInteractionStore | JsonFileInteractionStore = (
            MemoryInteractionStore() if segment_bytes is None else self.opened(segment_bytes, compress=False)
        )

    def opened(self, segment_bytes: int, *, compress: bool) -> JsonFileInteractionStore:
        path = self.folder / str(self.crashes) / "log.jsonl"
        return JsonFileInteractionStore(path, segment_bytes=segment_bytes, compress=compress)

    @rule(count=st.integers(1, 5), trace=st.sampled_from(TRACES), tenant=st.sampled_from(TENANTS))
    def add_events(self, count: int, trace: str, tenant: str) -> None:
        events = [event(trace_id=trace, tenant_id=tenant) for _ in range(count)]

        async def add() -> None:
            async with asyncio.TaskGroup() as group:
                for one in events:
                    group.create_task(self.store.record(one))

        self.runner.run(add())
        self.kept += events

    @rule()
    def add_attempt(self) -> None:
        one = interaction()
        self.runner.run(put(self.store, [one]))
        self.kept.append(one)

    @rule()
    def add_all_again(self) -> None:
        async def add() -> list[int]:
            async with asyncio.TaskGroup() as group:
                added = [
                    group.create_task(
                        self.store.store(one) if isinstance(one, LLMInteraction) else self.store.record(one)
                    )
                    for one in self.kept
                ]
            return [each.result() for each in added]

        assert self.runner.run(add()) == [*range(1, len(self.kept) + 1)]

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def add_other_record_with_known_id(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.kept))
        if isinstance(one, Event):
            other: Record = one.model_copy(update={"body": {"other": True}})
        else:
            asked = one.envelope.model_copy(update={"instructions": "Other."})
            other = LLMInteraction(envelope=asked, result=LLMResult(envelope_id=asked.envelope_id))
        with pytest.raises(RecordConflictError):
            self.runner.run(put(self.store, [other]))

    @precondition(lambda self: isinstance(self.store, JsonFileInteractionStore))
    @rule(segment_bytes=st.sampled_from([1, 2_000, 20_000]), compress=st.booleans(), is_crash=st.booleans())
    def reopen(self, segment_bytes: int, *, compress: bool, is_crash: bool) -> None:
        if is_crash:  # the files as a killed process leaves them
            before = self.folder / str(self.crashes)
            self.crashes += 1
            finish_sealing(self.store)
            if before.exists():
                shutil.copytree(
                    before, self.folder / str(self.crashes), ignore=shutil.ignore_patterns("*-wal", "*-shm")
                )
        self.runner.run(self.store.aclose())
        self.store = self.opened(segment_bytes, compress=compress)

    @invariant()
    def has_all_records_in_order(self) -> None:
        if not hasattr(self, "store"):
            return

        async def read() -> list[Record]:
            return [entry.record async for entry in self.store.scan()]

        assert self.runner.run(read()) == self.kept
        assert self.runner.run(self.store.verify()).is_intact

    @rule(trace=st.sampled_from(TRACES), tenant=st.sampled_from([*TENANTS, None]))
    def ask(self, trace: str, tenant: str | None) -> None:
        records: Records = self.store.records
        seen = [one for one in self.kept if tenant in {None, tenant_of(one)}]

        assert self.runner.run(records.trace(trace, tenant=tenant)) == [
            one for one in seen if trace_of(one) == trace
        ]
        spent = self.runner.run(records.spend("tenant", tenant=tenant))
        attempts = Counter(tenant_of(one) for one in seen if isinstance(one, LLMInteraction))
        assert {one.key[0]: one.attempts + one.refused for one in spent} == attempts
        for one in seen[:3]:
            assert self.runner.run(records.find(id_of(one), tenant=tenant)) == one

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.runner.run(self.store.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)


def finish_sealing(store: MemoryInteractionStore | JsonFileInteractionStore) -> None:
    """Wait for the thread that compresses segments, because a copy of a folder takes longer than a crash."""
    if isinstance(store, JsonFileInteractionStore) and (file := store._writer._file) is not None:
        while file._sealed._to_compress or file._sealed._waiting:
            file._sealed._worker.submit(lambda: None).result()
        file._sealed._worker.submit(lambda: None).result()


def tenant_of(record: Record) -> str:
    return record.envelope.tenant_id if isinstance(record, LLMInteraction) else record.tenant_id


def trace_of(record: Record) -> str:
    return record.envelope.trace_id if isinstance(record, LLMInteraction) else record.trace_id


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(stateful_step_count=25)
