"""A claim that a worker holds on an envelope, and the recovery of claims whose worker has ended."""

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
"""How many attempts and envelopes the log of operators names one by one."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was left: attempts without an end on record that the ledger knows, and claims of no living worker, by state.

    Of the attempts `in_doubt` are charged in full, `in_doubt_nusd` in all. What goes on does so when its envelope is
    delivered again: an answer that was kept is read, and nothing that may have been sent is sent again.
    """

    attempts: int = 0
    in_doubt: int = 0
    in_doubt_nusd: int = 0
    claims: Mapping[ClaimState, int] = field(default_factory=dict)


async def recover(
    unended: Mapping[str, LostAttempt], ledger: ReservationLedger, claims: ClaimStore, tenants: Iterable[str]
) -> RecoveryReport:
    """Report what earlier starts and workers that have ended have left; attempts that may have been sent are in doubt.

    `unended` are those of the worker's own log, by reservation: who sent them has ended. Where an answer of such a one was kept, who
    takes its envelope over charges that instead. What cannot be reached now is left as it is: the lease of a reservation
    ends it as well.
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
    """Put an attempt in doubt that was dispatched; return its state then, None for one that the ledger has forgotten."""
    state = await ledger.state_of(reservation_id)
    if state is ReservationState.DISPATCHED:
        with suppress(ReservationStateError):  # a taker was faster
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
    """What an attempt gave, not read yet: an answer, or why there is none; and what it is charged and recorded by.

    `step` is what follows, where that is known before it is read. A call that ended without sending this attempt has a `refusal`.
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
        """Return it as JSON; half of a surrogate pair, in which an answer may end, is kept."""
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
        """Return it as an answer that is charged and no decision any more; an attempt that gave none stays as it is."""
        if self.response is None:
            return self
        why = f"the answer of an ended worker is not used: {reason.description}"
        return replace(
            self, response=None, failure=ProviderError(reason.category, why, sent=False), step="final"
        )

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Read what `spell` wrote."""
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
    """An attempt that an earlier owner was about to send, by the record of its dispatch."""

    dispatched: Event
    body: AttemptDispatched

    @classmethod
    def read(cls, facts: bytes) -> Self:
        """Read the facts that were noted before the send."""
        event = Event.from_wire(facts)
        body = KINDS.must(event)
        if not isinstance(body, AttemptDispatched):
            raise TypeError(f"event {event.id} is {event.kind}; allowed is {AttemptDispatched.KIND}")
        return cls(event, body)

    def admission(self, capability: Capability, price_book: str, priced_at: datetime) -> Admitted:
        """Return what was set aside for it."""
        _, key, attempt = parts_of(self.body.reservation_id)
        request = ReservationRequest(key, attempt, self.body.scopes, self._amount, self.body.window_at)
        return Admitted(request, capability, price_book, priced_at)

    @property
    def _amount(self) -> Amount:
        return Amount(self.body.reserved_nusd, self.body.reserved_tokens, self.body.reserved_calls)


@dataclass(frozen=True, slots=True)
class ActiveClaim:
    """The claim of one envelope while it runs. Its steps raise `ClaimLostError` once another owner has taken it.

    `made` are the attempts on record that were followed by another one.
    """

    store: ClaimStore | None
    claim: Claim
    made: list[LLMInteraction] = field(default_factory=list)

    def add(self, attempt: LLMInteraction) -> None:
        """Take an attempt that is followed by another one."""
        if self.store is not None:
            self.made.append(attempt)

    @property
    def is_new(self) -> bool:
        """Whether no owner before has made or begun an attempt, as far as the claim has it."""
        return not (self.claim.intended or self.claim.kept)

    def kept(self, attempt: int) -> StoredAnswer | None:
        """Return what an earlier owner was given by `attempt`."""
        raw = self.claim.kept.get(attempt)
        return None if raw is None else StoredAnswer.read(raw)

    def left(self, attempt: int) -> AbandonedAttempt | None:
        """Return what an earlier owner was about to send as `attempt`."""
        facts = self.claim.intended.get(attempt)
        return None if facts is None else AbandonedAttempt.read(facts)

    def holds(self) -> bool:
        """Whether the claim surely lasts now."""
        return self.store is None or self.store.holds(self.claim)

    async def intend(self, attempt: int, dispatched: Event) -> None:
        """Note that `attempt` is about to be sent."""
        if self.store is not None:
            await self.store.intend(self.claim, attempt, dispatched.wire)

    async def take_back(self, attempt: int) -> None:
        """Note that `attempt` is not sent after all; where that cannot be noted, the next owner asks the ledger."""
        if self.store is None:
            return
        try:
            await self.store.intend(self.claim, attempt, b"")
        except ClaimStoreUnavailableError as e:
            log.warning("claim_not_noted", envelope_id=self.claim.key.envelope_id, reason=str(e))

    async def end(self, request: ModelRequest, refusal: FailureReason, now: datetime) -> None:
        """Keep that the call ends with this attempt, which was not sent.

        Raises `ClaimStoreUnavailableError` where that cannot be: it is then no end, as the next owner would send the attempt.
        """
        if self.store is not None:
            at = Timing(now, now, 0.0)
            kept = StoredAnswer(request.transport, "", now, at, step="final", refusal=refusal)
            await self.store.keep(self.claim, request.attempt, kept.spell)

    async def keep(self, attempt: int, kept: StoredAnswer) -> None:
        """Keep what `attempt` gave; what cannot be kept while the claim surely lasts is on record in a moment.

        Raises `ClaimLostError` where it may be over: another owner may have ended the attempt in another way.
        """
        if self.store is None:
            return
        try:
            await self.store.keep(self.claim, attempt, kept.spell)
        except ClaimStoreUnavailableError as e:
            if not self.holds():
                raise ClaimLostError(self.claim.key) from e
            log.warning("answer_not_kept", envelope_id=self.claim.key.envelope_id, reason=str(e))


def key_of(envelope: LLMEnvelope) -> ClaimKey:
    """Return under which key an envelope is claimed."""
    return ClaimKey(envelope.tenant_id, envelope.envelope_id)


NO_CLAIM: Final = ActiveClaim(None, Claim(ClaimKey("", ""), 0))
"""For a run that comes from no bus: no other asks for its envelope."""
