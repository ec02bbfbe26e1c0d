"""The attempts of one envelope: ask, admit, answer, settle, read, record, decide."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol

from agentic_trading.clock import Clock
from agentic_trading.governance.gate import Admission, Gate, Parked, Refused
from agentic_trading.governance.retry import Failed
from agentic_trading.ids import derived_id
from agentic_trading.llm.capability import Capabilities, Capability
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import ProviderError, UnknownModelError
from agentic_trading.llm.event import Event
from agentic_trading.llm.failure import FailureKind, FailureReason
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.reading import Violation
from agentic_trading.llm.result import LLMResult
from agentic_trading.structured.engine import schema_problem
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.parser import OutputParser, select
from agentic_trading.worker.attempt import (
    Timing,
    answered,
    degraded,
    failed,
    is_wrong_model,
    served_again,
    wrong_model,
)
from agentic_trading.worker.record import Recorder
from agentic_trading.worker.telling import told
from agentic_trading.worker.turn import Attempted, Closed, Read, Turn, Unanswered, may_degrade, next_turn

Check = Callable[[LLMEnvelope, str], Sequence[Violation]]
Checks = Mapping[str, Check]
"""Rules beyond JSON Schema, by the schema's `$id`: a function of the envelope and the accepted text."""


class RecordedAnswers(Protocol):
    """Answers of an earlier run, found by request, occurrence and attempt."""

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return what this attempt gave when it was recorded, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runner needs, named once: the gate, who answers, where it is kept, what is checked.

    `strict_workflows` have a dispatched record on disk before each call.
    """

    gate: Gate
    provider: Provider
    recorder: Recorder
    capabilities: Capabilities
    clock: Clock
    checks: Checks
    recorded: RecordedAnswers | None = None
    strict_workflows: frozenset[EnvelopeWorkflow] = frozenset()


@dataclass(frozen=True, slots=True)
class Call:
    """One envelope under way: the model that answers it, and the one parser that asks and reads."""

    envelope: LLMEnvelope
    capability: Capability
    parser: OutputParser


class CallRunner:
    """Run one envelope to its end. Every attempt passes the gate, is settled on every way out, and is kept."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._clock = parts.clock

    async def run(self, envelope: LLMEnvelope) -> LLMInteraction:
        """Return the last attempt at `envelope`; a failed call is a result, not an exception.

        Raises `StoreError` if an attempt could not be kept: it is then not told to anybody.
        """
        call = self._prepare(envelope)
        if isinstance(call, FailureReason):
            return await self._keep(
                envelope, Closed(failed(envelope, 1, call, now=self._clock.now())), final=True
            )
        turn = Turn(call.parser.request(envelope, call.capability, attempt=1, answer=1))
        while True:
            await self._wait(turn.wait_s)
            attempted = await self._attempt(call, turn.request)
            following = next_turn(
                turn, attempted, now=self._clock.now(), most_output_tokens=call.capability.max_output_tokens
            )
            interaction = await self._keep(envelope, attempted, final=following is None)
            if following is None:
                return interaction
            turn = following

    def _prepare(self, envelope: LLMEnvelope) -> Call | FailureReason:
        """Choose model and parser; an unknown model and a schema that no answer could fit are not paid for."""
        problem = schema_problem(
            envelope.expected_output_schema, envelope.output_policy, schema_json=envelope.output_schema_json
        )
        if problem is not None:
            return problem
        try:
            capability = self._parts.capabilities.of(envelope.provider, envelope.model)
        except UnknownModelError as e:
            return FailureReason(category=FailureKind.INVALID_REQUEST, description=str(e))
        return Call(envelope, capability, select(capability, envelope))

    async def _wait(self, seconds: float) -> None:
        if seconds > 0:
            await self._clock.sleep(seconds)

    async def _keep(self, envelope: LLMEnvelope, attempted: Attempted, *, final: bool) -> LLMInteraction:
        result = attempted.result
        if final and not result.success and may_degrade(envelope, attempted):
            result = degraded(result)
        interaction = LLMInteraction(envelope=envelope, result=result, stored_at=self._clock.now())
        await self._parts.recorder.keep(interaction, final=final)
        return interaction

    async def _attempt(self, call: Call, request: ModelRequest) -> Attempted:
        if self._parts.recorded is not None:
            recorded = await self._parts.recorded.find(request.envelope, request.attempt)
            if recorded is not None:
                return self._replay(call, request, recorded)
        admitted = await self._admit(request)
        if isinstance(admitted, Refused):
            result = failed(request.envelope, request.attempt, admitted.reason, now=self._clock.now())
            return Closed(result)
        return await self._send(call, request, admitted)

    async def _admit(self, request: ModelRequest) -> Admission | Refused:
        """Pass the gate; wait for headroom that calls in flight hold, until they give it back or the deadline passes."""
        while True:
            admitted = await self._parts.gate.admit(request)
            if not isinstance(admitted, Parked):
                return admitted
            await self._parts.gate.headroom(admitted)

    async def _send(self, call: Call, request: ModelRequest, admission: Admission) -> Attempted:
        gate = self._parts.gate
        try:
            await self._note_dispatch(request, admission)
            await gate.dispatch(admission)
        except BaseException:
            await asyncio.shield(gate.release(admission))
            raise
        started, dispatched_at = self._clock.monotonic(), self._clock.now()
        timing = partial(self._timing, dispatched_at, started)
        try:
            async with asyncio.timeout(self._patience_s(request)):
                response = await self._parts.provider.complete(request)
            charge = await gate.settle(admission, response.usage)
        except ProviderError as e:
            return await self._unanswered(request, admission, e, timing())
        except TimeoutError:
            waited = f"no answer within {self._patience_s(request):g} s"
            late = ProviderError(FailureKind.TIMEOUT, waited, sent=True)
            return await self._unanswered(request, admission, late, timing())
        except asyncio.CancelledError:
            stopped = ProviderError(FailureKind.SHUTDOWN, "the worker was stopped during the call", sent=True)
            await asyncio.shield(self._cancelled(request, admission, stopped, timing()))
            raise
        except Exception as e:  # noqa: BLE001 - an adapter's error is one failed call, charged and on record
            broken = ProviderError(FailureKind.INTERNAL_ERROR, told(e), sent=True)
            return await self._unanswered(request, admission, broken, timing())
        outcome = self._read(call, request, response)
        result = answered(request, response, outcome, admission, charge, timing())
        if is_wrong_model(request, response, call.capability):
            return self._of_wrong_model(request, response, result, outcome)
        return Read(result, outcome)

    def _of_wrong_model(
        self,
        request: ModelRequest,
        response: ModelResponse,
        result: LLMResult,
        outcome: Accepted | Rejected,
    ) -> Attempted:
        """An execution call served by another model fails; elsewhere the result says who served it."""
        if request.envelope.workflow is not EnvelopeWorkflow.EXECUTION:
            return Read(result, outcome)
        reason = wrong_model(request, response)
        fields = {**result.model_dump(), "parsed_output": {}, "validation_passed": False, "actionable": False}
        fields |= {"success": False, "failure": reason, "error": f"{reason.category}: {reason.description}"}
        return Closed(LLMResult.model_validate(fields))

    async def _unanswered(
        self,
        request: ModelRequest,
        admission: Admission,
        e: ProviderError,
        timing: Timing,
    ) -> Unanswered:
        gate = self._parts.gate
        charge = await asyncio.shield(gate.in_doubt(admission)) if e.sent else None
        if charge is None:
            await asyncio.shield(gate.release(admission))
        reason = FailureReason(category=e.kind, description=e.message, recoverable=not e.sent)
        result = failed(
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
        return Unanswered(result, Failed(kind=e.kind, sent=e.sent, retry_after_s=e.retry_after_s))

    async def _cancelled(
        self,
        request: ModelRequest,
        admission: Admission,
        e: ProviderError,
        timing: Timing,
    ) -> None:
        attempted = await self._unanswered(request, admission, e, timing)
        await self._keep(request.envelope, attempted, final=True)

    async def _note_dispatch(self, request: ModelRequest, admission: Admission) -> None:
        envelope = request.envelope
        if envelope.workflow not in self._parts.strict_workflows:
            return
        event = Event(
            kind="attempt.dispatched",
            id=derived_id("dispatched", envelope.envelope_id, request.attempt),
            trace_id=envelope.trace_id,
            causation_id=envelope.envelope_id,
            tenant_id=envelope.tenant_id,
            as_of=envelope.as_of,
            time=self._clock.now(),
            body={
                "attempt": request.attempt,
                "request_hash": envelope.request_hash,
                "provider": envelope.provider,
                "model": envelope.model,
                "reserved_nusd": admission.amount.nusd,
            },
        )
        await self._parts.recorder.keep_event(event)

    def _read(self, call: Call, request: ModelRequest, response: ModelResponse) -> Accepted | Rejected:
        check = self._parts.checks.get(str(call.envelope.expected_output_schema.get("$id", "")))
        bound = partial(_checked, check, call.envelope) if check else None
        return call.parser.read(response, request, check=bound)

    def _replay(self, call: Call, request: ModelRequest, recorded: LLMResult) -> Attempted:
        """Serve a recorded attempt: an answer is read again, a failure is the same failure."""
        if recorded.reading is not None and not _is_of_wrong_model(recorded):
            response = ModelResponse(
                text=recorded.raw_output,
                stop_reason=recorded.stop_reason,
                usage=recorded.usage,
                model=recorded.model,
                provider_request_id=recorded.provider_request_id,
                provider_response_id=recorded.provider_response_id,
            )
            outcome = self._read(call, request, response)
            return Read(served_again(recorded, call.envelope, outcome), outcome)
        result = served_again(recorded, call.envelope, None)
        if recorded.dispatched_at is None or recorded.failure is None or _is_of_wrong_model(recorded):
            return Closed(result)
        return Unanswered(
            result, Failed(kind=recorded.failure.category, sent=recorded.in_doubt, retry_after_s=None)
        )

    def _patience_s(self, request: ModelRequest) -> float:
        patience = request.envelope.retry_policy.attempt_timeout_s
        if request.envelope.deadline is None:
            return patience
        return min(patience, max(0.0, (request.envelope.deadline - self._clock.now()).total_seconds()))

    def _timing(self, dispatched_at: datetime, started: float) -> Timing:
        return Timing(dispatched_at, self._clock.now(), (self._clock.monotonic() - started) * 1000)


def _checked(check: Check, envelope: LLMEnvelope, text: str) -> Sequence[Violation]:
    """Run a rule beyond the schema; one that breaks lets nothing through."""
    try:
        return check(envelope, text)
    except ValueError:
        raise  # what is wrong with the text: the reader tells it
    except Exception as e:  # noqa: BLE001 - a broken rule must not become an accepted answer
        return [Violation(path="$", keyword="check_failed", message=f"the check itself failed: {told(e)}")]


def _is_of_wrong_model(recorded: LLMResult) -> bool:
    return recorded.failure is not None and recorded.failure.category is FailureKind.WRONG_MODEL
