"""What is laid aside when nobody uses it is found again as it was: when it is laid aside changes no answer and no sum.

And whatever limits come and go, every counter is the sum of the calls that it is about.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from itertools import chain
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.clock import SimClock
from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.ledger import Balance, Reservation, ReservationRequest, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger, TenantLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, Windows
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import AT, ask, held, refused, reserved, select, spend, tenant

AT_ONCE, NEVER = 1, 10**9
FIRST = (
    tenant(100),
    Limit(ScopeKind.CALL, ANY, Window.NONE, calls=2),
    Limit(ScopeKind.TRACE, ANY, Window.HOUR, nusd=60),
    Limit(ScopeKind.AGENT, "agent-1", Window.DAY, calls=6),
)
LATER = (
    (),
    (tenant(150), Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=50)),
    (tenant(80, window=Window.DAY), Limit(ScopeKind.CALL, ANY, Window.DAY, nusd=30)),
)
OWN = (
    (),
    (Limit(ScopeKind.CALL, ANY, Window.HOUR, nusd=25), Limit(ScopeKind.AGENT, ANY, Window.MINUTE, calls=2)),
)

Verb = Literal[
    "reserve", "wait", "dispatch", "settle", "doubt", "release", "cancel", "sweep", "adopt", "restore"
]


@dataclass(frozen=True, slots=True)
class Step:
    """`which` says to which of the calls or waiters so far; the rest is for a new ask."""

    verb: Verb
    which: int
    key: int
    attempt: int
    nusd: int
    minutes: int


steps = st.builds(
    Step,
    st.sampled_from(
        ["reserve"] * 5 + ["wait"] * 2 + ["dispatch"] * 5 + ["settle"] * 4 + ["doubt"] * 2
        + ["release", "cancel", "sweep", "adopt", "adopt", "restore"]
    ),
    st.integers(0, 7),
    st.integers(0, 5),
    st.integers(1, 3),
    st.sampled_from([0, 5, 20, 45]),
    st.sampled_from([-50, -1, 0, 0, 0, 1, 30, 90]),
)  # fmt: skip


@dataclass(slots=True)
class Run:
    """Takes steps on a ledger and writes down what it sees after each."""

    ledger: MemoryLedger
    clock: SimClock
    group: asyncio.TaskGroup
    now: int = 0
    version: int = 0
    ids: list[str] = field(default_factory=list)
    waiting: list[asyncio.Task[object]] = field(default_factory=list)
    seen: list[object] = field(default_factory=list)

    async def take(self, step: Step) -> None:
        """Take a step; what it answers and what is counted after it is seen."""
        self.seen.append(await told(self.answer(step)))
        for _ in range(3 * (step.which % 2)):  # who was served or cancelled goes on, or only later
            await asyncio.sleep(0)
        self.seen.append([task.done() for task in self.waiting])
        self.seen.append(counted(await self.ledger.balances("acme")))
        assert added_up(self.ledger._ledger_of("acme")) == []

    async def answer(self, step: Step) -> object:
        """Take a step; return what the ledger says."""
        if step.verb in {"reserve", "wait"}:
            return await self.asked(step)
        if step.verb == "cancel" and self.waiting:
            return self.waiting[step.which % len(self.waiting)].cancel()
        if step.verb == "sweep":
            self.clock.advance_to(self.clock.now() + timedelta(minutes=step.attempt))
            return await self.ledger.expire_leases()
        if step.verb == "adopt":
            self.version += 1
            await self.ledger.apply_limits("acme", LATER[step.which % 3], version=self.version)
        if step.verb == "restore":
            return await self.ledger.restore("acme", [])
        if not self.ids:
            return None
        id_ = self.ids[step.which % len(self.ids)]
        ends: dict[str, Callable[[], Awaitable[object]]] = {
            "dispatch": lambda: self.ledger.dispatch(id_, lease_s=90),
            "settle": lambda: self.ledger.settle(id_, Amount(step.nusd, 0)),
            "doubt": lambda: self.ledger.in_doubt(id_),
            "release": lambda: self.ledger.release(id_),
        }
        return await ends.get(step.verb, lambda: self.ledger.state_of(id_))()

    async def answer_in_turn(self, wanted: ReservationRequest) -> object:
        """Wait in the line."""
        return await told(self.ledger.wait_for_reservation(wanted))

    async def asked(self, step: Step) -> object:
        """Ask, at once or in turn; the moment moves on, or back for this one ask."""
        at = AT + timedelta(minutes=self.now + step.minutes)
        self.now += max(0, step.minutes)
        wanted = ask(
            step.nusd, key=f"call-{step.key}", attempt=step.attempt, at=at if step.which else None,
            trace=f"trace-{step.key // 2}", agent=f"agent-{step.which % 3}", limits=OWN[step.which % 2],
        )  # fmt: skip
        if step.verb == "wait":
            self.waiting.append(self.group.create_task(self.answer_in_turn(wanted)))
            return None
        answer = await self.ledger.reserve(wanted)
        if isinstance(answer, Reservation):
            self.ids.append(answer.id)
        return answer


def added_up(book: TenantLedger) -> list[str]:
    """Spell what every counter should count: the calls that are remembered, each in the windows of its moment."""
    windows = Windows(UTC)
    wrong = []
    for account in chain.from_iterable(book.counters.pages(limited=False)):
        kind, window = account.table.kind, account.table.window
        about = [
            call
            for call in book.calls
            if call.request.scope_ids.get(kind) == account.id
            and windows.at(call.at)[window].id == account.time_window.id
        ]
        parts = {
            "spent": [call.booked for call in about if call.charged is not None],
            "held": [call.booked for call in about if call.charged is None],
            "in doubt": [call.booked for call in about if call.state is ReservationState.IN_DOUBT],
        }
        found = {"spent": account.spent, "held": account.held, "in doubt": account.in_doubt}
        for name, amounts in parts.items():
            sums = tuple(map(sum, zip(*(amount.units for amount in amounts), strict=True))) or (0, 0, 0)
            if sums != found[name].units:
                wrong.append(
                    f"{kind} {account.id} {window} {account.time_window.id}: {name} {found[name]}, not {sums}"
                )
    return wrong


def counted(balances: Sequence[Balance]) -> list[str]:
    """Spell the counters that count something; the others may go at any time."""
    return sorted(
        str(one) for one in balances if any((*one.spent.units, *one.held.units, *one.in_doubt.units))
    )


async def told(answer: Awaitable[object]) -> object:
    """Return an answer, or the words of the complaint."""
    try:
        return await answer
    except LedgerError as e:
        return str(e)


async def seen_by(plan: Sequence[Step]) -> list[object]:
    """Run a plan; return what was seen."""
    clock = SimClock(AT)
    async with asyncio.TaskGroup() as group:
        run = Run(MemoryLedger(FIRST, keep=timedelta(days=30), clock=clock), clock, group)
        for step in plan:
            await run.take(step)
        for task in run.waiting:
            task.cancel()
    return [*run.seen, *(None if task.cancelled() else task.result() for task in run.waiting)]


@given(st.lists(steps, max_size=40))
def test_deactivation_timing_does_not_change_results(plan: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TenantLedger, "tidy_after", NEVER)
        kept = asyncio.run(seen_by(plan))
        patch.setattr(TenantLedger, "tidy_after", AT_ONCE)
        assert asyncio.run(seen_by(plan)) == kept


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything laid aside as soon as nobody uses it."""
    monkeypatch.setattr(TenantLedger, "tidy_after", AT_ONCE)


