"""The gateway's client: publish envelopes on the bus, and wait for their interactions."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping, MutableMapping
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Protocol, Self

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from agentic_trading.bus.codec import envelope_message, event_message
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.bus.message import Message
from agentic_trading.bus.signing import Signer
from agentic_trading.bus.topic import EVENTS, Broker, Subscription, Topic, lane_topic
from agentic_trading.client.answer import NO_EVIDENCE, Answer, M, TypedAnswers
from agentic_trading.client.call_log import CallLog
from agentic_trading.client.outcome import (
    StructuredOutcome,
    checked_outcome,
    outcome_of,
    outcome_without_answer,
)
from agentic_trading.client.replies import PendingCall, PendingCalls
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import Event, check_event
from agentic_trading.llm.fields import long_ids
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.redaction import Redaction
from agentic_trading.logger import get_logger
from agentic_trading.structured.pydantic_schema import SemanticCheck

log = get_logger()

GatewayReply = LLMInteraction | NoDecision

PUBLISH_WITHIN_S: Final = 30.0
"""How long a bus that is away is tried again before what is published is an error."""

SLOW_S: Final = 30.0
"""After how long without an answer a client says so."""

ON_ITS_WAY_S: Final = 30.0
"""How long after its deadline the answer to a call, which says that it has expired, may be on its way."""

_REMEMBERED = 10_000
"""Envelopes that a client recognises; one whose occurrence was set counts twice."""


class Gateway(Protocol):
    """What an agent needs of the gateway."""

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Have the call made and return its last attempt, or why there is none. Never raises for a failed call."""
        ...

    async def record(self, event: Event) -> None:
        """Put one fact of a trace on record."""
        ...


class StructuredGateway(Gateway, Protocol):
    """The interface that applications use: typed answers, outcomes with all attempts, and calls not waited for."""

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a call and return its outcome with all its attempts. Does not raise if the call fails."""
        ...

    async def decide(
        self,
        instructions: str,
        *,
        output: type[M],
        model: str,
        evidence: Mapping[str, Any] = NO_EVIDENCE,
        workflow: EnvelopeWorkflow = EnvelopeWorkflow.ANALYSIS,
        as_of: datetime | None = None,
        budget: LLMBudget | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Answer[M]:
        """Ask a model for an instance of a pydantic class: see `TypedAnswers.decide`."""
        ...

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Have the call made without waiting for it; return the envelope as published."""
        ...


