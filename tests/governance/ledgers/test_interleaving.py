"""Whoever asks at once, in whatever order: no ceiling is passed, and the ledger is the sum of its charges."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.ledger import ANY, CallState, Limit, Refusal, Reservation, ScopeKind
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.windows import Window
from tests.governance.asking import ask, of_tenant, tenant

CEILING = 200
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
        answer = await self.ledger.reserve_in_turn(wanted)
        if isinstance(answer, Refusal):
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
        for balance in await self.ledger.snapshot():
            for most, spent, held in zip(
                balance.ceiling.units, balance.spent.units, balance.held.units, strict=True
            ):
                assert most is None or spent + held <= most


@given(st.lists(plans, min_size=1, max_size=24), st.integers(0, 12))
async def test_no_interleaving_passes_a_ceiling_or_leaves_anything_held(
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
    for balance in await desk.ledger.snapshot():
        assert balance.held == Amount(0, 0, 0)
        if balance.scope is ScopeKind.TENANT:
            assert (balance.spent.nusd, balance.spent.calls) == (found.charged_nusd, len(desk.charged))


class LedgerMachine(RuleBasedStateMachine):
    """Drive a ledger step by step, twice where twice is harmless, next to the simplest model of it."""

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.ledger = MemoryLedger([tenant(CEILING)])
        self.states: dict[str, CallState] = {}
        self.reserved: dict[str, int] = {}
        self.charged: dict[str, int] = {}

    def teardown(self) -> None:
        for id_, state in list(self.states.items()):
            if state is CallState.RESERVED:
                self.runner.run(self.ledger.release(id_))
            elif state is CallState.DISPATCHED:
                self.charged[id_] = self.runner.run(self.ledger.in_doubt(id_)).charged.nusd
        if self.states:
            found = self.runner.run(of_tenant(self.ledger))
            assert found.held == Amount(0, 0, 0)
            assert found.spent == Amount(sum(self.charged.values()), 0, len(self.charged))
        self.runner.close()

    def some(self, index: int, *states: CallState) -> str | None:
        ids = [id_ for id_, state in self.states.items() if state in states]
        return ids[index % len(ids)] if ids else None

    @rule(nusd=st.integers(0, 90), key=st.integers(0, 30))
    def reserve(self, nusd: int, key: int) -> None:
        wanted = ask(nusd, key=f"call-{key}")
        id_ = wanted.reservation_id
        if self.states.get(id_, CallState.RELEASED) is not CallState.RELEASED or id_ in self.reserved:
            wanted = ask(self.reserved[id_], key=f"call-{key}")
        answer = self.runner.run(self.ledger.reserve(wanted))
        if isinstance(answer, Reservation):
            known = self.states.get(id_, CallState.RELEASED)
            assert answer.state is (CallState.RESERVED if known is CallState.RELEASED else known)
            self.states[id_], self.reserved[id_] = answer.state, answer.amount.nusd

    @rule(index=st.integers(0, 30))
    def dispatch(self, index: int) -> None:
        if id_ := self.some(index, CallState.RESERVED):
            self.runner.run(self.ledger.dispatch(id_))
            self.states[id_] = CallState.DISPATCHED

    @rule(index=st.integers(0, 30))
    def release(self, index: int) -> None:
        if id_ := self.some(index, CallState.RESERVED, CallState.RELEASED):
            self.runner.run(self.ledger.release(id_))
            self.states[id_] = CallState.RELEASED

    @rule(index=st.integers(0, 30), share=st.floats(0, 1))
    def settle(self, index: int, share: float) -> None:
        if id_ := self.some(index, CallState.DISPATCHED, CallState.IN_DOUBT, CallState.SETTLED):
            settlement = self.runner.run(self.ledger.settle(id_, Amount(int(self.reserved[id_] * share), 0)))
            if self.states[id_] is CallState.SETTLED:
                assert settlement.charged.nusd == self.charged[id_]
            self.states[id_], self.charged[id_] = CallState.SETTLED, settlement.charged.nusd

    @rule(index=st.integers(0, 30))
    def doubt(self, index: int) -> None:
        if id_ := self.some(index, CallState.DISPATCHED, CallState.IN_DOUBT):
            self.charged[id_] = self.runner.run(self.ledger.in_doubt(id_)).charged.nusd
            self.states[id_] = CallState.IN_DOUBT

    @precondition(lambda self: bool(self.states))
    @invariant()
    def held_and_spent_are_what_the_model_says(self) -> None:
        found = self.runner.run(of_tenant(self.ledger))
        in_flight = (CallState.RESERVED, CallState.DISPATCHED)
        held = sum(self.reserved[id_] for id_, state in self.states.items() if state in in_flight)
        assert (found.held.nusd, found.spent.nusd) == (held, sum(self.charged.values()))
        assert held + found.spent.nusd <= CEILING


TestLedgerMachine = LedgerMachine.TestCase
