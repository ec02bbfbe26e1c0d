"""Nothing leaks: whatever a tenant asks, it gets the answer of a log that holds its records alone."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.llm import Durability, JsonFileInteractionStore, LLMInteraction, MemoryInteractionStore
from agentic_trading.llm.facts import EVERYTHING, Fact, FactKey, FactSums, Latency, RecordQuery
from agentic_trading.llm.interaction import interaction_id
from agentic_trading.llm.store import ChainedRecord, IdKind, Record, Records, Spend, SpendKey, TraceSummary
from agentic_trading.llm.stores.memory import MemoryRecords
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import envelope, event, interaction
from tests.contracts import tenant_promises as promises
from tests.contracts.records_opening import OPENINGS, Opens, live_relaxed, memory, put
from tests.contracts.tenant_promises import (
    ID_KINDS,
    KEYS,
    MINE,
    PROMISES,
    THEIRS,
    Promise,
    ids_of,
    records_alone,
    tenant_of,
)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("opens", OPENINGS, ids=lambda opening: opening.__name__)
async def test_tenant_records_keep_promise(opens: Opens, promise: Promise, tmp_path: Path) -> None:
    await promise(opens, tmp_path)


class FindsForEverybody(MemoryRecords):
    """Find whatever has the id."""

    async def find(self, record_id: str, *, tenant: str | None = None) -> Record | None:
        return await super().find(record_id)


class FindsFirstAndLooksThen(MemoryRecords):
    """Find one record of the id, and hide it if it is another's."""

    async def find(self, record_id: str, *, tenant: str | None = None) -> Record | None:
        found = await super().find(record_id)
        return found if found is None or tenant in (None, tenant_of(found)) else None


class CompletesIdsOfEverybody(MemoryRecords):
    """Complete an id of any tenant."""

    async def ids_starting(
        self, prefix: str, *, of: IdKind = "record", limit: int = 20, tenant: str | None = None
    ) -> list[str]:
        return await super().ids_starting(prefix, of=of, limit=limit)


class GivesWholeTraces(MemoryRecords):
    """Give the whole chain to everybody who was in it."""

    async def trace(self, trace_id: str, *, tenant: str | None = None) -> list[Record]:
        own = await super().trace(trace_id, tenant=tenant)
        return await super().trace(trace_id) if own else []


class SumsUpWholeChains(MemoryRecords):
    """Name a tenant's chains with what everybody did in them."""

    async def traces(
        self,
        limit: int = 20,
        *,
        query: RecordQuery = EVERYTHING,
        with_calls: bool = False,
        tenant: str | None = None,
    ) -> list[TraceSummary]:
        own = {chain.trace_id for chain in await super().traces(limit, with_calls=with_calls, tenant=tenant)}
        return [chain for chain in await super().traces(100) if chain.trace_id in own]


class CutsBeforeItLooks(MemoryRecords):
    """Take the newest chains of all, and of these the tenant's."""

    async def traces(
        self,
        limit: int = 20,
        *,
        query: RecordQuery = EVERYTHING,
        with_calls: bool = False,
        tenant: str | None = None,
    ) -> list[TraceSummary]:
        newest = {chain.trace_id for chain in await super().traces(limit)}
        own = await super().traces(100, with_calls=with_calls, tenant=tenant)
        return [chain for chain in own if chain.trace_id in newest]


class CountsEverybodysCalls(MemoryRecords):
    """Name the tenant's chains in which anybody was asked."""

    async def traces(
        self,
        limit: int = 20,
        *,
        query: RecordQuery = EVERYTHING,
        with_calls: bool = False,
        tenant: str | None = None,
    ) -> list[TraceSummary]:
        asked = {chain.trace_id for chain in await super().traces(100, with_calls=with_calls)}
        own = await super().traces(100, tenant=tenant)
        return [chain for chain in own if chain.trace_id in asked][:limit]


class GivesAllAttempts(MemoryRecords):
    """Give every attempt at an envelope of the id."""

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        return await super().by_envelope(envelope_id)


class SharesAnswers(MemoryRecords):
    """Give every answer to a question."""

    def by_request(
        self, request_hash: str, occurrence: int, *, tenant: str | None = None
    ) -> AsyncGenerator[LLMInteraction]:
        return super().by_request(request_hash, occurrence)


