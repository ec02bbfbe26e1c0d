"""Sums of what calls cost."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentic_trading.audit.logs import MergedRecords
from agentic_trading.audit.spend import reservation_of, spend_report
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import AttemptTrace, Stage
from agentic_trading.llm.store import InteractionStore, Record, Records, Spend
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.build import NOW, envelope, event, interaction

READING = AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE)


@pytest.fixture
async def records() -> Records:
    store = MemoryInteractionStore()
    for agent, cost, success in [("a", 10, True), ("b", 2**53, True), ("a", 30, False)]:
        await store.store(
            interaction(agent_id=agent, cost_nusd=cost, success=success, input_tokens=5, output_tokens=2)
        )
    await store.record(event())
    return store.records


async def test_rows_are_summed_by_key(records: Records) -> None:
    report = await spend_report(records, "agent")

    assert report.by == ("agent",)
    assert report.rows == (
        Spend(("a",), attempts=2, failed=1, input_tokens=10, output_tokens=4, cost_nusd=40),
        Spend(("b",), attempts=1, failed=0, input_tokens=5, output_tokens=2, cost_nusd=2**53),
    )
    assert report.total == Spend(
        (), attempts=3, failed=1, input_tokens=15, output_tokens=6, cost_nusd=2**53 + 40
    )


async def test_spend_sums_the_bills_of_servers(tmp_path: Path) -> None:
    in_memory, in_file = MemoryInteractionStore(), JsonFileInteractionStore(tmp_path / "log.jsonl")
    for store in (in_memory, in_file):
        for bill_nusd in (7, None, 30):
            await store.store(interaction(agent_id="a", cost_nusd=40, bill_nusd=bill_nusd))

    for store in (in_memory, in_file):
        report = await spend_report(store.records, "agent")
        assert (report.total.cost_nusd, report.total.billed_nusd) == (120, 37)
    await in_file.aclose()


async def test_spend_sums_answers_without_usage_apart_from_doubts(tmp_path: Path) -> None:
    in_memory, in_file = MemoryInteractionStore(), JsonFileInteractionStore(tmp_path / "log.jsonl")
    for store in (in_memory, in_file):
        await store.store(interaction(agent_id="a", cost_nusd=40))
        await store.store(interaction(agent_id="a", cost_nusd=50, unmetered="no usage"))
        await store.store(
            interaction(agent_id="a", cost_nusd=60, unmetered="no usage", in_doubt=True, success=False)
        )
        await store.store(
            interaction(agent_id="a", cost_nusd=0, unmetered="no usage", served_from="recorded")
        )

    for store in (in_memory, in_file):
        total = (await spend_report(store.records, "agent")).total
        assert (total.cost_nusd, total.in_doubt_nusd) == (150, 60)
        assert (total.unmetered, total.unmetered_nusd) == (1, 50)
    await in_file.aclose()


async def test_total_is_independent_of_keys(records: Records) -> None:
    by_agent = await spend_report(records, "agent", "day")
    by_none = await spend_report(records)

    assert by_none.rows == ()
    assert by_none.total == by_agent.total


async def test_tenant_report_covers_own_spend_only() -> None:
    store = MemoryInteractionStore()
    for tenant, cost in [("mine", 10), ("theirs", 100), ("mine", 1)]:
        await store.store(interaction(tenant_id=tenant, agent_id="a", cost_nusd=cost))

    by_agent = await spend_report(store.records, "agent", tenant="mine")
    by_none = await spend_report(store.records, tenant="mine")

    assert [(row.key, row.attempts, row.cost_nusd) for row in by_agent.rows] == [(("a",), 2, 11)]
    assert by_none.total == by_agent.total
    assert (await spend_report(store.records)).total.cost_nusd == 111


STEPS = (
    "dispatched",
    "dispatched",
    "unsent",
    "late",
    "expired",
    "released",
    "answered",
    "in doubt",
    "unanswered",
    "refused",
)
"""The records that there may be of one reservation; `unanswered` was sent and surely not billed."""


def record_of(step: str, key: str, at: int, tenant: str) -> Record:
    """Return the record of a step of a reservation, each with a charge of its own."""
    nusd, id_ = 10 ** (at + 1), f"{tenant}:{key}:1"
    trace = f"trace-{tenant}-{key}"
    asked = envelope(
        idempotency_key=key,
        envelope_id=f"{key}-{at}",
        tenant_id=tenant,
        agent_id=f"agent-{key}",
        trace_id=trace,
    )
    scopes = {"agent": f"agent-{key}", "workflow": "general", "tenant": tenant, "call": key}
    of_it = {"attempt": 1, "reservation_id": id_}
    more: dict[str, Any] = {
        "id": f"{id_}-{at}",
        "tenant_id": tenant,
        "causation_id": f"{id_}-0",
        "trace_id": trace,
    }
    match step:
        case "dispatched":
            body = {
                **of_it,
                "request_hash": "",
                "provider": "scripted",
                "model": "m-1",
                "scopes": scopes,
                "reserved_nusd": nusd,
            }
            return event("attempt.dispatched", body=body, **more)
        case "unsent":
            return event("attempt.unsent", body={**of_it, "why": "no time left"}, **more)
        case "late":
            return event("attempt.answered_late", body={**of_it, "cost_nusd": nusd, "tokens": 1}, **more)
        case "expired" | "released":
            state = "in_doubt" if step == "expired" else "released"
            body = {"reservation_id": id_, "state": state, "nusd": nusd, "tokens": 1, "scopes": scopes}
            return event("reservation.expired", body=body, **more)
        case "refused":
            return interaction(envelope=asked, success=False, cost_nusd=0, dispatched_at=None)
        case _:
            in_doubt, is_answered = step == "in doubt", step == "answered"
            cost = 0 if step == "unanswered" else nusd
            reading = READING if is_answered else None
            return interaction(
                envelope=asked, dispatched_at=NOW, cost_nusd=cost, reserved_nusd=cost, in_doubt=in_doubt,
                success=is_answered, reading=reading, reservation_id=id_ if at % 2 else "",
            )  # fmt: skip


async def kept(store: InteractionStore, record: Record) -> None:
    await (store.store(record) if isinstance(record, LLMInteraction) else store.record(record))


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["k1", "k2", "k3"]), st.sampled_from(STEPS)),
        max_size=9,
    )
)
@settings(max_examples=300, deadline=None)
async def test_spend_equals_the_rebuilt_ledger(
    steps: list[tuple[str, str, str]],
) -> None:
    store, books = MemoryInteractionStore(), {tenant: LedgerRebuild(tenant, "live") for tenant in ("a", "b")}
    for at, (tenant, key, step) in enumerate(steps):
        record = record_of(step, key, at, tenant)
        await kept(store, record)
        books[tenant].read(record)

    for tenant, book in books.items():
        report = await spend_report(store.records, "agent", "tenant", tenant=tenant)
        entries = book.entries()
        in_doubt = [one for parts in book.attempts().values() for one in parts if one.state == "in_doubt"]
        assert report.total.cost_nusd == sum(one.charged.nusd for one in entries)
        assert report.total.attempts == sum(map(len, book.attempts().values()))
        assert report.total.in_doubt == len(in_doubt)
        assert report.total.in_doubt_nusd == sum(one.charged.nusd for one in in_doubt)
        assert report.total.refused == sum(one[0] == tenant and one[2] == "refused" for one in steps)
        by_agent = {row.key: row.cost_nusd for row in report.rows if row.cost_nusd}
        assert by_agent == {
            (f"agent-{one.request.key}", tenant): one.charged.nusd for one in entries if one.charged.nusd
        }


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["k1", "k2"]), st.sampled_from(STEPS)),
        max_size=9,
    ),
    st.lists(st.booleans(), min_size=9, max_size=9),
)
@settings(max_examples=100, deadline=None)
async def test_spend_of_logs_equals_the_rebuilt_ledger(
    steps: list[tuple[str, str, str]], places: list[bool]
) -> None:
    """Any record of a reservation may be in any log; but no worker sends what another one has sent and ended."""
    stores, book = (MemoryInteractionStore(), MemoryInteractionStore()), LedgerRebuild("a", "live")
    for at, (tenant, key, step) in enumerate(steps):
        record = record_of(step, key, at, tenant)
        await kept(stores[places[at]], record)
        book.read(record)
    alone = [await spend_report(store.records, "agent", tenant="a") for store in stores]
    irregular = [{reservation_of(one) for one in await store.records.unmatched()} for store in stores]
    sent = [{row.key for row in report.rows if row.attempts} for report in alone]
    assume(
        not any(
            (f"agent-{key}",) in sent[0] & sent[1] and f"a:{key}:1" not in irregular[0] | irregular[1]
            for key in ("k1", "k2")
        )
    )

    report = await spend_report(MergedRecords([store.records for store in stores]), "agent", tenant="a")

    assert report.total.cost_nusd == sum(one.charged.nusd for one in book.entries())
    assert report.total.attempts == sum(map(len, book.attempts().values()))


async def test_attempt_may_end_in_another_log() -> None:
    sent, ended = MemoryInteractionStore(), MemoryInteractionStore()
    await kept(sent, record_of("dispatched", "k1", 2, "a"))
    await kept(ended, record_of("answered", "k1", 1, "a"))

    apart = [await spend_report(store.records, "agent") for store in (sent, ended)]
    together = await spend_report(MergedRecords([sent.records, ended.records]), "agent")

    assert [report.total.cost_nusd for report in apart] == [1000, 100]
    assert together.rows == (Spend(("agent-k1",), 1, 0, 100, 20, 100),)


@pytest.mark.parametrize(
    ("query", "agents"),
    [
        (RecordQuery(agent=("agent-k1",)), ["agent-k1"]),
        (RecordQuery(agent=("agent-k1", "agent-k2")), ["agent-k1", "agent-k2"]),
        (RecordQuery(provider=("scripted",)), ["agent-k1"]),
        (RecordQuery(model=("*",)), ["agent-k1", "agent-k2"]),
        (RecordQuery(failure=("*",)), []),
        (RecordQuery(tenant=("b",)), []),
        (RecordQuery(trace_id="trace-a-k2"), ["agent-k2"]),
        (RecordQuery(since=NOW), ["agent-k1", "agent-k2"]),
        (RecordQuery(until=NOW), []),
    ],
)
async def test_query_selects_lost_attempts_too(query: RecordQuery, agents: list[str]) -> None:
    store = MemoryInteractionStore()
    await kept(store, record_of("dispatched", "k1", 0, "a"))
    await kept(store, record_of("answered", "k2", 1, "a"))

    report = await spend_report(store.records, "agent", query=query)

    assert [row.key[0] for row in report.rows] == agents


@pytest.mark.parametrize(
    ("query", "named"),
    [
        (RecordQuery(where="cost_nusd > 1"), "where"),
        (RecordQuery(after=1), "after"),
        (RecordQuery(kind=("interaction",)), "kind"),
        (RecordQuery(verdict=("passed",), agent=("a",), after=3), "verdict, after"),
    ],
)
async def test_query_that_lost_attempts_cannot_meet_is_refused(query: RecordQuery, named: str) -> None:
    with pytest.raises(ValueError, match=f"cannot be selected by {named}. Allowed fields: tenant, agent, "):
        await spend_report(MemoryInteractionStore().records, "agent", query=query)


async def test_lost_attempt_is_grouped_by_dispatch(tmp_path: Path) -> None:
    store = JsonFileInteractionStore(tmp_path / "log.jsonl")
    await kept(store, record_of("dispatched", "k1", 0, "a"))
    await kept(store, record_of("answered", "k2", 1, "a"))

    report = await spend_report(store.records, "agent", "provider", "model", "workflow", "tenant")
    await store.aclose()

    lost = Spend(
        ("agent-k1", "scripted", "m-1", "general", "a"), 1, 1, 0, 0, 10, in_doubt=1, in_doubt_nusd=10
    )
    assert report.rows[0] == lost
    assert report.total.cost_nusd == 110


async def test_refused_and_recorded_are_not_attempts() -> None:
    store = MemoryInteractionStore()
    await store.store(interaction(success=False, dispatched_at=None, cost_nusd=0))
    await store.store(interaction(served_from="recorded", dispatched_at=NOW, cost_nusd=0, first_cost_nusd=5))

    assert (await spend_report(store.records)).total == Spend((), 0, 0, 0, 0, 0, refused=1, recorded=1)


async def test_empty_log_has_zero_spend() -> None:
    report = await spend_report(MemoryInteractionStore().records, "agent")

    assert (report.rows, report.total) == ((), Spend((), 0, 0, 0, 0, 0))
