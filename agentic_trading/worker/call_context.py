"""The context of one envelope in progress, and the parsing of its answers, live or recorded."""

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
"""How long a token count may take."""

log = get_logger()


class InputTokenCounter:
    """The input tokens of one call's requests, as counted by the provider.

    A retry is not counted again.
    """

    def __init__(self, providers: Providers) -> None:
        self._providers = providers
        self._request: ModelRequest | None = None
        self._tokens: int | None = None

    async def of(self, request: ModelRequest, patience_s: float) -> int | None:
        """Return the number of input tokens of `request`, or None if only its bytes give a bound.

        It is None if the provider has no count, fails, or takes longer than `COUNT_WITHIN_S` or `patience_s`
        seconds. It is also None for `replay_only` requests, which must not leave the process, and if no time
        is left.
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
        except Exception as e:  # noqa: BLE001 - the call continues without a count
            log.warning(
                "tokens_not_counted", envelope_id=request.envelope.envelope_id, error=describe_error(e)
            )
            return None
        return tokens if tokens is not None and 0 < tokens <= MOST_TOKENS else None


MOST_REMEMBERED = 256
"""The maximum number of schemas. More of them would be schemas of single calls, which do not come again."""


class UnsupportedSchemas:
    """The schemas that a provider refused to enforce, during this process.

    All are forgotten when it is full.
    """

    def __init__(self) -> None:
        self._known: set[tuple[LLMProvider, str, bytes]] = set()

    def learn(self, request: ModelRequest, attempted: attempt_result.Attempted) -> None:
        """Remember the schema of `request` if it caused the failure."""
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
"""Rules beyond JSON Schema, by the schema's `$id`. A rule gets the envelope and the accepted text."""


CallChecks = Mapping[str, SemanticCheck]
"""Checks of calls of clients in this process, by envelope id."""


def check_of(envelope: LLMEnvelope, checks: Checks, call_checks: CallChecks) -> SemanticCheck | None:
    """Return the rules for the answer to `envelope`, or None: those of its schema, then those of its call."""
    of_schema = checks.get(str(envelope.expected_output_schema.get("$id", "")))
    of_call = call_checks.get(envelope.envelope_id)
    if of_schema is None:
        return of_call
    named = partial(_checked, of_schema, envelope)
    return named if of_call is None else partial(_checked_twice, named, of_call)


def _checked_twice(first: SemanticCheck, then: SemanticCheck, text: str) -> Sequence[Violation]:
    """Return the violations of `first`, or else those of `then`."""
    return first(text) or then(text)


def _checked(check: Check, envelope: LLMEnvelope, text: str) -> Sequence[Violation]:
    """Run a rule. If it fails, reject the answer."""
    try:
        return check(envelope, text)
    except ValueError:
        raise  # the text is invalid, so that this becomes a violation
    except Exception as e:  # noqa: BLE001 - a violation, because a broken rule must not accept an answer
        return [
            Violation(
                path="$", keyword="check_failed", message=f"the check itself failed: {describe_error(e)}"
            )
        ]


READ_AT_ONCE_CHARS = 8 * 1024
"""Answers up to this length are parsed on the loop, in about a millisecond if they are broken. Longer ones
are parsed in a thread."""

SHOWN_AT_ONCE_CHARS = 64 * 1024
"""The same limit for a request, because the parser may search it for objects of the answer."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """One envelope in progress, prepared for its model by the owner of its `claim`.

    `check` has its rules. `count` is set if its input is to be counted. `cached` is set if its first accepted
    answer is reused. `principal` is its verified sender. `parked` is entered while it waits for headroom. Its
    attempts are published by `route`.
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
        """The capabilities of the model."""
        return self.prepared.capability

    async def read(self, request: ModelRequest, response: ModelResponse) -> Accepted | Rejected:
        """Parse an answer.

        A long one is parsed in a thread, and a cancellation waits for the thread.
        """
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
        """Parse a charged answer. An answer of a wrong model ends the call."""
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
        """Return the end of a call whose attempt was not sent.

        The end is stored with the claim before it is logged. If it cannot be stored, the call has not ended.
        """
        await self.claim.end(request, reason, now)
        return attempt_result.unsent_attempt(self.envelope, request.attempt, reason, now=now)

    async def follow(self, request: ModelRequest, recorded: LLMResult) -> attempt_result.Attempted:
        """Return an attempt of this worker's log unchanged, and continue with its recorded next step."""
        replayed = await self.replay(request, recorded)
        return replace(replayed, to_result=lambda _step: recorded, is_on_record=True)

    async def replay(self, request: ModelRequest, recorded: LLMResult) -> attempt_result.Attempted:
        """Return a recorded attempt.

        Its answer is parsed again, or its failure and next step are repeated.
        """
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
