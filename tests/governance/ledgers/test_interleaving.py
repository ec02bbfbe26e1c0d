"""Whoever asks at once, in whatever order: no ceiling is passed, and the ledger is the sum of its charges."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.ledger import Declined
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.contracts.broken_ledgers import CapsTheCharge, LetsTwoDispatch
from tests.contracts.broken_ledgers_in_time import (
    ClosesWhatIsOver,
    ForgetsWhatIsOver,
    KnowsNoLease,
    OpensWithoutTheLog,
    RefundsWhatIsSilent,
    SweepsOnlyWhatWasSent,
    TakesEveryVersion,
    WritesOffWhatIsInFlight,
)
from tests.contracts.ledger_machine import machine
from tests.contracts.ledger_opening import Opens, memory
from tests.contracts.whole_ledger import Whole, opening
from tests.governance.asking import ask, tenant

CEILING = 200
FINDS_IT = settings(max_examples=300, stateful_step_count=30, derandomize=True, phases=[Phase.generate])
LIMITS = (
    tenant(CEILING),
    Limit(ScopeKind.TRACE, ANY, Window.NONE, tokens=90),
    Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=9),
)

End = Literal["settle", "release", "doubt", "late", "cancel"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one caller does, and how often it lets others run in between."""

    nusd: int
    tokens: int
    trace: str
    priority: int
    end: End
    used: float
    pauses: tuple[int, int, int]


plans = st.builds(
    Plan,
    nusd=st.integers(0, 120),
    tokens=st.integers(0, 40),
    trace=st.sampled_from(["one", "two"]),
    priority=st.integers(0, 2),
    end=st.sampled_from(["settle", "settle", "release", "doubt", "late", "cancel"]),
    used=st.floats(0, 1),
    pauses=st.tuples(*[st.integers(0, 4)] * 3),
)


class Desk:
    """Callers at one ledger; `charged` adds up what they were told."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger(LIMITS)
        self.charged: dict[str, Amount] = {}

    async def call(self, number: int, plan: Plan) -> None:
        wanted = ask(
            plan.nusd, tokens=plan.tokens, key=f"call-{number}", trace=plan.trace, priority=plan.priority,
            agent=f"agent-{number % 2}",
        )  # fmt: skip
        await self.pause(plan.pauses[0])
        answer = await self.ledger.wait_for_reservation(wanted)
        if isinstance(answer, Declined):
            return
        dispatched = False
        try:
            await self.pause(plan.pauses[1])
            if plan.end == "release":
                await self.ledger.release(answer.id)
                return
            await self.ledger.dispatch(answer.id)
            dispatched = True
            await self.pause(plan.pauses[2])
            await self.finish(answer.id, plan)
        except asyncio.CancelledError:
            if dispatched:
                self.charged[answer.id] = (await self.ledger.in_doubt(answer.id)).charged
            else:
                await self.ledger.release(answer.id)
            raise

    async def finish(self, id_: str, plan: Plan) -> None:
        used = Amount(int(plan.nusd * plan.used), int(plan.tokens * plan.used))
        if plan.end in {"doubt", "late"}:
            self.charged[id_] = (await self.ledger.in_doubt(id_)).charged
            await self.pause(1)
        if plan.end != "doubt":
            self.charged[id_] = (await self.ledger.settle(id_, used)).charged

    async def pause(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        for balance in await self.ledger.balances("acme"):
            for most, spent, held in zip(
                balance.ceiling.units, balance.spent.units, balance.held.units, strict=True
            ):
                assert most is None or spent + held <= most


@given(st.lists(plans, min_size=1, max_size=24), st.integers(0, 12))
async def test_interleavings_respect_ceilings_and_release_holds(
    asked: list[Plan], cancelled_after: int
) -> None:
    desk = Desk()

    async with asyncio.timeout(4), asyncio.TaskGroup() as group:
        tasks = [group.create_task(desk.call(number, plan)) for number, plan in enumerate(asked)]
        await desk.pause(cancelled_after)
        for task, plan in zip(tasks, asked, strict=True):
            if plan.end == "cancel":
                task.cancel()

    found = desk.ledger.statistics()
    assert (found.waiting, found.in_flight) == (0, 0)
    assert found.charged_nusd == sum(charge.nusd for charge in desk.charged.values())
    for balance in await desk.ledger.balances("acme"):
        assert balance.held == Amount(0, 0, 0)
        if balance.scope is ScopeKind.TENANT:
            assert (balance.spent.nusd, balance.spent.calls) == (found.charged_nusd, len(desk.charged))


TestLedgerMachine = pytest.mark.timeout(120)(machine(memory).TestCase)  # a hundred sessions, under coverage


@pytest.mark.soak
@pytest.mark.parametrize(
    "broken",
    [
        CapsTheCharge, ClosesWhatIsOver, ForgetsWhatIsOver, KnowsNoLease, LetsTwoDispatch, OpensWithoutTheLog,
        RefundsWhatIsSilent, SweepsOnlyWhatWasSent, TakesEveryVersion, WritesOffWhatIsInFlight,
    ],
)  # fmt: skip
def test_state_machine_detects_broken_ledger(broken: type[Whole]) -> None:
    @asynccontextmanager
    async def adapter() -> AsyncGenerator[Opens]:
        yield opening(broken)

    with pytest.raises((AssertionError, LedgerError, pytest.fail.Exception)):
        run_state_machine_as_test(machine(adapter), settings=FINDS_IT)
