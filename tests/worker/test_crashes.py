"""Workers that are killed, frozen or unsure of their lease, one delivery each; `tests/flows/test_crash_rows.py` has every step over every bus."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message, read_interaction, reply_head
from agentic_trading.bus.message import Delivery
from agentic_trading.bus.topic import ENVELOPES, REPLIES, Subscription
from agentic_trading.clock import SimClock
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.llm import LLMEnvelope, LLMInteraction, RetryPolicy
from agentic_trading.llm.providers.offline import ScriptedProvider, ScriptedReply
from agentic_trading.llm.store import Record
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.active_claim import ActiveClaim, key_of
from agentic_trading.worker.claim import (
    Claim,
    ClaimKey,
    ClaimLostError,
    Finished,
    Spell,
)
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.delivery import EnvelopeHandler, ProducerAcl
from agentic_trading.worker.slots import Slots, StoppableWait
from tests.gateway import GOOD, OF_ANY_AGE, START, asking, gateway, held
from tests.worker.ticking import Turning

Moment = Literal["before", "after", "lost"]
"""Of a step; `lost`: it is done, and who asked for it has not heard so yet."""

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
    """One worker. Once it is dead none of its steps does anything."""

    step: str = ""
    moment: Moment = "before"
    is_dead: bool = False

    def port(self, name: str, port: Any) -> Any:
        return _Port(self, name, port)

    async def reached(self, step: str, moment: Moment, given: Sequence[Any] = ()) -> None:
        if self.is_dead:
            raise Killed
        if (step, moment) != (self.step, self.moment):
            return
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
            await self._process.reached(step, "before", given)
            result = await method(*given, **named)
            await self._process.reached(step, "lost")
            await self._process.reached(step, "after")
            return self._process.port("subscription", result) if step == "broker.subscribe" else result

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
        handler = EnvelopeHandler(desk.runner, desk.recorder, claims, ProducerAcl(), waits, age=OF_ANY_AGE)
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


def envelope_of(workflow: str, *, deadline: datetime | None = None, tenant: str = "default") -> LLMEnvelope:
    builder = asking(workflow).with_retry_policy(RetryPolicy(max_retries=2)).with_tenant(tenant)
    return (builder.with_deadline(deadline) if deadline else builder).build()


def charged(records: Iterable[Record], tenant: str = "default") -> int:
    """Return what the books of all logs say was spent, which must not be less than what the ledger holds."""
    books = LedgerRebuild(tenant, "paper")
    for record in records:
        books.read(record)
    return sum(entry.charged.nusd for entry in books.entries())


async def test_crash_loop_stops_after_five_owners() -> None:
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
async def test_late_answer_after_takeover_corrects_doubt(
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
    assert charged(await fleet.records()) == statistics.charged_nusd


async def test_lost_claim_prevents_sending() -> None:
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
        await desk.runner.run(envelope, claim=ActiveClaim(fleet.claims, claim))

    assert fleet.provider.requests == []
    assert held(await fleet.ledger.balances("default"))["nusd"] == 0


async def test_uncertain_lease_prevents_sending() -> None:
    class Unsure(SharedClaims):
        def holds(self, claim: Claim) -> bool:
            return False

    fleet = Fleet(claims=Unsure())
    delivery = await fleet.delivery(envelope_of("execution"))
    assert await fleet.serve(delivery, Process())

    (final,) = await fleet.told()
    assert fleet.provider.requests == []
    assert (final.result.success, final.result.cost_nusd) == (False, 0)
