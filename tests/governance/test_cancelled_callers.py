"""Of several callers of one ledger only the cancelled one is, at whatever step; the others are answered, nothing is held."""

import asyncio

import pytest

from agentic_trading.governance.ledger import Reservation
from agentic_trading.governance.prices import Amount
from tests.governance.asking import ask, of_tenant, reserved, tenant
from tests.governance.ledgers.redis_ledgers import ledgers
from tests.redis_server import namespace

ROUNDS = 24


@pytest.mark.parametrize("cancelled", [0, 1], ids=["the first caller", "the second caller"])
async def test_cancelled_reserve_spares_other_callers(cancelled: int, redis_url: str) -> None:
    for rounds in range(ROUNDS):
        async with ledgers(redis_url, namespace()) as opens:
            ledger = await opens([tenant(10**9)])

            async with asyncio.timeout(5), asyncio.TaskGroup() as group:
                callers = [group.create_task(ledger.reserve(ask(10))) for _ in range(2)]
                for _ in range(rounds):
                    await asyncio.sleep(0)
                callers[cancelled].cancel()

            assert isinstance(callers[1 - cancelled].result(), Reservation)


@pytest.mark.parametrize("cancelled", [0, 1], ids=["the first in the queue", "the second in the queue"])
async def test_cancelled_wait_spares_other_callers(cancelled: int, redis_url: str) -> None:
    for rounds in range(0, 10 * ROUNDS, 10):
        async with ledgers(redis_url, namespace()) as opens:
            holder, ledger = await opens([tenant(100)]), await opens([tenant(100)])
            first = await reserved(holder, ask(100))

            async with asyncio.timeout(5), asyncio.TaskGroup() as group:
                waits = [group.create_task(ledger.wait_for_reservation(ask(60))) for _ in range(2)]
                for _ in range(rounds):
                    await asyncio.sleep(0)
                waits[cancelled].cancel()
                await holder.release(first)
            found = waits[1 - cancelled].result()

            assert isinstance(found, Reservation)
            assert waits[cancelled].cancelled()
            assert (await of_tenant(ledger)).held == Amount(60, 0)
