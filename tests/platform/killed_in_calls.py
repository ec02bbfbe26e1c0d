"""A platform that kills its own process while calls are in flight."""

import asyncio
import os
import signal
from pathlib import Path

from typing_extensions import override

from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.platform import LedgerConfig, Platform, PlatformConfig, Ports, TenantConfig
from tests.platform.calls import BUDGET_USD, envelope

ANSWERED = 2
REFUSED = 3
IN_FLIGHT = 4


class Stuck(ScriptedProvider):
    """Answers the first calls. All later ones stay in flight, and the last one kills the process."""

    def __init__(self) -> None:
        super().__init__(lambda _request: "{}")
        self._in_flight = 0

    @override
    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, or never return."""
        if len(self.requests) < ANSWERED:
            return await super().complete(request)
        self._in_flight += 1
        if self._in_flight == IN_FLIGHT:
            os.kill(os.getpid(), signal.SIGKILL)
        never: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        return await never


def platform(folder: Path, url: str) -> Platform:
    """Return a platform with its log in `folder` and its ledger on the server at `url`."""
    config = PlatformConfig(
        folder=folder,
        name="desk-a",
        concurrency=IN_FLIGHT,
        ledger=LedgerConfig(url=url),
        tenants={"default": TenantConfig(budget_usd=10 * BUDGET_USD)},
    )
    return Platform(config, Ports(providers={"scripted": Stuck()}))


async def _killed(folder: Path, url: str) -> None:
    async with platform(folder, url) as opened, asyncio.TaskGroup() as group:
        for n in range(ANSWERED):
            await opened.ask(envelope(n))
        for n in range(REFUSED):
            await opened.ask(envelope(10 + n, provider="unknown"))
        for n in range(IN_FLIGHT):
            group.create_task(opened.ask(envelope(20 + n)))


def main(folder: Path, url: str) -> None:
    """Run in a process of its own until it is killed."""
    asyncio.run(_killed(folder, url))
