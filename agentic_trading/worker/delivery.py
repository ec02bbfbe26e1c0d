"""One delivery of an envelope: check its sender and age, claim it, run it, and finish the claim."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

from typing_extensions import override

from agentic_trading.bus.codec import SENT_HEADER, read_envelope, reply_address
from agentic_trading.bus.errors import SignatureError
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.signing import Signer, Verifier
from agentic_trading.bus.topic import MAX_MESSAGE_BYTES, TAKEN_ELSEWHERE
from agentic_trading.cancellation import run_shielded
from agentic_trading.canonical import quoted
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.events import KINDS as GOVERNANCE
from agentic_trading.governance.ledger import CLOCKS_DIFFER, SENT_WITHIN
from agentic_trading.governance.policy import Policy
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import RecordError
from agentic_trading.llm.event import KINDS as LOG
from agentic_trading.llm.event import EnvelopeRefused, Event
from agentic_trading.worker.active_claim import ActiveClaim, key_of
from agentic_trading.worker.claim import MOST_CLAIMS, Busy, Claim, ClaimStore, Finished, OtherContent
from agentic_trading.worker.error_boundary import AttemptTakenError, UndeliverableError, id_conflict
from agentic_trading.worker.recorder import Recorder, ReplyRoute
from agentic_trading.worker.runner import CallRunner
from agentic_trading.worker.slots import Slot, StoppableWait

NOT_ALLOWED = "not_allowed"

WORKER_NAMESPACES = GOVERNANCE.namespaces | LOG.namespaces
"""Namespaces of events that only workers may create, because ledgers are rebuilt from them and operators read
them."""


TOO_OLD: Final = "too_old"
"""Dead-letter reason: the record of an earlier payment for the envelope may have been deleted."""

SEND_TIME: Final = "send_time"
"""Dead-letter reason: the send time is not a time, or is in the future."""

_DAYS: Final = SENT_WITHIN // timedelta(days=1)
_HOURS_AHEAD: Final = CLOCKS_DIFFER // timedelta(hours=1)


_AS_OF: ContextVar[datetime | None] = ContextVar("as_of", default=None)


@contextmanager
def serving_as_of(as_of: datetime | None) -> Generator[None]:
    """Use `as_of` as the current time of an `AsOfClock` in this task while the block runs."""
    token = _AS_OF.set(as_of)
    try:
        yield
    finally:
        _AS_OF.reset(token)


class AsOfClock(SystemClock):
    """A clock for workers that serve a backtest in another process.

    Inside `serving_as_of`, it returns the `as_of` of the envelope, so that no deadline expires while the
    worker waits. Otherwise it is the system clock. Waits take real time.
    """

    @override
    def now(self) -> datetime:
        """Return the `as_of` of the envelope in this task, or else the system's time."""
        return _AS_OF.get() or super().now()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for refusing an envelope: dead-letter reason, detail, and send time.

    `sent_at` is None if the send time is not a time. The detail does not contain the current time, so that a
    repeated delivery of the message has the same refusal.
    """

    reason: str
    detail: str
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SendAge:
    """Compare the send time of envelopes with the wall clock.

    The send time is the header `at_sent`, which a gateway sets and signs. The broker's timestamp does not
    count, because it is new when old bytes are published again. A message without the header has the send
    time `created_at`, unless `is_created_at_simulated` is set. Then its age is unknown, and it is accepted.
    """

    wall: Clock = field(default_factory=SystemClock)
    is_created_at_simulated: bool = False

    def refusal(self, message: Message, created_at: datetime | None) -> Refusal | None:
        """Return why a worker refuses a message, or None if it is recent enough.

        `created_at` is that of the envelope, or None if the envelope of the message cannot be read.
        """
        text = message.headers.get(SENT_HEADER)
        if text is None:
            if created_at is None or self.is_created_at_simulated:
                return None
            return self._problem("created_at", created_at)
        sent_at = _moment_of(text)
        if sent_at is None:
            allowed = "an ISO 8601 time with its zone, such as 2026-11-24T09:30:00Z"
            return Refusal(SEND_TIME, f"its {SENT_HEADER} is {quoted(text, 100)}; allowed is {allowed}")
        return self._problem(SENT_HEADER, sent_at)

    def _problem(self, name: str, sent_at: datetime) -> Refusal | None:
        age = self.wall.now() - sent_at
        if age > SENT_WITHIN:
            why = "it may have been paid, and the record of the payment may be deleted"
            detail = f"its {name} {sent_at:%Y-%m-%d %H:%M} UTC is more than {_DAYS} days ago: {why}"
            return Refusal(TOO_OLD, detail, sent_at)
        if age < -CLOCKS_DIFFER:
            why = "correct the clock of the sender or of the worker"
            detail = f"its {name} {sent_at:%Y-%m-%d %H:%M} UTC is more than {_HOURS_AHEAD} hours ahead; {why}"
            return Refusal(SEND_TIME, detail, sent_at)
        return None


def _moment_of(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a message, and the route of its replies.

    If messages are signed, the replies are signed with the sender's own key.
    """

    principal: str
    route: ReplyRoute


