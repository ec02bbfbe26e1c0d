"""What every answer promises to a tenant: that of a log which holds its records alone. One function a promise."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from agentic_trading.llm import LLMInteraction, MemoryInteractionStore
from agentic_trading.llm.facts import EVERYTHING, FactKey, RecordQuery
from agentic_trading.llm.interaction import interaction_id
from agentic_trading.llm.store import IdKind, Record, Records, SpendKey
from tests.build import NOW, envelope, event, interaction
from tests.contracts.records_opening import Opens, put

MINE, THEIRS = "mine", "theirs"
KEYS: tuple[SpendKey, ...] = get_args(SpendKey)
ID_KINDS: tuple[IdKind, ...] = get_args(IdKind)

Promise = Callable[[Opens, Path], Awaitable[None]]


def tenant_of(record: Record) -> str:
    """Return whose record it is."""
    return record.envelope.tenant_id if isinstance(record, LLMInteraction) else record.tenant_id


async def records_alone(log: Sequence[Record], tenant: str) -> Records:
    """Return the answers of a log that holds a tenant's records alone, in memory."""
    store = MemoryInteractionStore()
    await put(store, [record for record in log if tenant_of(record) == tenant])
    return store.records


def call(tenant: str, trace: str, asked: str, number: int = 1, hour: int = 0) -> LLMInteraction:
    """Return an attempt of a tenant at an envelope; all ask the same question."""
    made = envelope(tenant_id=tenant, trace_id=trace, envelope_id=asked, subject=f"{tenant}USDT")
    answer = f"the answer to {tenant}"
    return interaction(
        envelope=made, attempt_number=number, raw_output=answer, stored_at=NOW + timedelta(hours=hour)
    )


def shared_log() -> list[Record]:
    """Return a log of two tenants who share ids of traces, envelopes and records, and ask the same question."""
    mine, theirs = call(MINE, "both", "asked", 1, hour=1), call(THEIRS, "both", "asked", 2, hour=2)
    own = interaction_id("theirs-only", 1, THEIRS)
    return [
        event("trigger", id="begun", trace_id="both", tenant_id=THEIRS, body={"subject": "SECRET"}),
        mine,
        event("spy", id=mine.interaction_id, trace_id="both", tenant_id=THEIRS, causation_id="asked"),
        theirs,
        event("echo", id="echo", trace_id="both", tenant_id=MINE, causation_id="begun"),
        event("note", id=own, trace_id="quiet", tenant_id=MINE, causation_id="begun"),
        call(THEIRS, "quiet", "theirs-only", hour=3),
        call(MINE, "calm", "mine-only", hour=4),
        event("spy", id="late", trace_id="both", tenant_id=THEIRS, time=NOW + timedelta(hours=9)),
        event("spy", id="alone", trace_id="theirs", tenant_id=THEIRS),
    ]


def ids_of(log: Sequence[Record]) -> list[str]:
    """Return every id by which somebody may ask, each once, and two that nobody has."""
    ids = ["", "nobody"]
    for record in log:
        if isinstance(record, LLMInteraction):
            ids += [record.interaction_id, record.envelope.envelope_id, record.envelope.causation_id]
        else:
            ids += [record.id, record.causation_id]
        ids.append(record.trace_id)
    return list(dict.fromkeys(ids))


async def finds_a_tenants_records_and_no_others(opens: Opens, folder: Path) -> None:
    log = shared_log()
    alone = await records_alone(log, MINE)

    async with opens(log, folder) as records:
        for name in ids_of(log):
            assert await records.find(name, tenant=MINE) == await alone.find(name)


async def finds_the_beginnings_of_a_tenants_ids(opens: Opens, folder: Path) -> None:
    log = shared_log()
    alone = await records_alone(log, MINE)

    async with opens(log, folder) as records:
        for name in ids_of(log):
            for of in ID_KINDS:
                found = await records.ids_starting(name[:4], of=of, tenant=MINE)
                assert found == await alone.ids_starting(name[:4], of=of)


