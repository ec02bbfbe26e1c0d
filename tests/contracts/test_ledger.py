"""Every ledger keeps every promise of the port, and the suite finds those that break one."""

import asyncio
from datetime import UTC, tzinfo

import pytest

from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.ledger import Ledger, Limit
from agentic_trading.governance.ledgers.memory import MemoryLedger
from tests.contracts.broken_ledgers import BROKEN, Whole
from tests.contracts.ledger_limits import LIMITS
from tests.contracts.ledger_line import LINE
from tests.contracts.ledger_opening import Opens, Promise
from tests.contracts.ledger_steps import STEPS

PATIENCE_S = 4.0
PROMISES = (*LIMITS, *STEPS, *LINE)
FOUND = (AssertionError, TimeoutError, ExceptionGroup, LedgerError, pytest.fail.Exception)


async def memory(*limits: Limit, zone: tzinfo | None = None) -> Ledger:
    return MemoryLedger(limits, zone=zone or UTC)


ADAPTERS: dict[str, Opens] = {"memory": memory}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("opens", ADAPTERS.values(), ids=ADAPTERS.keys())
async def test_an_adapter_keeps_the_promise(opens: Opens, promise: Promise) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await promise(opens)


def opening(broken: type[Whole]) -> Opens:
    async def opens(*limits: Limit, zone: tzinfo | None = None) -> Ledger:
        return broken(limits, zone or UTC)

    return opens


@pytest.mark.parametrize(("broken", "promise"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_broken_adapter_is_found(broken: type[Whole], promise: Promise) -> None:
    with pytest.raises(FOUND):
        async with asyncio.timeout(0.2):
            await promise(opening(broken))


async def test_the_broken_adapters_are_whole_but_for_one_thing() -> None:
    for promise in PROMISES:
        await promise(opening(Whole))


def test_there_is_a_broken_adapter_for_each_promise() -> None:
    assert {promise for _, promise in BROKEN} == set(PROMISES)
