"""Every ledger keeps every promise of the port, and the suite finds those that break one."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from agentic_trading.governance.errors import LedgerError
from tests import redis_server
from tests.contracts.broken_ledgers import BROKEN
from tests.contracts.broken_ledgers_in_time import BROKEN_IN_TIME
from tests.contracts.ledger_changes import CHANGES
from tests.contracts.ledger_entries import ENTRIES
from tests.contracts.ledger_history import HISTORY
from tests.contracts.ledger_leases import LEASES
from tests.contracts.ledger_limits import LIMITS
from tests.contracts.ledger_on_redis import on_server
from tests.contracts.ledger_opening import Opens, Promise, memory
from tests.contracts.ledger_queue import LINE
from tests.contracts.ledger_steps import STEPS
from tests.contracts.whole_ledger import Whole, opening

PATIENCE_S = 4.0
PROMISES = (*LIMITS, *STEPS, *LINE, *LEASES, *CHANGES, *HISTORY, *ENTRIES)
FOUND_OUT = (*BROKEN, *BROKEN_IN_TIME)
FOUND = (AssertionError, TimeoutError, ExceptionGroup, LedgerError, pytest.fail.Exception)


Adapter = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Opens]]

# A server's adapter stands here once for each of `redis_server.servers()`: a fixture with parameters, such as
# `redis_url`, cannot be asked for by name. Its address is `request.getfixturevalue("redis_named")(name)`.
ADAPTERS: dict[str, Adapter] = {
    "memory": lambda _: memory(),
    **{name: partial(on_server, name) for name in redis_server.servers()},
}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS.keys())
async def test_ledger_adapter_keeps_promise(
    adapter: Adapter, promise: Promise, request: pytest.FixtureRequest
) -> None:
    async with asyncio.timeout(PATIENCE_S), adapter(request) as opens:
        await promise(opens)


@pytest.mark.parametrize(("broken", "promise"), FOUND_OUT, ids=lambda value: getattr(value, "__name__", ""))
async def test_broken_ledger_is_detected(broken: type[Whole], promise: Promise) -> None:
    with pytest.raises(FOUND):
        async with asyncio.timeout(0.2):
            await promise(opening(broken))


async def test_base_of_broken_ledgers_keeps_promises() -> None:
    for promise in PROMISES:
        await promise(opening(Whole))


def test_each_promise_has_broken_ledger() -> None:
    assert {promise for _, promise in FOUND_OUT} == set(PROMISES)
