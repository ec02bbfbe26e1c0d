"""A log against a plain list: records, duplicates, crashes, other segment sizes, compression and queries in any order."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
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
from agentic_trading.llm.facts import EVERYTHING, RecordQuery
from agentic_trading.llm.store import Record, Records
from agentic_trading.llm.stores.record_codec import id_of
from tests.build import NOW, event, interaction
from tests.contracts.records_opening import put

TENANTS = ("acme", "beta")
TRACES = ("t-1", "t-2", "t-3")


def tenant_of(record: Record) -> str:
    return record.envelope.tenant_id if isinstance(record, LLMInteraction) else record.tenant_id


def trace_of(record: Record) -> str:
    return record.envelope.trace_id if isinstance(record, LLMInteraction) else record.trace_id


QUERIES: dict[RecordQuery, Callable[[Record], bool]] = {
    EVERYTHING: lambda one: True,
    RecordQuery(kind=("interaction",)): lambda one: isinstance(one, LLMInteraction),
    RecordQuery(kind=("bar.closed", "order.submitted")): lambda one: isinstance(one, Event),
    RecordQuery(trace_id="t-1"): lambda one: trace_of(one) == "t-1",
    RecordQuery(tenant=("acme",), since=NOW): lambda one: tenant_of(one) == "acme",
    RecordQuery(until=NOW): lambda one: False,
    RecordQuery(where="cost_nusd > 0 AND time = '2026-01-02T00:00:00.000000Z'"): lambda one: isinstance(
        one, LLMInteraction
    ),
    RecordQuery(subject=("BTCUSDT",), where="tenant <> 'beta'"): lambda one: (
        isinstance(one, Event) and tenant_of(one) != "beta"
    ),
}
"""Queries, and whether they select a record."""


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

    @rule(
        query=st.sampled_from(list(QUERIES)),
        tenant=st.sampled_from([*TENANTS, None]),
        newest_first=st.booleans(),
        limit=st.sampled_from([None, 1, 3]),
    )
    def ask_by_facts(
        self, query: RecordQuery, tenant: str | None, *, newest_first: bool, limit: int | None
    ) -> None:
        records: Records = self.store.records
        seen = [
            seq
            for seq, one in enumerate(self.kept, start=1)
            if tenant in {None, tenant_of(one)} and QUERIES[query](one)
        ]

        async def ask() -> list[int]:
            facts = records.select(query, newest_first=newest_first, limit=limit, tenant=tenant)
            return [fact.seq async for fact in facts]

        assert self.runner.run(ask()) == (seen[::-1] if newest_first else seen)[:limit]
        assert self.runner.run(records.count(query, tenant=tenant)) == len(seen)
        sums = self.runner.run(records.sums("tenant", query=query, tenant=tenant))
        tenants = Counter(tenant_of(self.kept[seq - 1]) for seq in seen)
        assert {one.key[0]: one.records for one in sums} == tenants
        chains = self.runner.run(records.traces(100, query=query, tenant=tenant))
        assert {chain.trace_id for chain in chains} == {trace_of(self.kept[seq - 1]) for seq in seen}
        timed = self.runner.run(records.latencies(query, tenant=tenant))
        assert sum(one.attempts for one in timed) == sum(
            isinstance(self.kept[seq - 1], LLMInteraction) for seq in seen
        )
        ends = sorted({*seen[:1], *seen[-1:]})
        lines = self.runner.run(records.lines(ends, tenant=tenant))
        assert [line.record for line in lines] == [self.kept[seq - 1].wire for seq in ends]

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def ask_for_effects(self, data: st.DataObject) -> None:
        cause = data.draw(st.sampled_from(self.kept))
        effect = event(
            "order.submitted",
            trace_id=trace_of(cause),
            tenant_id=tenant_of(cause),
            causation_id=id_of(cause),
        )
        self.runner.run(put(self.store, [effect]))
        self.kept.append(effect)

        async def ask(query: RecordQuery) -> list[int]:
            return [fact.seq async for fact in self.store.records.caused_by(query)]

        assert self.runner.run(ask(RecordQuery(trace_id=trace_of(cause))))[-1] == len(self.kept)
        assert self.runner.run(ask(RecordQuery(after=len(self.kept) - 1))) == []

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


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(stateful_step_count=25)
