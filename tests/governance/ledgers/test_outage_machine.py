"""Three processes, a server that goes and comes and loses answers: what was paid is charged, and no ceiling is passed."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.governance.errors import (
    LedgerUnavailableError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import Reservation, ReservationState
from agentic_trading.governance.ledgers.degraded import DegradedModeLedger
from agentic_trading.governance.prices import Amount
from agentic_trading.ids import fraction
from tests.governance.asking import ask, of_tenant, tenant
from tests.governance.ledgers.outages import Case

CEILING = 2000
STEPS = ("reserve", "dispatch", "settle", "release", "in_doubt")


Choice = TypeVar("Choice")


class Chance:
    """Chance that repeats itself."""

    def __init__(self, seed: int) -> None:
        self._numbers = (fraction("outage", seed, number) for number in count())

    def below(self, most: int) -> int:
        return int(next(self._numbers) * most)

    def choice(self, choices: Sequence[Choice]) -> Choice:
        return choices[self.below(len(choices))]


class Desk:
    """Makes calls as a worker does, of which some are deliveries of the same."""

    def __init__(self, chance: Chance, *, keys: int) -> None:
        self.case = Case(tenant(CEILING))
        self.processes = [self.case.ledger, self.case.process(), self.case.process()]
        self.chance = chance
        self.keys = keys
        self.flying: list[tuple[DegradedModeLedger, str, int]] = []
        self.paid = 0

    async def go(self, steps: int) -> None:
        actions = [self.begin, self.begin, self.begin, self.end, self.end, self.expire_leases, self.wait]
        for _ in range(steps):
            self.weather()
            try:
                await self.chance.choice(actions)()
            except (LedgerUnavailableError, ReservationStateError, UnknownReservationError):
                continue
        self.clear()
        for process, id_, used in self.flying:
            await process.settle(id_, Amount(used, 0))
        for _ in range(4):
            for process in self.processes:
                await process.expire_leases()
            self.case.clock.advance_to(self.case.clock.now() + timedelta(seconds=1000))

    def clear(self) -> None:
        self.case.server.fails, self.case.server.loses = set(), set()

    def weather(self) -> None:
        self.clear()
        bad = {step for step in STEPS if self.chance.below(100) < self.chance.choice([0, 0, 50, 100])}
        if self.chance.below(2):
            self.case.server.fails = bad
        else:
            self.case.server.loses = bad

    async def begin(self) -> None:
        process = self.chance.choice(self.processes)
        key = f"call-{self.chance.below(self.keys)}" if self.keys else ""
        wanted = ask(100 if self.keys else 1 + self.chance.below(120), key=key)
        answer = await process.reserve(wanted)
        if not isinstance(answer, Reservation) or answer.state is not ReservationState.RESERVED:
            return
        if self.chance.below(5) == 0:
            await process.release(answer.id)
            return
        try:
            await process.dispatch(answer.id)
        except LedgerUnavailableError:
            await process.release(answer.id)
            return
        self.paid += wanted.amount.nusd
        self.flying.append((process, answer.id, wanted.amount.nusd))

    async def end(self) -> None:
        if self.flying:
            process, id_, used = self.flying.pop(self.chance.below(len(self.flying)))
            if self.chance.below(5) == 0:
                await process.in_doubt(id_)
            else:
                assert (await process.settle(id_, Amount(used, 0))).charged.nusd == used

    async def expire_leases(self) -> None:
        await self.chance.choice(self.processes).expire_leases()

    async def wait(self) -> None:
        seconds = self.chance.choice([1, 20, 70, 700])
        self.case.clock.advance_to(self.case.clock.now() + timedelta(seconds=seconds))


@pytest.mark.parametrize("keys", [0, 40], ids=["calls of their own", "deliveries of the same"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_paid_calls_are_charged_within_ceiling(keys: int, seed: int) -> None:
    async def play() -> None:
        desk = Desk(Chance(seed), keys=keys)
        await desk.go(100)

        found = await of_tenant(desk.case.server)
        assert desk.paid <= found.spent.nusd <= CEILING
        assert found.held.nusd == 0
        assert sum(len(process._in_flight) + len(process._pending) for process in desk.processes) == 0

    asyncio.run(play())
