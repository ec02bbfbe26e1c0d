"""Providers without a network: rules, scripts, and the answers of an earlier run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Self, assert_never

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
    four UTF-8 bytes each. `unnamed` has, by schema `$id`, the line of the configuration that would load an installed rule.
    """

    def __init__(self, rules: Mapping[str, Rule], unnamed: Mapping[str, str] = MappingProxyType({})) -> None:
        self._rules = dict(rules)
        self._unnamed = unnamed

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
            line = self._unnamed.get(name)
            add = f"; to load the installed rule, add {line} of the configuration" if line else ""
            message = f"no rule for schema {name!r}; known are {known}{add}"
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


class RecordedKey(NamedTuple):
    """The key of a recorded attempt: everything that its call was counted by, and the number of the attempt (from 1)."""

    tenant: str
    agent: str
    step: str
    request_hash: str
    occurrence: int
    attempt: int

    @classmethod
    def of(cls, envelope: LLMEnvelope, attempt: int) -> Self:
        """Return the key of an attempt at `envelope`."""
        return cls(
            envelope.tenant_id,
            envelope.agent_id,
            envelope.step,
            envelope.request_hash,
            envelope.occurrence,
            attempt,
        )

    @override
    def __str__(self) -> str:
        """Return the key as messages show it."""
        return (
            f"{self.request_hash} (tenant {self.tenant!r}, agent {self.agent!r}, step {self.step!r}, "
            f"occurrence {self.occurrence}, attempt {self.attempt})"
        )


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded attempt: the id of its envelope, and its result as written in the log."""

    envelope_id: str
    result: bytes


_MISSES_KEPT = 10_000  # where every call may be a new one, every call is a miss
_PLACES_NAMED = 5


class RecordedAnswers:
    """Serve recorded attempts by their `RecordedKey`; use it as a provider, or call `find`.

    An answer is returned as it was written and is read again. A failure (time-out, refusal, budget, …) is the same
    failure. A call whose key is not recorded is a miss, even if another agent, step or tenant asked the same request.
    If a key was recorded more than once, the attempt at the same envelope is served, otherwise the first one. Only the
    bytes of each result are kept, because requests are ten times as large.
    """

    def __init__(self, interactions: Iterable[LLMInteraction] = ()) -> None:
        self._known: dict[str, dict[RecordedKey, list[_Recorded]]] = {}  # by request hash
        self._served: set[RecordedKey] = set()
        self._missed: set[RecordedKey] = set()
        for interaction in interactions:
            self.add(interaction)

    def add(self, interaction: LLMInteraction) -> None:
        """Add an attempt to those that are served."""
        envelope, result = interaction.envelope, interaction.result
        key = RecordedKey.of(envelope, result.attempt_number)
        same_request = self._known.setdefault(key.request_hash, {})
        same_request.setdefault(key, []).append(_Recorded(envelope.envelope_id, result.wire))

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return the recorded result of this attempt, or None."""
        key = RecordedKey.of(envelope, attempt)
        found = self._known.get(key.request_hash, {}).get(key)
        if found is None:
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
        known = {key for same_request in self._known.values() for key in same_request}
        return sorted(known - self._served)

    def _miss(self, key: RecordedKey) -> str:
        """Return the message of a miss; it names the calls of the tenant that the same request is recorded for."""
        places = {
            f"agent {one.agent!r}, step {one.step!r}, occurrence {one.occurrence}, attempt {one.attempt}"
            for one in self._known.get(key.request_hash, {})
            if one.tenant == key.tenant
        }
        message = f"no recorded answer to {key}"
        if not places:
            return f"{message}; the request is not recorded for this tenant: replay the recorded request, or record this one"
        named = "; ".join(sorted(places)[:_PLACES_NAMED])
        return (
            f"{message}; the same request is recorded for: {named}. Ask as one of them, or record this call"
        )

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded answer, or raise the recorded failure; `replay_miss` if nothing is recorded."""
        envelope = request.envelope
        result = await self.find(envelope, request.attempt)
        if result is None:
            missed = self._miss(RecordedKey.of(envelope, request.attempt))
            raise ProviderError(FailureKind.REPLAY_MISS, missed, sent=False)
        if _was_answered(result):
            return ModelResponse(
                text=result.raw_output,
                stop_reason=result.stop_reason,
                usage=result.usage,
                model=result.model,
                provider_request_id=result.provider_request_id,
                provider_response_id=result.provider_response_id,
                tool_called=result.tool_called,
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
