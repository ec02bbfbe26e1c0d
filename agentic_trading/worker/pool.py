"""A pool of workers that take envelopes from the bus. Each delivery has its own error boundary."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.codec import read_event
from agentic_trading.bus.errors import (
    BacklogFullError,
    BusUnavailableError,
    SignatureError,
    UnreadableMessageError,
)
from agentic_trading.bus.message import Delivery
from agentic_trading.clock import Clock
from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import FailureReason, RecordError, StoreError
from agentic_trading.llm.fields import long_ids
from agentic_trading.logger import get_logger
from agentic_trading.worker.attempt_statistics import AttemptStatistics, HistogramSample
from agentic_trading.worker.claim import ClaimLostError, ClaimStore, ClaimStoreUnavailableError
from agentic_trading.worker.delivery import EnvelopeHandler, ProducerAcl, SendAge
from agentic_trading.worker.error_boundary import UndeliverableError, UnstreamedError, describe_error
from agentic_trading.worker.housekeeping import BudgetReports, Housekeeper
from agentic_trading.worker.recorder import DeadLetterPublisher, Recorder
from agentic_trading.worker.runner import CallRunner
from agentic_trading.worker.slots import Slot, Slots, StoppableWait

log = get_logger()

EXECUTIONS = (EnvelopeWorkflow.EXECUTION,)
"""The workflow with its own slots, so that no execution waits for a slot of another workflow."""

OTHERS = (EnvelopeWorkflow.PLANNING, EnvelopeWorkflow.ANALYSIS, EnvelopeWorkflow.GENERAL)
"""The workflows that share slots and take turns."""

PARKED_A_WORKER = 8
"""The number of calls that may wait for headroom, for each call with a slot."""

BUS_AWAY = (BusUnavailableError, BacklogFullError)
AWAY = (*BUS_AWAY, ClaimStoreUnavailableError, LedgerUnavailableError)
"""Errors that are not caused by a delivery: servers that are unreachable or full. The delivery comes again
until they are available, without limit."""

AWAY_S = 1.0
"""How long a delivery waits for such a server before it comes again."""

MOST_FAILING = 10_000
"""The maximum number of deliveries whose failures are counted. Some of them may be with another worker by
now."""

GROUP = "workers"
EXECUTIONS_GROUP = "workers-execution"
EVENTS_GROUP = "workers-events"


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The number of deliveries so far by outcome, and the statistics of their attempts, records and budgets.

    `durable_s` are the seconds in which records were stored. `budgets` is None without a housekeeper.
    """

    finished: int
    dead_letters: int
    given_back: int
    events: int
    attempts: AttemptStatistics
    durable_s: HistogramSample
    budgets: BudgetReports | None


