"""The claim of an envelope while it runs, and the recovery of claims whose worker has ended."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Self

from agentic_trading.governance.admission import Admitted
from agentic_trading.governance.errors import LedgerUnavailableError, ReservationStateError
from agentic_trading.governance.events import KINDS, AttemptDispatched
from agentic_trading.governance.ledger import (
    ReservationLedger,
    ReservationRequest,
    ReservationState,
    parts_of,
)
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, ProviderError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Transport, UnusableAnswerError
from agentic_trading.llm.result import NextStep, Usage
from agentic_trading.logger import get_logger
from agentic_trading.structured.pipeline import text_of
from agentic_trading.worker.attempt_result import Timing
from agentic_trading.worker.claim import (
    Claim,
    ClaimKey,
    ClaimLostError,
    ClaimState,
    ClaimStore,
    ClaimStoreUnavailableError,
)

MOST_NAMED: Final = 20
"""The maximum number of attempts and envelopes listed by id in a log line."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Unfinished work found at startup.

    The work continues when its envelope is delivered again. A stored answer is then processed. A request that
    may have been sent is not sent again.

    Attributes:
        attempts: The number of unfinished attempts in this worker's log that the ledger still has.
        in_doubt: The number of these that may have been sent. They are charged in full.
        in_doubt_nusd: The total charge of the attempts in doubt, in nano-dollars.
        claims: The number of claims without a living worker, by state.

    """

    attempts: int = 0
    in_doubt: int = 0
    in_doubt_nusd: int = 0
    claims: Mapping[ClaimState, int] = field(default_factory=dict)


async def recover(
    unended: Mapping[str, LostAttempt], ledger: ReservationLedger, claims: ClaimStore, tenants: Iterable[str]
) -> RecoveryReport:
    """Report unfinished work of ended processes, and mark attempts that may have been sent as in doubt.

    If the ledger or the claim store is unreachable, the work is unchanged. Its reservations then end with
    their leases.

    Args:
        unended: The unfinished attempts in this worker's log, by reservation id. The process that sent them
            has ended.
        ledger: The ledger with their reservations.
        claims: The claim store. If it has the answer of an attempt in doubt, the next owner of the envelope
            charges that answer instead.
        tenants: The tenants whose claims are counted.

    """
    found: dict[str, ReservationState] = {}
    try:
        for id_ in unended:
            if (state := await _abandoned(id_, ledger)) is not None:
                found[id_] = state
    except LedgerUnavailableError as e:
        log.warning("attempts_not_recovered", reason=str(e))
    in_doubt = [id_ for id_, state in found.items() if state is ReservationState.IN_DOUBT]
    in_doubt_nusd = sum(unended[id_].charged.nusd for id_ in in_doubt)
    if found:
        log.warning(
            "attempts_left",
            attempts=len(found),
            in_doubt=len(in_doubt),
            in_doubt_nusd=in_doubt_nusd,
            reservations=list(found)[:MOST_NAMED],
        )
    return RecoveryReport(len(found), len(in_doubt), in_doubt_nusd, await _claims_left(claims, tenants))


async def _abandoned(reservation_id: str, ledger: ReservationLedger) -> ReservationState | None:
    """Mark a dispatched attempt as in doubt.

    Return its state, or None if the ledger does not have it.
    """
    state = await ledger.state_of(reservation_id)
    if state is ReservationState.DISPATCHED:
        with suppress(ReservationStateError):  # another worker took it over first
            await ledger.in_doubt(reservation_id)
        state = await ledger.state_of(reservation_id)
    return state


async def _claims_left(claims: ClaimStore, tenants: Iterable[str]) -> Mapping[ClaimState, int]:
    try:
        left = [one for tenant in tenants for one in await claims.left(tenant)]
    except ClaimStoreUnavailableError as e:
        log.warning("claims_not_listed", reason=str(e))
        return {}
    counts = dict(Counter(one.state for one in left))
    if left:
        log.info("claims_left", **counts, envelopes=[one.key.envelope_id for one in left[:MOST_NAMED]])
    return counts


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The outcome of an attempt before it is parsed: an answer or an error.

    It contains the data for the charge and the record. `step` is the next step, if it is known before
    parsing. `refusal` is set if the call ended without sending this attempt.
    """

    transport: Transport
    price_book: str
    priced_at: datetime
    timing: Timing
    response: ModelResponse | None = None
    failure: ProviderError | None = None
    step: NextStep = ""
    refusal: FailureReason | None = None

    def spell(self) -> bytes:
        """Return the outcome as JSON.

        Lone surrogates, with which an answer may end, are preserved.
        """
        fields: dict[str, Any] = {
            "transport": self.transport,
            "price_book": self.price_book,
            "priced_at": self.priced_at.isoformat(),
            "timing": [
                self.timing.dispatched_at.isoformat(),
                self.timing.finished_at.isoformat(),
                self.timing.latency_ms,
            ],
            "step": self.step,
        }
        if (answer := self.response) is not None:
            fields["response"] = {
                "text": text_of(answer),
                "stop_reason": answer.stop_reason,
                "usage": answer.usage.model_dump(mode="json"),
                "model": answer.model,
                "provider_request_id": answer.provider_request_id,
                "provider_response_id": answer.provider_response_id,
                "logprobs": answer.logprobs,
                "beside": answer.beside,
                "tool_called": answer.tool_called,
            }
        if (failure := self.failure) is not None:
            fields["failure"] = {
                "kind": failure.kind,
                "message": failure.message,
                "sent": failure.sent,
                "retry_after_s": failure.retry_after_s,
                "provider_request_id": failure.provider_request_id,
                "text": failure.text,
                **({"bill_nusd": failure.bill_nusd} if failure.bill_nusd else {}),
            }
            if isinstance(failure, UnusableAnswerError):
                fields["failure"] |= {"usage": failure.usage.model_dump(mode="json"), "model": failure.model}
        if self.refusal is not None:
            fields["refusal"] = self.refusal.model_dump(mode="json")
        return json.dumps(fields).encode()

    def unused(self, reason: FailureReason) -> Self:
        """Return the outcome with its answer replaced by an error.

        The answer is still charged. An outcome without an answer is unchanged.
        """
        if self.response is None:
            return self
        why = f"the answer of an ended worker is not used: {reason.description}"
        return replace(
            self, response=None, failure=ProviderError(reason.category, why, sent=False), step="final"
        )

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Parse the JSON of `spell`."""
        fields = json.loads(raw)
        dispatched_at, finished_at, latency_ms = fields.pop("timing")
        response, failure = fields.pop("response", None), fields.pop("failure", None)
        if refusal := fields.pop("refusal", None):
            fields["refusal"] = FailureReason(**refusal)
        if response is not None:
            usage, logprobs = Usage(**response.pop("usage")), tuple(response.pop("logprobs"))
            fields["response"] = ModelResponse(**response, usage=usage, logprobs=logprobs)
        if failure is not None:
            fields["failure"] = _failure(**failure)
        return cls(
            timing=Timing(
                datetime.fromisoformat(dispatched_at), datetime.fromisoformat(finished_at), latency_ms
            ),
            priced_at=datetime.fromisoformat(fields.pop("priced_at")),
            **fields,
        )


def _failure(*, kind: str, message: str, usage: dict[str, Any] | None = None, **more: Any) -> ProviderError:
    if usage is None:
        return ProviderError(FailureKind(kind), message, **more)
    known = {name: value for name, value in more.items() if name not in {"sent", "bill_nusd"}}
    return UnusableAnswerError(FailureKind(kind), message, usage=Usage(**usage), **known)


@dataclass(frozen=True, slots=True)
class AbandonedAttempt:
    """An attempt that an earlier owner was about to send, from the record of its dispatch."""

    dispatched: Event
    body: AttemptDispatched

    @classmethod
    def read(cls, facts: bytes) -> Self:
        """Parse the facts that were stored before the send."""
        event = Event.from_wire(facts)
        body = KINDS.must(event)
        if not isinstance(body, AttemptDispatched):
            raise TypeError(f"Event {event.id} is {event.kind}. Allowed: {AttemptDispatched.KIND}.")
        return cls(event, body)

    def admission(self, capability: Capability, price_book: str, priced_at: datetime) -> Admitted:
        """Return the reservation of the attempt."""
        _, key, attempt = parts_of(self.body.reservation_id)
        request = ReservationRequest(key, attempt, self.body.scopes, self._amount, self.body.window_at)
        return Admitted(request, capability, price_book, priced_at)

    @property
    def _amount(self) -> Amount:
        return Amount(self.body.reserved_nusd, self.body.reserved_tokens, self.body.reserved_calls)


@dataclass(frozen=True, slots=True)
class ActiveClaim:
    """The claim of one envelope while it runs.

    Its steps raise `ClaimLostError` after another owner has taken it. `made` contains the recorded attempts
    that were followed by another one.
    """

    store: ClaimStore | None
    claim: Claim
    made: list[LLMInteraction] = field(default_factory=list)

    def add(self, attempt: LLMInteraction) -> None:
        """Add a recorded attempt that is followed by another one."""
        if self.store is not None:
            self.made.append(attempt)

    @property
    def is_new(self) -> bool:
        """Whether, according to the claim, no earlier owner has begun an attempt."""
        return not (self.claim.intended or self.claim.kept)

    def kept(self, attempt: int) -> StoredAnswer | None:
        """Return the stored outcome of `attempt` from an earlier owner, or None."""
        raw = self.claim.kept.get(attempt)
        return None if raw is None else StoredAnswer.read(raw)

    def left(self, attempt: int) -> AbandonedAttempt | None:
        """Return `attempt` if an earlier owner was about to send it, or None."""
        facts = self.claim.intended.get(attempt)
        return None if facts is None else AbandonedAttempt.read(facts)

    def holds(self) -> bool:
        """Whether the claim is surely valid now."""
        return self.store is None or self.store.holds(self.claim)

    async def intend(self, attempt: int, dispatched: Event) -> None:
        """Store that `attempt` is about to be sent."""
        if self.store is not None:
            await self.store.intend(self.claim, attempt, dispatched.wire)

    async def take_back(self, attempt: int) -> None:
        """Store that `attempt` is not sent after all.

        If the claim store is unreachable, the next owner asks the ledger.
        """
        if self.store is None:
            return
        try:
            await self.store.intend(self.claim, attempt, b"")
        except ClaimStoreUnavailableError as e:
            log.warning("claim_not_noted", envelope_id=self.claim.key.envelope_id, reason=str(e))

    async def end(self, request: ModelRequest, refusal: FailureReason, now: datetime) -> None:
        """Store that the call ends with this attempt, which was not sent.

        Raises `ClaimStoreUnavailableError` if this cannot be stored. The call has then not ended, because the
        next owner would send the attempt.
        """
        if self.store is not None:
            at = Timing(now, now, 0.0)
            kept = StoredAnswer(request.transport, "", now, at, step="final", refusal=refusal)
            await self.store.keep(self.claim, request.attempt, kept.spell)

    async def keep(self, attempt: int, kept: StoredAnswer) -> None:
        """Store the outcome of `attempt` with the claim.

        If the store is unreachable while the claim is surely valid, only a warning is logged. Raises
        `ClaimLostError` if the claim may have expired, because another owner may have ended the attempt
        differently.
        """
        if self.store is None:
            return
        try:
            await self.store.keep(self.claim, attempt, kept.spell)
        except ClaimStoreUnavailableError as e:
            if not self.holds():
                raise ClaimLostError(self.claim.key) from e
            # Not an error, because the log will contain the outcome in a moment.
            log.warning("answer_not_kept", envelope_id=self.claim.key.envelope_id, reason=str(e))


def key_of(envelope: LLMEnvelope) -> ClaimKey:
    """Return the claim key of an envelope."""
    return ClaimKey(envelope.tenant_id, envelope.envelope_id)


NO_CLAIM: Final = ActiveClaim(None, Claim(ClaimKey("", ""), 0))
"""The claim of a run that does not come from the bus. No other worker can have its envelope."""
