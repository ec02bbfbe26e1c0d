"""The gateway's client: publish envelopes on the bus, and match the signed replies with the calls that wait for them."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Protocol, Self

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from agentic_trading.bus.codec import (
    ReplyHead,
    envelope_message,
    event_message,
    read_dead_letter,
    read_interaction,
    reply_head,
)
from agentic_trading.bus.errors import BusUnavailableError, UnreadableMessageError
from agentic_trading.bus.message import Message, header
from agentic_trading.bus.signing import Signer
from agentic_trading.bus.topic import EVENTS, Broker, DeadLetter, Subscription, Topic, lane_topic
from agentic_trading.canonical import sha256_hex
from agentic_trading.client.answer import NO_EVIDENCE, Answer, M, TypedAnswers
from agentic_trading.client.call_log import CallLog
from agentic_trading.client.outcome import (
    StructuredOutcome,
    checked_outcome,
    outcome_of,
    outcome_without_answer,
)
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import Event, check_event
from agentic_trading.llm.fields import long_ids
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.redaction import Redaction
from agentic_trading.logger import get_logger
from agentic_trading.structured.pydantic_schema import SemanticCheck

log = get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class PendingCall:
    """One envelope, `sent` as a message, and its answer to come; with `attempts`, also the attempts before the last.

    A reply may be signed as `signer` signed when it was sent, though its keys were exchanged since.
    """

    envelope: LLMEnvelope
    sent: Message
    reply: "asyncio.Future[LLMInteraction | NoDecision]"
    attempts: list[LLMInteraction] | None
    signer: Signer | None = None

    def end(self, why: str) -> None:
        """Answer it with a `NoDecision`, if it has no answer yet."""
        _resolve([self], no_answer(self.envelope.envelope_id, why))


class PendingCalls:
    """The calls of one client; with a `signer` a reply has to be signed as it signs, or signed when its call was sent."""

    def __init__(self, signer: Signer | None) -> None:
        self._signer = signer
        self._calls: dict[str, list[PendingCall]] = {}  # by envelope id
        self._ignored = Counter[str]()

    @property
    def ignored(self) -> Mapping[str, int]:
        """How many replies were ignored so far, by reason."""
        return MappingProxyType(self._ignored)

    def add(self, call: PendingCall) -> None:
        """Let replies find a call."""
        self._calls.setdefault(call.envelope.envelope_id, []).append(call)

    def remove(self, call: PendingCall) -> None:
        """Forget a call."""
        calls = self._calls[call.envelope.envelope_id]
        calls.remove(call)
        if not calls:
            del self._calls[call.envelope.envelope_id]

    def end_all(self, why: str) -> None:
        """Answer every call with a `NoDecision`."""
        for call in chain.from_iterable(self._calls.values()):
            call.end(why)

    def receive(self, message: Message) -> None:
        """Give a reply to the calls that it answers; one that answers none is ignored, and counted by its reason.

        `signature`: it is not signed as the envelopes of this client are. `kind`: it is neither an attempt nor a dead letter.
        `unexpected`: no call has its envelope's id and hash, or not any more. `unreadable`: it may be a dead letter.
        """
        head = reply_head(message)
        if head.is_attempt:
            ignored = self._receive_attempt(message, head)
        elif head.is_dead_letter:
            ignored = self._receive_letter(message, head)
        else:
            ignored = "kind"
        if ignored:
            self._ignored[ignored] += 1
            log.debug("reply_ignored", reason=ignored, envelope_id=head.envelope_id)

    def _receive_attempt(self, message: Message, head: ReplyHead) -> str:
        """Return why a reply is ignored; empty if it is not."""
        if not self._is_proved(message, head):
            return "signature"
        calls = [
            call
            for call in self._calls.get(head.envelope_id, ())
            if call.envelope.envelope_hash == head.envelope_hash
        ]
        if not calls:
            return "unexpected"
        if not head.is_final and all(call.attempts is None for call in calls):
            return ""
        try:
            attempt = read_interaction(message)
        except UnreadableMessageError as e:  # no answer to this call, and nothing to the others
            _end_unread(calls, head, e)
            return ""
        if attempt.envelope.envelope_hash != head.envelope_hash:
            return "unexpected"
        if head.is_final:
            _resolve(calls, attempt)
        else:
            _collect(calls, attempt)
        return ""

    def _receive_letter(self, message: Message, head: ReplyHead) -> str:
        """Return why a dead letter is ignored; empty if it is not.

        The letter of a message whose sender was not proved cannot be signed: it has to hold the very message.
        """
        is_proved = self._is_proved(message, head)
        try:
            letter = read_dead_letter(message)
        except UnreadableMessageError as e:
            calls = self._calls.get(head.envelope_id, []) if is_proved else []
            _resolve(calls, no_answer(head.envelope_id, f"the answer cannot be read: {e.detail}"))
            return "" if calls else "unreadable"
        if not is_proved and letter.reason != "signature":
            return "signature"
        calls = [call for call in self._calls.get(_envelope_id(letter), ()) if _is_about(call, letter)]
        why = f"dead letter: {letter.reason}: {letter.detail}"
        for call in calls:
            _resolve([call], no_answer(call.envelope.envelope_id, why, letter=letter.reason))
        return "" if calls else "unexpected"

    def _is_proved(self, message: Message, head: ReplyHead) -> bool:
        if self._signer is None or self._signer.has_signed(message):
            return True
        signers = (call.signer for call in self._calls.get(head.envelope_id, ()))
        return any(signer is not None and signer.has_signed(message) for signer in signers)


def no_answer(envelope_id: str, why: str, *, letter: str = "") -> NoDecision:
    """Return that a call has no answer, and the reason of its dead `letter`; to ask the same envelope again is right."""
    reason = FailureReason(
        category=FailureKind.UNDELIVERABLE, description=why, technical_details=letter, recoverable=True
    )
    return NoDecision(reason=reason, envelope_id=envelope_id)


def _end_unread(calls: Iterable[PendingCall], head: ReplyHead, e: UnreadableMessageError) -> None:
    """End calls whose last attempt cannot be read; of an earlier one, the last is still to come."""
    if head.is_final:
        _resolve(calls, no_answer(head.envelope_id, f"the answer cannot be read: {e.detail}"))
    else:
        log.warning("attempt_unreadable", envelope_id=head.envelope_id, detail=e.detail)


def _collect(calls: Iterable[PendingCall], attempt: LLMInteraction) -> None:
    for call in calls:
        if call.attempts is not None:
            call.attempts.append(attempt)


def _envelope_id(letter: DeadLetter) -> str:
    """Return the id of the envelope in a letter: that of an unproved message stands in its headers alone."""
    return letter.envelope_id or header(Message("", b"", letter.headers), "ce_id")


def _is_about(call: PendingCall, letter: DeadLetter) -> bool:
    """Whether a letter is about the message of a call, and not another one under the same id."""
    if letter.reason in {"signature", "not_allowed"}:
        is_same_head = (letter.key, letter.headers) == (call.sent.key, dict(call.sent.headers))
        return is_same_head and letter.raw_sha256 == sha256_hex(call.sent.value)
    return letter.reason != "id_conflict" or call.envelope.envelope_hash.encode() in letter.raw


def _resolve(calls: Iterable[PendingCall], answer: LLMInteraction | NoDecision) -> None:
    for call in calls:
        if not call.reply.done():
            call.reply.set_result(answer)


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