@pytest.mark.usefixtures("at_once")
async def test_waiting_request_keeps_counters_active() -> None:
    ledger = MemoryLedger([tenant(19), Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10)])
    await spend(ledger, ask(8))
    flying = await reserved(ledger, ask(10, trace="other"))

    async with asyncio.TaskGroup() as group:
        group.create_task(ledger.wait_for_reservation(ask(2)))
        await in_line(ledger, 1)
        for _ in range(3):
            await refused(ledger, ask(11))
        await ledger.release(flying)

    assert (await held(ledger, ask(1))).left == 0


@pytest.mark.usefixtures("at_once")
async def test_late_cancellation_keeps_used_counters_active() -> None:
    ledger = MemoryLedger([tenant(20), Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=30)])
    await spend(ledger, ask(8))
    async with asyncio.TaskGroup() as group:
        flying = await reserved(ledger, ask(10, trace="other"))
        leaving = group.create_task(ledger.wait_for_reservation(ask(5)))
        await in_line(ledger, 1)
        leaving.cancel()  # and comes to it only after the next steps
        await ledger.release(flying)
        await refused(ledger, ask(40))
        second = await reserved(ledger, ask(9))
        await ledger.dispatch(second)
    await refused(ledger, ask(40))
    await ledger.settle(second, Amount(9, 0))

    (trace,) = select(await ledger.balances("acme"), ScopeKind.TRACE, "trace-1", Window.NONE)
    assert (trace.spent.nusd, trace.held.nusd) == (17, 0)
