"""Providers without a network: rules, scripts, and the answers of an earlier run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from typing_extensions import override

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, ProviderError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import SENTINEL_NAME, SENTINEL_VALUE
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import LLMResult, Usage

BYTES_PER_TOKEN = 4


def stand_in_tokens(*texts: str) -> int:
    """Return the UTF-8 bytes of `texts` in fours, rounded up: a stand-in, not the count of any real tokenizer."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return -(-size // BYTES_PER_TOKEN)


def stand_in_usage(request: ModelRequest, text: str) -> Usage:
    """Return what answering `request` with `text` uses by that count."""
    return Usage(
        input_tokens=stand_in_tokens(request.system, request.user), output_tokens=stand_in_tokens(text)
    )


def cut_to(text: str, tokens: int) -> str:
    """Return as much of `text` as `tokens` of that count cover, whole characters only."""
    return text.encode("utf-8", "surrogatepass")[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore")


MODEL = "rules-1"

Rule = Callable[[LLMEnvelope], str]
"""Write the text of the answer to an envelope; equal envelopes get equal texts."""


class RulesProvider:
    """Answer with the rule of the envelope's schema: its `$id` names the rule.

    The text is treated as any model's: it is cut at the request's cap and read from its characters. Where the
    policy wants the sentinel, it is appended, as a model would append it. Tokens are a stand-in count of
    four UTF-8 bytes each.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = dict(rules)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the rule's text; raises `ProviderError` (`invalid_request`) where no rule fits."""
        text = self._rule(request.envelope)(request.envelope)
        if request.envelope.output_policy.require_sentinel:
            text = append_sentinel(text)
        cut = stand_in_tokens(text) > request.max_tokens
        if cut:
            text = cut_to(text, request.max_tokens)
        return ModelResponse(
            text=text,
            stop_reason="max_tokens" if cut else "end_turn",
            usage=stand_in_usage(request, text),
            model=MODEL,
        )

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the stand-in count of the request's text."""
        return stand_in_tokens(request.system, request.user)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""

    def _rule(self, envelope: LLMEnvelope) -> Rule:
        name = str(envelope.expected_output_schema.get("$id", ""))
        try:
            return self._rules[name]
        except KeyError:
            known = ", ".join(sorted(self._rules)) or "none"
            message = f"no rule for schema {name!r}; known are {known}"
            raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from None


def append_sentinel(text: str) -> str:
    """Return the text of an object with the sentinel as its last member; any other text as it is."""
    body, brace, after = text.rpartition("}")
    if not brace or after.strip():
        return text
    comma = "" if body.rstrip().endswith("{") else ","
    return f'{body.rstrip()}{comma}"{SENTINEL_NAME}":"{SENTINEL_VALUE}"}}{after}'


SCRIPTED_MODEL = "scripted-1"

ScriptedReply = str | ModelResponse | ProviderError
"""A text to answer with, a whole response, or an error to raise."""


class ScriptedProvider:
    """Answer from a script: lines in the order of the calls, or a function of the request.

    A text is an answer that ended by itself, from the requested model, with a stand-in count of four UTF-8 bytes a
    token. `requests` holds the requests, in order.
    """

    def __init__(self, script: Iterable[ScriptedReply] | Callable[[ModelRequest], ScriptedReply]) -> None:
        self.requests: list[ModelRequest] = []
        self._next: Callable[[ModelRequest], ScriptedReply] = script if callable(script) else self._in_order
        self._lines: list[ScriptedReply] = [] if callable(script) else list(script)
        self._given = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next answer, or raise the next error; `invalid_request` when the script is over."""
        self.requests.append(request)
        line = self._next(request)
        match line:
            case ProviderError():
                raise line
            case ModelResponse():
                return line
            case str():
                return ModelResponse(
                    text=line,
                    stop_reason="end_turn",
                    usage=stand_in_usage(request, line),
                    model=request.envelope.model or SCRIPTED_MODEL,
                )
            case _:
                assert_never(line)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the stand-in count of the request's text."""
        return stand_in_tokens(request.system, request.user)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""

    def _in_order(self, _request: ModelRequest) -> ScriptedReply:
        if self._given == len(self._lines):
            message = f"the script has {self._given} lines, and all are used; add one for this request"
            raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False)
        self._given += 1
        return self._lines[self._given - 1]


@dataclass(frozen=True, slots=True, order=True)
class RecordedKey:
    """What an answer is found by: the request, how often it was made before, and the attempt (1-based)."""

    request_hash: str
    occurrence: int
    attempt: int

    @override
    def __str__(self) -> str:
        """Return the key as messages show it."""
        return f"{self.request_hash} (occurrence {self.occurrence}, attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class _Recorded:
    """An attempt on record: at which envelope, for which tenant, which one, and its result as the log spells it."""

    envelope_id: str
    tenant_id: str
    attempt: int
    result: bytes


_MISSES_KEPT = 10_000  # where every call may be a new one, every call is a miss


class RecordedAnswers:
    """Serve recorded attempts by request hash, occurrence and attempt; use it as a provider, or call `find`.

    An answer comes back as it was written and is read again; a failure (time-out, refusal, budget, …) is the same
    failure. No tenant is served what was answered to another. Where a key was recorded more than once, the attempt at
    the very same envelope is taken, else the first. Of an interaction only the bytes of its result are kept: a year's
    session has thousands, and their requests are ten times as large.
    """

    def __init__(self, interactions: Iterable[LLMInteraction] = ()) -> None:
        self._known: dict[tuple[str, int], list[_Recorded]] = {}
        self._served: set[RecordedKey] = set()
        self._missed: set[RecordedKey] = set()
        for interaction in interactions:
            self.add(interaction)

    def add(self, interaction: LLMInteraction) -> None:
        """Add an attempt to those that are served."""
        envelope, result = interaction.envelope, interaction.result
        kept = _Recorded(envelope.envelope_id, envelope.tenant_id, result.attempt_number, result.wire)
        self._known.setdefault((envelope.request_hash, envelope.occurrence), []).append(kept)

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return what this attempt gave when it was recorded, or None."""
        key = RecordedKey(envelope.request_hash, envelope.occurrence, attempt)
        found = [
            one
            for one in self._known.get((key.request_hash, key.occurrence), ())
            if one.attempt == attempt and one.tenant_id == envelope.tenant_id
        ]
        if not found:
            if len(self._missed) < _MISSES_KEPT:
                self._missed.add(key)
            return None
        self._served.add(key)
        same = [one for one in found if one.envelope_id == envelope.envelope_id]
        return LLMResult.from_wire((same or found)[0].result)

    @property
    def misses(self) -> list[RecordedKey]:
        """Keys that were requested and are not recorded, sorted; at most 10,000."""
        return sorted(self._missed)

    @property
    def unused(self) -> list[RecordedKey]:
        """Keys that are recorded and were not requested, sorted."""
        known = {
            RecordedKey(*place, one.attempt) for place, recorded in self._known.items() for one in recorded
        }
        return sorted(known - self._served)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded answer, or raise the recorded failure; `replay_miss` if nothing is recorded."""
        envelope = request.envelope
        result = await self.find(envelope, request.attempt)
        if result is None:
            key = RecordedKey(envelope.request_hash, envelope.occurrence, request.attempt)
            message = f"no recorded answer to {key}; replay what was recorded, or record this"
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
        """Return None: a recording holds the counts of its own requests, not of new ones."""
        return None

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""


def _was_answered(result: LLMResult) -> bool:
    """Whether an attempt got an answer, be it a useless one, and not a failure on the way."""
    return result.reading is not None or bool(result.stop_reason) or bool(result.raw_output)
