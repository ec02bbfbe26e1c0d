"""An admitted attempt: record it, send it, store its answer before parsing, and charge it on every path."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.admission import Admitted, Charge, reservation_id_of, unavailable
from agentic_trading.governance.commands import AddHalt, apply_command, store_raised_halts
from agentic_trading.governance.controls_document import (
    ControlStore,
    Halt,
    HaltRegistry,
    HaltScope,
    TenantControls,
    event_of,
)
from agentic_trading.governance.errors import LedgerUnavailableError, ReservationStateError
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.prices import Amount, price_advice
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.governance.sent_call import SentCall, metered_answer
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, ProviderError, RecordError, StoreError
from agentic_trading.llm.event import Event
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider, Providers
from agentic_trading.llm.result import LLMResult, NextStep
from agentic_trading.llm.taps import Tap
from agentic_trading.logger import get_logger
from agentic_trading.worker.active_claim import AbandonedAttempt, ActiveClaim, StoredAnswer
from agentic_trading.worker.attempt_result import LOST, DispatchNumbers, Timing, late_event, unsent_event
from agentic_trading.worker.claim import ClaimLostError, ClaimStoreUnavailableError
from agentic_trading.worker.error_boundary import AttemptTakenError, describe_error, log_and_continue
from agentic_trading.worker.recorder import Recorder

log = get_logger()

GATEWAY = "gateway"
"""The operator of a halt that the gateway itself has raised."""


@dataclass(slots=True)
class ChargeWatch:
    """Check each charge of this process.

    A bill above its reservation shows that the reservations of that model are too low. The model is halted
    for the tenant until an operator resumes it. Calls in flight continue, so that their bills become known.
    Without `controls`, the halt lasts until the process ends.
    """

    halts: HaltRegistry
    controls: ControlStore | None
    recorder: Recorder
    _reported: set[tuple[str, str]] = field(default_factory=set)

    async def note(
        self, envelope: LLMEnvelope, admission: Admitted, charge: Charge, bill_problem: str = ""
    ) -> None:
        """Report a charge and halt the model if necessary, even if the caller is cancelled meanwhile."""
        model = f"{admission.capability.provider}/{admission.capability.model}"
        if charge.unpriced and self._is_new(model, charge.unpriced):
            log.warning(
                "charged_at_reservation",
                model=model,
                word=charge.unpriced,
                add=price_advice(model, charge.unpriced),
            )
        if bill_problem and self._is_new(model, bill_problem):
            log.warning("bill_not_read", model=model, reason=bill_problem)
        if charge.overbilled:
            await run_shielded(self._halt(envelope.tenant_id, model, admission, charge))

    def _is_new(self, model: str, text: str) -> bool:
        is_new = (model, text) not in self._reported
        self._reported.add((model, text))
        return is_new

    async def _halt(self, tenant: str, model: str, admission: Admitted, charge: Charge) -> None:
        billed, reserved = (charge.bill_nusd or 0) / NANO, admission.amount.nusd / NANO
        why = (
            f"the server billed {billed:.6f} USD for a call for which {reserved:.6f} were set aside; check the prices of "
            "the model, then resume it"
        )
        halt = Halt(
            scope=HaltScope.MODEL,
            id=model,
            by=GATEWAY,
            why=why,
            at=SystemClock().now(),
            spares_in_flight=True,
        )
        if not self.halts.raise_halt(tenant, halt):
            return
        log.error("model_halted", tenant=tenant, model=model, reason=why)
        with log_and_continue("halt_not_stored", tenant=tenant, model=model):
            if self.controls is not None:
                actions = await store_raised_halts(self.controls, self.halts, tenant)
            else:
                command = AddHalt(halt.scope, halt.id, halt.spares_in_flight)
                halted = apply_command(TenantControls(), command, by=halt.by, why=halt.why, at=halt.at)
                actions = list(halted.actions)
            for action in actions:
                await self.recorder.keep_event(event_of(tenant, action))


NO_TIME_LEFT: Final = FailureReason(
    category=FailureKind.EXPIRED, description="the deadline was reached before the request could be sent"
)
STOPPED: Final = FailureReason(
    category=FailureKind.SHUTDOWN,
    description="the worker was stopped before the next attempt",
    recoverable=True,
)
_LEASE_OVER: Final = FailureReason(
    category=FailureKind.LEDGER_UNAVAILABLE,
    description="the reservation's lease expired before the request was sent",
    recoverable=True,
)
_LEFT_UNSENT: Final = "an earlier worker ended before the request was sent"
_WORKER_LEASE_OVER: Final = "the worker's lease was over before the request could be sent"


@dataclass(slots=True)
class RequestInFlight:
    """One request being sent, and its outcome so far."""

    claim: ActiveClaim
    request: ModelRequest
    admission: Admitted
    clock: Clock
    sent: SentCall | None = None
    response: ModelResponse | None = None
    failure: ProviderError | None = None
    began: tuple[datetime, float] | None = None
    ended: tuple[datetime, float] | None = None
    tap: Tap | None = None

    @property
    def charge(self) -> Charge:
        """The charge of the call, or zero if it was not sent."""
        return Charge(0) if self.sent is None else self.sent.charge

    @property
    def bill_problem(self) -> str:
        """Why a part of the server's own bill was not read, or an empty string."""
        return _bill_problem(self.response, self.failure)

    @property
    def is_charged(self) -> bool:
        """Whether the call was sent and charged."""
        return self.sent is not None and self.sent.is_charged

    @property
    def kept(self) -> StoredAnswer:
        """The outcome so far, to be stored. The first access sets the end time of the call."""
        self.ended = self.ended or (self.clock.now(), self.clock.monotonic())
        finished_at, finished = self.ended
        dispatched_at, started = self.began or (finished_at, finished)  # not begun if it was halted before
        timing = Timing(dispatched_at, finished_at, (finished - started) * 1000)
        priced_at, book = self.admission.priced_at, self.admission.price_book
        # No other attempt follows one whose events a client has read, because it would read two answers as one.
        is_final = self.failure is not None and self.tap is not None and self.tap.is_begun
        step: NextStep = "final" if is_final else ""
        return StoredAnswer(
            self.request.transport, book, priced_at, timing, self.response, self.failure, step
        )

    async def keep(self) -> None:
        """Store the outcome so far with the claim."""
        await self.claim.keep(self.request.attempt, self.kept)


