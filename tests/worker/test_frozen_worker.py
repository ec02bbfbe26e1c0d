"""A worker process that is stopped past its lease and goes on when another one has ended its envelope."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.llm import LLMEnvelope
from agentic_trading.llm.interaction import reservation_id
from agentic_trading.worker.active_claim import key_of
from agentic_trading.worker.claim import Finished
from tests.gateway import held
from tests.worker.claims_on_server import Server, ServerClaims
from tests.worker.test_crashes import Fleet, Process, envelope_of

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Server]:
    async with AsyncExitStack() as opened:
        yield Server(redis_url, opened)


class Worker:
    """The process, stopped at a moment."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(10):
            return (await self._process.stdout.readline()).decode().strip()

    async def go_on(self) -> dict[str, Any]:
        """Let it go on, and return what it has made of the envelope."""
        self._process.send_signal(signal.SIGCONT)
        await self.tell(b"go on")
        made: dict[str, Any] = json.loads(await self.line())
        return made


@asynccontextmanager
async def stopped_at(moment: str, server: Server, envelope: LLMEnvelope) -> AsyncGenerator[Worker]:
    command = (sys.executable, "-m", "tests.worker.freezing_worker", moment, server.url, server.namespace)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    worker = Worker(process)
    try:
        await worker.tell(envelope.wire)
        assert await worker.line() == moment
        process.send_signal(signal.SIGSTOP)
        yield worker
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def lease_over(server: Server) -> None:
    async with Redis.from_url(server.url) as client, asyncio.timeout(5):
        while True:
            seconds, micros = await client.time()
            if not await client.zcount(
                f"{server.namespace}:{{default}}:owners", seconds * 1000 + micros // 1000, "+inf"
            ):
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
@pytest.mark.parametrize("moment", ["noted", "sent"])
async def test_frozen_worker_stops_after_lost_lease(moment: str, workflow: str, server: Server) -> None:
    ledger: Any = await asyncio.to_thread(RedisLedger, server.url, namespace=server.namespace)
    claims, envelope = ServerClaims(server), envelope_of(workflow)
    fleet = Fleet(claims=claims, ledger=ledger)
    async with aclosing(ledger), stopped_at(moment, server, envelope) as worker:
        await lease_over(server)
        assert await fleet.serve(await fleet.delivery(envelope), Process())
        ended = await claims.claim(key_of(envelope), envelope.envelope_hash)

        made = await worker.go_on()

        assert await claims.claim(key_of(envelope), envelope.envelope_hash) == ended
        first = await ledger.state_of(reservation_id("default", envelope.idempotency_key, 1))
        assert held(await ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}

    is_sent = moment == "sent"
    assert made == {
        "is_lost": True,
        "sent": int(is_sent),
        "replies": 0,
        "records": ["attempt.dispatched", "attempt.answered_late" if is_sent else "attempt.unsent"],
    }
    assert first is (ReservationState.SETTLED if is_sent else ReservationState.RELEASED)
    ends_in_doubt = is_sent and workflow == "execution"
    assert [request.attempt for request in fleet.provider.requests] == ([] if ends_in_doubt else [2])
    (final,) = await fleet.told()
    assert isinstance(ended, Finished)
    assert ended.attempts.splitlines()[-1] == final.wire
    assert (final.result.actionable, final.result.in_doubt) == (not ends_in_doubt, ends_in_doubt)