class GatewayClient(TypedAnswers):
    """The gateway, seen from an application: envelopes go out on the bus, and replies come to an address of its own.

    Use it as an async context manager. Several `ask` may be under way at once, and several clients of one `name`. A request that an agent of a tenant asks
    again for the same moment and step gets the next `occurrence`, in the order of asking, so that a replay knows
    the first from the second; the very same envelope, asked again, gets the same answer again. `reply_timeout_s` bounds
    the wait for a worker; then the answer is a `NoDecision`. `signer` signs what is published, for workers that verify it, and then
    a reply has to be signed with the same key: any other is ignored, and counted. `lanes` are those of providers whose
    envelopes travel apart, by provider. A `call_log` keeps, beside the workers' logs, each envelope before it is
    published, each attempt that was received before the call is answered, and each event; what it knows of earlier clients
    is not asked again. With the `clock` of the workers a call is waited for until its
    deadline, and a little longer. Workers of the same process read `call_checks`, the checks of calls in flight by
    envelope id. Each envelope is published with its send time by the `wall` clock. An event is
    published without what `redaction` knows; an envelope as it was built.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        name: str = "client",
        reply_timeout_s: float = 900.0,
        signer: Signer | None = None,
        redaction: Redaction | None = None,
        lanes: Mapping[str, str] = MappingProxyType({}),
        call_log: CallLog | None = None,
        clock: Clock | None = None,
        wall: Clock | None = None,
        call_checks: MutableMapping[str, SemanticCheck] | None = None,
    ) -> None:
        if problems := long_ids(["name"], [name]):
            raise ValueError(problems[0])
        self._broker = broker
        self._redaction = redaction or Redaction()
        self._signer = signer
        self._lanes = lanes
        self._log = call_log
        self._is_closing = False
        self._clock = clock
        self._wall = wall or SystemClock()
        self._name = name
        self._address = random_id()
        self._reply_timeout_s = reply_timeout_s
        self._call_checks = {} if call_checks is None else call_checks
        self._pending = PendingCalls(signer)
        self._counts: dict[tuple[str, str, str], tuple[datetime | None, Counter[str]]] = {}
        self._occurrences: OrderedDict[str, int] = OrderedDict()  # by envelope hash
        self._exit = AsyncExitStack()

    @property
    def address(self) -> str:
        """Where replies to this client go; no other client has it."""
        return self._address

    @property
    def ignored_replies(self) -> Mapping[str, int]:
        """How many replies were ignored so far, by reason: see `PendingCalls.receive`."""
        return self._pending.ignored

    async def __aenter__(self) -> Self:
        """Read the replies to this client from now on."""
        if self._log is not None:
            await self._log.begin()
        replies = await self._broker.replies(self._address)
        group = await self._exit.enter_async_context(asyncio.TaskGroup())
        reader = group.create_task(self._read(replies), name=f"replies-{self._name}")
        self._exit.push_async_callback(replies.aclose)
        self._exit.callback(reader.cancel)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop reading; calls that have no answer yet end with a `NoDecision`."""
        self._is_closing = True
        self._pending.end_all("the client was closed")
        await self._exit.aclose()

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish an envelope without waiting; returns it as published (its occurrence may have been set)."""
        envelope = self._with_occurrence(envelope)
        message = envelope_message(envelope, sent_at=self._wall.now())
        await self._publish(self._topic_of(envelope), self._sign(message))
        return envelope

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Publish an envelope and wait for its last attempt.

        A dead letter, a closed client and a missing reply give a `NoDecision`. Raises `BusError` if the envelope
        cannot be published, and `AnswerNotKeptError` for a call of an earlier client whose answer is lost.
        """
        return await self._answer(envelope, None)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Publish an envelope and wait for all its attempts: the object, or why there is none, and what it took.

        What gives a `NoDecision` from `ask` gives an outcome that is not ok, with the attempts received so far. An
        envelope that was answered before is not run again: its attempts are published again. Raises what `ask` raises.

        `check` is run on every accepted text: by workers of this process, which ask again after a rejected answer,
        and by this client, which returns a `parsing_error` for an answer that other workers have accepted.
        """
        attempts: list[LLMInteraction] = []
        try:
            if check is not None:
                self._call_checks[envelope.envelope_id] = check
            answer = await self._answer(envelope, attempts)
        finally:
            self._call_checks.pop(envelope.envelope_id, None)
        if isinstance(answer, NoDecision):
            return outcome_without_answer(answer, attempts)
        outcome = outcome_of([*attempts, answer])
        return outcome if check is None else checked_outcome(outcome, check)

    async def record(self, event: Event) -> None:
        """Publish an event; a worker keeps it in the log. Raises `RecordError` for an id that is too long."""
        if self._redaction.known:
            event = self._redaction.record(event)
        check_event(event)
        if self._log is not None:
            await self._log.store.record(event)
        await self._publish(EVENTS, self._sign(event_message(event)))

    async def _answer(self, envelope: LLMEnvelope, attempts: list[LLMInteraction] | None) -> GatewayReply:
        """Return the last attempt at an envelope; those before it are put into `attempts`, if it is given."""
        envelope = self._with_occurrence(envelope)
        if self._log is None:
            return await self._asked(envelope, attempts)
        attempts = [] if attempts is None else attempts
        known = self._log.known(envelope)
        if isinstance(known, NoDecision):
            return known
        if known is not None:
            attempts += known[:-1]
            return known[-1]
        requested = await self._log.request(envelope)
        if isinstance(requested, NoDecision):
            return requested
        is_open = self._log.earlier.of(envelope).requested_at is not None
        answer = await self._asked(requested, attempts, is_open=is_open)
        return await self._log.keep(requested, attempts, answer, is_ended=not self._is_closing)

    async def _asked(
        self, envelope: LLMEnvelope, attempts: list[LLMInteraction] | None, *, is_open: bool = False
    ) -> GatewayReply:
        """Publish an envelope and wait for its last attempt; of one that is open since earlier, also after its deadline."""
        reply: asyncio.Future[GatewayReply] = asyncio.get_running_loop().create_future()
        sent_at = self._wall.now()
        message = self._sign(envelope_message(envelope, reply_to=self._address, sent_at=sent_at))
        signer = None if self._signer is None else self._signer.as_now()
        call = PendingCall(envelope, message, reply, attempts, signer)
        self._pending.add(call)
        within_s = self._reply_timeout_s if is_open else self._patience_s(envelope)
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(SLOW_S, _report_slow, envelope.envelope_id)]
        try:
            await self._publish(self._topic_of(envelope), message)
            timers.append(loop.call_later(within_s, call.end, f"no worker answered within {within_s:g} s"))
            return await reply
        finally:
            for timer in timers:
                timer.cancel()
            self._pending.remove(call)

    def _patience_s(self, envelope: LLMEnvelope) -> float:
        """Return how long an answer is waited for."""
        if self._clock is None or envelope.deadline is None:
            return self._reply_timeout_s
        left_s = (envelope.deadline - self._clock.now()).total_seconds()
        return min(self._reply_timeout_s, max(0.0, left_s + ON_ITS_WAY_S))

    async def _read(self, replies: Subscription) -> None:
        while True:
            self._pending.receive((await replies.take()).message)

    async def _publish(self, topic: Topic[Any], message: Message) -> None:
        """Publish a message; a bus that is away is waited for, `PUBLISH_WITHIN_S` at most: ids keep copies harmless."""
        with suppress(BusUnavailableError):
            await self._broker.publish(topic, message)
            return  # as hardly any is away: what follows costs other messages nothing
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(BusUnavailableError),
            wait=wait_exponential(multiplier=0.1, max=2.0),
            stop=stop_after_delay(PUBLISH_WITHIN_S),
            reraise=True,
        )
        await retrying(self._broker.publish, topic, message)

    def _topic_of(self, envelope: LLMEnvelope) -> Topic[Any]:
        return lane_topic(envelope.workflow, self._lanes.get(envelope.provider, ""))

    def _sign(self, message: Message) -> Message:
        return message if self._signer is None else self._signer.sign(message)

    def _with_occurrence(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Count a request; an envelope that was published before is the same call, and is published as it was."""
        occurrence = self._occurrences.get(envelope.envelope_hash)
        if occurrence is None:
            occurrence = self._next_occurrence(envelope)
        published = envelope
        if occurrence != envelope.occurrence:
            published = envelope.asked_again(occurrence)
        for known in (envelope, published):
            self._occurrences[known.envelope_hash] = occurrence
            self._occurrences.move_to_end(known.envelope_hash)
        while len(self._occurrences) > _REMEMBERED:
            self._occurrences.popitem(last=False)
        return published

    def _next_occurrence(self, envelope: LLMEnvelope) -> int:
        key = (envelope.tenant_id, envelope.agent_id, envelope.step)
        as_of, counts = self._counts.get(key, (envelope.as_of, Counter[str]()))
        if as_of != envelope.as_of:
            counts = Counter[str]()
        occurrence = envelope.occurrence + counts[envelope.request_hash]
        counts[envelope.request_hash] += 1
        self._counts[key] = (envelope.as_of, counts)
        return occurrence


def _report_slow(envelope_id: str) -> None:
    why = "a call takes long, waits for its budget, or no worker of the bus serves it"
    log.warning("no_answer_yet", envelope_id=envelope_id, after_s=SLOW_S, perhaps=why)


def verdict_of(answer: GatewayReply) -> str:
    """Return the outcome of a call in one word: `accepted`, the category of its failure, or `degraded`."""
    if isinstance(answer, NoDecision):
        return answer.reason.category
    result = answer.result
    if result.actionable:
        return "accepted"
    return "degraded" if result.failure is None else result.failure.category
