"""A worker that is killed before or after any step of a delivery, and the one that takes over: what is left, sent, billed."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message, read_interaction, reply_head
from agentic_trading.bus.message import Delivery
from agentic_trading.bus.topic import ENVELOPES, REPLIES, Subscription
from agentic_trading.clock import SimClock
from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.llm import LLMEnvelope, LLMInteraction, ProviderError, RetryPolicy
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.providers.offline import ScriptedProvider, ScriptedReply
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.claim import (
    Claim,
    ClaimKey,
    ClaimLostError,
    ClaimStoreUnavailableError,
    Finished,
    Spell,
)
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.delivery import EnvelopeHandler, ProducerAcl
from agentic_trading.worker.held_claim import HeldClaim, key_of
from agentic_trading.worker.slots import Slots, StoppableWait
from tests.gateway import GOOD, START, asking, gateway, held
from tests.worker.ticking import Turning

Moment = Literal["before", "after", "lost"]

STEPS = [
    "ledger.reserve",
    "claims.intend",
    "store.record",
    "ledger.dispatch",
    "provider.complete",
    "claims.keep",
    "ledger.settle",
    "store.store",
    "broker.publish",
    "claims.finish",
]
BILLED = {("provider.complete", "after"), ("claims.keep", "before")}
IN_DOUBT = BILLED | {("ledger.dispatch", "after"), ("provider.complete", "before")}
"""After these nobody can know whether the call was billed, and what was answered: the next owner must not guess."""


ORDER = '{"action":"buy","size":1.50,"end":"ok"}'
"""An answer with the sentinel that an execution asks for."""


def answering(request: Any) -> str:
    return ORDER if request.envelope.workflow == "execution" else GOOD


class Killed(BaseException):
    """The process is gone."""


class SharedClaims(MemoryClaimStore):
    """Claims of several workers: when one has ended, what it held is free; another one's log has not what it finished."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[ClaimKey, bytes] = {}

    def end_owner(self) -> None:
        for each in self._held.values():
            each.is_free = True

    async def finish(self, claim: Claim, spell: Spell) -> None:
        await super().finish(claim, spell)
        self.last[claim.key] = spell()

    async def claim(self, key: ClaimKey, content: str) -> Any:
        found = await super().claim(key, content)
        return Finished(self.last[key]) if isinstance(found, Finished) else found


@dataclass
class Process:
    """One worker. Once it is dead none of its steps does anything; `lost` steps are done, and their answer does not come."""

    step: str = ""
    moment: Moment = "before"
    is_dead: bool = False
    lives: bool = field(default=True)

    def port(self, name: str, port: Any) -> Any:
        return _Port(self, name, port)

    def reached(self, step: str, moment: Moment) -> None:
        if self.is_dead:
            raise Killed
        if (step, moment) != (self.step, self.moment):
            return
        self.step = ""
        if moment == "lost":
            raise (LedgerUnavailableError if step.startswith("ledger") else ClaimStoreUnavailableError)(
                "away"
            )
        self.is_dead = True
        raise Killed


