"""A call under way obeys: operators, the policy, and a ledger that may be away."""

import asyncio
from typing import Any

import pytest

from agentic_trading.governance.controls_document import Halt, HaltScope, TenantControls
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.policy import Policy, Principal
from agentic_trading.llm import Event, FailureKind, LLMInteraction
from agentic_trading.llm.envelope import DeterminismLevel
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.gateway import GOOD, START, MemoryGateway, asking, attempts, gateway, held, timed_out
from tests.governance.asking import tenant
from tests.governance.away import AwayLedger

POLICY = Policy({"desk-a": Principal(tenants=("default",), models=("scripted/*",))})


def halt(desk: MemoryGateway, version: int = 1) -> None:
    """Have the agent of every call halted."""
    order = Halt(scope=HaltScope.AGENT, id="adviser-1", by="ann", why="odd", at=START)
    desk.gate.halts.update("default", TenantControls(version=version, halts=(order,)))


def kind(interaction: LLMInteraction) -> FailureKind | None:
    return interaction.result.failure.category if interaction.result.failure else None


class Silent(ScriptedProvider):
    """Never answers; `ending_s` is what it takes to be ended."""

    def __init__(self) -> None:
        super().__init__([])
        self.started, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
        return await super().complete(request)


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_halted_call_is_charged_without_retry(
    workflow: str,
) -> None:
    provider = Silent()
    desk = gateway(provider, limits=[tenant(10**12)])
    envelope = asking(workflow).build()

    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        run = group.create_task(desk.runner.run(envelope))
        await provider.started.wait()
        halt(desk)

    (kept,) = await attempts(desk, envelope)
    assert kept == run.result()
    assert kind(kept) is FailureKind.HALTED
    assert (kept.result.in_doubt, kept.result.next_step) == (True, "final")
    assert kept.result.cost_nusd == kept.result.reserved_nusd > 0
    assert desk.ledger.statistics().charged_nusd == kept.result.cost_nusd
    assert "ann" in (kept.result.error or "")
    assert len(provider.requests) == 1
    assert held(await desk.ledger.balances("default"))["nusd"] == 0


async def test_further_halts_leave_ending_call_alone() -> None:
    provider = Silent()
    provider.may_end.clear()
    desk = gateway(provider)

    async with asyncio.timeout(2), asyncio.TaskGroup() as group:
        run = group.create_task(desk.runner.run(asking().build()))
        await provider.started.wait()
        for version in range(1, 4):
            halt(desk, version)
            for _ in range(5):
                await asyncio.sleep(0)
        provider.may_end.set()

    assert kind(run.result()) is FailureKind.HALTED


async def test_halt_does_not_affect_other_agents() -> None:
    provider = ScriptedProvider([GOOD])
    desk = gateway(provider)
    halt(desk)

    other = await desk.runner.run(asking().with_agent("adviser-2", "adviser").build())

    assert other.result.actionable


async def test_run_halted_before_sending_is_free() -> None:
    provider = ScriptedProvider([GOOD])

    class Halting(MemoryInteractionStore):
        async def record(self, event: Event) -> int:
            kept = await super().record(event)
            halt(desk)
            return kept

    desk = gateway(provider, store=Halting(), limits=[tenant(10**12)])

    final = await desk.runner.run(asking("execution").build())

    assert provider.requests == []
    assert (kind(final), final.result.cost_nusd, final.result.in_doubt) == (FailureKind.HALTED, 0, False)
    assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}


async def test_halt_prevents_the_retry() -> None:
    requests: list[ModelRequest] = []

    def fail_then_halt(request: ModelRequest) -> Any:
        requests.append(request)
        halt(desk)
        return timed_out()

    desk = gateway(fail_then_halt)
    envelope = asking().build()

    final = await desk.runner.run(envelope)

    assert kind(final) is FailureKind.HALTED
    assert [kind(one) for one in await attempts(desk, envelope)] == [FailureKind.TIMEOUT, FailureKind.HALTED]
    assert len(requests) == 1


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_missing_ledger_prevents_sending(workflow: str) -> None:
    provider, ledger = ScriptedProvider([GOOD]), AwayLedger()
    desk = gateway(provider, ledger=ledger)
    ledger.leave()

    final = await desk.runner.run(asking(workflow).build())

    assert kind(final) is FailureKind.LEDGER_UNAVAILABLE
    assert (final.result.dispatched_at, provider.requests) == (None, [])


async def test_failed_dispatch_prevents_sending() -> None:
    provider, ledger = ScriptedProvider([GOOD]), AwayLedger([tenant(10**12)])
    desk = gateway(provider, ledger=ledger)
    ledger.leave("dispatch")

    final = await desk.runner.run(asking("execution").build())

    assert kind(final) is FailureKind.LEDGER_UNAVAILABLE
    assert final.result.failure is not None
    assert final.result.failure.recoverable
    assert (final.result.dispatched_at, provider.requests) == (None, [])
    assert held(await ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}


@pytest.mark.parametrize("principal", ["desk-a", "desk-b", ""])
async def test_policy_checks_principal_of_every_attempt(principal: str) -> None:
    provider = ScriptedProvider(['{"action":"buy","size":1,', GOOD])
    desk = gateway(provider, policy=POLICY)

    final = await desk.runner.run(asking().build(), principal=principal)

    is_allowed = principal == "desk-a"
    assert final.result.actionable is is_allowed
    assert len(provider.requests) == (2 if is_allowed else 0)
    assert is_allowed or kind(final) is FailureKind.NOT_ALLOWED


def frozen(n: int = 1) -> Any:
    return asking(n=n).with_determinism(DeterminismLevel.RECORDED).with_as_of(START)


async def test_cached_answer_respects_the_policy() -> None:
    provider = ScriptedProvider([GOOD])
    desk = gateway(provider, policy=POLICY)
    first = await desk.runner.run(frozen().build(), principal="desk-a")
    again = await desk.runner.run(frozen().build(), principal="desk-a")

    stranger = await desk.runner.run(frozen().build(), principal="desk-b")

    assert (first.result.actionable, again.result.served_from) == (True, "recorded")
    assert kind(stranger) is FailureKind.NOT_ALLOWED
    assert stranger.result.raw_output == ""
    assert len(provider.requests) == 1


async def test_cached_answer_respects_a_halt() -> None:
    desk = gateway([GOOD])
    await desk.runner.run(frozen().build())
    halt(desk)

    final = await desk.runner.run(frozen().build())

    assert (kind(final), final.result.served_from) == (FailureKind.HALTED, "live")
    assert final.result.raw_output == ""


class Swept(MemoryLedger):
    """A ledger whose reservations run out before they are dispatched."""

    async def dispatch(self, reservation_id: str, *, lease_s: float = 60.0) -> None:
        await self.expire_leases()
        await super().dispatch(reservation_id, lease_s=lease_s)


async def test_expired_reservation_ends_as_ledger_unavailable() -> None:
    desk = gateway(lambda _request: GOOD, ledger=Swept([tenant(10**12)], reserved_lease_s=0))

    last = await desk.runner.run(asking().build())

    assert kind(last) is FailureKind.LEDGER_UNAVAILABLE
    assert (last.result.cost_nusd, last.result.dispatched_at) == (0, None)