async def gives_a_tenants_part_of_a_trace(opens: Opens, folder: Path) -> None:
    log = shared_log()
    alone = await records_alone(log, MINE)

    async with opens(log, folder) as records:
        for name in ids_of(log):
            assert await records.trace(name, tenant=MINE) == await alone.trace(name)


async def names_the_chains_of_a_tenant_as_if_there_were_no_others(opens: Opens, folder: Path) -> None:
    log = shared_log()
    alone = await records_alone(log, MINE)

    async with opens(log, folder) as records:
        for limit in (0, 1, 2, 20):
            assert await records.traces(limit, tenant=MINE) == await alone.traces(limit)


async def counts_a_call_of_another_as_none(opens: Opens, folder: Path) -> None:
    log = shared_log()

    async with opens(log, folder) as records:
        chains = await records.traces(with_calls=True, tenant=MINE)
        assert [chain.trace_id for chain in chains] == ["calm", "both"]
        assert len(await records.traces(1, with_calls=True, tenant=MINE)) == 1


async def gives_a_tenants_attempts_at_an_envelope(opens: Opens, folder: Path) -> None:
    log = shared_log()
    alone = await records_alone(log, MINE)

    async with opens(log, folder) as records:
        for name in ids_of(log):
            assert await records.by_envelope(name, tenant=MINE) == await alone.by_envelope(name)


async def gives_nobody_the_answer_to_another_with_the_same_question(opens: Opens, folder: Path) -> None:
    log = shared_log()
    alone = await records_alone(log, MINE)
    hashes = {call.envelope.request_hash for call in log if isinstance(call, LLMInteraction)}
    (question,) = hashes

    async with opens(log, folder) as records:
        found = [one async for one in records.by_request(question, 0, tenant=MINE)]
        assert found == [one async for one in alone.by_request(question, 0)]
        assert {attempt.result.raw_output for attempt in found} == {"the answer to mine"}


async def sums_what_a_tenant_used(opens: Opens, folder: Path) -> None:
    log = shared_log()
    alone = await records_alone(log, MINE)

    async with opens(log, folder) as records:
        for key in KEYS:
            assert await records.spend(key, tenant=MINE) == await alone.spend(key)
        assert await records.spend(tenant=MINE) == await alone.spend()
        assert await records.spend("agent", tenant="nobody") == []
        assert await records.spend(tenant="nobody") == []


QUERIES: tuple[RecordQuery, ...] = (
    EVERYTHING,
    RecordQuery(kind=("interaction",)),
    RecordQuery(agent=("",), subject=("", "SECRET")),
    RecordQuery(tenant=(THEIRS,)),
    RecordQuery(tenant=(MINE, THEIRS), trace_id="both"),
    RecordQuery(trace_id="t1"),
    RecordQuery(since=NOW, until=NOW + timedelta(days=1)),
    RecordQuery(since=NOW + timedelta(hours=2)),
    RecordQuery(where=f"tenant = '{THEIRS}' OR kind <> '' -- "),
    RecordQuery(where="(SELECT count(*) FROM facts) > 3"),
    RecordQuery(where="kind = (SELECT max(kind) FROM facts)"),
)


async def answers_by_facts(records: Records, lines: int, *, tenant: str | None) -> list[Any]:
    """Return all that a tenant can ask by facts, without the numbers of lines."""
    kept = await records.lines(range(-1, lines + 2), tenant=tenant)
    effects = [
        [fact async for fact in records.caused_by(cause, effect, tenant=tenant)]
        for cause in QUERIES
        for effect in QUERIES[:3]
    ]
    selected = [[fact async for fact in records.select(query, tenant=tenant)] for query in QUERIES]
    newest = [
        [fact async for fact in records.select(query, newest_first=True, limit=2, tenant=tenant)]
        for query in QUERIES
    ]
    return [
        [[replace(fact, seq=0) for fact in facts] for facts in (*selected, *newest, *effects)],
        [line.record for line in kept],
        [await records.count(query, tenant=tenant) for query in QUERIES],
        [await records.sums(*by, query=query, tenant=tenant) for query in QUERIES for by in SUMS],
        [await records.latencies(query, tenant=tenant) for query in QUERIES],
        [await records.spend("tenant", query=query, tenant=tenant) for query in QUERIES],
        [await records.traces(query=query, tenant=tenant) for query in QUERIES],
    ]


