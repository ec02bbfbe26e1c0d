"""The gateway client: publish envelopes, and match replies to pending calls."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from types import MappingProxyType
from typing import Any, Final, Protocol, Self

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential
from typing_extensions import override

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
from agentic_trading.client.answer import NO_EVIDENCE, Answer, AsksStructured, M, TypedAnswers
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
from agentic_trading.llm.result import Stage
from agentic_trading.logger import get_logger
from agentic_trading.structured.pydantic_schema import SemanticCheck

log = get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class PendingCall:
    """A published envelope that waits for its answer.

    Attributes:
        envelope: The envelope as published.
        sent: Its message.
        reply: The answer: the last attempt, or a `NoDecision`.
        attempts: Collects the earlier attempts. None if the caller does not need them.
        signer: The signer with its keys of the time of sending. None if nothing is signed.

    """

    envelope: LLMEnvelope
    sent: Message
    reply: "asyncio.Future[LLMInteraction | NoDecision]"
    attempts: list[LLMInteraction] | None
    signer: Signer | None = None

    def end(self, why: str) -> None:
        """End the call with a `NoDecision`, unless it has an answer."""
        _resolve([self], no_answer(self.envelope.envelope_id, why))


class PendingCalls:
    """The pending calls of one client.

    With a `signer`, a reply must be signed with its keys, or with the keys it had when the call was sent.
    Without a `signer`, signatures are not checked.
    """

    def __init__(self, signer: Signer | None) -> None:
        self._signer = signer
        self._calls: dict[str, list[PendingCall]] = {}  # by envelope id
        self._ignored = Counter[str]()

    @property
    def ignored(self) -> Mapping[str, int]:
        """The number of ignored replies, by reason."""
        return MappingProxyType(self._ignored)

    def add(self, call: PendingCall) -> None:
        """Add a call, so that replies can find it."""
        self._calls.setdefault(call.envelope.envelope_id, []).append(call)

    def remove(self, call: PendingCall) -> None:
        """Remove a call."""
        calls = self._calls[call.envelope.envelope_id]
        calls.remove(call)
        if not calls:
            del self._calls[call.envelope.envelope_id]

    def end_all(self, why: str) -> None:
        """End all calls with a `NoDecision`."""
        for call in chain.from_iterable(self._calls.values()):
            call.end(why)

    def receive(self, message: Message) -> None:
        """Pass a reply to the calls that it answers, or ignore it.

        Ignored replies are counted by reason:

        - `signature`: The reply is not signed like the envelopes of this client.
        - `kind`: The reply is neither an attempt nor a dead letter.
        - `unexpected`: No pending call has its envelope id and hash.
        - `unreadable`: The reply is a dead letter that cannot be read and belongs to no pending call.
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
        """Return the reason for ignoring an attempt, or an empty string."""
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
            return ""  # not read, because no caller wants earlier attempts
        try:
            attempt = read_interaction(message)
        except UnreadableMessageError as e:  # ends these calls only: other replies are still read
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
        """Return the reason for ignoring a dead letter, or an empty string."""
        # Workers cannot sign the letter of an unverified message, because they do not know its sender. `_is_about`
        # accepts such a letter only for the very message of a call.
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
    """Return a `NoDecision` for a call without an answer.

    Asking the same envelope again is safe. `letter` is the reason of its dead letter, if there is one.
    """
    reason = FailureReason(
        category=FailureKind.UNDELIVERABLE, description=why, technical_details=letter, recoverable=True
    )
    return NoDecision(reason=reason, envelope_id=envelope_id)


def _end_unread(calls: Iterable[PendingCall], head: ReplyHead, e: UnreadableMessageError) -> None:
    """End the calls if their last attempt is unreadable. Otherwise log it."""
    if head.is_final:
        _resolve(calls, no_answer(head.envelope_id, f"the answer cannot be read: {e.detail}"))
    else:
        log.warning("attempt_unreadable", envelope_id=head.envelope_id, detail=e.detail)


def _collect(calls: Iterable[PendingCall], attempt: LLMInteraction) -> None:
    for call in calls:
        if call.attempts is not None:
            call.attempts.append(attempt)


def _envelope_id(letter: DeadLetter) -> str:
    """Return the id of the envelope in a letter."""
    # Workers do not fill in the id of an unverified message, because it may name a call of another sender.
    return letter.envelope_id or header(Message("", b"", letter.headers), "ce_id")


def _is_about(call: PendingCall, letter: DeadLetter) -> bool:
    """Return whether a letter is about this call, not another one with the same id."""
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
"""How long to retry publishing while the bus is unavailable, in seconds."""

SLOW_S: Final = 30.0
"""After how many seconds without an answer a client logs a warning."""

ON_ITS_WAY_S: Final = 30.0
"""How many seconds a client waits past the deadline, for the reply that the call expired."""

