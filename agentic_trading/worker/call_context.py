"""One envelope under way: what it is asked with, and how its answers are read, of a model or of a recording."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from agentic_trading.governance.retry import Failed
from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import LLMResult
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.parser import OutputParser
from agentic_trading.structured.prompts import request_over
from agentic_trading.worker.attempt_result import recorded_response, served_again
from agentic_trading.worker.semantic_checks import Checks, check_of
from agentic_trading.worker.token_count import InputTokenCounter
from agentic_trading.worker.shield import run_shielded
from agentic_trading.worker.response_cache import CachedCall
from agentic_trading.worker.unsupported_schemas import UnsupportedSchemas
from agentic_trading.worker.slots import Parking
from agentic_trading.worker.next_attempt import Attempted, FinalAttempt, AnsweredAttempt, FailedAttempt

READ_AT_ONCE_CHARS = 8 * 1024
"""Answers up to this length are read on the loop, which takes about a millisecond if they are broken; longer ones in a thread."""

SHOWN_AT_ONCE_CHARS = 64 * 1024
"""The same of a question: objects of an answer may have to be looked for in it."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """One envelope under way: the model that answers it, and the one parser that asks and reads.

    `count` is there if its input is to be counted, `frozen` if its first accepted answer is the answer. `principal` is
    who sent it, as the bus has proved it, `parked` is entered while it waits for headroom.
    """

    envelope: LLMEnvelope
    capability: Capability
    parser: OutputParser
    checks: Checks
    count: InputTokenCounter | None = None
    frozen: CachedCall | None = None
    principal: str = ""
    parked: Parking = nullcontext

    def first_request(self, refused_schemas: UnsupportedSchemas) -> ModelRequest:
        """Return the request to begin with: a schema that was refused before is told in words at once."""
        if refused_schemas.holds(self.envelope):
            return request_over("prompted", self.envelope, self.capability, attempt=1, answer=1)
        return self.parser.request(self.envelope, self.capability, attempt=1, answer=1)

    async def read(self, request: ModelRequest, response: ModelResponse) -> Accepted | Rejected:
        """Read an answer; one that takes long is read beside the loop, and a cancellation waits for that."""
        read = partial(self.parser.read, response, request, check=check_of(self.envelope, self.checks))
        if len(response.text) <= READ_AT_ONCE_CHARS and len(request.user) <= SHOWN_AT_ONCE_CHARS:
            return read()
        return await run_shielded(asyncio.to_thread(read))

    async def replay(self, request: ModelRequest, recorded: LLMResult) -> Attempted:
        """Serve a recorded attempt: an answer is read again, a failure is the same failure, and so is what follows."""
        is_not_used = recorded.failure is not None and recorded.failure.category is FailureKind.WRONG_MODEL
        if recorded.reading is not None and not is_not_used:
            as_asked_then = replace(request, transport=recorded.reading.transport)
            outcome = await self.read(as_asked_then, recorded_response(recorded))
            read_again = partial(served_again, recorded, self.envelope, outcome)
            return AnsweredAttempt(read_again, outcome, recorded.next_step)
        to_result = partial(served_again, recorded, self.envelope, None)
        if recorded.dispatched_at is None or recorded.failure is None or is_not_used:
            return FinalAttempt(to_result)
        failed_again = Failed(kind=recorded.failure.category, sent=recorded.in_doubt, retry_after_s=None)
        return FailedAttempt(to_result, failed_again, recorded.next_step)
