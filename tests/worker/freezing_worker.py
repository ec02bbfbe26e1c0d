"""A worker in a process of its own that serves one envelope, and stands still at one moment of it until it is told to go on.

Its words are the moment (`noted`: before the send; `sent`: while the provider answers), the server and the namespace there; the envelope
is the first line of its input. It prints a line when it has come to the moment, and at the end what it has made of the envelope.
"""

import asyncio
import json
import sys
from contextlib import aclosing
from typing import Any

import structlog

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message
from agentic_trading.bus.topic import ENVELOPES, REPLIES
from agentic_trading.clock import SimClock
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.llm import LLMEnvelope
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.claim import ClaimLostError
from agentic_trading.worker.claims.redis import RedisClaimStore
from agentic_trading.worker.delivery import EnvelopeHandler, ProducerAcl
from agentic_trading.worker.slots import Slots, StoppableWait
from tests.gateway import OF_ANY_AGE, START, gateway
from tests.worker.test_crashes import answering

LEASE_S = 0.5


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def told(moment: str) -> str:
    say(moment)
    return await asyncio.to_thread(sys.stdin.readline)


class Answering(ScriptedProvider):
    is_held_up = False

    async def complete(self, request: Any) -> Any:
        if self.is_held_up:
            await told("sent")
        return await super().complete(request)


class Noting(MemoryInteractionStore):
    is_held_up = False

    async def record(self, event: Any) -> int:
        seq = await super().record(event)
        if self.is_held_up and event.kind == "attempt.dispatched":
            await told("noted")
        return seq


async def work(moment: str, url: str, namespace: str) -> None:
    envelope = LLMEnvelope.from_wire(sys.stdin.buffer.readline().strip())
    provider, store, broker = Answering(answering), Noting(), MemoryBroker()
    provider.is_held_up, store.is_held_up = moment == "sent", moment == "noted"
    ledger: Any = RedisLedger(url, namespace=namespace)
    claims = RedisClaimStore(url, namespace=namespace, lease_s=LEASE_S)
    await claims.begin()
    desk = gateway(provider, store=store, broker=broker, ledger=ledger)
    handler = EnvelopeHandler(
        desk.runner, desk.recorder, claims, ProducerAcl(), StoppableWait(SimClock(START)), age=OF_ANY_AGE
    )
    reader = await broker.subscribe([ENVELOPES[envelope.workflow]], "workers")
    await broker.publish(ENVELOPES[envelope.workflow], envelope_message(envelope, reply_to="desk-1"))
    delivery, is_lost = await reader.take(), False
    async with aclosing(ledger), aclosing(claims), Slots(1).taken() as slot:
        try:
            await handler.serve(delivery, slot=slot)
        except ClaimLostError:
            is_lost = True
    records = [entry.record async for entry in store.scan()]
    made = {
        "is_lost": is_lost,
        "sent": len(provider.requests),
        "replies": broker.statistics().published.get(REPLIES.name, 0),
        "records": [getattr(record, "kind", "interaction") for record in records],
    }
    say(json.dumps(made))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(work(*sys.argv[1:]))