class SumsForEverybody(MemoryRecords):
    """Sum what all used."""

    async def spend(
        self, *by: SpendKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[Spend]:
        return await super().spend(*by)


class SelectsForEverybody(MemoryRecords):
    """Select the records of all tenants."""

    async def select(
        self,
        query: RecordQuery = EVERYTHING,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> AsyncGenerator[Fact]:
        async for fact in super().select(query, newest_first=newest_first, limit=limit):
            yield fact


class CountsForEverybody(MemoryRecords):
    """Count the records of all tenants."""

    async def count(self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None) -> int:
        return await super().count(query)


class SumsFactsForEverybody(MemoryRecords):
    """Sum the facts of all tenants."""

    async def sums(
        self, *by: FactKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[FactSums]:
        return await super().sums(*by, query=query)


class TimesEverybody(MemoryRecords):
    """Give the latencies of all tenants."""

    async def latencies(self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None) -> list[Latency]:
        return await super().latencies(query)


class SelectsBeforeItLooks(MemoryRecords):
    """Ask the condition of all records, and take the tenant's."""

    async def _selected(self, query: RecordQuery, tenant: str | None) -> list[int]:
        return list(self._of(tenant, await super()._selected(query, None)))


class FollowsCausesOfEverybody(MemoryRecords):
    """Follow causes through the records of other tenants."""

    async def caused_by(
        self, cause: RecordQuery, effect: RecordQuery = EVERYTHING, *, tenant: str | None = None
    ) -> AsyncGenerator[Fact]:
        async for fact in super().caused_by(cause, effect):
            if tenant in {None, fact.tenant}:
                yield fact


class ReadsLinesOfEverybody(MemoryRecords):
    """Give any line."""

    async def lines(self, seqs: Sequence[int], *, tenant: str | None = None) -> list[ChainedRecord]:
        return await super().lines(seqs)


class SumsNothingToZero(MemoryRecords):
    """Give a sum of nothing to a tenant that used nothing."""

    async def spend(
        self, *by: SpendKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[Spend]:
        return await super().spend(*by, tenant=tenant) or [Spend(("",) * len(by), 0, 0, 0, 0, 0)]


class TakesTheEmptyNameForAll(MemoryRecords):
    """Look at the tenant only if it has a name."""

    def _of(self, tenant: str | None, places: Iterable[int]) -> Iterable[int]:
        return super()._of(tenant or None, places)


class ComparesBeginnings(MemoryRecords):
    """Take a tenant for another whose name begins alike."""

    def _of(self, tenant: str | None, places: Iterable[int]) -> Iterable[int]:
        return (place for place in places if self._facts[place].tenant.startswith(tenant or ""))


class ComparesLetters(MemoryRecords):
    """Take no notice of capitals."""

    def _of(self, tenant: str | None, places: Iterable[int]) -> Iterable[int]:
        wanted = None if tenant is None else tenant.lower()
        return (place for place in places if wanted in (None, self._facts[place].tenant.lower()))


class HidesFromThePlatform(MemoryRecords):
    """Take nobody for the first tenant."""

    def _of(self, tenant: str | None, places: Iterable[int]) -> Iterable[int]:
        return super()._of(MINE if tenant is None else tenant, places)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (FindsForEverybody, promises.finds_a_tenants_records_and_no_others),
        (FindsFirstAndLooksThen, promises.finds_a_tenants_records_and_no_others),
        (CompletesIdsOfEverybody, promises.finds_the_beginnings_of_a_tenants_ids),
        (GivesWholeTraces, promises.gives_a_tenants_part_of_a_trace),
        (SumsUpWholeChains, promises.names_the_chains_of_a_tenant_as_if_there_were_no_others),
        (CutsBeforeItLooks, promises.names_the_chains_of_a_tenant_as_if_there_were_no_others),
        (CountsEverybodysCalls, promises.counts_a_call_of_another_as_none),
        (GivesAllAttempts, promises.gives_a_tenants_attempts_at_an_envelope),
        (SharesAnswers, promises.gives_nobody_the_answer_to_another_with_the_same_question),
        (SumsForEverybody, promises.sums_what_a_tenant_used),
        (SelectsForEverybody, promises.answers_by_facts_as_if_there_were_no_others),
        (CountsForEverybody, promises.answers_by_facts_as_if_there_were_no_others),
        (SumsFactsForEverybody, promises.answers_by_facts_as_if_there_were_no_others),
        (TimesEverybody, promises.answers_by_facts_as_if_there_were_no_others),
        (SelectsBeforeItLooks, promises.answers_by_facts_as_if_there_were_no_others),
        (FollowsCausesOfEverybody, promises.answers_by_facts_as_if_there_were_no_others),
        (ReadsLinesOfEverybody, promises.answers_by_facts_as_if_there_were_no_others),
        (SumsNothingToZero, promises.sums_what_a_tenant_used),
        (TakesTheEmptyNameForAll, promises.takes_the_empty_name_for_a_tenant),
        (ComparesBeginnings, promises.tells_tenants_apart_by_their_whole_name),
        (ComparesLetters, promises.tells_tenants_apart_by_their_whole_name),
        (HidesFromThePlatform, promises.shows_everything_to_who_names_no_tenant),
    ],
)
async def test_leaking_records_are_detected(
    broken: type[MemoryRecords], promise: Promise, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def opens(records: Sequence[Record], folder: Path) -> AsyncGenerator[Records]:
        store = MemoryInteractionStore()
        await put(store, records)
        yield broken(store._lines)

    with pytest.raises(AssertionError):
        await promise(opens, tmp_path)


TENANTS = st.sampled_from([MINE, THEIRS])
TRACES = st.sampled_from(["t1", "t2", "t3"])
ENVELOPES = ("a1", "a2", "a3")
NUMBERS = (1, 2)
CALLS = st.sampled_from([interaction_id(*asked) for asked in product(ENVELOPES, NUMBERS, (MINE, THEIRS))])
NAMES = st.sampled_from(["e1", "e2", "e3", "e4", *ENVELOPES]) | CALLS
CAUSES = st.just("") | NAMES | TRACES

events = st.builds(event, id=NAMES, tenant_id=TENANTS, trace_id=TRACES, causation_id=CAUSES)
calls = st.builds(
    lambda asked, number, **changes: interaction(
        envelope=envelope(envelope_id=asked, **changes), attempt_number=number, cost_nusd=7
    ),
    asked=st.sampled_from(ENVELOPES),
    number=st.sampled_from(NUMBERS),
    tenant_id=TENANTS,
    trace_id=TRACES,
    causation_id=CAUSES,
    occurrence=st.integers(0, 1),
    instructions=st.sampled_from(["Judge.", "Fill."]),
)
logs = st.lists(events | calls, max_size=12, unique_by=lambda record: identity_of(record).key)


async def everything(records: Records, log: Sequence[Record], tenant: str | None) -> list[Any]:
    """Return all that a tenant, or the platform, can ask about a log."""
    names = ids_of(log)
    hashes = sorted({call.envelope.request_hash for call in log if isinstance(call, LLMInteraction)})
    return [
        [await records.find(name, tenant=tenant) for name in names],
        [await records.trace(name, tenant=tenant) for name in names],
        [await records.by_envelope(name, tenant=tenant) for name in names],
        [await records.ids_starting(name[:1], of=of, tenant=tenant) for name in names for of in ID_KINDS],
        [
            [one async for one in records.by_request(each, number, tenant=tenant)]
            for each in hashes
            for number in range(2)
        ],
        [await records.traces(limit, tenant=tenant) for limit in range(4)],
        [await records.traces(limit, with_calls=True, tenant=tenant) for limit in range(4)],
        [await records.spend(key, tenant=tenant) for key in KEYS],
        await records.spend(*KEYS, tenant=tenant),
        await promises.answers_by_facts(records, len(log), tenant=tenant),
    ]


async def check_that_nothing_leaks(opens: Opens, log: Sequence[Record], folder: Path) -> None:
    alone = await records_alone(log, MINE)
    async with opens(log, folder) as records:
        answers = await everything(records, log, MINE)
    assert answers == await everything(alone, log, None)
    assert THEIRS not in repr(answers)


@given(logs)
def test_memory_log_leaks_no_tenant_record(log: list[Record]) -> None:
    asyncio.run(check_that_nothing_leaks(memory, log, Path()))


@pytest.mark.timeout(120)  # each example writes a file, and asks it a hundred questions
@given(logs)
@settings(max_examples=10)
def test_file_log_leaks_no_tenant_record(log: list[Record]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(check_that_nothing_leaks(live_relaxed, log, Path(folder)))


async def everything_of_a_store(
    store: MemoryInteractionStore | JsonFileInteractionStore, log: Sequence[Record], tenant: str | None
) -> list[Any]:
    """Return all that a tenant, or the platform, can ask the store itself."""
    return [
        [await store.get_by_envelope_id(name, tenant=tenant) for name in ids_of(log)],
        [await store.get_by_trace_id(name, tenant=tenant) for name in ids_of(log)],
        [await store.recent(limit, tenant=tenant) for limit in range(4)],
    ]


async def check_that_no_store_leaks(log: Sequence[Record], folder: Path) -> None:
    alone = MemoryInteractionStore()
    await put(alone, [record for record in log if tenant_of(record) == MINE])
    file = JsonFileInteractionStore(folder / "log.jsonl", durability=Durability.RELAXED)
    for store in (MemoryInteractionStore(), file):
        async with aclosing(store):
            await put(store, log)
            answers = await everything_of_a_store(store, log, MINE)
        assert answers == await everything_of_a_store(alone, log, None)
        assert THEIRS not in repr(answers)


@given(logs)
@settings(max_examples=15)
def test_store_leaks_no_tenant_record(log: list[Record]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(check_that_no_store_leaks(log, Path(folder)))
