"""What one caller can do to its neighbours: money, places, slots and circuits, each held to the bound in the manual.

Run: python -m benchmarks.neighbours [--quick]. Platforms with a policy and a model of their own that can be made slow are asked
through the public API in real time; the two queues are driven second by second on a clock that is moved. Exits with 1 if a
bound does not hold. `--quick` is the same.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter

import structlog
from typing_extensions import override

from agentic_trading.clock import SimClock
from agentic_trading.governance.ledger import Reservation, ReservationRequest
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import Deployment, Permit, PermitOutcome, PermitRequest, RateLimits
from agentic_trading.governance.limiters.deployment import MemoryLimiter
from agentic_trading.governance.limits import Limit, ScopeKind, Window, queue_priority
from agentic_trading.governance.prices import Amount
from agentic_trading.llm import EnvelopeBuilder, LLMInteraction, LLMProvider
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.limits import NANO, RetryPolicy
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider, append_sentinel
from agentic_trading.platform import Platform, PlatformConfig, Ports, TenantConfig

CALLS = 40
FLOODED_S = 600
"""How long a flood lasts: five times the bound."""

PASSED_S = 120
ANSWERED_S = 2
START = datetime(2026, 1, 2, tzinfo=UTC)
SCRIPTED = LLMProvider("scripted")
POLICY = """
[principals.desk]
tenants = ["mine", "yours"]
models = ["scripted/*"]

[principals.desk.highest]
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that a neighbour does, what is measured of it, and the most that it may be."""

    deed: str
    measured: str
    figure: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the figure is within its bound."""
        return self.figure <= self.bound


class MovedClock(SimClock):
    """A simulated clock whose seconds move with its moment, for those who count in seconds."""

    @override
    def monotonic(self) -> float:
        return (self.now() - START).total_seconds()


def _answer(request: ModelRequest) -> str:
    return append_sentinel("{}") if request.envelope.output_policy.require_sentinel else "{}"


class SlowModel(ScriptedProvider):
    """Answers executions at once and all else when it `may_answer`; counts what it was `sent`."""

    def __init__(self) -> None:
        super().__init__(_answer)
        self.may_answer, self.is_asked, self.sent = asyncio.Event(), asyncio.Event(), 0

    @override
    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.sent += 1
        self.is_asked.set()
        if request.envelope.workflow is not EnvelopeWorkflow.EXECUTION:
            await self.may_answer.wait()
        return await super().complete(request)


def asking(tenant: str = "mine", number: int = 0, *, agent: str = "a") -> EnvelopeBuilder:
    """Return a call for general work that differs from others by its number."""
    builder = EnvelopeBuilder().with_tenant(tenant).for_general().with_instructions(f"Answer. {number}")
    return (
        builder
        .with_provider(SCRIPTED, "scripted-1")
        .with_agent(agent, "adviser")
        .with_budget(max_output_tokens=200)
    )


def failures(answers: Sequence[object]) -> int:
    """Return how many calls were not answered by the model."""
    return sum(not (isinstance(answer, LLMInteraction) and answer.result.success) for answer in answers)