SUMS: tuple[tuple[FactKey, ...], ...] = ((), ("day", "tenant"), ("subject", "kind"))


async def answers_by_facts_as_if_there_were_no_others(opens: Opens, folder: Path) -> None:
    log = shared_log()
    alone = await records_alone(log, MINE)

    async with opens(log, folder) as records:
        answers = await answers_by_facts(records, len(log), tenant=MINE)
        assert answers == await answers_by_facts(alone, len(log), tenant=None)
        assert await records.count(tenant="") == await records.count(tenant="min") == 0
        assert await records.count() == len(log)


async def tells_tenants_apart_by_their_whole_name(opens: Opens, folder: Path) -> None:
    names = ["fund", "fund-2", "FUND", "fun", "fund ", "f_nd", "%", "*", "fund\0", "fünd", "fu\u0308nd"]
    log: list[Record] = [
        event(id=f"{number}", trace_id="t", tenant_id=name) for number, name in enumerate(names)
    ]

    async with opens(log, folder) as records:
        for number, name in enumerate(names):
            assert await records.trace("t", tenant=name) == [log[number]]
            assert await records.find(f"{number}", tenant=name) == log[number]
            assert [chain.events for chain in await records.traces(tenant=name)] == [1]
        assert await records.trace("t", tenant="half a character \ud800") == []


async def takes_the_empty_name_for_a_tenant(opens: Opens, folder: Path) -> None:
    unnamed = call("", "both", "unnamed")

    async with opens([*shared_log(), unnamed], folder) as records:
        assert await records.trace("both", tenant="") == [unnamed]
        assert await records.find("begun", tenant="") is None
        assert [chain.attempts for chain in await records.traces(tenant="")] == [1]
        assert await records.by_envelope("asked", tenant="") == []
        assert [one async for one in records.by_request(unnamed.envelope.request_hash, 0, tenant="")] == [
            unnamed
        ]
        assert [spend.attempts for spend in await records.spend(tenant="")] == [1]


async def shows_everything_to_who_names_no_tenant(opens: Opens, folder: Path) -> None:
    log = shared_log()
    calls = [record for record in log if isinstance(record, LLMInteraction)]

    async with opens(log, folder) as records:
        assert await records.trace("both") == [record for record in log if record.trace_id == "both"]
        assert await records.by_envelope("asked") == calls[:2]
        assert [one async for one in records.by_request(calls[0].envelope.request_hash, 0)] == calls
        assert await records.find(calls[0].interaction_id) == calls[0]
        assert {chain.trace_id for chain in await records.traces()} == {"both", "quiet", "calm", "theirs"}
        assert [spend.key for spend in await records.spend("tenant")] == [(MINE,), (THEIRS,)]


PROMISES: tuple[Promise, ...] = (
    finds_a_tenants_records_and_no_others,
    finds_the_beginnings_of_a_tenants_ids,
    gives_a_tenants_part_of_a_trace,
    names_the_chains_of_a_tenant_as_if_there_were_no_others,
    counts_a_call_of_another_as_none,
    gives_a_tenants_attempts_at_an_envelope,
    gives_nobody_the_answer_to_another_with_the_same_question,
    sums_what_a_tenant_used,
    answers_by_facts_as_if_there_were_no_others,
    tells_tenants_apart_by_their_whole_name,
    takes_the_empty_name_for_a_tenant,
    shows_everything_to_who_names_no_tenant,
)