class _Port:
    """A port of a process that may die."""

    def __init__(self, process: Process, name: str, port: Any) -> None:
        self._process, self._name, self._port = process, name, port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        return self._mortal(f"{self._name}.{name}", method) if inspect.iscoroutinefunction(method) else method

    def _mortal(self, step: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def taken(*given: Any, **named: Any) -> Any:
            self._process.reached(step, "before")
            result = await method(*given, **named)
            self._process.reached(step, "lost")
            self._process.reached(step, "after")
            return result

        return taken


@dataclass
class Fleet:
    """What workers share: the bus, the ledger, the claims, and the provider, which bills every request that it reads."""

    script: Callable[[Any], ScriptedReply] = answering
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    claims: SharedClaims = field(default_factory=SharedClaims)
    logs: list[MemoryInteractionStore] = field(default_factory=list)
    replies: Subscription = field(init=False)

    def __post_init__(self) -> None:
        self.provider = ScriptedProvider(self.script)

    async def serve(
        self,
        delivery: Delivery,
        process: Process,
        log: MemoryInteractionStore | None = None,
        *,
        at: datetime = START,
    ) -> bool:
        """Let a worker serve a delivery; it has a log of its own unless it is given one."""
        log = log or MemoryInteractionStore()
        self.logs.append(log)
        broker, claims = process.port("broker", self.broker), process.port("claims", self.claims)
        provider: Any = process.port("provider", self.provider)
        desk = gateway(
            provider,
            store=process.port("store", log),
            broker=broker,
            ledger=process.port("ledger", self.ledger),
            clock=Turning(at),
        )
        waits = StoppableWait(SimClock(START))
        handler = EnvelopeHandler(desk.runner, desk.recorder, claims, ProducerAcl(), waits)
        async with Slots(1).taken() as slot:
            return await handler.serve(delivery, slot=slot)

    async def delivery(self, envelope: LLMEnvelope) -> Delivery:
        reader = await self.broker.subscribe([ENVELOPES[envelope.workflow]], "workers")
        self.replies = await self.broker.replies("desk-1")
        message = envelope_message(envelope, reply_to="desk-1")
        await self.broker.publish(ENVELOPES[envelope.workflow], message)
        return await reader.take()

    async def told(self) -> list[LLMInteraction]:
        """Return the final interactions that came to who asked, each id once."""
        found: dict[str, LLMInteraction] = {}
        for _ in range(self.broker.statistics().published.get(REPLIES.name, 0)):
            delivery = await self.replies.take()
            if reply_head(delivery.message).is_final:
                one = read_interaction(delivery.message)
                found.setdefault(one.interaction_id, one)
        return list(found.values())

    async def records(self) -> list[Any]:
        unique = {id(log): log for log in self.logs}.values()
        return [entry.record for log in unique async for entry in log.scan()]


def envelope_of(workflow: str, *, deadline: datetime | None = None) -> LLMEnvelope:
    builder = asking(workflow).with_retry_policy(RetryPolicy(max_retries=2))
    return (builder.with_deadline(deadline) if deadline else builder).build()


async def charged(fleet: Fleet) -> int:
    """Return what the books of all logs say was spent, which must not be less than what the ledger holds."""
    books = LedgerRebuild("default", "paper")
    for record in await fleet.records():
        books.read(record)
    return sum(entry.charged.nusd for entry in books.entries())


@pytest.mark.parametrize("same_log", [True, False])
@pytest.mark.parametrize("workflow", ["analysis", "execution"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_is_killed_and_another_one_takes_over(
    step: str, moment: Moment, workflow: str, *, same_log: bool
) -> None:
    fleet = Fleet()
    envelope = envelope_of(workflow)
    delivery = await fleet.delivery(envelope)
    with pytest.raises(Killed):
        await fleet.serve(delivery, Process(step, moment))
    fleet.claims.end_owner()

    assert await fleet.serve(delivery, Process(), fleet.logs[0] if same_log else None)

    ends_in_doubt = (step, moment) in IN_DOUBT and workflow == "execution"
    sent = [request.attempt for request in fleet.provider.requests]
    assert len(sent) == len(set(sent)), "an attempt was sent twice"
    before, after = (step, moment) in BILLED, not ends_in_doubt
    assert len(sent) == (before + after if (step, moment) in IN_DOUBT else 1), "it was paid too often"
    (final,) = await fleet.told()
    assert (final.result.actionable, final.result.in_doubt) == (not ends_in_doubt, ends_in_doubt)
    statistics = fleet.ledger.statistics()
    assert held(await fleet.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}
    assert statistics.settled + statistics.in_doubt >= len(sent)
    assert await charged(fleet) >= statistics.charged_nusd > 0


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
@pytest.mark.parametrize("step", [step for step in STEPS if step.startswith(("claims", "ledger"))])
async def test_a_step_is_done_and_its_answer_is_lost(step: str, workflow: str) -> None:
    fleet = Fleet()
    envelope = envelope_of(workflow)
    delivery = await fleet.delivery(envelope)
    process, log = Process(step, "lost"), MemoryInteractionStore()
    for _ in range(3):
        try:
            if await fleet.serve(delivery, process, log):
                break
        except (ClaimStoreUnavailableError, LedgerUnavailableError):
            continue

    sent = [request.attempt for request in fleet.provider.requests]
    assert len(sent) == len(set(sent)) <= 1 + (workflow == "analysis")
    (final,) = await fleet.told()
    assert isinstance(final, LLMInteraction)
    assert held(await fleet.ledger.balances("default"))["calls"] == 0 or step in {
        "ledger.reserve",
        "ledger.dispatch",
    }
    assert await charged(fleet) >= fleet.ledger.statistics().charged_nusd


@pytest.mark.parametrize("step", ["claims.intend", "claims.keep", "store.store", "broker.publish"])
async def test_a_worker_is_killed_in_the_second_attempt(step: str) -> None:
    def script(request: Any) -> ScriptedReply:
        busy = ProviderError(FailureKind.RATE_LIMIT, "later", sent=False)
        return busy if request.attempt == 1 else GOOD

    fleet, calls = Fleet(script), iter(range(2))
    delivery = await fleet.delivery(envelope_of("analysis"))

    class Second(Process):
        def reached(self, at: str, moment: Moment) -> None:
            if at == step and moment == "after" and next(calls) == 0:
                return
            super().reached(at, moment)

    with pytest.raises(Killed):
        await fleet.serve(delivery, Second(step, "after"))
    fleet.claims.end_owner()
    assert await fleet.serve(delivery, Process())

    sent = [request.attempt for request in fleet.provider.requests]
    assert sent == sorted(set(sent))
    (final,) = await fleet.told()
    assert final.result.actionable
    assert final.result.attempt_number == len(sent) if step != "claims.intend" else True


async def test_an_envelope_that_kills_its_workers_becomes_a_dead_letter() -> None:
    fleet = Fleet()
    delivery = await fleet.delivery(envelope_of("analysis"))
    reached = 0
    with pytest.raises(Exception, match="crash_loop"):  # noqa: PT012 - which of the turns ends it is what is counted
        for _ in range(10):
            reached += 1
            with pytest.raises(Killed):
                await fleet.serve(delivery, Process("ledger.reserve", "before"))
            fleet.claims.end_owner()

    assert reached == 5
    assert fleet.provider.requests == []


class Frozen(ScriptedProvider):
    """While it answers, its worker is frozen until another one has taken the envelope and ended it."""

    def __init__(self, fleet: Fleet, delivery: Delivery) -> None:
        super().__init__(answering)
        self._fleet, self._delivery = fleet, delivery

    async def complete(self, request: Any) -> Any:
        self._fleet.claims.end_owner()
        await self._fleet.serve(self._delivery, Process())
        return await super().complete(request)


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_an_answer_that_comes_after_another_worker_has_ended_the_envelope_corrects_the_doubt_and_is_not_used(
    workflow: str,
) -> None:
    fleet = Fleet()
    delivery = await fleet.delivery(envelope_of(workflow))
    calm, fleet.provider = fleet.provider, Frozen(fleet, delivery)
    original = fleet.serve

    async def second(taken: Delivery, process: Process) -> bool:
        frozen, fleet.provider = fleet.provider, calm
        try:
            return await original(taken, process)
        finally:
            fleet.provider = frozen

    object.__setattr__(fleet, "serve", second)
    with pytest.raises(ClaimLostError):
        await original(delivery, Process())

    (final,) = await fleet.told()
    assert final.result.in_doubt is (workflow == "execution")
    late = [
        record for record in await fleet.records() if getattr(record, "kind", "") == "attempt.answered_late"
    ]
    assert len(late) == 1
    assert late[0].body["raw_output"] == (ORDER if workflow == "execution" else GOOD)
    statistics = fleet.ledger.statistics()
    assert statistics.late == 1
    spent = await fleet.ledger.balances("default")
    assert sum(balance.in_doubt.nusd for balance in spent) == 0
    assert await charged(fleet) == statistics.charged_nusd


async def test_what_was_noted_and_never_dispatched_is_not_charged_and_goes_on_under_the_next_number() -> None:
    fleet = Fleet()
    delivery = await fleet.delivery(envelope_of("execution"))
    with pytest.raises(Killed):
        await fleet.serve(delivery, Process("store.record", "after"))
    fleet.claims.end_owner()
    assert await fleet.serve(delivery, Process())

    assert [request.attempt for request in fleet.provider.requests] == [2]
    kinds = [getattr(record, "kind", "") for record in await fleet.records()]
    assert kinds.count("attempt.unsent") == 1
    assert await charged(fleet) == fleet.ledger.statistics().charged_nusd


async def test_a_run_whose_claim_is_taken_before_it_sends_sends_nothing() -> None:
    fleet = Fleet()
    envelope = envelope_of("analysis")
    claim = await fleet.claims.claim(key_of(envelope), envelope.envelope_hash)
    assert isinstance(claim, Claim)
    fleet.claims.end_owner()
    assert isinstance(
        await fleet.claims.claim(ClaimKey("default", envelope.envelope_id), envelope.envelope_hash), Claim
    )
    desk = gateway(fleet.provider, ledger=fleet.ledger)

    with pytest.raises(ClaimLostError):
        await desk.runner.run(envelope, claim=HeldClaim(fleet.claims, claim))

    assert fleet.provider.requests == []
    assert held(await fleet.ledger.balances("default"))["nusd"] == 0


async def test_a_worker_whose_lease_may_be_over_sends_nothing() -> None:
    class Unsure(SharedClaims):
        def holds(self, claim: Claim) -> bool:
            return False

    fleet = Fleet(claims=Unsure())
    delivery = await fleet.delivery(envelope_of("execution"))
    assert await fleet.serve(delivery, Process())

    (final,) = await fleet.told()
    assert fleet.provider.requests == []
    assert (final.result.success, final.result.cost_nusd) == (False, 0)
