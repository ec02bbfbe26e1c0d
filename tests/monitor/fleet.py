"""Two workers with three tenants on a real ledger, on a thread of their own, for pages to look at."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import TypeVar

from typing_extensions import override

from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import AddHalt, OperatorCommand, SetLimit, execute_command
from agentic_trading.governance.control_stores.redis import RedisControlStore
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm import EnvelopeBuilder, FailureKind, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.limits import NANO, RetryPolicy
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.platform import LedgerConfig, Platform, PlatformConfig, Ports, TenantConfig

T = TypeVar("T")
WITHIN_S = 60.0
TENANTS = {
    "alpha": TenantConfig(budget_usd=Decimal(6), window=Window.DAY),
    "beta": TenantConfig(budget_usd=Decimal("0.4"), window=Window.DAY),
    "gamma": TenantConfig(budget_usd=Decimal(25), window=Window.DAY),
}
LIMITS = (
    ("alpha", Limit(ScopeKind.AGENT, "cmt-analyst", Window.HOUR, nusd=NANO)),
    ("alpha", Limit(ScopeKind.WORKFLOW, "planning", Window.DAY, calls=100)),
    ("beta", Limit(ScopeKind.AGENT, "executor", Window.DAY, calls=4)),
    ("beta", Limit(ScopeKind.TENANT, ANY, Window.HOUR, nusd=NANO // 2)),
    ("gamma", Limit(ScopeKind.AGENT, "helper", Window.DAY, tokens=4_000)),
)
HALT = AddHalt(HaltScope.AGENT, "planner")
LONG = "{" + '"note": "' + "steady " * 60 + '"}'


class Held(ScriptedProvider):
    """Answers at once, except for agents named `held`, whose calls end with the fleet, and `late`, whose calls time out."""

    def __init__(self) -> None:
        super().__init__(lambda _request: LONG)
        self.began = asyncio.Event()
        self.ends = asyncio.Event()

    @override
    async def complete(self, request: ModelRequest) -> ModelResponse:
        if request.envelope.agent_id == "late":
            raise ProviderError(FailureKind.TIMEOUT, "no answer within 30 s", sent=True)
        if request.envelope.agent_id == "held":
            self.began.set()
            await self.ends.wait()
        return await super().complete(request)


def question(n: int, tenant: str, agent: str, *, most_tokens: int = 400) -> LLMEnvelope:
    """Return a call of an agent."""
    builder = EnvelopeBuilder().for_analysis().with_instructions("Advise.").with_context({"n": n})
    return (
        builder
        .with_tenant(tenant)
        .with_agent(agent, agent)
        .with_retry_policy(RetryPolicy(max_retries=0))
        .with_budget(max_output_tokens=most_tokens)
        .with_provider(LLMProvider.SCRIPTED, "scripted-1")
        .build()
    )


@dataclass
class Fleet:
    """Running workers."""

    url: str
    folder: Path
    loop: asyncio.AbstractEventLoop
    platforms: list[Platform]
    provider: Held
    held: asyncio.TaskGroup
    asked: int = 0

    def wait(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something on the thread of the fleet, and return its result."""

        async def done() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(timeout=WITHIN_S)

    def ask(
        self, tenant: str, agent: str, calls: int = 1, *, most_tokens: int = 400
    ) -> list[FailureKind | None]:
        """Ask one call after the other, and return how each failed."""

        async def ask() -> list[FailureKind | None]:
            found: list[FailureKind | None] = []
            for _ in range(calls):
                self.asked += 1
                platform = self.platforms[self.asked % len(self.platforms)]
                answer = await platform.ask(question(self.asked, tenant, agent, most_tokens=most_tokens))
                found.append(answer.failure.category if answer.failure is not None else None)
            return found

        return self.wait(ask)

    def hold(self, tenant: str) -> None:
        """Begin a call that ends with the fleet."""
        self.asked += 1
        asked = question(self.asked, tenant, "held")

        async def begin() -> None:
            self.provider.began.clear()
            self.held.create_task(self.platforms[0].ask(asked))
            await self.provider.began.wait()

        self.wait(begin)

    def order(self, tenant: str, wanted: OperatorCommand, why: str = "") -> None:
        """Execute a command of an operator."""
        controls = RedisControlStore(self.url)  # here, because it reads its scripts

        async def execute() -> None:
            try:
                await execute_command(
                    controls, tenant, wanted, by="risk-desk", why=why, at=SystemClock().now()
                )
            finally:
                await controls.aclose()

        self.wait(execute)


def _platform(url: str, folder: Path, name: str, provider: Held) -> Platform:
    config = PlatformConfig(
        folder=folder, name=name, ledger=LedgerConfig(url=url), tenants=TENANTS, concurrency=8
    )
    return Platform(config, Ports(providers={"scripted": provider}))


@contextmanager
def running_fleet(url: str, folder: Path) -> Iterator[Fleet]:
    """Run the workers `w1` and `w2` while the block runs, with logs in `folder`."""
    loop, started, ends = asyncio.new_event_loop(), Future[Fleet](), asyncio.Event()

    provider = Held()
    made = [_platform(url, folder, name, provider) for name in ("w1", "w2")]

    async def run() -> None:
        async with AsyncExitStack() as stack:
            platforms = [await stack.enter_async_context(platform) for platform in made]
            async with asyncio.TaskGroup() as held:
                started.set_result(Fleet(url, folder, loop, platforms, provider, held))
                await ends.wait()
                provider.ends.set()

    def work() -> None:
        try:
            loop.run_until_complete(run())
        except BaseException as e:
            if started.done():
                raise
            started.set_exception(e)
        finally:
            loop.close()

    thread = Thread(target=work, name="fleet", daemon=True)
    thread.start()
    try:
        fleet = started.result(timeout=WITHIN_S)
        for tenant, limit in LIMITS:
            fleet.order(tenant, SetLimit(limit))
        yield fleet
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ends.set)
        thread.join(timeout=60)
        assert not thread.is_alive()


def play(fleet: Fleet) -> None:
    """Bring the tenants into different states: a quiet one, one whose limits are reached, and one with a halt."""
    fleet.ask("alpha", "cmt-analyst", 40)
    fleet.ask("alpha", "late", 3)
    fleet.ask("beta", "cmt-analyst", 60)
    fleet.ask("beta", "executor", 7)
    fleet.ask("gamma", "cmt-analyst", 30)
    fleet.ask("gamma", "helper", 12)
    fleet.hold("gamma")
    fleet.order("gamma", HALT, "plans contradict the risk desk")
