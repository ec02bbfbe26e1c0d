"""A state machine that drives any ledger: duplicates, crashes, late answers, changed limits, a rebuild."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentic_trading.governance.errors import (
    ReservationConflictError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import (
    LEASE_S,
    ExpiredReservation,
    Ledger,
    LedgerCheckpoint,
    Reservation,
    ReservationRequest,
    ReservationState,
)
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import join
from tests.contracts.ledger_model import CHARGED, Model, ModelCall
from tests.contracts.ledger_opening import Opens, memory
from tests.governance.asking import AT, ask

T = TypeVar("T")
Opening = Callable[[], AbstractAsyncContextManager[Opens]]

NOTHING = Amount(0, 0, 0)
OWN = (Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=120),)
"""What every other key allows itself, over all its attempts."""


def limits(tenant: int, trace: int, agent: int, named: int) -> list[Limit]:
    """Return limits of every kind; each ledger counts all of these from its first call on."""
    return [
        Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=tenant),
        Limit(ScopeKind.TENANT, ANY, Window.DAY, calls=12),
        Limit(ScopeKind.TRACE, ANY, Window.NONE, tokens=trace),
        Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=agent, nusd=tenant),
        Limit(ScopeKind.AGENT, "big", Window.DAY, calls=named),
    ]


def among(*states: ReservationState) -> Callable[["LedgerMachine"], bool]:
    """Say that a rule needs a call in one of these states."""
    return lambda machine: any(call.state in states for call in machine.model.calls.values())


places = st.integers(0, 40)
shares = st.floats(0, 2)


class LedgerMachine(RuleBasedStateMachine):
    """One caller after the other, each step taken once or twice; nobody waits, so every answer is foretold."""

    def opened(self) -> AbstractAsyncContextManager[Opens]:
        return memory()

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.version = 0
        self.model = Model(limits(500, 200, 6, 8))
        self.closing = asyncio.Event()
        ready: asyncio.Future[Ledger] = self.runner.get_loop().create_future()
        # Opened and closed in one task, which lives on between the steps.
        self.host = self.runner.get_loop().create_task(self.keep_open(ready))
        self.ledger = self.runner.run(_result(ready))
        self.position = self.run(self.ledger.checkpoint("acme"))

    async def keep_open(self, ready: asyncio.Future[Ledger]) -> None:
        try:
            async with self.opened() as opens:
                ready.set_result(await opens(*self.model.limits, reserved_lease_s=0))
                await self.closing.wait()
        except BaseException as e:  # the time limit of a test, too, is raised in any task
            if not ready.done():
                ready.set_exception(e)
            raise

    def run(self, step: Awaitable[T]) -> T:
        return self.runner.run(_result(step))

    def teardown(self) -> None:
        try:
            self.end_all_leases()
        finally:
            self.closing.set()
            self.run(self.host)
            self.runner.close()

    def end_all_leases(self) -> None:
        self.expire_leases()
        for id_, call in self.model.calls.items():
            if call.state is ReservationState.DISPATCHED:
                self.run(self.ledger.in_doubt(id_))
                call.state = ReservationState.IN_DOUBT
        self.every_counter_is_the_sum_of_its_calls()
        assert all(one.held == NOTHING for one in self.run(self.ledger.balances("acme")))
        for id_, call in self.model.calls.items():
            state = self.run(self.ledger.state_of(id_))
            assert (state or ReservationState.RELEASED) is call.state

    @rule(
        nusd=st.integers(0, 90), tokens=st.integers(0, 40), key=st.integers(0, 12), attempt=st.integers(1, 2),
        agent=st.sampled_from(["small", "big"]), trace=st.sampled_from(["one", "two"]), days=st.integers(0, 1),
    )  # fmt: skip
    def reserve(
        self, nusd: int, tokens: int, key: int, attempt: int, agent: str, trace: str, days: int
    ) -> None:
        wanted = ask(
            nusd, tokens=tokens, key=f"call-{key}", attempt=attempt, agent=agent, trace=trace,
            at=AT + timedelta(days=days), limits=OWN if key % 2 else (),
        )  # fmt: skip
        known = self.model.calls.get(wanted.reservation_id)
        if known is None or known.state is ReservationState.RELEASED:
            self.ask_anew(wanted)
        else:
            again = replace(known.request, at=AT + timedelta(days=days))
            self.ask_again(again, known)

    def ask_anew(self, wanted: ReservationRequest) -> None:
        foretold = self.model.answer(wanted)
        answer = self.run(self.ledger.reserve(wanted))
        assert isinstance(answer, foretold), (answer, foretold)
        if isinstance(answer, Reservation):
            assert answer == Reservation(wanted.reservation_id, wanted.amount)
            self.model.calls[answer.id] = ModelCall(wanted, ReservationState.RESERVED, wanted.amount)

    def ask_again(self, again: ReservationRequest, known: ModelCall) -> None:
        answer = self.run(self.ledger.reserve(again))
        assert isinstance(answer, Reservation)
        assert answer[:3] == (again.reservation_id, known.request.amount, known.state)
        if known.state is ReservationState.RESERVED:  # it stays in the windows of the first request
            assert _day(answer.counted_at or again.at) == _day(known.request.at)
        other = replace(again, amount=Amount(again.amount.nusd + 1, 0))
        with pytest.raises(ReservationConflictError):
            self.run(self.ledger.reserve(other))

    @precondition(among(ReservationState.RESERVED))
    @rule(place=places, mortal=st.booleans())
    def dispatch(self, place: int, mortal: bool) -> None:  # noqa: FBT001 - hypothesis gives it by name
        id_ = self.model.some(place, ReservationState.RESERVED)
        self.run(self.ledger.dispatch(id_, lease_s=0 if mortal else LEASE_S))
        call = self.model.calls[id_]
        call.state, call.mortal = ReservationState.DISPATCHED, mortal

    @precondition(among(*CHARGED, ReservationState.DISPATCHED, ReservationState.RELEASED))
    @rule(place=places)
    def dispatch_what_was(self, place: int) -> None:
        id_ = self.model.some(place, *CHARGED, ReservationState.DISPATCHED, ReservationState.RELEASED)
        with pytest.raises((ReservationStateError, UnknownReservationError)):
            self.run(self.ledger.dispatch(id_))

    @precondition(among(ReservationState.RESERVED))
    @rule(place=places)
    def release(self, place: int) -> None:
        id_ = self.model.some(place, ReservationState.RESERVED)
        self.run(self.ledger.release(id_))
        self.run(self.ledger.release(id_))
        self.give_back(id_)

    @precondition(among(*CHARGED, ReservationState.DISPATCHED))
    @rule(place=places)
    def release_what_was_sent(self, place: int) -> None:
        id_ = self.model.some(place, *CHARGED, ReservationState.DISPATCHED)
        with pytest.raises(ReservationStateError):
            self.run(self.ledger.release(id_))

    @precondition(among(ReservationState.DISPATCHED, ReservationState.IN_DOUBT))
    @rule(place=places, share=shares)
    def settle(self, place: int, share: float) -> None:
        self.answer(self.model.some(place, ReservationState.DISPATCHED, ReservationState.IN_DOUBT), share)

    @precondition(among(ReservationState.RESERVED))
    @rule(place=places, share=shares, answers=st.booleans())
    def crash(self, place: int, share: float, answers: bool) -> None:  # noqa: FBT001 - hypothesis gives it by name
        """Send a call and die; perhaps its answer comes when everybody has given it up."""
        id_ = self.model.some(place, ReservationState.RESERVED)
        self.run(self.ledger.dispatch(id_, lease_s=0))
        self.model.calls[id_].state = ReservationState.DISPATCHED
        self.expire_leases()
        if answers:
            self.answer(id_, share)

    def answer(self, id_: str, share: float) -> None:
        call = self.model.calls[id_]
        amount = call.request.amount
        used = Amount(int(amount.nusd * share), int(amount.tokens * share))
        settlement = self.run(self.ledger.settle(id_, used))
        assert (settlement.charged, settlement.reserved) == (used, amount)
        assert settlement.late == (call.state is ReservationState.IN_DOUBT)
        call.state, call.counts = ReservationState.SETTLED, used

    @precondition(among(ReservationState.SETTLED))
    @rule(place=places, nusd=st.integers(0, 500))
    def settle_again(self, place: int, nusd: int) -> None:
        id_ = self.model.some(place, ReservationState.SETTLED)
        settlement = self.run(self.ledger.settle(id_, Amount(nusd, 0)))
        assert settlement.charged == self.model.calls[id_].counts

    @precondition(among(*CHARGED, ReservationState.DISPATCHED))
    @rule(place=places)
    def doubt(self, place: int) -> None:
        id_ = self.model.some(place, ReservationState.DISPATCHED, *CHARGED)
        call = self.model.calls[id_]
        settlement = self.run(self.ledger.in_doubt(id_))
        if call.state is ReservationState.DISPATCHED:
            call.state = ReservationState.IN_DOUBT
        assert settlement.charged == call.counts
        assert settlement.in_doubt == (call.state is ReservationState.IN_DOUBT)

    @precondition(among(ReservationState.RESERVED, ReservationState.DISPATCHED))
    @rule()
    def expire_leases(self) -> None:
        expired = self.run(self.ledger.expire_leases())
        for one in expired:
            self.run(self.ledger.acknowledge_expired(one.reservation_id))
        foretold = []
        for id_, call in self.model.calls.items():
            if call.state is ReservationState.RESERVED:
                self.give_back(id_)
                foretold.append(ExpiredReservation(id_, ReservationState.RELEASED, call.request.amount))
            elif call.state is ReservationState.DISPATCHED and call.mortal:
                call.state = ReservationState.IN_DOUBT
                foretold.append(ExpiredReservation(id_, ReservationState.IN_DOUBT, call.request.amount))
        assert sorted(expired, key=_id) == sorted(foretold, key=_id)

    @rule(
        tenant=st.integers(100, 900), trace=st.integers(40, 300), agent=st.integers(1, 9), named=st.integers(1, 9),
        newer=st.booleans(),
    )  # fmt: skip
    def apply_limits(self, tenant: int, trace: int, agent: int, named: int, newer: bool) -> None:  # noqa: FBT001 - hypothesis gives it by name
        adopted = limits(tenant, trace, agent, named)
        if newer:
            self.version += 1
            self.model.limits = adopted
        self.run(self.ledger.apply_limits("acme", adopted, version=self.version))

    @precondition(lambda self: self.model.calls)
    @rule(logged=st.booleans())
    def rebuild(self, logged: bool) -> None:  # noqa: FBT001 - hypothesis gives it by name
        """Restore from a log in which what was sent and has no answer stands, or not yet."""
        before = self.position
        self.position = self.run(self.ledger.restore("acme", self.model.entries(sent=logged)))
        assert self.position.epoch > before.epoch
        self.run(self.ledger.require_at_least("acme", before))

    @precondition(lambda self: self.model.calls)
    @rule(every=st.integers(1, 4))
    def rebuild_from_a_part_of_the_log(self, every: int) -> None:
        """Restore what a log knows of some calls, and the ledger itself of all."""
        logged = self.model.entries(sent=False)[::every]
        entries, kept = join(logged, self.run(self.ledger.entries("acme")))
        assert not {one.reservation_id for one in kept} & {one.request.reservation_id for one in logged}
        self.position = self.run(self.ledger.restore("acme", entries))

    @invariant()
    def every_counter_is_the_sum_of_its_calls(self) -> None:
        found = self.run(self.ledger.balances("acme"))
        for one in found:
            self.model.check(one)
        nusd = [one.spent.nusd for one in found if (one.scope, one.window) == (ScopeKind.TENANT, Window.NONE)]
        bill = sum(call.counts.nusd for call in self.model.calls.values() if call.state in CHARGED)
        assert sum(nusd) == bill

    @invariant()
    def it_never_goes_back(self) -> None:
        found = self.run(self.ledger.checkpoint("acme"))
        assert _order(found) >= _order(self.position)
        self.position = found

    def give_back(self, id_: str) -> None:
        call = self.model.calls[id_]
        call.state, call.counts = ReservationState.RELEASED, NOTHING


def machine(adapter: Opening) -> type[LedgerMachine]:
    """Return the machine that drives the ledgers of an adapter, each on an event loop of its own."""

    class Machine(LedgerMachine):
        def opened(self) -> AbstractAsyncContextManager[Opens]:
            return adapter()

    return Machine


def _day(at: datetime | None) -> date | None:
    return at and at.date()


async def _result(step: Awaitable[T]) -> T:
    return await step


def _id(expired: ExpiredReservation) -> str:
    return expired.reservation_id


def _order(position: LedgerCheckpoint) -> tuple[int, int]:
    return position.epoch, position.sequence