@dataclass(frozen=True, slots=True)
class ProducerAcl:
    """Identify the sender of a message, and check its rights.

    With a `verifier`, the sender is the principal that signed the message. Otherwise it is `principal`.
    Without a `policy`, every principal may record events of every tenant.
    """

    verifier: Verifier | None = None
    principal: str = ""
    policy: Policy | None = None

    def of(self, delivery: Delivery) -> Sender:
        """Return the sender of a message. Raises `SignatureError` if it is not verified."""
        signer: Signer | None = None
        if self.verifier is not None:
            signer = self.verifier.signer_of(delivery.message)
        route = ReplyRoute(reply_address(delivery.message), signer)
        return Sender(self.principal if signer is None else signer.principal, route)

    def route_of(self, delivery: Delivery) -> ReplyRoute:
        """Return the reply route of a message. Replies to an unverified sender are not signed."""
        try:
            return self.of(delivery).route
        except SignatureError:
            return ReplyRoute(reply_address(delivery.message))

    def check_event(self, principal: str, event: Event) -> None:
        """Raise `UndeliverableError` if `principal` may not record the event."""
        if event.kind.partition(".")[0] in WORKER_NAMESPACES:
            why = f"only workers may send events of kind {quoted(event.kind, 100)}. Allowed: other kinds."
            raise UndeliverableError(NOT_ALLOWED, why)
        self.check_tenant(principal, event.tenant_id)

    def check_tenant(self, principal: str, tenant_id: str) -> None:
        """Raise `UndeliverableError` if `principal` may not send messages for the tenant."""
        # No record of a forged tenant, because it would take the place of the real record.
        problem = self.policy.tenant_problem(principal, tenant_id) if self.policy is not None else None
        if problem is not None:
            raise UndeliverableError(NOT_ALLOWED, problem.description)


