"""The benchmark of the ledgers takes every step that its rows name."""

import asyncio
from contextlib import aclosing

import pytest

from benchmarks.ledger_redis import rows
from benchmarks.overspend_ours import steps_with
from benchmarks.peers.load import LOADS, NUSD_PER_TOKEN
from benchmarks.peers.spending import Opening
from tests.redis_server import RealServer


@pytest.mark.parametrize("way", [row.way for row in rows() if not row.folder])
def test_each_row_reserves_and_settles_on_redis(way: str, own_redis: RealServer) -> None:
    async def step() -> object:
        purse = await steps_with(own_redis.url)(Opening(way, "cents", 10**9, f"run-{way}"))
        async with aclosing(purse):
            leave = await purse.take("call-1")
            assert leave is not None
            await purse.book(leave, "call-1", LOADS["cents"].used("call-1") * NUSD_PER_TOKEN)
        return leave

    assert asyncio.run(step()) == "default:call-1:1"