class AttemptSender:
    """Send admitted attempts. An attempt that is not sent keeps no reservation.

    Before the send, the attempt is stored with the claim, in the log and in the ledger, in this order. All
    three have acknowledged it when the request is sent. After the send, the answer is stored with the claim,
    then charged, and only then parsed.
    """

    def __init__(
        self,
        gate: Gate,
        providers: Providers,
        recorder: Recorder,
        clock: Clock,
        watch: ChargeWatch,
        taps: Mapping[str, Tap] = MappingProxyType({}),
    ) -> None:
        self._gate = gate
        self._taps = taps
        self._watch = watch
        self._providers = providers
        self._recorder = recorder
        self._clock = clock
        self._numbers = DispatchNumbers()

    async def send(self, exchange: RequestInFlight) -> FailureReason | None:
        """Send the request and charge its outcome. Return why it was not sent, or None.

        Raises:
            AttemptTakenError: If another run was faster.
            ClaimLostError: If another owner has the envelope. A sent request is then charged, and its answer
                is recorded as late.

        """
        request, admission = exchange.request, exchange.admission
        noted = await self._note_dispatch(exchange)
        patience = patience_s(request.envelope, self._clock.now())
        if patience <= 0:
            await run_shielded(self._take_back(noted, exchange, NO_TIME_LEFT.description))
            return NO_TIME_LEFT
        sent = exchange.sent = self._gate.sent(admission, request.envelope, patience_s=patience)
        try:
            await self._exchange(exchange, sent)
            self._numbers.forget(admission)
        except asyncio.CancelledError:
            if not (sent.is_charged or sent.is_dispatched):
                await run_shielded(self._note_unsent(noted, exchange, STOPPED.description))
            raise
        except ClaimLostError:
            await run_shielded(self._end_late(noted, exchange))
            raise
        except (ReservationStateError, LedgerUnavailableError) as e:
            if sent.is_dispatched:
                raise
            await run_shielded(self._note_unsent(noted, exchange, describe_error(e)))
            return _not_dispatched(request, e)
        finally:
            problem = exchange.bill_problem
            if sent.is_charged and (sent.charge.unpriced or sent.charge.overbilled or problem):
                await self._watch.note(request.envelope, admission, sent.charge, problem)
        return None

    async def _exchange(self, exchange: RequestInFlight, sent: SentCall) -> None:
        """Send the request, store its outcome, and charge it."""
        redaction = self._recorder.redaction
        try:
            async with sent:
                exchange.began = self._clock.now(), self._clock.monotonic()
                response = await self._answer(self._provider_of(exchange), exchange)
                if redaction.known:  # before it is stored and parsed, so that a replay parses the same text
                    response = redaction.response(response)
                exchange.response = response
                await sent.answered(response.usage, served_model=response.model, keep=exchange.keep)
        except ClaimLostError:
            raise
        except ProviderError as e:
            exchange.failure = e
        except Exception as e:  # charged, because the request may have been sent
            if not sent.is_charged:
                raise
            exchange.failure = ProviderError(FailureKind.INTERNAL_ERROR, describe_error(e), sent=True)
        if exchange.failure is not None:
            exchange.failure = redaction.error(exchange.failure)
            await exchange.keep()

    async def _answer(self, provider: Provider, exchange: RequestInFlight) -> ModelResponse:
        """Return the answer. From here on, its events may go to a client, because the dispatch is on record."""
        request = exchange.request
        tap = exchange.tap = self._taps.get(request.envelope.envelope_id)
        if tap is None:
            return await provider.complete(request)
        try:
            return await provider.complete(replace(request, tap=tap))
        except ProviderError as e:
            # An error after the first event may be billed, whatever its code is.
            e.sent = e.sent or tap.is_begun
            raise

    def _provider_of(self, exchange: RequestInFlight) -> Provider:
        """Return the provider of the request.

        Raises `ProviderError`, unsent, if the provider is not served or the worker's lease is over.
        """
        # The last check before the send, because another owner may send the request after the lease.
        if not exchange.claim.holds():
            raise ProviderError(FailureKind.SHUTDOWN, _WORKER_LEASE_OVER, sent=False)
        return self._providers.of(exchange.request.envelope.provider)

    async def _end_late(self, noted: Event, exchange: RequestInFlight) -> None:
        """Charge and record a late answer, or record that no request was sent."""
        admission, response, now = exchange.admission, exchange.response, self._clock.now()
        if exchange.failure is not None and not exchange.failure.sent:
            attempt, id_ = exchange.request.attempt, admission.reservation_id
            await self._recorder.keep_event(
                unsent_event(noted, attempt, id_, exchange.failure.message, now=now)
            )
        elif response is not None:
            settle = self._gate.lifecycle.settle_again
            charge = await settle(admission, response.usage, served_model=response.model)
            problem = response.usage.bill_problem
            await self._watch.note(exchange.request.envelope, admission, charge, problem)
            await self._recorder.keep_event(late_event(noted, admission, response, charge, now))

    async def _note_dispatch(self, exchange: RequestInFlight) -> Event:
        """Store with the claim and in the log that the request is about to be sent.

        On errors, release it.
        """
        noted = self._numbers.event(exchange.request, exchange.admission, self._clock.now())
        try:
            await exchange.claim.intend(exchange.request.attempt, noted)
            await self._recorder.keep_event(noted)
        except asyncio.CancelledError:
            await run_shielded(self._take_back(noted, exchange, STOPPED.description))
            raise
        except StoreError as e:
            # Store the end with the claim, so that the next owner records it: this log cannot be written.
            why = f"the request was not sent: the worker's log cannot be written ({e})"
            exchange.failure = ProviderError(FailureKind.SHUTDOWN, why, sent=False)
            await run_shielded(self._gate.release(exchange.admission))
            with suppress(ClaimLostError, ClaimStoreUnavailableError):
                kept = replace(exchange.kept, step="retry")
                await exchange.claim.keep(exchange.request.attempt, kept)
            raise
        except BaseException:
            await run_shielded(self._gate.release(exchange.admission))
            raise
        return noted

    async def _take_back(self, noted: Event, exchange: RequestInFlight, why: str) -> None:
        await self._gate.release(exchange.admission)
        await self._note_unsent(noted, exchange, why)

    async def _note_unsent(self, noted: Event, exchange: RequestInFlight, why: str) -> None:
        attempt, id_ = exchange.request.attempt, exchange.admission.reservation_id
        await self._recorder.keep_event(unsent_event(noted, attempt, id_, why, now=self._clock.now()))
        await exchange.claim.take_back(attempt)


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """An attempt of an earlier owner: its reservation, its charge and its outcome."""

    admission: Admitted
    charge: Charge
    kept: StoredAnswer


