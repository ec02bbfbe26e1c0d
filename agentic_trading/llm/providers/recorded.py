"""Answers of an earlier run, served again: no network, and a miss is an error."""

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind, FailureReason
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import LLMResult


@dataclass(frozen=True, slots=True, order=True)
class RecordedKey:
    """What an answer is found by: the request, how often it was asked before, and the attempt (1-based)."""

    request_hash: str
    occurrence: int
    attempt: int

    @override
    def __str__(self) -> str:
        """Say it as people read it."""
        return f"{self.request_hash} (occurrence {self.occurrence}, attempt {self.attempt})"


_MISSES_KEPT = 10_000  # where every call may be a new one, every call is a miss


class RecordedAnswers:
    """Serve recorded attempts by request hash, occurrence and attempt; use it as a provider, or ask `find`.

    An answer comes back as it was written and is read again; a failure (time-out, refusal, budget, …) is the same
    failure. No tenant is served what was answered to another. Where a key was recorded more than once, the attempt at the very same envelope is taken, else the first.
    """

    def __init__(self, interactions: Iterable[LLMInteraction]) -> None:
        self._known: dict[tuple[str, int], list[LLMInteraction]] = {}
        for interaction in interactions:
            envelope = interaction.envelope
            self._known.setdefault((envelope.request_hash, envelope.occurrence), []).append(interaction)
        self._served: set[RecordedKey] = set()
        self._missed: set[RecordedKey] = set()

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return what this attempt gave when it was recorded, or None."""
        key = RecordedKey(envelope.request_hash, envelope.occurrence, attempt)
        found = [
            interaction
            for interaction in self._known.get((key.request_hash, key.occurrence), ())
            if interaction.result.attempt_number == attempt
            and interaction.envelope.tenant_id == envelope.tenant_id
        ]
        if not found:
            if len(self._missed) < _MISSES_KEPT:
                self._missed.add(key)
            return None
        self._served.add(key)
        same = [one for one in found if one.envelope.envelope_id == envelope.envelope_id]
        return (same or found)[0].result

    @property
    def misses(self) -> list[RecordedKey]:
        """What was asked for and is not recorded, sorted; at most 10,000."""
        return sorted(self._missed)

    @property
    def unused(self) -> list[RecordedKey]:
        """What is recorded and was not asked for, sorted."""
        known = {
            RecordedKey(*place, interaction.result.attempt_number)
            for place, interactions in self._known.items()
            for interaction in interactions
        }
        return sorted(known - self._served)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded answer, or raise the recorded failure; `replay_miss` if nothing is recorded."""
        envelope = request.envelope
        result = await self.find(envelope, request.attempt)
        if result is None:
            asked = RecordedKey(envelope.request_hash, envelope.occurrence, request.attempt)
            message = f"no recorded answer to {asked}; replay what was recorded, or record this"
            raise ProviderError(FailureKind.REPLAY_MISS, message, sent=False)
        if _was_answered(result):
            return ModelResponse(
                text=result.raw_output,
                stop_reason=result.stop_reason,
                usage=result.usage,
                model=result.model,
                provider_request_id=result.provider_request_id,
                provider_response_id=result.provider_response_id,
            )
        failure = result.failure or FailureReason(
            category=FailureKind.INTERNAL_ERROR, description=result.error or "failed without a reason"
        )
        raise ProviderError(
            failure.category,
            failure.description,
            sent=result.in_doubt,
            provider_request_id=result.provider_request_id,
        )

    async def count_tokens(self, _request: ModelRequest) -> int | None:
        """Return None: a recording holds the count of what was asked, not of what will be."""
        return None

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""


def _was_answered(result: LLMResult) -> bool:
    """Whether an attempt got an answer, be it a useless one, and not a failure on the way."""
    return result.reading is not None or bool(result.stop_reason) or bool(result.raw_output)
