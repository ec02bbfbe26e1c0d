"""Sums of what calls cost."""

import pytest

from agentic_trading.audit.spend import spend_report
from agentic_trading.llm.store import Records, Spend
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.build import event, interaction


@pytest.fixture
async def records() -> Records:
    store = MemoryInteractionStore()
    for agent, cost, success in [("a", 10, True), ("b", 2**53, True), ("a", 30, False)]:
        await store.store(
            interaction(agent_id=agent, cost_nusd=cost, success=success, input_tokens=5, output_tokens=2)
        )
    await store.record(event())
    return store.records


async def test_rows_are_sums_by_key_and_the_total_is_their_sum(records: Records) -> None:
    report = await spend_report(records, "agent")

    assert report.by == ("agent",)
    assert report.rows == (
        Spend(("a",), attempts=2, failed=1, input_tokens=10, output_tokens=4, cost_nusd=40),
        Spend(("b",), attempts=1, failed=0, input_tokens=5, output_tokens=2, cost_nusd=2**53),
    )
    assert report.total == Spend(
        (), attempts=3, failed=1, input_tokens=15, output_tokens=6, cost_nusd=2**53 + 40
    )


async def test_the_total_is_the_same_by_any_keys(records: Records) -> None:
    by_agent = await spend_report(records, "agent", "day")
    by_none = await spend_report(records)

    assert by_none.rows == ()
    assert by_none.total == by_agent.total


async def test_a_tenant_sees_what_it_spent_itself() -> None:
    store = MemoryInteractionStore()
    for tenant, cost in [("mine", 10), ("theirs", 100), ("mine", 1)]:
        await store.store(interaction(tenant_id=tenant, agent_id="a", cost_nusd=cost))

    by_agent = await spend_report(store.records, "agent", tenant="mine")
    by_none = await spend_report(store.records, tenant="mine")

    assert [(row.key, row.attempts, row.cost_nusd) for row in by_agent.rows] == [(("a",), 2, 11)]
    assert by_none.total == by_agent.total
    assert (await spend_report(store.records)).total.cost_nusd == 111


async def test_an_empty_log_has_spent_nothing() -> None:
    report = await spend_report(MemoryInteractionStore().records, "agent")

    assert (report.rows, report.total) == ((), Spend((), 0, 0, 0, 0, 0))