@dataclass(frozen=True, slots=True)
class PreviousAttempts:
    """The attempts of an envelope by earlier owners, from its claim and from the log of an earlier start.

    A stored answer is charged, which is harmless if repeated. An attempt that was about to be sent and has no
    stored outcome is in doubt and charged in full, unless the ledger shows that it was not sent.
    """

    gate: Gate
    recorder: Recorder
    clock: Clock
    watch: ChargeWatch
    lost: Mapping[str, LostAttempt] = field(default_factory=dict)

    def lost_of(self, request: ModelRequest) -> LostAttempt | None:
        """Return an attempt without an end in the log of an earlier start, or None."""
        return self.lost.get(reservation_id_of(request.envelope, request.attempt))

    async def on_record(self, claim: ActiveClaim, request: ModelRequest) -> LLMResult | None:
        """Return a logged attempt whose outcome is not stored with the claim, unless it ended the call.

        Its charge is booked as recorded in any case, because the process that ended may not have booked it.
        """
        left = claim.left(request.attempt)
        if left is None or claim.kept(request.attempt) is not None:
            return None
        result = await self.recorder.attempt(request.envelope, request.attempt)
        if result is None:
            return None
        reservation_id = left.body.reservation_id
        if result.in_doubt:
            await self.gate.lifecycle.abandon(reservation_id)
        else:
            actual = Amount(result.cost_nusd, result.charged_tokens, int(result.counts_as_sent))
            await self.gate.lifecycle.settle_recorded(reservation_id, actual)
        return None if result.next_step in {"", "final"} else result

    async def forgotten(self, claim: ActiveClaim, request: ModelRequest) -> LLMResult:
        """Return a logged attempt that did not end the call, if its claim was rolled back to before it.

        Raises `AttemptTakenError` for any other attempt in the log.
        """
        if claim.store is not None and not (claim.left(request.attempt) or claim.kept(request.attempt)):
            result = await self.recorder.attempt(request.envelope, request.attempt)
            if result is not None and result.next_step not in {"", "final"}:
                return result
        raise AttemptTakenError(request.envelope.envelope_id, request.attempt, "on record")

    async def refusal(self, claim: ActiveClaim, request: ModelRequest) -> FailureReason | None:
        """Return why an earlier owner has ended the call before sending the attempt, or None.

        It is also None if this log already contains the attempt.
        """
        kept = claim.kept(request.attempt)
        if kept is None or kept.refusal is None:
            return None
        return None if await self.recorder.has_attempt(request.envelope, request.attempt) else kept.refusal

    async def find(
        self, claim: ActiveClaim, request: ModelRequest, capability: Capability
    ) -> EarlierAttempt | None:
        """Return the attempt of an earlier owner, or None if it was not begun or its end is recorded.

        If its outcome is stored with the claim, a recorded attempt is returned, too, unless it ended the
        call.
        """
        left, kept = claim.left(request.attempt), claim.kept(request.attempt)
        if left is None or await self.recorder.has_ended(
            request.envelope, request.attempt, is_kept=kept is not None
        ):
            return None
        if kept is None:
            kept = await self._abandoned(request, left)
            await claim.keep(request.attempt, kept)
        admission = left.admission(capability, kept.price_book, kept.priced_at)
        charge = await self._charged(admission, kept)
        problem = _bill_problem(kept.response, kept.failure)
        await self.watch.note(request.envelope, admission, charge, problem)
        return EarlierAttempt(admission, charge, kept)

    async def _abandoned(self, request: ModelRequest, left: AbandonedAttempt) -> StoredAnswer:
        """Return the end of an attempt without an outcome: in doubt, or unsent if the ledger shows that."""
        now, sent_at = self.clock.now(), left.dispatched.time
        if await self.gate.lifecycle.abandon(left.body.reservation_id):
            failure = ProviderError(LOST.category, LOST.description, sent=True)
            timing = Timing(sent_at, max(now, sent_at), 0.0)
            # An order is not retried, because the lost attempt may have been answered.
            is_order = request.envelope.workflow is EnvelopeWorkflow.EXECUTION
            step: NextStep = "final" if is_order else "retry"
        else:
            failure = ProviderError(FailureKind.SHUTDOWN, _LEFT_UNSENT, sent=False)
            timing, step = Timing(now, now, 0.0), "retry"
            attempt, id_ = left.body.attempt, left.body.reservation_id
            with suppress(RecordError):  # this log already contains it, with the original reason
                await self.recorder.keep_event(
                    unsent_event(left.dispatched, attempt, id_, _LEFT_UNSENT, now=now)
                )
        return StoredAnswer(request.transport, "", now, timing, failure=failure, step=step)

    async def _charged(self, admission: Admitted, kept: StoredAnswer) -> Charge:
        if kept.response is not None and kept.failure is None:
            usage, served = kept.response.usage, kept.response.model
            return await self.gate.lifecycle.settle_again(admission, usage, served_model=served)
        if (metered := metered_answer(kept.failure)) is not None:
            settle = self.gate.lifecycle.settle_again
            return await settle(admission, metered.usage, served_model=metered.model)
        if kept.failure is not None and kept.failure.sent:
            return await self.gate.lifecycle.abandon_billed(admission, kept.failure.bill_nusd)
        return Charge(0)


def _bill_problem(response: ModelResponse | None, failure: ProviderError | None) -> str:
    answered = response or metered_answer(failure)
    return "" if answered is None else answered.usage.bill_problem


def _not_dispatched(
    request: ModelRequest, e: ReservationStateError | LedgerUnavailableError
) -> FailureReason:
    """Return why a request was not sent. Raises `AttemptTakenError` if another run was faster."""
    if isinstance(e, LedgerUnavailableError):
        return unavailable(e, request.envelope.workflow)
    if e.state == ReservationState.RELEASED:
        return _LEASE_OVER
    raise AttemptTakenError(request.envelope.envelope_id, request.attempt, e.state) from e


def patience_s(envelope: LLMEnvelope, now: datetime) -> float:
    """Return how many seconds an answer may take."""
    patience = envelope.retry_policy.attempt_timeout_s
    if envelope.deadline is None:
        return patience
    return min(patience, max(0.0, (envelope.deadline - now).total_seconds()))