class WorkerPool:
    """Run `workers` envelopes at a time, and as many executions, until stopped.

    Parked calls do not count. Each delivery has its own error boundary, so that its errors do not affect
    others. A delivery that raises comes again. After `max_deliveries` failures, it becomes a dead letter. A
    finished envelope is not run again. Its recorded attempts are published again. The pool serves only
    envelopes of `workflows` whose provider is in one of `lanes`. The empty lane is that of providers without
    a lane.

    If the log cannot be written, the pool stops: it takes no more deliveries, acknowledges only stored ones,
    and `run` raises the `StoreError`. If the log is streamed to the bus, a delivery is
    acknowledged and answered only after its lines are on the stream.
    """

    def __init__(
        self,
        *,
        broker: topic_api.Broker,
        runner: CallRunner,
        recorder: Recorder,
        claims: ClaimStore,
        clock: Clock,
        workers: int = 8,
        max_deliveries: int = 3,
        name: str = "worker",
        housekeeper: Housekeeper | None = None,
        acl: ProducerAcl | None = None,
        workflows: Collection[EnvelopeWorkflow] = (*EXECUTIONS, *OTHERS),
        lanes: Collection[str] = ("",),
        age: SendAge | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}. Allowed: 1 or more.")
        if problems := long_ids(["name"], [name]):
            raise ValueError(problems[0])
        self._broker = broker
        self._runner = runner
        self._recorder = recorder
        self._workers = workers
        self._max_deliveries = max_deliveries
        self._name = name
        self._topics = {
            group: [
                topic_api.lane_topic(workflow, lane)
                for workflow in among
                if workflow in workflows
                for lane in lanes
            ]
            for group, among in ((EXECUTIONS_GROUP, EXECUTIONS), (GROUP, OTHERS))
        }
        self._slots = {group: Slots(workers) for group, topics in self._topics.items() if topics}
        self._housekeeper = housekeeper
        self._acl = acl or ProducerAcl()
        self._dead_letters = DeadLetterPublisher(broker, clock, recorder.redaction)
        self._waits = StoppableWait(clock)
        self._envelopes = EnvelopeHandler(
            runner, recorder, claims, self._acl, self._waits, broker.max_message_bytes, age
        )
        self._fatal: StoreError | None = None
        self._failures: dict[tuple[str, int, int], int] = {}
        self._given_up: dict[tuple[str, int, int], tuple[str, ...]] = {}  # letters that wait
        self._counts = {"finished": 0, "dead_letters": 0, "given_back": 0, "events": 0}

    @property
    def topics(self) -> Sequence[topic_api.Topic[Any]]:
        """The topics that the pool reads and writes."""
        return [
            *chain.from_iterable(self._topics.values()),
            topic_api.EVENTS,
            topic_api.REPLIES,
            topic_api.DEAD_LETTERS,
        ]

    async def count_tokens(self, envelope: LLMEnvelope, principal: str = "") -> int | FailureReason | None:
        """Return the provider's count of the input tokens of `envelope`, None without a count, or a refusal."""
        return await self._runner.count_tokens(envelope, principal)

    def statistics(self) -> PoolStatistics:
        """Return the counts so far."""
        return PoolStatistics(
            **self._counts,
            attempts=self._runner.statistics(),
            durable_s=self._recorder.durable_s.sample(),
            budgets=self._housekeeper.reports() if self._housekeeper is not None else None,
        )

    def stop(self) -> None:
        """Stop taking envelopes, so that `run` returns. Repeated calls have no effect.

        Calls in progress are finished, but retries are not waited for. Waiting events are recorded, up to the
        first one that cannot be. Deliveries whose lines are not on the stream in time are given back.
        """
        self._waits.stop()
        for slots in self._slots.values():
            slots.stop()
        self._runner.stop()
        self._recorder.stop()

    async def run(self) -> None:
        """Serve all lanes and record all events until `stop`.

        Raises `StoreError` if the log fails.
        """
        async with AsyncExitStack() as subscribed:

            async def reading(topics: Sequence[topic_api.Topic[Any]], group: str) -> topic_api.Subscription:
                opened = aclosing(await self._broker.subscribe(topics, group))
                return await subscribed.enter_async_context(opened)

            envelopes = {group: await reading(self._topics[group], group) for group in self._slots}
            events = await reading([topic_api.EVENTS], EVENTS_GROUP)
            async with self._housekeeping():
                await self._serve_all(envelopes, events)
        if self._fatal is not None:
            raise self._fatal

    async def _serve_all(
        self, envelopes: Mapping[str, topic_api.Subscription], events: topic_api.Subscription
    ) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_events(events), name=f"{self._name}-events")
            for lanes, subscription in envelopes.items():
                for number in range(self._workers * (1 + PARKED_A_WORKER)):
                    name = f"{self._name}-{lanes}-{number}"
                    group.create_task(self._work(subscription, self._slots[lanes]), name=name)

    @asynccontextmanager
    async def _housekeeping(self) -> AsyncGenerator[None]:
        """Run the housekeeper while the block runs.

        Controls are known before the first delivery.
        """
        housekeeper = self._housekeeper
        if housekeeper is None:
            yield
            return
        await self._unless_fatal(housekeeper.reconcile())
        async with asyncio.TaskGroup() as group:
            running = self._unless_fatal(housekeeper.run())
            task = group.create_task(running, name=f"{self._name}-housekeeper")
            try:
                yield
            finally:
                task.cancel()
        if self._fatal is None:
            await self._unless_fatal(housekeeper.end())

    async def _unless_fatal(self, work: Awaitable[object]) -> None:
        try:
            await work
        except StoreError as e:
            self._give_up(e)

    async def _work(self, envelopes: topic_api.Subscription, slots: Slots) -> None:
        """Serve one delivery after another with one slot, until a returning holder needs the slot."""
        while not self._waits.is_stopped:
            async with slots.taken() as slot:
                serve = partial(self._serve, slot=slot)
                while slot.may_be_kept:
                    delivery = await slots.unless_needed(envelopes.take())
                    if delivery is None:
                        break
                    await self._within_boundary(delivery, envelopes, serve)

    async def _keep_events(self, events: topic_api.Subscription) -> None:
        """Record events. After a stop, record the waiting ones, up to the first that cannot be."""
        is_last_look = False
        while self._fatal is None and not is_last_look:
            was_stopped = self._waits.is_stopped
            delivery = await self._waits.result_of(events.take())
            if delivery is not None:
                is_done = await self._within_boundary(delivery, events, self._keep_event)
                if self._waits.is_stopped and not is_done:  # it is ready again, so that this would never end
                    return
            is_last_look = was_stopped and delivery is None

    async def _within_boundary(
        self,
        delivery: Delivery,
        subscription: topic_api.Subscription,
        handle: Callable[[Delivery], Awaitable[bool]],
    ) -> bool:
        """Handle a delivery, then acknowledge it or give it back.

        Return whether it was acknowledged. Its errors do not affect other deliveries, except a `StoreError`,
        which stops the pool.
        """
        try:
            is_done = await handle(delivery)
        except StoreError as e:
            self._give_up(e)
            is_done = False
        except Exception as e:  # noqa: BLE001 - the boundary: an error of one delivery must not affect others
            is_done = await self._after_error(delivery, e)
        if is_done:
            self._failures.pop(_place(delivery), None)
            self._given_up.pop(_place(delivery), None)
            await subscription.ack(delivery)
        else:
            await subscription.give_back(delivery)
        return is_done

    async def _serve(self, delivery: Delivery, *, slot: Slot) -> bool:
        is_done = await self._envelopes.serve(delivery, slot=slot)
        self._counts["finished"] += is_done
        return is_done

    async def _keep_event(self, delivery: Delivery) -> bool:
        sender = self._acl.of(delivery)
        event = read_event(delivery.message)
        self._acl.check_event(sender.principal, event)
        await self._recorder.streamed(await self._recorder.keep_event(event))
        self._counts["events"] += 1
        return True

    async def _after_error(self, delivery: Delivery, e: Exception) -> bool:
        """Make a dead letter of a delivery that cannot be served or failed too often.

        Return False if it comes again.
        """
        match e:
            case UnreadableMessageError() | UndeliverableError():
                return await self._dead_letter(delivery, e.reason, e.detail, e.envelope_id, e.trace_id)
            case SignatureError():
                return await self._dead_letter(delivery, "signature", str(e))
            case RecordError():
                return await self._dead_letter(delivery, "unrecordable", str(e))
            case ClaimLostError():  # the claim's new owner answers it
                log.warning("claim_lost", topic=delivery.topic, position=delivery.position, reason=str(e))
                return False
            case UnstreamedError():  # it is in the log, and its claim is unchanged
                log.warning("stream_away", topic=delivery.topic, position=delivery.position, reason=str(e))
                return False
            case _ if isinstance(e, AWAY):
                return await self._wait_for_server(e)
            case _:
                return await self._retry(delivery, e)

    async def _wait_for_server(self, e: Exception) -> bool:
        log.warning("server_away", reason=str(e))
        await self._waits.sleep(AWAY_S)
        return False

    async def _retry(self, delivery: Delivery, e: Exception) -> bool:
        log.error(
            "delivery_failed", topic=delivery.topic, position=delivery.position, error=describe_error(e)
        )
        failures = self._failed(delivery)
        if failures < self._max_deliveries:
            self._counts["given_back"] += 1
            return False
        detail = f"failed {failures} times, last with {describe_error(e)}"
        return await self._dead_letter(delivery, "crash_loop", detail)

    def _failed(self, delivery: Delivery) -> int:
        """Count a failure of a delivery, and return the count."""
        # The smaller count, because the broker also counts deliveries that ended without a failure.
        failures = min(self._failures.pop(_place(delivery), 0) + 1, delivery.deliveries)
        self._failures[_place(delivery)] = failures
        if len(self._failures) > MOST_FAILING:
            del self._failures[next(iter(self._failures))]
        return failures

    async def _dead_letter(self, delivery: Delivery, *given_up: str) -> bool:
        # The first reason, because the claim is finished, so that a later delivery would have another one.
        given_up = self._given_up.pop(_place(delivery), given_up)
        try:
            reason, detail, envelope_id, trace_id = (*given_up, "", "")[:4]
            route = self._acl.route_of(delivery)
            await self._dead_letters.publish(
                delivery, reason, detail, envelope_id=envelope_id, trace_id=trace_id, route=route
            )
        except BUS_AWAY as e:
            if len(self._given_up) < MOST_FAILING:
                self._given_up[_place(delivery)] = given_up
            return await self._wait_for_server(e)
        except Exception as e:  # noqa: BLE001 - a lost letter must not stop other deliveries
            log.error(  # noqa: TRY400 - in one line
                "dead_letter_lost", topic=delivery.topic, position=delivery.position, error=describe_error(e)
            )
        self._counts["dead_letters"] += 1
        return True

    def _give_up(self, e: StoreError) -> None:
        if self._fatal is None:
            log.error("log_unwritable", path=str(e.path), reason=e.reason)
            self._fatal = e
        self.stop()


def _place(delivery: Delivery) -> tuple[str, int, int]:
    return delivery.topic, delivery.partition, delivery.position