_REMEMBERED = 10_000
"""Maximum number of remembered envelopes, and of counted requests. An envelope with a changed occurrence counts twice."""


class Gateway(Protocol):
    """The interface that agents use."""

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Run a call and return its last attempt, or a `NoDecision`.

        A failed call does not raise.
        """
        ...

    async def record(self, event: Event) -> None:
        """Append an event to its trace."""
        ...


class AskingGateway(Gateway, AsksStructured, Protocol):
    """The interface of agents that also ask typed questions."""

    @override
    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call and return its last attempt, or a `NoDecision`.

        Args:
            envelope: The call.
            earlier: A list to which the attempts before the last one are added.

        """
        ...


class StructuredGateway(AskingGateway, Protocol):
    """The interface of applications: typed answers, outcomes, calls without waiting."""

    @override
    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a call and return its outcome with all its attempts.

        A failed call does not raise: its outcome is false.

        Args:
            envelope: The call.
            check: Runs on every accepted JSON text. See `GatewayClient.ask_structured`.

        Raises:
            BusError: If the call cannot be published.

        """
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
        """Publish a call without waiting for its answer.

        Returns:
            The envelope as published. Its `occurrence` may have been set.

        """
        ...


class GatewayClient(TypedAnswers):
    """A gateway client on a message bus. Use it as an async context manager.

    Calls may run concurrently, and several clients may have the same `name`: each has its own reply address.
    Asking the same envelope again returns the same answer. If an agent builds an equal request for the same
    step and `as_of`, its envelope gets the next `occurrence` number in the order of asking, so that a replay
    can distinguish the two.

    Args:
        broker: The bus.
        name: A name for the task that reads replies. At most 256 bytes.
        reply_timeout_s: How many seconds to wait for a worker. After that, the answer is a `NoDecision`.
        signer: Signs all messages. Replies with another signature are ignored and counted.
        redaction: Secrets to remove from events. Envelopes are published unchanged.
        lanes: The lanes of providers that have their own topics.
        call_log: Stores each envelope before it is published, each attempt before the call is answered, and
            each event. Calls of earlier clients in this log are answered from it.
        clock: The clock of the workers. If set, a call ends at most 30 seconds after its deadline.
        wall: The clock for the send times of messages. Default: the system clock.
        call_checks: The checks of calls in flight, by envelope id. Workers of the same process read it.

    Raises:
        ValueError: If `name` is longer than 256 bytes.

    Example:
        async with GatewayClient(broker) as client:
            outcome = await client.ask_structured(envelope)

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
        self._moments: OrderedDict[tuple[str, str, str], tuple[datetime | None, int]] = OrderedDict()
        self._moment_ids = count()
        self._counts: OrderedDict[tuple[int, str], int] = OrderedDict()  # by moment and request hash
        self._occurrences: OrderedDict[str, int] = OrderedDict()  # by envelope hash
        self._exit = AsyncExitStack()

    @property
    def address(self) -> str:
        """The reply address of this client. No other client has it."""
        return self._address

    @property
    def ignored_replies(self) -> Mapping[str, int]:
        """The number of ignored replies, by reason. See `PendingCalls.receive`."""
        return self._pending.ignored

    async def __aenter__(self) -> Self:
        """Start reading replies."""
        if self._log is not None:
            await self._log.begin()
        replies = await self._broker.replies(self._address)
        group = await self._exit.enter_async_context(asyncio.TaskGroup())
        reader = group.create_task(self._read(replies), name=f"replies-{self._name}")
        self._exit.push_async_callback(replies.aclose)
        self._exit.callback(reader.cancel)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop reading replies. Pending calls end with a `NoDecision`."""
        self._is_closing = True
        self._pending.end_all("the client was closed")
        await self._exit.aclose()

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish a call without waiting for its answer.

        Returns:
            The envelope as published. Its `occurrence` may have been set.

        Raises:
            BusError: If the envelope cannot be published.

        """
        envelope = self._with_occurrence(envelope)
        message = envelope_message(envelope, sent_at=self._wall.now())
        await self._publish(self._topic_of(envelope), self._sign(message))
        return envelope

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call and return its last attempt.

        Args:
            envelope: The call.
            earlier: A list to which the attempts before the last one are added.

        Returns:
            The last attempt. A `NoDecision` if the call ends as a dead letter, if no reply arrives in time,
                or if the client is closed.

        Raises:
            BusError: If the envelope cannot be published within 30 seconds.
            AnswerNotKeptError: If an earlier client made this call and its answer is lost.

        """
        return await self._answer(envelope, earlier)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a call and return its outcome with all its attempts.

        An envelope that was answered before does not run again: its attempts are published again.

        Args:
            envelope: The call.
            check: Runs on every accepted JSON text. Workers of this process run it and ask again after a
                rejected answer. The client runs it too: if it rejects an answer that other workers have
                accepted, the outcome is a `parsing_error`.

        Returns:
            The outcome. It is false if `ask` would return a `NoDecision`, and then has the attempts received
                so far.

        Raises:
            BusError: If the envelope cannot be published within 30 seconds.
            AnswerNotKeptError: If an earlier client made this call and its answer is lost.

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
        """Publish an event. A worker stores it in the log.

        Raises:
            RecordError: If its kind or an id is longer than 256 bytes.
            BusError: If the event cannot be published within 30 seconds.

        """
        if self._redaction.known:
            event = self._redaction.record(event)
        check_event(event)
        if self._log is not None:
            await self._log.store.record(event)
        await self._publish(EVENTS, self._sign(event_message(event)))

    async def _answer(self, envelope: LLMEnvelope, attempts: list[LLMInteraction] | None) -> GatewayReply:
        """Return the last attempt, and append the earlier ones to `attempts` if given."""
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
        # A call that ends because this client closes stays open in the log, so that the next client asks for its answer.
        return await self._log.keep(requested, attempts, answer, is_ended=not self._is_closing)

    async def _asked(
        self, envelope: LLMEnvelope, attempts: list[LLMInteraction] | None, *, is_open: bool = False
    ) -> GatewayReply:
        """Publish an envelope and wait for its last attempt."""
        reply: asyncio.Future[GatewayReply] = asyncio.get_running_loop().create_future()
        sent_at = self._wall.now()
        message = self._sign(envelope_message(envelope, reply_to=self._address, sent_at=sent_at))
        # A copy, because the keys may be rotated until the reply arrives.
        signer = None if self._signer is None else self._signer.as_now()
        call = PendingCall(envelope, message, reply, attempts, signer)
        self._pending.add(call)
        # An open call of an earlier client is past its deadline as a rule. It waits for the whole timeout, because the
        # claim may have an answer that was paid for.
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
        """Return the reply timeout of a call in seconds."""
        if self._clock is None or envelope.deadline is None:
            return self._reply_timeout_s
        left_s = (envelope.deadline - self._clock.now()).total_seconds()
        return min(self._reply_timeout_s, max(0.0, left_s + ON_ITS_WAY_S))

    async def _read(self, replies: Subscription) -> None:
        while True:
            self._pending.receive((await replies.take()).message)

    async def _publish(self, topic: Topic[Any], message: Message) -> None:
        """Publish a message. Retry for `PUBLISH_WITHIN_S` if the bus is unavailable."""
        with suppress(BusUnavailableError):
            await self._broker.publish(topic, message)
            return  # The usual case: making a retrying object for every message would cost time.
        # A message may arrive twice. That is harmless because workers recognize the ids.
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
        """Set the occurrence of a new request. A known envelope keeps its occurrence."""
        occurrence = self._occurrences.get(envelope.envelope_hash)
        if occurrence is None:
            occurrence = self._next_occurrence(envelope)
        published = envelope
        if occurrence != envelope.occurrence:
            published = envelope.asked_again(occurrence)
        for known in (envelope, published):
            _remember(self._occurrences, known.envelope_hash, occurrence)
        return published

    def _next_occurrence(self, envelope: LLMEnvelope) -> int:
        key = (envelope.tenant_id, envelope.agent_id, envelope.step)
        as_of, moment = self._moments.get(key, (None, -1))
        if moment < 0 or as_of != envelope.as_of:
            moment = next(self._moment_ids)
        _remember(self._moments, key, (envelope.as_of, moment))
        # A request that was forgotten starts again at its own number. The call is still made and kept under
        # its own id, but a replay cannot distinguish it from the first one. This takes at
        # least `_REMEMBERED` other requests in between, which a long run without `as_of` has.
        counted = (moment, envelope.request_hash)
        asked = self._counts.get(counted, 0)
        _remember(self._counts, counted, asked + 1)
        return envelope.occurrence + asked


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Set a value as the newest, and forget the oldest ones above the maximum."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > _REMEMBERED:
        known.popitem(last=False)


def _report_slow(envelope_id: str) -> None:
    why = "a call takes long, waits for its budget, or no worker of the bus serves it"
    log.warning("no_answer_yet", envelope_id=envelope_id, after_s=SLOW_S, perhaps=why)


def verdict_of(answer: GatewayReply) -> str:
    """Return the verdict of a call: `accepted`, `passed_on`, `degraded`, or its kind of failure."""
    if isinstance(answer, NoDecision):
        return answer.reason.category
    result = answer.result
    if result.actionable:
        return "accepted"
    if result.reading is not None and result.reading.verdict is Stage.PASSED_ON:
        return "passed_on"
    return "degraded" if result.failure is None else result.failure.category
