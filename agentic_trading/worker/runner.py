"""The attempts of one envelope: admit, send, settle, parse, record, and plan the next one."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, assert_never

from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import Clock
from agentic_trading.governance.admission import Admitted, AlreadyDispatched, Charge, Deferred, Denied
from agentic_trading.governance.controls_document import ControlStore
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.governance.sent_call import failed_by, metered_answer
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import (
    UNKNOWN_MODEL_DETAILS,
    FailureKind,
    FailureReason,
    ProviderError,
    UnknownModelError,
)
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, Providers, ToolDefinition
from agentic_trading.llm.result import LLMResult, NextStep
from agentic_trading.llm.taps import Tap
from agentic_trading.structured.engine import prepare
from agentic_trading.worker import attempt_result
from agentic_trading.worker.active_claim import NO_CLAIM, ActiveClaim, StoredAnswer
from agentic_trading.worker.attempt_statistics import AttemptCounter, AttemptStatistics
from agentic_trading.worker.call_context import (
    CallChecks,
    CallContext,
    Checks,
    InputTokenCounter,
    UnsupportedSchemas,
    check_of,
)
from agentic_trading.worker.error_boundary import AttemptTakenError, UnstreamedError
from agentic_trading.worker.recorder import NO_REPLY, Recorder, ReplyRoute
from agentic_trading.worker.response_cache import CachedCall, ResponseCache
from agentic_trading.worker.sent_attempt import (
    STOPPED,
    AttemptSender,
    ChargeWatch,
    PreviousAttempts,
    RequestInFlight,
    patience_s,
)
from agentic_trading.worker.slots import Parking, StoppableWait


class RecordedAnswerSource(Protocol):
    """Answers of an earlier run, by tenant, agent, step, request hash, occurrence and attempt."""

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return the recorded result of this attempt, or None if one of these values differs."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerDependencies:
    """The components of a runner.

    Each call to a provider records its dispatch first.

    Attributes:
        gate: Admits each attempt.
        providers: The providers. Each attempt is sent to the provider of its envelope.
        recorder: Stores and publishes attempts.
        capabilities: The capabilities of the models.
        clock: The time of the calls.
        checks: Rules beyond JSON Schema, by schema `$id`.
        recorded: Answers of an earlier run.
        lost: Attempts that an earlier process has sent and that have no known end, by reservation. They are
            not sent again.
        counted_workflows: Workflows whose input tokens are counted by the provider before the reservation.
            Otherwise, and if the provider has no count, the number of bytes bounds the tokens.
        response_cache: The answers of level `recorded`. The default is an empty cache.
        tools: The tools that envelopes may name.
        unnamed_checks: The configuration line that would load an installed check, by schema `$id`. Envelopes
            with such a schema are refused, because their answers would not be checked.
        controls: Stores halts that follow from a bill.
        call_checks: Checks of calls of clients in this process, by envelope id.
        counter: Counts the recorded attempts.
        taps: The clients in this process that get the events of an answer as they come, by envelope id.

    """

    gate: Gate
    providers: Providers
    recorder: Recorder
    capabilities: Capabilities
    clock: Clock
    checks: Checks
    recorded: RecordedAnswerSource | None = None
    lost: Mapping[str, LostAttempt] = field(default_factory=dict)
    counted_workflows: frozenset[EnvelopeWorkflow] = frozenset()
    response_cache: ResponseCache | None = None
    tools: Mapping[str, ToolDefinition] = field(default_factory=dict)
    unnamed_checks: Mapping[str, str] = field(default_factory=dict)
    controls: ControlStore | None = None
    call_checks: CallChecks = field(default_factory=dict)
    counter: AttemptCounter = field(default_factory=AttemptCounter)
    taps: Mapping[str, Tap] = field(default_factory=dict)


class CallRunner:
    """Run an envelope to its end.

    Each attempt passes the gate, and is settled on every path and recorded.
    """

    def __init__(self, parts: RunnerDependencies) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._waits = StoppableWait(parts.clock)
        self._unsupported_schemas = UnsupportedSchemas()
        watch = ChargeWatch(parts.gate.halts, parts.controls, parts.recorder)
        self._sender = AttemptSender(
            parts.gate, parts.providers, parts.recorder, parts.clock, watch, parts.taps
        )
        self._earlier = PreviousAttempts(parts.gate, parts.recorder, parts.clock, watch, parts.lost)
        self._response_cache = parts.response_cache or ResponseCache(parts.clock)

    def statistics(self) -> AttemptStatistics:
        """Return the counts of recorded attempts so far."""
        return self._parts.counter.statistics()

    def stop(self) -> None:
        """Stop waiting for retries. A call that would have to wait ends with `shutdown`.

        Repeated calls have no effect.
        """
        self._waits.stop()

    async def run(
        self,
        envelope: LLMEnvelope,
        *,
        principal: str = "",
        parked: Parking = nullcontext,
        claim: ActiveClaim = NO_CLAIM,
        route: ReplyRoute = NO_REPLY,
    ) -> LLMInteraction:
        """Return the last attempt of `envelope`.

        A failed call is returned as a result and not raised. Each attempt is recorded, then published by
        `route`. Attempts that the claim contains are not paid for again: a stored answer of an earlier owner
        is parsed, and an attempt that it was about to send is in doubt, unless the ledger shows that it was
        not sent.

        Args:
            envelope: The envelope.
            principal: Its verified sender.
            parked: Entered while the call waits for headroom, or for another call with the same request.
            claim: The claim of the envelope.
            route: The route of its replies.

        Returns:
            The last attempt, as an interaction.

        Raises:
            ClaimLostError: If another owner has the envelope. No more of it is then sent, stored or
                published.
            AttemptTakenError: If another run has sent an attempt. That run settles, stores and publishes it.
            StoreError: If an attempt could not be stored. It is not published.
            RecordError: If an attempt could not be stored. It is not published.
            UndeliverableError: If the last attempt was stored, but is too large to be published.
            UnstreamedError: If an attempt was stored, but is not on the stream when the worker ends.

        """
        if not envelope.is_cacheable:
            call = self._prepare(envelope, principal, parked, claim, None, route)
            return await self._run(envelope, call, route)
        async with self._response_cache.turn(envelope, self._waits, parked) as cached:
            call = self._prepare(envelope, principal, parked, claim, cached, route)
            return await self._run(envelope, call, route)

    async def count_tokens(self, envelope: LLMEnvelope, principal: str = "") -> int | FailureReason | None:
        """Return the provider's count of the input tokens of `envelope`, None without a count, or a refusal."""
        if (problem := self._parts.gate.problem(envelope, principal)) is not None:
            return problem
        call = self._prepare(envelope, principal, nullcontext, NO_CLAIM, None, NO_REPLY)
        if isinstance(call, FailureReason):
            return call
        count = InputTokenCounter(self._parts.providers)
        return await count.of(call.prepared.request, patience_s(envelope, self._clock.now()))

    async def _run(
        self, envelope: LLMEnvelope, call: CallContext | FailureReason, route: ReplyRoute
    ) -> LLMInteraction:
        if isinstance(call, FailureReason):
            unsent = attempt_result.unsent_attempt(envelope, 1, call, now=self._clock.now())
            return await self._keep(envelope, unsent, "final", route)
        last, plan = await self._step(call, attempt_result.AttemptPlan(call.prepared.request))
        if plan is None:  # most calls end here, so that they skip the retry machinery
            return last
        async for turn in attempt_result.following_turns(self._waits.sleep):
            if turn.retry_state.attempt_number > 1 and plan is not None:
                call.claim.add(last)
                last, plan = await self._step(call, plan)
            turn.retry_state.set_result(plan)
        return last

    async def _step(
        self, call: CallContext, plan: attempt_result.AttemptPlan
    ) -> tuple[LLMInteraction, attempt_result.AttemptPlan | None]:
        """Make an attempt and record it. Return it with the plan of the next one."""
        if plan.wait_s > 0 and self._waits.is_stopped:
            stopped = await call.refused(plan.request, STOPPED, self._clock.now())
            return await self._keep(call.envelope, stopped, "final", call.route), None
        attempted = await self._attempt(call, plan.request, is_retry=plan.step == "retry")
        self._unsupported_schemas.learn(plan.request, attempted)
        following = attempt_result.plan_next_attempt(plan, attempted, call.prepared, now=self._clock.now())
        step = following.step if following else "final"
        return await self._keep(call.envelope, attempted, step, call.route, call.cached), following

    def _prepare(
        self,
        envelope: LLMEnvelope,
        principal: str,
        parked: Parking,
        claim: ActiveClaim,
        cached: CachedCall | None,
        route: ReplyRoute,
    ) -> CallContext | FailureReason:
        """Choose the model and the parser.

        Unknown models and unusable schemas are refused before any payment.
        """
        try:
            capability = self._parts.capabilities.of(envelope.provider, envelope.model)
        except UnknownModelError as e:
            return FailureReason(
                category=FailureKind.INVALID_REQUEST,
                description=str(e),
                technical_details=UNKNOWN_MODEL_DETAILS,
            )
        schema_id = str(envelope.expected_output_schema.get("$id", ""))
        if line := self._parts.unnamed_checks.get(schema_id):
            text = f"the installed check of schema {schema_id!r} is not loaded. Add {line} of the workers' configuration"
            return FailureReason(category=FailureKind.INVALID_REQUEST, description=text)
        if problem := self._parts.providers.verbatim_problem(envelope):
            return FailureReason(category=FailureKind.INVALID_REQUEST, description=problem)
        is_held = not self._unsupported_schemas.holds(envelope)
        prepared = prepare(envelope, capability, enforced=is_held, tools=self._parts.tools)
        if isinstance(prepared, FailureReason):
            return prepared
        if cached is None and envelope.is_cacheable and self._waits.is_stopped:
            return STOPPED
        is_counted = envelope.workflow in self._parts.counted_workflows
        count = InputTokenCounter(self._parts.providers) if is_counted else None
        check = check_of(envelope, self._parts.checks, self._parts.call_checks)
        return CallContext(envelope, prepared, check, claim, count, cached, principal, parked, route)

    async def _keep(
        self,
        envelope: LLMEnvelope,
        attempted: attempt_result.Attempted,
        step: NextStep,
        route: ReplyRoute,
        cached: CachedCall | None = None,
    ) -> LLMInteraction:
        result = attempted.to_result(step)
        if step == "final" and not result.success and attempt_result.may_degrade(envelope, attempted):
            result = attempt_result.degraded_result(result)
        interaction = LLMInteraction(envelope=envelope, result=result, stored_at=self._clock.now())
        is_counted = attempted.is_on_record

        def count() -> None:  # not at the end, because the reply or the stream may fail
            nonlocal is_counted
            if not is_counted:
                self._parts.counter.note(interaction)
            is_counted = True

        keep = partial(self._store, interaction, cached, route, count, final=step == "final")
        try:
            await keep()
        except asyncio.CancelledError:  # record it anyway, because it is paid. Storing it twice is harmless.
            with suppress(UnstreamedError):
                await run_shielded(keep())
            raise
        return interaction

    async def _store(
        self,
        interaction: LLMInteraction,
        cached: CachedCall | None,
        route: ReplyRoute,
        count: Callable[[], None],
        *,
        final: bool,
    ) -> None:
        await self._parts.recorder.keep(interaction, final=final, route=route, on_stored=count)
        if cached is not None:
            await cached.add(self._parts.recorder.as_kept(interaction))

    async def _attempt(
        self, call: CallContext, request: ModelRequest, *, is_retry: bool
    ) -> attempt_result.Attempted:
        recorded = await self._recorded(call, request)
        if recorded is not None:
            return await call.replay(request, recorded)
        envelope, attempt = request.envelope, request.attempt
        may_go_on = self._parts.gate.access_problem(envelope, call.principal) is None
        if may_go_on and (made := await self._made_before(call, request)) is not None:
            return made
        # Check the log before the reservation, because an attempt must not be paid for twice.
        if await self._parts.recorder.has_attempt(envelope, attempt):
            return await call.follow(request, await self._earlier.forgotten(call.claim, request))
        admitted = await self._admit(call, request, is_retry=is_retry)
        match admitted:
            case Denied():
                return await call.refused(request, admitted.reason, self._clock.now())
            case AlreadyDispatched():
                raise AttemptTakenError(envelope.envelope_id, attempt, admitted.state)
            case Admitted():
                return await self._send(call, request, admitted)
            case _:
                assert_never(admitted)

    async def _made_before(self, call: CallContext, request: ModelRequest) -> attempt_result.Attempted | None:
        """Return the outcome of an attempt that an earlier owner has made or begun, or None."""
        if (lost := self._earlier.lost_of(request)) is not None:
            return attempt_result.lost_attempt(request.envelope, request.attempt, lost, now=self._clock.now())
        if call.claim.is_new:
            return None
        if (recorded := await self._earlier.on_record(call.claim, request)) is not None:
            return await call.follow(request, recorded)
        if (refusal := await self._earlier.refusal(call.claim, request)) is not None:
            return attempt_result.unsent_attempt(
                request.envelope, request.attempt, refusal, now=self._clock.now()
            )
        if (found := await self._earlier.find(call.claim, request, call.capability)) is None:
            return None
        as_sent = replace(request, transport=found.kept.transport)
        late = self._parts.gate.answer_problem(request.envelope, call.principal)
        kept = found.kept if late is None else found.kept.unused(late)
        return await self._outcome(call, as_sent, found.admission, found.charge, kept)

    async def _recorded(self, call: CallContext, request: ModelRequest) -> LLMResult | None:
        gate, answers = self._parts.gate, self._parts.recorded
        if answers is not None and gate.access_problem(request.envelope, call.principal) is None:
            recorded = await answers.find(request.envelope, request.attempt)
            if recorded is not None:
                return recorded
        if call.cached is None or gate.answer_problem(request.envelope, call.principal) is not None:
            return None
        return call.cached.find(request.attempt)

    async def _admit(
        self, call: CallContext, request: ModelRequest, *, is_retry: bool
    ) -> Admitted | Denied | AlreadyDispatched:
        """Pass the gate, if necessary after a wait for headroom.

        The wait ends at the deadline or at a stop.
        """
        tokens = None
        if call.count is not None and self._parts.gate.problem(request.envelope, call.principal) is None:
            tokens = await call.count.of(request, patience_s(request.envelope, self._clock.now()))
        while True:
            admitted = await self._parts.gate.admit(
                request, principal=call.principal, is_retry=is_retry, input_tokens=tokens
            )
            if not isinstance(admitted, Deferred):
                return admitted
            with self._parts.counter.waiting(request.envelope.workflow):
                async with call.parked():
                    has_waited = await self._waits.wait_for(self._parts.gate.headroom(admitted))
            if not has_waited:
                return Denied(STOPPED)

    async def _send(
        self, call: CallContext, request: ModelRequest, admission: Admitted
    ) -> attempt_result.Attempted:
        """Send an admitted request and parse its answer.

        Raises the errors of `AttemptSender.send`.
        """
        exchange = RequestInFlight(call.claim, request, admission, self._clock)
        try:
            problem = await self._sender.send(exchange)
            if problem is not None:
                return await call.refused(request, problem, self._clock.now())
            return await self._outcome(call, request, admission, exchange.charge, exchange.kept)
        except asyncio.CancelledError:
            if exchange.is_charged:
                await run_shielded(self._keep_cancelled(call, exchange))
            raise

    async def _outcome(
        self,
        call: CallContext,
        request: ModelRequest,
        admission: Admitted,
        charge: Charge,
        kept: StoredAnswer,
    ) -> attempt_result.Attempted:
        timing, response = kept.timing, kept.response
        if kept.failure is None and response is not None:
            return await call.answered_attempt(request, response, admission, charge, timing)
        failure = kept.failure or ProviderError(
            FailureKind.SHUTDOWN, "the worker was stopped during the call", sent=True
        )
        failure = self._parts.recorder.redaction.error(failure)
        metered = metered_answer(failure)
        reason = FailureReason(
            category=failure.kind, description=failure.message, recoverable=not failure.sent
        )
        to_result = partial(
            attempt_result.failed_result,
            request.envelope,
            request.attempt,
            reason,
            now=self._clock.now(),
            admission=admission,
            charge=charge,
            timing=timing,
            in_doubt=failure.sent and not charge.overbilled and metered is None,
            provider_request_id=failure.provider_request_id
            or (response.provider_request_id if response else ""),
            raw_output=failure.text,
            metered=metered,
        )
        return attempt_result.FailedAttempt(to_result, failed_by(failure), kept.step)

    async def _keep_cancelled(self, call: CallContext, exchange: RequestInFlight) -> None:
        """Record a call that was cancelled before or after its answer arrived."""
        if exchange.charge.in_doubt:  # drop the answer, because it could not be charged
            exchange.response = None
        if exchange.sent is not None:
            exchange.failure = exchange.sent.failure
        request, admission = exchange.request, exchange.admission
        attempted = await self._outcome(call, request, admission, exchange.charge, exchange.kept)
        with suppress(UnstreamedError):
            await self._keep(request.envelope, attempted, "final", call.route, call.cached)
