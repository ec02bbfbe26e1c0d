"""The attempts of one envelope: admit, send, settle, read, record, plan the next one."""

import asyncio
from collections.abc import Mapping
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
from agentic_trading.llm.errors import FailureKind, FailureReason, ProviderError, UnknownModelError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, Providers, ToolDefinition
from agentic_trading.llm.result import LLMResult, NextStep
from agentic_trading.structured.engine import prepare
from agentic_trading.worker import attempt_result
from agentic_trading.worker.active_claim import NO_CLAIM, ActiveClaim, StoredAnswer
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
    """Answers of an earlier run, found by tenant, agent, step, request hash, occurrence and attempt."""

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return the recorded result of this attempt, or None; a call that differs in one of them has none."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerDependencies:
    """What a runner needs: the gate, the providers, of which each attempt is sent to its envelope's, the recorder, the checks.

    Each call that goes to a provider leaves its dispatch on record first. `lost` are attempts, by reservation, that an
    earlier process has sent and whose end is not known: they are not sent again. Of `counted_workflows` the provider is
    asked for its own count of the input before money is set aside; of others, and where it gives none, bytes bound the
    tokens.
    In `controls` a halt is stored that follows from a bill. `response_cache` holds the answers of level `recorded`; without it the runner begins with none. `tools` are those that
    envelopes may name. `call_checks` are the checks of calls that clients of this process wait for.
    `unnamed_checks` has, by schema `$id`, the line of the configuration that would load an installed check. An envelope with
    such a schema is refused, because its answer would not be checked.
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


class CallRunner:
    """Run one envelope to its end. Every attempt passes the gate, is settled on every way out, and is kept."""

    def __init__(self, parts: RunnerDependencies) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._waits = StoppableWait(parts.clock)
        self._unsupported_schemas = UnsupportedSchemas()
        watch = ChargeWatch(parts.gate.halts, parts.controls, parts.recorder)
        self._sender = AttemptSender(parts.gate, parts.providers, parts.recorder, parts.clock, watch)
        self._earlier = PreviousAttempts(parts.gate, parts.recorder, parts.clock, watch, parts.lost)
        self._response_cache = parts.response_cache or ResponseCache(parts.clock)

    def stop(self) -> None:
        """Wait for no retry any more: a call that would have to wait ends with `shutdown`. Harmless twice."""
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
        """Return the last attempt at `envelope`, sent by `principal`; a failed call is a result, not an exception.

        Each attempt goes on record, and then out by `route`. `parked` is entered for as long as the call waits for headroom, or for another one of the same request. What
        `claim` knows of its attempts is not paid again: an answer that an earlier owner has kept is read, an attempt that it
        was about to send is in doubt, unless the ledger shows that nothing was sent.

        Raises `ClaimLostError` once another owner has the envelope: nothing more of it is then sent, kept or published.
        Raises `AttemptTakenError` if an attempt was sent by another run: it is that run's to settle, store and publish.
        Raises `StoreError` or `RecordError` if an attempt could not be kept: it is then not published; and
        `UndeliverableError` if the last one was kept, and is too large to be published; `UnstreamedError` if one was kept and is
        not on the stream when the worker ends.
        """
        if not envelope.is_cacheable:
            call = self._prepare(envelope, principal, parked, claim, None, route)
            return await self._run(envelope, call, route)
        async with self._response_cache.turn(envelope, self._waits, parked) as cached:
            call = self._prepare(envelope, principal, parked, claim, cached, route)
            return await self._run(envelope, call, route)

    async def _run(
        self, envelope: LLMEnvelope, call: CallContext | FailureReason, route: ReplyRoute
    ) -> LLMInteraction:
        if isinstance(call, FailureReason):
            unsent = attempt_result.unsent_attempt(envelope, 1, call, now=self._clock.now())
            return await self._keep(envelope, unsent, "final", route)
        last, plan = await self._step(call, attempt_result.AttemptPlan(call.prepared.request))
        if plan is None:  # as most calls end: what follows costs them nothing
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
        """Make an attempt and keep it; return it, and what is planned after it."""
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
        """Choose model and parser; an unknown model and a schema that no answer could fit are not paid for."""
        try:
            capability = self._parts.capabilities.of(envelope.provider, envelope.model)
        except UnknownModelError as e:
            return FailureReason(category=FailureKind.INVALID_REQUEST, description=str(e))
        schema_id = str(envelope.expected_output_schema.get("$id", ""))
        if line := self._parts.unnamed_checks.get(schema_id):
            text = f"the installed check of schema {schema_id!r} is not loaded; add {line} of the workers' configuration"
            return FailureReason(category=FailureKind.INVALID_REQUEST, description=text)
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
        keep = partial(self._store, interaction, cached, route, final=step == "final")
        try:
            await keep()
        except asyncio.CancelledError:  # what was paid is on record; what is kept twice is kept once
            with suppress(UnstreamedError):
                await run_shielded(keep())
            raise
        return interaction

    async def _store(
        self, interaction: LLMInteraction, cached: CachedCall | None, route: ReplyRoute, *, final: bool
    ) -> None:
        await self._parts.recorder.keep(interaction, final=final, route=route)
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
        if await self._parts.recorder.has_attempt(envelope, attempt):  # before anything is paid
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
        """Return what came of an attempt that an earlier owner has made, or was about to; None where there was none."""
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
        """Pass the gate, if need be after a wait for headroom, which ends with the deadline or the worker."""
        tokens = None
        if call.count is not None and self._parts.gate.problem(request.envelope, call.principal) is None:
            tokens = await call.count.of(request, patience_s(request.envelope, self._clock.now()))
        while True:
            admitted = await self._parts.gate.admit(
                request, principal=call.principal, is_retry=is_retry, input_tokens=tokens
            )
            if not isinstance(admitted, Deferred):
                return admitted
            async with call.parked():
                has_waited = await self._waits.wait_for(self._parts.gate.headroom(admitted))
            if not has_waited:
                return Denied(STOPPED)

    async def _send(
        self, call: CallContext, request: ModelRequest, admission: Admitted
    ) -> attempt_result.Attempted:
        """Send a request that was admitted, and read its answer; raises what `AttemptSender.send` does."""
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
        """Keep a call that was cancelled before or after its answer came."""
        if exchange.charge.in_doubt:  # an answer that could not be charged is none
            exchange.response = None
        if exchange.sent is not None:
            exchange.failure = exchange.sent.failure
        request, admission = exchange.request, exchange.admission
        attempted = await self._outcome(call, request, admission, exchange.charge, exchange.kept)
        with suppress(UnstreamedError):
            await self._keep(request.envelope, attempted, "final", call.route, call.cached)