class EnvelopeHandler:
    """Serve deliveries of envelopes from any source: claim, run, finish.

    A finished envelope is not run again. Its attempts are published again. An envelope whose owner has ended
    is continued, see `CallRunner.run`. An envelope that is too old for a check of earlier payments is
    refused, see `SendAge`.
    """

    def __init__(
        self,
        runner: CallRunner,
        recorder: Recorder,
        claims: ClaimStore,
        acl: ProducerAcl,
        waits: StoppableWait,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        age: SendAge | None = None,
    ) -> None:
        self._runner = runner
        self._max_message_bytes = max_message_bytes
        self._recorder = recorder
        self._claims = claims
        self._acl = acl
        self._waits = waits
        self._age = age or SendAge()

    async def serve(self, delivery: Delivery, *, slot: Slot) -> bool:
        """Run an envelope, or publish its attempts again.

        Returns False if the worker stops before that. Raises `UndeliverableError`, and the errors of
        `CallRunner.run` and of the claim store.
        """
        sender = self._acl.of(delivery)
        envelope = read_envelope(delivery, max_bytes=self._max_message_bytes)
        self._acl.check_tenant(sender.principal, envelope.tenant_id)
        await self._check_age(delivery, envelope)
        with serving_as_of(envelope.as_of):
            return await self._serve(envelope, sender, slot)

    async def _check_age(self, delivery: Delivery, envelope: LLMEnvelope) -> None:
        """Raise `UndeliverableError` for an envelope that is too old, after its refusal is recorded."""
        refusal = self._age.refusal(delivery.message, envelope.created_at)
        if refusal is None:
            return
        place = f"{delivery.topic}/{delivery.partition}/{delivery.position}"
        refused = EnvelopeRefused(
            envelope_id=envelope.envelope_id,
            envelope_hash=envelope.envelope_hash,
            reason=refusal.reason,
            detail=refusal.detail,
            sent_at=refusal.sent_at,
        ).as_event(
            event_id=derived_id(EnvelopeRefused.KIND, envelope.tenant_id, envelope.envelope_hash, place),
            trace_id=envelope.trace_id,
            tenant_id=envelope.tenant_id,
            time=self._age.wall.now(),
        )
        await self._recorder.streamed(await self._recorder.keep_event(refused))
        raise UndeliverableError(
            refusal.reason, refusal.detail, envelope_id=envelope.envelope_id, trace_id=envelope.trace_id
        )

    async def _serve(self, envelope: LLMEnvelope, sender: Sender, slot: Slot) -> bool:
        claim = await self._claimed(envelope, slot)
        match claim:
            case None:
                return False
            case Finished():
                await self._publish_again(envelope, claim.attempts, sender.route)
            case Claim():
                await self._run(envelope, claim, sender, slot)
            case _:
                assert_never(claim)
        return True

    async def _claimed(self, envelope: LLMEnvelope, slot: Slot) -> Claim | Finished | None:
        """Claim an envelope as soon as it is free.

        Return None if the worker is stopped meanwhile.
        """
        key = key_of(envelope)
        while True:
            claim = await self._claims.claim(key, envelope.envelope_hash)
            match claim:
                case Claim() | Finished():
                    return claim
                case OtherContent():
                    raise id_conflict(envelope)
                case Busy():
                    async with slot.given_back():  # otherwise its parked owner might never get a slot again
                        await self._waits.wait_for(self._claims.until_free(key))
                case _:
                    assert_never(claim)
            if self._waits.is_stopped:
                return None

    async def _run(self, envelope: LLMEnvelope, claim: Claim, sender: Sender, slot: Slot) -> None:
        # Give it up, because it would otherwise kill one worker after another.
        if claim.count > MOST_CLAIMS:
            await self._claims.finish(claim, bytes)
            detail = f"{claim.count - 1} workers have ended while they ran it"
            raise UndeliverableError(
                "crash_loop", detail, envelope_id=envelope.envelope_id, trace_id=envelope.trace_id
            )
        try:
            await self._run_to_end(envelope, claim, sender, slot)
        except BaseException:  # a finished claim stays finished
            await run_shielded(self._claims.release(claim))
            raise

    async def _run_to_end(self, envelope: LLMEnvelope, claim: Claim, sender: Sender, slot: Slot) -> None:
        held = ActiveClaim(self._claims, claim)
        try:
            last = await self._runner.run(
                envelope,
                principal=sender.principal,
                parked=slot.given_back,
                claim=held,
                route=sender.route,
            )
        except AttemptTakenError:  # another run sent it, or the claim server lost that it was finished
            known = await self._recorder.attempts_of(envelope)
            if known and known[-1].envelope.envelope_hash != envelope.envelope_hash:
                known = []
            await self._claims.finish(claim, lambda: self._recorder.spelled(known))
            await self._publish_again(envelope, self._recorder.spelled(known), sender.route)
        except (RecordError, UndeliverableError):
            await self._claims.finish(claim, bytes)
            raise
        else:
            await self._claims.finish(claim, lambda: self._recorder.spelled([*held.made, last]))

    async def _publish_again(self, envelope: LLMEnvelope, kept: bytes, route: ReplyRoute) -> None:
        if not await self._recorder.publish_again(envelope, kept, route=route):
            detail = "another run has sent it, and its outcome is not on record yet"
            raise UndeliverableError(
                TAKEN_ELSEWHERE, detail, envelope_id=envelope.envelope_id, trace_id=envelope.trace_id
            )
