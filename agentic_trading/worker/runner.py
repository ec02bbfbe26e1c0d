"""The attempts of one envelope: ask, admit, answer, settle, read, record, decide."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Protocol, assert_never

from agentic_trading.clock import Clock
from agentic_trading.governance.admission_decisions import (
    Admitted,
    AlreadyDispatched,
    Charge,
    Deferred,
    Denied,
    freezes,
    unavailable,
)
from agentic_trading.governance.errors import LedgerUnavailableError, ReservationStateError
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.throttle import Failed
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, ProviderError, UnknownModelError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.result import LLMResult, NextStep
from agentic_trading.structured.parser import prepare
from agentic_trading.worker.attempt_result import (
    Timing,
    answered,
    degraded,
    dispatched,
    failed,
    is_of_wrong_model,
    not_used,
)
from agentic_trading.worker.call_context import CallContext, Checks, InputTokenCounter, UnsupportedSchemas
from agentic_trading.worker.error_boundary import AttemptTakenError, describe_error, run_shielded
from agentic_trading.worker.next_attempt import (
    AnsweredAttempt,
    Attempted,
    AttemptPlan,
    FailedAttempt,
    FinalAttempt,
    may_degrade,
    plan_next_attempt,
)
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.response_cache import CachedCall, ResponseCache
from agentic_trading.worker.slots import Parking, StoppableWait

MOST_TOKENS = 10**9
"""No call uses more: a report of more is none, and what it would cost passes what a log can count."""

_NO_TIME_LEFT: Final = FailureReason(
    category=FailureKind.EXPIRED, description="the deadline was reached before the request could be sent"
)
_LEASE_OVER: Final = FailureReason(
    category=FailureKind.LEDGER_UNAVAILABLE,
    description="what was set aside was given back before the request could be sent: its lease was over",
    recoverable=True,
)
_STOPPED: Final = FailureReason(
    category=FailureKind.SHUTDOWN,
    description="the worker was stopped before the next attempt",
    recoverable=True,
)


class RecordedAnswerSource(Protocol):
    """Answers of an earlier run, found by request, occurrence and attempt."""

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return what this attempt gave when it was recorded, or None."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerDependencies:
    """What a runner needs, named once: the gate, who answers, where it is kept, what is checked.

    `strict_workflows` have a dispatched record on disk before each call. Of `counted_workflows` the provider is asked for
    its own count of the input before money is set aside; of others, and where it gives none, bytes bound the tokens.
    `frozen` holds the answers of level `recorded`; without it the runner begins with none.
    """

    gate: Gate
    provider: Provider
    recorder: Recorder
    capabilities: Capabilities
    clock: Clock
    checks: Checks
    recorded: RecordedAnswerSource | None = None
    strict_workflows: frozenset[EnvelopeWorkflow] = frozenset()
    counted_workflows: frozenset[EnvelopeWorkflow] = frozenset()
    frozen: ResponseCache | None = None


class CallRunner:
    """Run one envelope to its end. Every attempt passes the gate, is settled on every way out, and is kept."""

    def __init__(self, parts: RunnerDependencies) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._pauses = StoppableWait(parts.clock)
        self._refused_schemas = UnsupportedSchemas()
        self._frozen = parts.frozen or ResponseCache(parts.clock)

    def stop(self) -> None:
        """Wait for no retry any more: a call that would have to wait ends with `shutdown`. Harmless twice."""
        self._pauses.stop()

    async def run(
        self, envelope: LLMEnvelope, *, principal: str = "", parked: Parking = nullcontext
    ) -> LLMInteraction:
        """Return the last attempt at `envelope`, sent by `principal`; a failed call is a result, not an exception.

        `parked` is entered for as long as the call waits for headroom, or for another one of the same request.

        Raises `AttemptTakenError` if an attempt was sent by another run: it is that run's to settle, keep and tell.
        Raises `StoreError` or `RecordError` if an attempt could not be kept: it is then not told to anybody.
        """
        async with self._frozen.turn(envelope, self._pauses, parked) as frozen:
            call = self._prepare(envelope, principal, parked, frozen)
            return await self._run(envelope, call, frozen)

    async def _run(
        self, envelope: LLMEnvelope, call: CallContext | FailureReason, frozen: CachedCall | None
    ) -> LLMInteraction:
        if isinstance(call, FailureReason):
            return await self._keep(envelope, self._unsent(envelope, 1, call), "final")
        turn = AttemptPlan(call.prepared.request)
        while True:
            if not await self._pauses.passed(turn.wait_s):
                stopped = self._unsent(envelope, turn.request.attempt, _STOPPED)
                return await self._keep(envelope, stopped, "final")
            attempted = await self._attempt(call, turn.request, is_retry=turn.step == "retry")
            self._refused_schemas.learn(turn.request, attempted)
            following = plan_next_attempt(turn, attempted, call.prepared, now=self._clock.now())
            step = following.step if following else "final"
            interaction = await self._keep(envelope, attempted, step, frozen)
            if following is None:
                return interaction
            turn = following

    def _prepare(
        self, envelope: LLMEnvelope, principal: str, parked: Parking, frozen: CachedCall | None
    ) -> CallContext | FailureReason:
        """Choose model and parser; an unknown model and a schema that no answer could fit are not paid for."""
        try:
            capability = self._parts.capabilities.of(envelope.provider, envelope.model)
        except UnknownModelError as e:
            return FailureReason(category=FailureKind.INVALID_REQUEST, description=str(e))
        prepared = prepare(envelope, capability, enforced=not self._refused_schemas.holds(envelope))
        if isinstance(prepared, FailureReason):
            return prepared
        if frozen is None and freezes(envelope) and self._pauses.are_over:
            return _STOPPED
        is_counted = envelope.workflow in self._parts.counted_workflows
        count = InputTokenCounter(self._parts.provider) if is_counted else None
        return CallContext(envelope, prepared, self._parts.checks, count, frozen, principal, parked)

    async def _keep(
        self, envelope: LLMEnvelope, attempted: Attempted, step: NextStep, frozen: CachedCall | None = None
    ) -> LLMInteraction:
        result = attempted.to_result(step)
        if step == "final" and not result.success and may_degrade(envelope, attempted):
            result = degraded(result)
        interaction = LLMInteraction(envelope=envelope, result=result, stored_at=self._clock.now())
        keep = partial(self._kept, interaction, frozen, final=step == "final")
        try:
            await keep()
        except asyncio.CancelledError:  # what was paid is on record; what is kept twice is kept once
            await run_shielded(keep())
            raise
        return interaction

    async def _kept(self, interaction: LLMInteraction, frozen: CachedCall | None, *, final: bool) -> None:
        await self._parts.recorder.keep(interaction, final=final)
        if frozen is not None:
            frozen.hear(interaction.result)

    async def _attempt(self, call: CallContext, request: ModelRequest, *, is_retry: bool) -> Attempted:
        recorded = await self._recorded(call, request)
        if recorded is not None:
            return await call.replay(request, recorded)
        admitted = await self._admit(call, request, is_retry=is_retry)
        match admitted:
            case Denied():
                return self._unsent(request.envelope, request.attempt, admitted.reason)
            case AlreadyDispatched():
                raise AttemptTakenError(request.envelope.envelope_id, request.attempt, admitted.state)
            case Admitted():
                return await self._send(call, request, admitted)
            case _:
                assert_never(admitted)

    async def _recorded(self, call: CallContext, request: ModelRequest) -> LLMResult | None:
        gate, answers = self._parts.gate, self._parts.recorded
        if answers is not None and gate.stranger(request.envelope, call.principal) is None:
            recorded = await answers.find(request.envelope, request.attempt)
            if recorded is not None:
                return recorded
        if call.frozen is None or gate.problem(request.envelope, call.principal) is not None:
            return None
        return call.frozen.find(request.attempt)

    async def _admit(
        self, call: CallContext, request: ModelRequest, *, is_retry: bool
    ) -> Admitted | Denied | AlreadyDispatched:
        """Pass the gate; wait for headroom that calls in flight hold, until they give it back or the deadline passes."""
        tokens = None
        if call.count is not None and self._parts.gate.problem(request.envelope, call.principal) is None:
            tokens = await call.count.of(request, _patience_s(request.envelope, self._clock.now()))
        while True:
            admitted = await self._parts.gate.admit(
                request, principal=call.principal, is_retry=is_retry, input_tokens=tokens
            )
            if not isinstance(admitted, Deferred):
                return admitted
            async with call.parked():
                has_waited = await self._pauses.over(self._parts.gate.headroom(admitted))
            if not has_waited:
                return Denied(_STOPPED)

    async def _send(self, call: CallContext, request: ModelRequest, admission: Admitted) -> Attempted:
        patience_s = await self._dispatched(request, admission)
        if isinstance(patience_s, FailureReason):
            return self._unsent(request.envelope, request.attempt, patience_s)
        timing = partial(_timing, self._clock, self._clock.now(), self._clock.monotonic())
        response: ModelResponse | None = None
        limit = asyncio.timeout(patience_s)
        try:
            async with limit:
                _refuse_halted(self._parts.gate.halts.problem(request.envelope))
                with self._parts.gate.halts.reached(request.envelope, limit):
                    response = _metered(await self._parts.provider.complete(request))
            charge = await self._settle(admission, response)
        except ProviderError as e:
            failure = e
        except TimeoutError:
            failure = _given_up(self._parts.gate.halts.problem(request.envelope), patience_s)
        except asyncio.CancelledError:
            await run_shielded(self._cancelled(call, request, admission, response, timing()))
            raise
        except Exception as e:  # noqa: BLE001 - an adapter's error is one failed call, charged and on record
            failure = ProviderError(FailureKind.INTERNAL_ERROR, describe_error(e), sent=True)
        else:
            return await self._answered(call, request, response, admission, charge, timing())
        return await run_shielded(self._unanswered(request, admission, failure, timing()))

    async def _dispatched(self, request: ModelRequest, admission: Admitted) -> float | FailureReason:
        """Note that the request is about to be sent; returns how many seconds an answer may take, or why it is not sent.

        What is not sent holds nothing. Raises `AttemptTakenError` if another run was faster.
        """
        gate = self._parts.gate
        try:
            await self._note_dispatch(request, admission)
            patience_s = _patience_s(request.envelope, self._clock.now())
            if patience_s <= 0:
                await gate.release(admission)
                return _NO_TIME_LEFT
            await gate.dispatch(admission, patience_s=patience_s)
        except ReservationStateError as e:
            await gate.step_aside(admission)
            if e.state == ReservationState.RELEASED:
                return _LEASE_OVER
            raise AttemptTakenError(request.envelope.envelope_id, request.attempt, e.state) from e
        except LedgerUnavailableError as e:
            await run_shielded(gate.release(admission))
            return unavailable(e, request.envelope.workflow)
        except BaseException:
            await run_shielded(gate.release(admission))
            raise
        return patience_s

    async def _settle(self, admission: Admitted, response: ModelResponse) -> Charge:
        return await self._parts.gate.settle(admission, response.usage, served_model=response.model)

    async def _answered(
        self,
        call: CallContext,
        request: ModelRequest,
        response: ModelResponse,
        admission: Admitted,
        charge: Charge,
        timing: Timing,
    ) -> Attempted:
        outcome = await call.read(request, response)
        to_result = partial(answered, request, response, outcome, admission, charge, timing)
        if is_of_wrong_model(request, response, call.capability):
            return FinalAttempt(lambda step: not_used(to_result(step)))
        return AnsweredAttempt(to_result, outcome)

    async def _unanswered(
        self, request: ModelRequest, admission: Admitted, e: ProviderError, timing: Timing
    ) -> FailedAttempt:
        gate = self._parts.gate
        failed_call = Failed(kind=e.kind, sent=e.sent, retry_after_s=e.retry_after_s)
        settle = gate.in_doubt if e.sent else gate.settle_unsent
        charge = await settle(admission, failed_call)
        reason = FailureReason(category=e.kind, description=e.message, recoverable=not e.sent)
        to_result = partial(
            failed,
            request.envelope,
            request.attempt,
            reason,
            now=self._clock.now(),
            admission=admission,
            charge=charge,
            timing=timing,
            in_doubt=e.sent,
            provider_request_id=e.provider_request_id,
        )
        return FailedAttempt(to_result, failed_call)

    def _unsent(self, envelope: LLMEnvelope, attempt: int, reason: FailureReason) -> FinalAttempt:
        return FinalAttempt(partial(failed, envelope, attempt, reason, now=self._clock.now()))

    async def _cancelled(
        self,
        call: CallContext,
        request: ModelRequest,
        admission: Admitted,
        response: ModelResponse | None,
        timing: Timing,
    ) -> None:
        """Settle and keep a call that was cancelled before or after its answer came."""
        attempted: Attempted
        if response is None:
            stopped = ProviderError(FailureKind.SHUTDOWN, "the worker was stopped during the call", sent=True)
            attempted = await self._unanswered(request, admission, stopped, timing)
        else:
            charge = await self._settle(admission, response)
            attempted = await self._answered(call, request, response, admission, charge, timing)
        await self._keep(request.envelope, attempted, "final", call.frozen)

    async def _note_dispatch(self, request: ModelRequest, admission: Admitted) -> None:
        envelope = request.envelope
        if envelope.workflow not in self._parts.strict_workflows:
            return
        event = dispatched(request, admission, now=self._clock.now())
        await self._parts.recorder.keep_event(event)


def _refuse_halted(halted: FailureReason | None) -> None:
    """Raise `ProviderError`, unsent, for what was halted since it was admitted."""
    if halted is not None:
        raise ProviderError(FailureKind.HALTED, halted.description, sent=False)


def _timing(clock: Clock, dispatched_at: datetime, started: float) -> Timing:
    return Timing(dispatched_at, clock.now(), (clock.monotonic() - started) * 1000)


def _patience_s(envelope: LLMEnvelope, now: datetime) -> float:
    """Return how many seconds an answer may take."""
    patience = envelope.retry_policy.attempt_timeout_s
    if envelope.deadline is None:
        return patience
    return min(patience, max(0.0, (envelope.deadline - now).total_seconds()))


def _given_up(halted: FailureReason | None, patience_s: float) -> ProviderError:
    """Return why a call was given up: it was halted, or nobody waits for it any longer."""
    if halted is not None:
        return ProviderError(FailureKind.HALTED, halted.description, sent=True)
    return ProviderError(FailureKind.TIMEOUT, f"no answer within {patience_s:g} s", sent=True)


def _metered(response: ModelResponse) -> ModelResponse:
    """Return an answer whose usage can be booked; raises `ProviderError`, sent, for any other."""
    used = response.usage.total_tokens
    if used <= MOST_TOKENS:
        return response
    message = f"the answer reports {used} tokens; allowed are {MOST_TOKENS}"
    raise ProviderError(
        FailureKind.SERVER_ERROR, message, sent=True, provider_request_id=response.provider_request_id
    )
