"""Workers that take envelopes from the bus, each delivery within a boundary of its own."""

import asyncio
from dataclasses import dataclass

import structlog

from agentic_trading.bus.broker import Broker, Subscription
from agentic_trading.bus.codec import dead_letter_message, read_envelope, read_event
from agentic_trading.bus.deadletter import DeadLetter
from agentic_trading.bus.errors import UnreadableMessageError
from agentic_trading.bus.headers import header
from agentic_trading.bus.message import Delivery
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS
from agentic_trading.clock import Clock
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import StoreError
from agentic_trading.worker.claim import Busy, Claim, ClaimStore, Finished
from agentic_trading.worker.record import Recorder
from agentic_trading.worker.runner import CallRunner
from agentic_trading.worker.telling import told

log = structlog.get_logger()

LANES = (
    EnvelopeWorkflow.EXECUTION,
    EnvelopeWorkflow.PLANNING,
    EnvelopeWorkflow.ANALYSIS,
    EnvelopeWorkflow.GENERAL,
)
"""The order in which lanes are served: an execution envelope never waits behind an analysis."""

EVENTS_GROUP = "workers-events"


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Deliveries so far, by what became of them."""

    finished: int
    dead_letters: int
    given_back: int
    events: int


class WorkerPool:
    """Run envelopes with `workers` of them at once, until stopped.

    One delivery is one boundary: whatever it raises, its neighbours go on. A delivery that raises comes again, and
    after `max_deliveries` becomes a dead letter. A log that cannot be written stops the pool: nothing more is
    taken, nothing unkept is acknowledged, and `run` raises the `StoreError`.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        runner: CallRunner,
        recorder: Recorder,
        claims: ClaimStore,
        clock: Clock,
        workers: int = 8,
        max_deliveries: int = 3,
        name: str = "worker",
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}; allowed is 1 and more")
        self._broker = broker
        self._runner = runner
        self._recorder = recorder
        self._claims = claims
        self._clock = clock
        self._workers = workers
        self._max_deliveries = max_deliveries
        self._name = name
        self._idle: set[asyncio.Timeout] = set()
        self._stopping = False
        self._fatal: StoreError | None = None
        self._counts = {"finished": 0, "dead_letters": 0, "given_back": 0, "events": 0}

    def statistics(self) -> PoolStatistics:
        """Return the counts so far."""
        return PoolStatistics(**self._counts)

    def stop(self) -> None:
        """Take no more envelopes; calls under way are finished and waiting events kept, then `run` returns. Harmless twice."""
        self._stopping = True
        for waiting in self._idle:
            waiting.reschedule(0)

    async def run(self) -> None:
        """Serve all lanes and keep all events until `stop`; raises `StoreError` if the log gave up."""
        envelopes = await self._broker.subscribe([ENVELOPES[lane] for lane in LANES], "workers")
        events = await self._broker.subscribe([EVENTS], EVENTS_GROUP)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_events(events), name=f"{self._name}-events")
                for number in range(self._workers):
                    group.create_task(
                        self._work(envelopes, f"{self._name}-{number}"), name=f"{self._name}-{number}"
                    )
        finally:
            await envelopes.aclose()
            await events.aclose()
        if self._fatal is not None:
            raise self._fatal

    async def _take(self, subscription: Subscription) -> Delivery | None:
        """Return the next delivery, or None once the pool is stopping."""
        if self._stopping:
            return None
        waiting = asyncio.timeout(None)
        try:
            async with waiting:
                self._idle.add(waiting)
                return await subscription.take()
        except TimeoutError:
            return None
        finally:
            self._idle.discard(waiting)

    async def _work(self, envelopes: Subscription, owner: str) -> None:
        while (delivery := await self._take(envelopes)) is not None:
            await self._within_boundary(delivery, envelopes, owner)

    async def _within_boundary(self, delivery: Delivery, envelopes: Subscription, owner: str) -> None:
        try:
            await self._handle(delivery, envelopes, owner)
        except StoreError as e:
            self._give_up(e)
            await envelopes.give_back(delivery)
        except Exception as e:  # noqa: BLE001 - the boundary: one delivery's error is not its neighbours'
            log.error(  # noqa: TRY400 - a traceback is told in one line
                "delivery_failed", topic=delivery.topic, position=delivery.position, error=told(e)
            )
            await self._after_error(delivery, envelopes, e)

    async def _handle(self, delivery: Delivery, envelopes: Subscription, owner: str) -> None:
        try:
            envelope = read_envelope(delivery)
        except UnreadableMessageError as e:
            await self._bury(delivery, e.reason, e.detail, e.envelope_id, e.trace_id)
            await envelopes.ack(delivery)
            return
        claim = await self._claims.claim(envelope.envelope_id, owner)
        match claim:
            case Finished():
                await envelopes.ack(delivery)
            case Busy():
                await envelopes.give_back(delivery)
            case Claim():
                await self._run(envelope, claim)
                await envelopes.ack(delivery)
                self._counts["finished"] += 1

    async def _run(self, envelope: LLMEnvelope, claim: Claim) -> None:
        try:
            await self._runner.run(envelope)
        except BaseException:
            await self._claims.give_up(claim)
            raise
        await self._claims.finish(claim)

    async def _after_error(self, delivery: Delivery, envelopes: Subscription, e: Exception) -> None:
        if delivery.deliveries < self._max_deliveries:
            self._counts["given_back"] += 1
            await envelopes.give_back(delivery)
            return
        detail = f"failed {delivery.deliveries} times, last with {told(e)}"
        envelope_id = header(delivery.message, "ce_id")
        trace_id = header(delivery.message, "ce_correlationid")
        await self._bury(delivery, "crash_loop", detail, envelope_id, trace_id)
        await envelopes.ack(delivery)

    async def _bury(
        self, delivery: Delivery, reason: str, detail: str, envelope_id: str, trace_id: str
    ) -> None:
        letter = DeadLetter.of(
            delivery,
            reason=reason,
            detail=detail,
            envelope_id=envelope_id,
            trace_id=trace_id,
            time=self._clock.now(),
        )
        log.warning(
            "dead_letter", reason=reason, detail=detail, topic=delivery.topic, position=delivery.position
        )
        await self._broker.publish(DEAD_LETTERS, dead_letter_message(letter))
        self._counts["dead_letters"] += 1

    async def _keep_events(self, events: Subscription) -> None:
        while (delivery := await self._take(events)) is not None:
            await self._keep_event(delivery, events)
        while self._fatal is None and self._events_wait():
            await self._keep_event(await events.take(), events)

    def _events_wait(self) -> bool:
        backlogs = self._broker.statistics().backlogs
        return any(b.waiting for b in backlogs if (b.group, b.topic) == (EVENTS_GROUP, EVENTS.name))

    async def _keep_event(self, delivery: Delivery, events: Subscription) -> None:
        try:
            await self._recorder.keep_event(read_event(delivery.message))
        except UnreadableMessageError as e:
            await self._bury(delivery, e.reason, e.detail, "", e.trace_id)
        except StoreError as e:
            self._give_up(e)
            await events.give_back(delivery)
            return
        self._counts["events"] += 1
        await events.ack(delivery)

    def _give_up(self, e: StoreError) -> None:
        if self._fatal is None:
            log.error("log_unwritable", path=str(e.path), reason=e.reason)
            self._fatal = e
        self.stop()