@contextmanager
def _desk(highest: str = "", *, calls: int | None = None) -> Iterator[tuple[PlatformConfig, SlowModel]]:
    """Give the configuration of a gateway with two tenants under a policy, and its model; `calls` limits the first tenant."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "keys").mkdir()
        (folder / "keys" / "desk").write_text("desk" * 8, encoding="utf-8")
        (folder / "policy.toml").write_text(POLICY + highest, encoding="utf-8")
        config = PlatformConfig(
            tenants={"mine": TenantConfig(calls=calls), "yours": TenantConfig()},
            policy=folder / "policy.toml",
            principals_folder=folder / "keys",
            sign_as="desk",
        )
        yield config, SlowModel()


async def _all(platform: Platform, asked: Sequence[LLMEnvelope]) -> list[object]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(platform.ask(envelope)) for envelope in asked]
    return [task.result() for task in tasks]


async def short_time_limits() -> Row:
    """Give a slow model up after 0.02 s, again and again; then a neighbour asks it."""
    with _desk() as (config, model):
        async with Platform(config, Ports(providers={"scripted": model})) as platform:
            hasty = [
                asking("yours", number)
                .with_retry_policy(RetryPolicy(max_retries=0, attempt_timeout_s=0.02))
                .build()
                for number in range(CALLS)
            ]
            await _all(platform, hasty)
            model.may_answer.set()
            answers = await _all(platform, [asking("mine", number).build() for number in range(CALLS)])
    return Row(
        f"{CALLS} calls with a time limit of 0.02 s", "a neighbour's calls refused", failures(answers), 0
    )


async def long_time_limit() -> Row:
    """Ask for an hour of a slot where the policy allows a minute."""
    with _desk("attempt_timeout_s = 60") as (config, model):
        model.may_answer.set()
        async with Platform(config, Ports(providers={"scripted": model})) as platform:
            await platform.ask(
                asking().with_retry_policy(RetryPolicy(max_retries=0, attempt_timeout_s=3600)).build()
            )
    return Row("a time limit of 3,600 s, highest is 60", "calls sent", model.sent, 0)


async def new_names() -> Row:
    """Spend under a new agent, a new trace and another tenant with each call."""
    with _desk('usd_per_day = "0.01"') as (config, model):
        model.may_answer.set()
        async with Platform(config, Ports(providers={"scripted": model})) as platform:
            asked = [
                asking(("mine", "yours")[number % 2], number, agent=f"agent-{number}")
                for number in range(CALLS)
            ]
            answers = await _all(platform, [builder.build() for builder in asked])
    spent = sum(answer.result.cost_nusd for answer in answers if isinstance(answer, LLMInteraction))
    return Row(f"{CALLS} new agents, traces and tenants", "USD of the 0.01 a day", spent / NANO, 0.01)


def _flood(number: int) -> LLMEnvelope:
    return asking("yours", number).with_priority(2**31).build()


async def queue_for_money() -> Row:
    """Wait for money with priority 0 while each second another asks with the highest."""
    clock = SimClock(START)
    ledger = MemoryLedger([Limit(ScopeKind.WORKFLOW, "general", Window.NONE, nusd=100)], clock=clock)

    def request(envelope: LLMEnvelope) -> ReservationRequest:
        scopes = {
            ScopeKind.TENANT: "all",
            ScopeKind.WORKFLOW: "general",
            ScopeKind.CALL: envelope.idempotency_key,
        }
        return ReservationRequest(
            envelope.idempotency_key, 1, scopes, Amount(60, 0), priority=queue_priority(envelope)
        )

    inside = await ledger.reserve(request(asking().build()))
    async with asyncio.TaskGroup() as group:
        ours = group.create_task(ledger.wait_for_reservation(request(asking("mine", 1).build())))
        waiting = {ours}
        for second in range(FLOODED_S):
            clock.advance_to(START + timedelta(seconds=second))
            waiting.add(group.create_task(ledger.wait_for_reservation(request(_flood(second)))))
            await asyncio.sleep(0)  # it is in the queue when its first step is done
            assert isinstance(inside, Reservation)
            await ledger.release(inside.id)
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (served,) = done
            inside = served.result()
            if served is ours:
                break
        for task in waiting:
            task.cancel()
    return Row("a flood of the highest priority", "s of waiting for money", second, PASSED_S)


async def queue_at_a_model() -> Row:
    """Wait for a place at a model with priority 0 while each second another asks with the highest."""
    clock, deployment = MovedClock(START), Deployment(SCRIPTED, "scripted-1")
    limiter = MemoryLimiter(default=RateLimits(concurrent=1), clock=clock, place_s=FLOODED_S)

    def request(envelope: LLMEnvelope) -> PermitRequest:
        id_ = envelope.idempotency_key
        return PermitRequest(deployment, id_, priority=queue_priority(envelope), lease_s=FLOODED_S)

    inside = await limiter.acquire(request(asking().build()))
    ours = request(asking("mine", 1).build())
    waiting = {ours.id: ours}
    for second in range(FLOODED_S):
        clock.advance_to(START + timedelta(seconds=second))
        other = request(_flood(second))
        waiting[other.id] = other
        for one in waiting.values():
            await limiter.acquire(one)
        assert isinstance(inside, Permit)
        await limiter.release(inside, PermitOutcome.ANSWERED)
        for one in waiting.values():
            inside = await limiter.acquire(one)
            if isinstance(inside, Permit):
                break
        del waiting[one.id]
        if one is ours:
            break
    return Row("a flood of the highest priority", "s of waiting for a model", second, PASSED_S)


async def executions(*, parked: bool) -> Row:
    """Ask for an execution behind forty analyses that the model does not answer, or that wait for money."""
    with _desk(calls=1 if parked else None) as (config, model):
        bare = config.model_copy(update={"policy": None, "principals_folder": None, "sign_as": ""})
        async with (
            Platform(bare, Ports(providers={"scripted": model})) as platform,
            asyncio.TaskGroup() as group,
        ):
            for number in range(CALLS):
                group.create_task(platform.ask(asking("mine", number).for_analysis().build()))
            await model.is_asked.wait()
            began = perf_counter()
            execution = asking("yours").for_execution().with_output_schema({"type": "object"})
            answer = await platform.ask(execution.build())
            took = perf_counter() - began
            model.may_answer.set()
    assert not failures([answer])
    deed = f"{CALLS} analyses that " + ("wait for money" if parked else "the model leaves unanswered")
    return Row(deed, "s until an execution has its answer", took, ANSWERED_S)


async def run() -> list[Row]:
    """Return what neighbours did."""
    return [
        await short_time_limits(),
        await long_time_limit(),
        await new_names(),
        await queue_for_money(),
        await queue_at_a_model(),
        await executions(parked=True),
        await executions(parked=False),
    ]


def main(arguments: Sequence[str]) -> int:
    """Print the table; return 1 if a bound does not hold."""
    if set(arguments) - {"--quick"}:
        print(__doc__)
        return 2
    print(f"{'a neighbour':<48}{'measured':<38}{'figure':>8}{'bound':>7}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    rows = asyncio.run(run())
    for row in rows:
        told = "" if row.holds else "  DOES NOT HOLD"
        print(f"{row.deed:<48}{row.measured:<38}{row.figure:>8.3g}{row.bound:>7g}{told}")
    broken = sum(not row.holds for row in rows)
    print(f"{len(rows)} bounds: {broken} DO NOT HOLD" if broken else f"{len(rows)} bounds: all hold")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
