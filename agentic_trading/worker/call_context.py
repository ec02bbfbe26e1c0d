"""One envelope under way: what it was prepared with, and how its answers are read, of a model or of a recording."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from agentic_trading.cancellation import run_shielded
from agentic_trading.governance.admission import Admitted, Charge
from agentic_trading.governance.limiter import Failed
from agentic_trading.governance.sent_call import MOST_TOKENS
from agentic_trading.llm.envelope import DeterminismLevel, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Providers
from agentic_trading.llm.result import LLMResult, Violation
from agentic_trading.logger import get_logger
from agentic_trading.structured.engine import Prepared
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.worker import attempt_result
from agentic_trading.worker.active_claim import ActiveClaim
from agentic_trading.worker.error_boundary import describe_error
from agentic_trading.worker.recorder import NO_REPLY, ReplyRoute
from agentic_trading.worker.response_cache import CachedCall
from agentic_trading.worker.slots import Parking

COUNT_WITHIN_S = 5.0
"""A count that takes longer is given up."""

log = get_logger()


class InputTokenCounter:
    """The input tokens of the requests of one call, by the provider's count; a retry is not counted again."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers
        self._request: ModelRequest | None = None
        self._tokens: int | None = None

    async def of(self, request: ModelRequest, patience_s: float) -> int | None:
        """Return how many tokens `request` sends, or None where bytes have to bound them.

        None: the provider has no count to give, failed, or took longer than `COUNT_WITHIN_S` or `patience_s` seconds; and for
        a request that must not leave the process (`replay_only`), or for which no time is left.
        """
        if request.envelope.determinism is DeterminismLevel.REPLAY_ONLY or patience_s <= 0:
            return None
        counted = replace(request, attempt=1)
        if counted != self._request:
            self._tokens = await self._count(request, min(COUNT_WITHIN_S, patience_s))
            self._request = counted
        return self._tokens

    async def _count(self, request: ModelRequest, patience_s: float) -> int | None:
        try:
            async with asyncio.timeout(patience_s):
                tokens = await self._providers.of(request.envelope.provider).count_tokens(request)
        except Exception as e:  # noqa: BLE001 - however a count fails, the call goes on without one
            log.warning(
                "tokens_not_counted", envelope_id=request.envelope.envelope_id, error=describe_error(e)
            )
            return None
        return tokens if tokens is not None and 0 < tokens <= MOST_TOKENS else None


MOST_REMEMBERED = 256
"""More would be schemas made for one call each, which never come again."""


class UnsupportedSchemas:
    """The schemas that a provider refused to enforce, as long as this process lives; forgets all when full."""

    def __init__(self) -> None:
        self._known: set[tuple[LLMProvider, str, bytes]] = set()

    def learn(self, request: ModelRequest, attempted: attempt_result.Attempted) -> None:
        """Remember the schema of `request` if that is why it failed."""
        if not attempt_result.is_schema_refused(request, attempted):
            return
        if len(self._known) == MOST_REMEMBERED:
            self._known.clear()
        self._known.add(_key(request.envelope))

    def holds(self, envelope: LLMEnvelope) -> bool:
        """Whether the schema of `envelope` was refused for its model before."""
        return bool(self._known) and _key(envelope) in self._known


def _key(envelope: LLMEnvelope) -> tuple[LLMProvider, str, bytes]:
    return envelope.provider, envelope.model, envelope.output_schema_json


Check = Callable[[LLMEnvelope, str], Sequence[Violation]]
Checks = Mapping[str, Check]
"""Rules beyond JSON Schema, by the schema's `$id`: a function of the envelope and the accepted text."""


CallChecks = Mapping[str, SemanticCheck]
"""Checks of calls that clients in this process wait for, by envelope id."""


def check_of(envelope: LLMEnvelope, checks: Checks, call_checks: CallChecks) -> SemanticCheck | None:
    """Return the rules for the answer to `envelope`: those of its schema, then those of its call; None without any."""
    of_schema = checks.get(str(envelope.expected_output_schema.get("$id", "")))
    of_call = call_checks.get(envelope.envelope_id)
    if of_schema is None:
        return of_call
    named = partial(_checked, of_schema, envelope)
    return named if of_call is None else partial(_checked_twice, named, of_call)


def _checked_twice(first: SemanticCheck, then: SemanticCheck, text: str) -> Sequence[Violation]:
    """Return what `first` rejects, else what `then` rejects."""
    return first(text) or then(text)


