"""A platform whose Redis was set back: it waits until an operator rebuilds the ledger, and what is finished is not run again."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict

from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.llm import LLMEnvelope, LLMInteraction
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.operate.budget_log import rebuild_ledger
from agentic_trading.platform import Platform, Ports
from agentic_trading.worker.active_claim import key_of
from agentic_trading.worker.claim import ClaimsRolledBackError
from agentic_trading.worker.claims.redis import LEASE_S, RedisClaimStore
from tests.gateway import asking
from tests.platform.calls import envelope, scripted
from tests.platform.test_shared_ledger import config
from tests.redis_server import RealServer
from tests.worker.test_crashes import answering


@dataclass(frozen=True)
class Desk:
    """Platforms with their ledger and their claims on one server, and the folder of their logs."""

    folder: Path
    server: RealServer
    provider: ScriptedProvider
    lease_s: float = LEASE_S

    @asynccontextmanager
    async def opened(self, name: str = "desk-a") -> AsyncGenerator[tuple[Platform, RedisClaimStore]]:
        claims = await asyncio.to_thread(
            RedisClaimStore, self.server.url, name=name, log_id=name, lease_s=self.lease_s
        )
        await claims.begin()
        ports = Ports(providers={"scripted": self.provider}, claims=claims)
        try:
            configured = config(self.folder, name, self.server.url).model_copy(update={"tenants": {}})
            async with Platform(configured, ports) as platform:
                yield platform, claims
        finally:
            await claims.aclose()

    async def answered(self, platform: Platform) -> tuple[LLMEnvelope, LLMInteraction]:
        """Ask until the platform has found its restarted server again; return the envelope and its answer."""
        async with asyncio.timeout(10):
            while True:
                asked = envelope(2)
                answer = await platform.ask(asked)
                if isinstance(answer, LLMInteraction) and answer.result.success:
                    return asked, answer
                await asyncio.sleep(0.01)

    async def rebuilt(self) -> None:
        logs = sorted(self.folder.glob("*/interactions.jsonl"))
        await rebuild_ledger(logs, self.server.url, "default")

    async def copied(self, to: Path) -> None:
        await asyncio.to_thread(self.server.copy, to)

    async def set_back(self, to: Path) -> None:
        await asyncio.to_thread(self.server.set_back, to)


@pytest.fixture
def desk(tmp_path: Path, own_redis: RealServer) -> Desk:
    return Desk(tmp_path / "desks", own_redis, scripted())


class Seen:
    """Wait for an event of the log of operators."""

    def __init__(self, event: str) -> None:
        self._event, self._has_come = event, asyncio.Event()

    def __call__(self, _logger: object, _name: str, entry: EventDict) -> EventDict:
        if entry["event"] == self._event:
            self._has_come.set()
        return entry

    async def has_come(self) -> None:
        async with asyncio.timeout(10):
            await self._has_come.wait()


@contextmanager
def logged(event: str) -> Iterator[Seen]:
    before, seen = structlog.get_config()["processors"], Seen(event)
    structlog.configure(processors=[seen, *before])
    try:
        yield seen
    finally:
        structlog.configure(processors=before)


async def test_redelivered_envelope_waits_for_rebuild(desk: Desk, tmp_path: Path) -> None:
    async with desk.opened() as (platform, _):
        await platform.ask(envelope(1))
        await desk.copied(tmp_path / "older")
        asked, first = await desk.answered(platform)
        await desk.set_back(tmp_path / "older")

        with logged("claims_rolled_back") as alarm:
            async with asyncio.TaskGroup() as group:
                again = group.create_task(platform.ask(asked))
                await alarm.has_come()
                assert not again.done()
                await desk.rebuilt()
        answer = await again
        assert isinstance(answer, LLMInteraction)
        assert answer.wire == first.wire
    assert len(desk.provider.requests) == 2

    async with desk.opened("desk-b") as (other, _):
        elsewhere = await other.ask(asked)
        assert isinstance(elsewhere, LLMInteraction), elsewhere
        assert elsewhere.wire == first.wire, "its claim keeps the last attempt"
    assert len(desk.provider.requests) == 2


async def test_lost_claim_without_log_is_not_repaid(desk: Desk, tmp_path: Path) -> None:
    async with desk.opened() as (platform, _):
        await platform.ask(envelope(1))
        await desk.copied(tmp_path / "older")
        asked, _ = await desk.answered(platform)
        await desk.set_back(tmp_path / "older")
    with pytest.raises(LedgerRolledBackError):
        async with desk.opened():
            pass
    await desk.rebuilt()

    async with desk.opened("desk-b") as (other, _):
        answer = await other.ask(asked)
    assert isinstance(answer, NoDecision)
    assert "taken_elsewhere" in answer.reason.description
    assert len(desk.provider.requests) == 2


async def test_start_detects_restored_server_and_closes_claims(desk: Desk, tmp_path: Path) -> None:
    asked = envelope(2)
    async with desk.opened() as (platform, _):
        await platform.ask(envelope(1))
    await desk.copied(tmp_path / "older")
    async with desk.opened() as (platform, _):
        first = await platform.ask(asked)
    await desk.set_back(tmp_path / "older")

    with pytest.raises(LedgerRolledBackError, match="budget rebuild"):
        async with desk.opened():
            pass
    claims = await asyncio.to_thread(RedisClaimStore, desk.server.url, name="desk-c")
    with pytest.raises(ClaimsRolledBackError):
        await claims.claim(key_of(asked), asked.envelope_hash)
    await claims.aclose()

    await desk.rebuilt()
    async with desk.opened() as (platform, _):
        again = await platform.ask(asked)
    assert isinstance(first, LLMInteraction)
    assert isinstance(again, LLMInteraction)
    assert again.wire == first.wire
    assert len(desk.provider.requests) == 2


class CopiesTheServer(ScriptedProvider):
    """While it answers for the first time, the server's file is copied: it knows that an attempt is on its way."""

    def __init__(self, server: RealServer, to: Path) -> None:
        super().__init__(answering)
        self._server, self._to = server, to

    async def complete(self, request: ModelRequest) -> ModelResponse:
        if not self.requests:
            await asyncio.to_thread(self._server.copy, self._to)
        return await super().complete(request)


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_restored_server_never_resends_an_order(
    workflow: str, tmp_path: Path, own_redis: RealServer
) -> None:
    provider = CopiesTheServer(own_redis, tmp_path / "older")
    desk, asked = Desk(tmp_path / "desks", own_redis, provider, lease_s=1.0), asking(workflow).build()
    async with desk.opened() as (platform, _):
        first = await platform.ask(asked)
        assert first.failure is None, first.failure
    await desk.set_back(tmp_path / "older")
    await desk.rebuilt()

    async with desk.opened("desk-b") as (other, _):
        await other.ask(asked)

    is_order = workflow == "execution"
    assert [request.attempt for request in provider.requests] == ([1] if is_order else [1, 2])
