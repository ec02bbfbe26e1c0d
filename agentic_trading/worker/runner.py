"""The attempts of one envelope: ask, admit, answer, settle, read, record, decide."""

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, Protocol, assert_never

from agentic_trading.clock import Clock
from agentic_trading.governance.errors import ReservationStateError
from agentic_trading.governance.gate import Admission, Charge, Gate, Parked, Refused, Taken
from agentic_trading.governance.retry import Failed
from agentic_trading.llm.capability import Capabilities, Capability
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import ProviderError, UnknownModelError
from agentic_trading.llm.failure import FailureKind, FailureReason
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.result import LLMResult, NextStep
from agentic_trading.structured.engine import schema_problem
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.parser import OutputParser, select
from agentic_trading.structured.prompts import request_over
from agentic_trading.worker.attempt import (
    Timing,
    answered,
    degraded,
    dispatched,
    failed,
    is_of_wrong_model,
    not_used,
    served_again,
)
from agentic_trading.worker.checks import Checks, check_of
from agentic_trading.worker.errors import AttemptTakenError
from agentic_trading.worker.finishing import to_the_end
from agentic_trading.worker.record import Recorder
from agentic_trading.worker.refused import RefusedSchemas
from agentic_trading.worker.telling import told
from agentic_trading.worker.turn import (
    Attempted,
    Closed,
    Read,
    Turn,
    Unanswered,
    may_degrade,
    next_turn,
)

READ_AT_ONCE_CHARS = 8 * 1024
"""Answers up to this length are read on the loop, which takes about a millisecond if they are broken; longer ones in a thread."""

SHOWN_AT_ONCE_CHARS = 64 * 1024
"""The same of a question: objects of an answer may have to be looked for in it."""

MOST_TOKENS = 10**9
"""No call uses more: a report of more is none, and what it would cost passes what a log can count."""

_NO_TIME_LEFT: Final = FailureReason(
    category=FailureKind.EXPIRED, description="the deadline was reached before the request could be sent"
)
_STOPPED: Final = FailureReason(
    category=FailureKind.SHUTDOWN,
    description="the worker was stopped before the next attempt",
    recoverable=True,
)


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

    def first_request(self, refused_schemas: RefusedSchemas) -> ModelRequest:
        """Return the request to begin with: a schema that was refused before is told in words at once."""
        if refused_schemas.holds(self.envelope):
            return request_over("prompted", self.envelope, self.capability, attempt=1, answer=1)
        return self.parser.request(self.envelope, self.capability, attempt=1, answer=1)