def _checked(check: Check, envelope: LLMEnvelope, text: str) -> Sequence[Violation]:
    """Run a rule beyond the schema; one that fails accepts nothing."""
    try:
        return check(envelope, text)
    except ValueError:
        raise  # what is wrong with the text: it becomes a violation
    except Exception as e:  # noqa: BLE001 - a broken rule must not accept an answer
        return [
            Violation(
                path="$", keyword="check_failed", message=f"the check itself failed: {describe_error(e)}"
            )
        ]


READ_AT_ONCE_CHARS = 8 * 1024
"""Answers up to this length are read on the loop, in about a millisecond if they are broken; longer ones in a thread."""

SHOWN_AT_ONCE_CHARS = 64 * 1024
"""The same of a request: objects of an answer may have to be looked for in it."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """One envelope under way, prepared for the model that answers it, by the owner of its `claim`; `check` is its rules.

    `count` is there if its input is to be counted, `cached` if its first accepted answer is the answer. `principal`
    sent it, as the bus has proved, `parked` is entered while it waits for headroom. Its attempts go out by `route`.
    """

    envelope: LLMEnvelope
    prepared: Prepared
    check: SemanticCheck | None
    claim: ActiveClaim
    count: InputTokenCounter | None = None
    cached: CachedCall | None = None
    principal: str = ""
    parked: Parking = nullcontext
    route: ReplyRoute = NO_REPLY

    @property
    def capability(self) -> Capability:
        """What the model takes and offers."""
        return self.prepared.capability

    async def read(self, request: ModelRequest, response: ModelResponse) -> Accepted | Rejected:
        """Read an answer; a long one is read in a thread, and a cancellation waits for that."""
        read = partial(self.prepared.read, response, request, check=self.check)
        if len(response.text) <= READ_AT_ONCE_CHARS and len(request.user) <= SHOWN_AT_ONCE_CHARS:
            return read()
        return await run_shielded(asyncio.to_thread(read))

    async def answered_attempt(
        self,
        request: ModelRequest,
        response: ModelResponse,
        admission: Admitted,
        charge: Charge,
        timing: attempt_result.Timing,
    ) -> attempt_result.Attempted:
        """Read an answer that was charged; one of a wrong model ends the call."""
        outcome = await self.read(request, response)
        to_result = partial(
            attempt_result.answered_result, request, response, outcome, admission, charge, timing
        )
        if attempt_result.is_of_wrong_model(request, response, self.capability):
            return attempt_result.FinalAttempt(lambda step: attempt_result.unused_result(to_result(step)))
        return attempt_result.AnsweredAttempt(to_result, outcome)

    async def refused(
        self, request: ModelRequest, reason: FailureReason, now: datetime
    ) -> attempt_result.FinalAttempt:
        """Return the end of a call whose attempt was not sent; its claim says so before the log does, or it has no end."""
        await self.claim.end(request, reason, now)
        return attempt_result.unsent_attempt(self.envelope, request.attempt, reason, now=now)

    async def follow(self, request: ModelRequest, recorded: LLMResult) -> attempt_result.Attempted:
        """Serve an attempt that is on record here as it stands there, and go on with what was to follow."""
        return replace(await self.replay(request, recorded), to_result=lambda _step: recorded)

    async def replay(self, request: ModelRequest, recorded: LLMResult) -> attempt_result.Attempted:
        """Serve a recorded attempt: an answer is read again, a failure is the same failure, and so is what follows."""
        is_not_used = recorded.failure is not None and recorded.failure.category is FailureKind.WRONG_MODEL
        if recorded.reading is not None and not is_not_used:
            as_requested_then = replace(request, transport=recorded.reading.transport)
            outcome = await self.read(as_requested_then, attempt_result.recorded_response(recorded))
            read_again = partial(attempt_result.replayed_result, recorded, self.envelope, outcome)
            return attempt_result.AnsweredAttempt(read_again, outcome, recorded.next_step)
        to_result = partial(attempt_result.replayed_result, recorded, self.envelope, None)
        if recorded.dispatched_at is None or recorded.failure is None or is_not_used:
            return attempt_result.FinalAttempt(to_result)
        failed_again = Failed(kind=recorded.failure.category, sent=recorded.in_doubt, retry_after_s=None)
        return attempt_result.FailedAttempt(to_result, failed_again, recorded.next_step)