class CallRunner:
    """Run one envelope to its end. Every attempt passes the gate, is settled on every way out, and is kept."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._stopping = False
        self._pauses: set[asyncio.Timeout] = set()
        self._refused_schemas = RefusedSchemas()

    def stop(self) -> None:
        """Wait for no retry any more: a call that would have to wait ends with `shutdown`. Harmless twice."""
        self._stopping = True
        for pause in self._pauses:
            pause.reschedule(0)

    async def run(self, envelope: LLMEnvelope) -> LLMInteraction:
        """Return the last attempt at `envelope`; a failed call is a result, not an exception.

        Raises `AttemptTakenError` if an attempt was sent by another run: it is that run's to settle, keep and tell.
        Raises `StoreError` or `RecordError` if an attempt could not be kept: it is then not told to anybody.
        """
        call = self._prepare(envelope)
        if isinstance(call, FailureReason):
            return await self._keep(envelope, self._unsent(envelope, 1, call), "final")
        turn = Turn(call.first_request(self._refused_schemas))
        while True:
            if not await self._waited(turn.wait_s):
                stopped = self._unsent(envelope, turn.request.attempt, _STOPPED)
                return await self._keep(envelope, stopped, "final")
            attempted = await self._attempt(call, turn.request)
            self._refused_schemas.learn(turn.request, attempted)
            following = next_turn(turn, attempted, call.capability, now=self._clock.now())
            interaction = await self._keep(envelope, attempted, following.step if following else "final")
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

    async def _waited(self, seconds: float) -> bool:
        """Wait; returns False if there is no time for that, because the runner is stopping."""
        if seconds <= 0 or self._stopping:
            return seconds <= 0
        pause = asyncio.timeout(None)
        try:
            async with pause:
                self._pauses.add(pause)
                await self._clock.sleep(seconds)
        except TimeoutError:
            return False
        finally:
            self._pauses.discard(pause)
        return True

    async def _keep(self, envelope: LLMEnvelope, attempted: Attempted, step: NextStep) -> LLMInteraction:
        result = attempted.to_result(step)
        if step == "final" and not result.success and may_degrade(envelope, attempted):
            result = degraded(result)
        interaction = LLMInteraction(envelope=envelope, result=result, stored_at=self._clock.now())
        keep = partial(self._parts.recorder.keep, interaction, final=step == "final")
        try:
            await keep()
        except asyncio.CancelledError:  # what was paid is on record; what is kept twice is kept once
            await to_the_end(keep())
            raise
        return interaction

    async def _attempt(self, call: Call, request: ModelRequest) -> Attempted:
        if self._parts.recorded is not None:
            recorded = await self._parts.recorded.find(request.envelope, request.attempt)
            if recorded is not None:
                return await self._replay(call, request, recorded)
        admitted = await self._admit(request)
        match admitted:
            case Refused():
                return self._unsent(request.envelope, request.attempt, admitted.reason)
            case Taken():
                raise AttemptTakenError(request.envelope.envelope_id, request.attempt, admitted.state)
            case Admission():
                return await self._send(call, request, admitted)
            case _:
                assert_never(admitted)

    async def _admit(self, request: ModelRequest) -> Admission | Refused | Taken:
        """Pass the gate; wait for headroom that calls in flight hold, until they give it back or the deadline passes."""
        while True:
            admitted = await self._parts.gate.admit(request)
            if not isinstance(admitted, Parked):
                return admitted
            await self._parts.gate.headroom(admitted)

    async def _send(self, call: Call, request: ModelRequest, admission: Admission) -> Attempted:
        patience_s = await self._dispatched(request, admission)
        if patience_s <= 0:
            return self._unsent(request.envelope, request.attempt, _NO_TIME_LEFT)
        timing = partial(self._timing, self._clock.now(), self._clock.monotonic())
        response: ModelResponse | None = None
        try:
            async with asyncio.timeout(patience_s):
                response = _metered(await self._parts.provider.complete(request))
            charge = await self._settle(admission, response)
        except ProviderError as e:
            failure = e
        except TimeoutError:
            failure = ProviderError(FailureKind.TIMEOUT, f"no answer within {patience_s:g} s", sent=True)
        except asyncio.CancelledError:
            await to_the_end(self._cancelled(call, request, admission, response, timing()))
            raise
        except Exception as e:  # noqa: BLE001 - an adapter's error is one failed call, charged and on record
            failure = ProviderError(FailureKind.INTERNAL_ERROR, told(e), sent=True)
        else:
            return await self._answered(call, request, response, admission, charge, timing())
        return await to_the_end(self._unanswered(request, admission, failure, timing()))

    async def _dispatched(self, request: ModelRequest, admission: Admission) -> float:
        """Note that the request is about to be sent; returns how many seconds an answer may take.

        With no time left nothing is sent, and nothing held. Raises `AttemptTakenError` if another run was faster.
        """
        gate = self._parts.gate
        try:
            await self._note_dispatch(request, admission)
            patience_s = self._patience_s(request)
            if patience_s <= 0:
                await gate.release(admission)
            else:
                await gate.dispatch(admission)
        except ReservationStateError as e:
            raise AttemptTakenError(request.envelope.envelope_id, request.attempt, e.state) from e
        except BaseException:
            await to_the_end(gate.release(admission))
            raise
        return patience_s

    async def _settle(self, admission: Admission, response: ModelResponse) -> Charge:
        return await self._parts.gate.settle(admission, response.usage, served_model=response.model)

    async def _answered(
        self,
        call: Call,
        request: ModelRequest,
        response: ModelResponse,
        admission: Admission,
        charge: Charge,
        timing: Timing,
    ) -> Attempted:
        outcome = await self._read(call, request, response)
        to_result = partial(answered, request, response, outcome, admission, charge, timing)
        if is_of_wrong_model(request, response, call.capability):
            return Closed(lambda step: not_used(to_result(step)))
        return Read(to_result, outcome)

    async def _unanswered(
        self, request: ModelRequest, admission: Admission, e: ProviderError, timing: Timing
    ) -> Unanswered:
        gate = self._parts.gate
        charge = await (gate.in_doubt(admission) if e.sent else gate.settle_unsent(admission))
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
        return Unanswered(to_result, Failed(kind=e.kind, sent=e.sent, retry_after_s=e.retry_after_s))

    def _unsent(self, envelope: LLMEnvelope, attempt: int, reason: FailureReason) -> Closed:
        return Closed(partial(failed, envelope, attempt, reason, now=self._clock.now()))

    async def _cancelled(
        self,
        call: Call,
        request: ModelRequest,
        admission: Admission,
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
        await self._keep(request.envelope, attempted, "final")

    async def _note_dispatch(self, request: ModelRequest, admission: Admission) -> None:
        envelope = request.envelope
        if envelope.workflow not in self._parts.strict_workflows:
            return
        event = dispatched(request, admission, now=self._clock.now())
        await self._parts.recorder.keep_event(event)

    async def _read(self, call: Call, request: ModelRequest, response: ModelResponse) -> Accepted | Rejected:
        """Read an answer; one that takes long is read beside the loop, and a cancellation waits for that."""
        read = partial(call.parser.read, response, request, check=check_of(call.envelope, self._parts.checks))
        if len(response.text) <= READ_AT_ONCE_CHARS and len(request.user) <= SHOWN_AT_ONCE_CHARS:
            return read()
        return await to_the_end(asyncio.to_thread(read))

    async def _replay(self, call: Call, request: ModelRequest, recorded: LLMResult) -> Attempted:
        """Serve a recorded attempt: an answer is read again, a failure is the same failure, and so is what follows."""
        is_not_used = recorded.failure is not None and recorded.failure.category is FailureKind.WRONG_MODEL
        if recorded.reading is not None and not is_not_used:
            response = ModelResponse(
                text=recorded.raw_output,
                stop_reason=recorded.stop_reason,
                usage=recorded.usage,
                model=recorded.model,
                provider_request_id=recorded.provider_request_id,
                provider_response_id=recorded.provider_response_id,
            )
            as_asked_then = replace(request, transport=recorded.reading.transport)
            outcome = await self._read(call, as_asked_then, response)
            read_again = partial(served_again, recorded, call.envelope, outcome)
            return Read(read_again, outcome, recorded.next_step)
        to_result = partial(served_again, recorded, call.envelope, None)
        if recorded.dispatched_at is None or recorded.failure is None or is_not_used:
            return Closed(to_result)
        failed_again = Failed(kind=recorded.failure.category, sent=recorded.in_doubt, retry_after_s=None)
        return Unanswered(to_result, failed_again, recorded.next_step)

    def _patience_s(self, request: ModelRequest) -> float:
        patience = request.envelope.retry_policy.attempt_timeout_s
        if request.envelope.deadline is None:
            return patience
        return min(patience, max(0.0, (request.envelope.deadline - self._clock.now()).total_seconds()))

    def _timing(self, dispatched_at: datetime, started: float) -> Timing:
        return Timing(dispatched_at, self._clock.now(), (self._clock.monotonic() - started) * 1000)


def _metered(response: ModelResponse) -> ModelResponse:
    """Return an answer whose usage can be booked; raises `ProviderError`, sent, for any other."""
    used = response.usage.total_tokens
    if used <= MOST_TOKENS:
        return response
    message = f"the answer reports {used} tokens; allowed are {MOST_TOKENS}"
    raise ProviderError(
        FailureKind.SERVER_ERROR, message, sent=True, provider_request_id=response.provider_request_id
    )
