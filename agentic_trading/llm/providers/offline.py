"""Providers without a network: rules, scripts, and recorded answers."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self, assert_never

from typing_extensions import override

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, ProviderError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import SENTINEL_NAME, SENTINEL_VALUE
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import LLMResult, Usage
from agentic_trading.llm.verbatim import APIS, Api

BYTES_PER_TOKEN = 4


def stand_in_tokens(*texts: str) -> int:
    """Return the UTF-8 bytes of `texts` divided by four, rounded up.

    It replaces a tokenizer, and does not equal the count of any.
    """
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return -(-size // BYTES_PER_TOKEN)


def stand_in_usage(request: ModelRequest, text: str) -> Usage:
    """Return the usage of a request answered with `text`, by `stand_in_tokens`."""
    return Usage(
        input_tokens=stand_in_tokens(request.system, request.user), output_tokens=stand_in_tokens(text)
    )


def cut_to(text: str, tokens: int) -> str:
    """Return the start of `text` that has at most `tokens`, in whole characters."""
    return text.encode("utf-8", "surrogatepass")[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore")


MODEL = "rules-1"

Rule = Callable[[LLMEnvelope], str]
"""A function that returns the answer text for an envelope.

It must return equal texts for equal envelopes.
"""


class RulesProvider:
    """Answer with a rule: the `$id` of the envelope's schema selects it.

    The text is handled like a model's answer: it is cut at the request's cap. If the policy requires a
    sentinel, it is added. Tokens are counted by `stand_in_tokens`.

    Args:
        rules: The rules, by schema `$id`.
        unnamed: The configuration line that loads an installed rule, by schema `$id`. It is used in an error
            message.
        otherwise: The rule of all other schemas, or None to refuse them.

    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        unnamed: Mapping[str, str] = MappingProxyType({}),
        *,
        otherwise: Rule | None = None,
    ) -> None:
        self._rules = dict(rules)
        self._otherwise = otherwise
        self._unnamed = unnamed

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the text of the rule.

        Raises:
            ProviderError: Of kind `invalid_request`, not sent, if no rule has the schema's `$id`.

        """
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
        """Return `stand_in_tokens` of the request."""
        return stand_in_tokens(request.system, request.user)

    async def aclose(self) -> None:
        """Do nothing."""

    def _rule(self, envelope: LLMEnvelope) -> Rule:
        name = str(envelope.expected_output_schema.get("$id", ""))
        try:
            return self._rules[name]
        except KeyError:
            if self._otherwise is not None:
                return self._otherwise
            known = ", ".join(sorted(self._rules)) or "none"
            line = self._unnamed.get(name)
            add = f"; to load the installed rule, add {line} of the configuration" if line else ""
            message = f"no rule for schema {name!r}; known are {known}{add}"
            raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from None


def append_sentinel(text: str) -> str:
    """Return an object's text with the sentinel as last member.

    Other texts are unchanged.
    """
    body, brace, after = text.rpartition("}")
    if not brace or after.strip():
        return text
    comma = "" if body.rstrip().endswith("{") else ","
    return f'{body.rstrip()}{comma}"{SENTINEL_NAME}":"{SENTINEL_VALUE}"}}{after}'


SCRIPTED_MODEL = "scripted-1"

ScriptedReply = str | ModelResponse | ProviderError
"""The text of an answer, a whole response, or an error to raise."""


class ScriptedProvider:
    """Answer from a script: a list in call order, or a function of the request.

    A text becomes a complete answer of the requested model. Its tokens are counted by `stand_in_tokens`.

    Example:
        model = ScriptedProvider(['{"direction": "up"}', ProviderError(FailureKind.TIMEOUT, "late",
        sent=True)])

    Args:
        script: The replies, or a function that returns one.

    Attributes:
        requests: All requests so far, in order.

    """

    speaks: frozenset[Api] = frozenset(APIS)

    def __init__(self, script: Iterable[ScriptedReply] | Callable[[ModelRequest], ScriptedReply]) -> None:
        self.requests: list[ModelRequest] = []
        self._next: Callable[[ModelRequest], ScriptedReply] = script if callable(script) else self._in_order
        self._lines: list[ScriptedReply] = [] if callable(script) else list(script)
        self._given = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next answer, or raise the next error.

        Raises:
            ProviderError: Of the script, or of kind `invalid_request` after the end of the script.

        """
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
        """Return `stand_in_tokens` of the request."""
        return stand_in_tokens(request.system, request.user)

    async def aclose(self) -> None:
        """Do nothing."""

    def _in_order(self, _request: ModelRequest) -> ScriptedReply:
        if self._given == len(self._lines):
            message = f"the script has {self._given} lines, and all are used; add one for this request"
            raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False)
        self._given += 1
        return self._lines[self._given - 1]


Place = tuple[str, str, str]
"""Tenant, agent and step of a call."""


class RecordedKey(NamedTuple):
    """The key of a recorded attempt: all that its call was counted by.

    `attempt` counts from 1.
    """

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
        """Return the key as text, for messages."""
        return (
            f"{self.request_hash} (tenant {self.tenant!r}, agent {self.agent!r}, step {self.step!r}, "
            f"occurrence {self.occurrence}, attempt {self.attempt})"
        )


_MISSES_KEPT = 10_000  # a limit, because every call of a changed program may be a miss
_PLACES_NAMED = 5


class _SameRequests:
    """The recorded calls of an agent's step with one request, numbered in the order of the log."""

    def __init__(self, *, may_skip: bool = False) -> None:
        self._may_skip = may_skip
        # By recorded envelope: its stored occurrence. By envelope and attempt: the result.
        self.occurrences: dict[str, int] = {}
        self.results: dict[tuple[str, int], bytes] = {}
        self.used: set[tuple[str, int]] = set()
        self._by_number: dict[int, str] = {}
        self._first_number = 0
        # The recorded envelope by the asking one, which gets its results.
        self._served: dict[str, str] = {}
        self._taken: set[str] = set()

    def add(self, envelope: LLMEnvelope, result: LLMResult) -> None:
        """Add an attempt."""
        recorded = envelope.envelope_id
        if recorded not in self.occurrences:
            # A client counts from 0 again after a restart, so that a number given twice begins another run.
            if self._first_number + envelope.occurrence in self._by_number:
                self._first_number = max(self._by_number) + 1
            self._by_number[self._first_number + envelope.occurrence] = recorded
            self.occurrences[recorded] = envelope.occurrence
        self.results.setdefault((recorded, result.attempt_number), result.wire)

    def source(self, asking: str, occurrence: int, attempt: int) -> str | None:
        """Return the recorded envelope with the result for an attempt, or None."""
        # The same envelope first, because clients that count apart may have recorded one key twice (decision 53).
        if (asking, attempt) in self.results:
            return asking
        # An envelope may be delivered again, or tried again, and then gets the answers of the same record.
        if asking in self._served:
            return self._served[asking] if (self._served[asking], attempt) in self.results else None
        numbered = self._by_number.get(occurrence)
        if numbered is not None and self.is_free(numbered, attempt):
            return numbered
        same = (one for one, number in self.occurrences.items() if self._may_skip or number == occurrence)
        return next((one for one in same if self.is_free(one, attempt)), None)

    def is_free(self, recorded: str, attempt: int) -> bool:
        """Return whether an attempt is on record, and no other envelope gets the results of its call."""
        return (recorded, attempt) in self.results and recorded not in self._taken

    def take(self, recorded: str, asking: str, attempt: int) -> LLMResult:
        """Return the recorded result of an attempt. No other envelope gets it from now on."""
        self._served[asking] = recorded
        self._taken.add(recorded)
        self.used.add((recorded, attempt))
        return LLMResult.from_wire(self.results[recorded, attempt])

    def recorded_for(self, asking: str) -> str:
        """Return the recorded envelope whose results `asking` has got."""
        return self._served[asking]

    def pass_over(self, asking: str, attempt: int) -> None:
        """Take a record from its envelope. It stays taken."""
        self.used.discard((self._served.pop(asking), attempt))


class RecordedAnswers:
    """Serve recorded attempts by their `RecordedKey`.

    Use it as a provider, or call `find`.

    A recorded answer is returned unchanged and is read again. A recorded failure (timeout, refusal, budget,
    …) is raised again. A call without a record is a miss, even if another agent, step or tenant made the same
    request. The attempt at the same envelope is served, if it is on record. Otherwise each record is served to
    one envelope, and the next envelope is a miss.

    A client counts occurrences from 0 again after a restart. The log is therefore numbered across restarts: if
    two runs made a request twice each, a replay that makes it four times gets all four answers in order.

    Only the bytes of the results are kept in memory, because requests are ten times as large.
    """

    speaks: frozenset[Api] = frozenset(APIS)
    may_skip = False
    """Whether a record is served if its occurrence is another one. The records of a place may then have gaps."""

    def __init__(self, interactions: Iterable[LLMInteraction] = ()) -> None:
        # By request hash, then by tenant, agent and step.
        self._known: dict[str, dict[Place, _SameRequests]] = {}
        self._missed: set[RecordedKey] = set()
        for interaction in interactions:
            self.add(interaction)

    def add(self, interaction: LLMInteraction) -> None:
        """Add an attempt to those that are served, in the order of the log."""
        envelope = interaction.envelope
        places = self._known.setdefault(envelope.request_hash, {})
        same = places.setdefault(self._recorded_place(envelope), _SameRequests(may_skip=self.may_skip))
        same.add(envelope, interaction.result)

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return the recorded result of an attempt, or None."""
        found = self._found(envelope, attempt)
        if found is None and len(self._missed) < _MISSES_KEPT:
            self._missed.add(self._key(envelope, attempt))
        return found

    def _found(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        same = self._known.get(envelope.request_hash, {}).get(self._asked_place(envelope))
        source = None if same is None else same.source(envelope.envelope_id, envelope.occurrence, attempt)
        if same is None or source is None:
            return None
        return same.take(source, envelope.envelope_id, attempt)

    def recorded_for(self, envelope: LLMEnvelope) -> str:
        """Return the recorded envelope whose results an envelope has got."""
        return self._known[envelope.request_hash][self._asked_place(envelope)].recorded_for(
            envelope.envelope_id
        )

    def pass_over(self, envelope: LLMEnvelope, attempt: int) -> None:
        """Take a record from its envelope, so that `find` serves the next one. No other envelope gets it."""
        same = self._known[envelope.request_hash][self._asked_place(envelope)]
        same.pass_over(envelope.envelope_id, attempt)

    def _recorded_place(self, envelope: LLMEnvelope) -> Place:
        """Return the place of a record: its tenant, agent and step."""
        return envelope.tenant_id, envelope.agent_id, envelope.step

    def _asked_place(self, envelope: LLMEnvelope) -> Place:
        """Return the place whose records answer an envelope."""
        return self._recorded_place(envelope)

    def _key(self, envelope: LLMEnvelope, attempt: int) -> RecordedKey:
        place = self._asked_place(envelope)
        return RecordedKey(*place, envelope.request_hash, envelope.occurrence, attempt)

    @property
    def misses(self) -> list[RecordedKey]:
        """The keys that were requested but not recorded, sorted, at most 10,000."""
        return sorted(self._missed)

    @property
    def unused(self) -> list[RecordedKey]:
        """The keys that were recorded but not requested, sorted. A key is repeated for each unused record."""
        return sorted(
            RecordedKey(*place, request_hash, same.occurrences[recorded], attempt)
            for request_hash, places in self._known.items()
            for place, same in places.items()
            for recorded, attempt in same.results.keys() - same.used
        )

    async def explain_miss(self, envelope: LLMEnvelope, attempt: int) -> str:
        """Return the message of a miss, with the tenant's calls for which the request is recorded."""
        key = self._key(envelope, attempt)
        places = {
            (agent, step, occurrence, tried)
            for (tenant, agent, step), same in self._known.get(key.request_hash, {}).items()
            if tenant == key.tenant
            for recorded, tried in same.results
            for occurrence in (same.occurrences[recorded],)
        }
        message = f"no recorded answer to {key}"
        if (key.agent, key.step, key.occurrence, attempt) in places:
            return f"{message}; its records are all served to other calls: ask once for each record, or record this call"
        if not places:
            return f"{message}; the request is not recorded for this tenant: replay the recorded request, or record this one"
        named = "; ".join(
            f"agent {agent!r}, step {step!r}, occurrence {occurrence}, attempt {tried}"
            for agent, step, occurrence, tried in sorted(places)[:_PLACES_NAMED]
        )
        return (
            f"{message}; the same request is recorded for: {named}. Ask as one of them, or record this call"
        )

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded answer.

        Raises:
            ProviderError: The recorded failure, or of kind `replay_miss` if the attempt is not recorded.

        """
        envelope = request.envelope
        result = await self.find(envelope, request.attempt)
        if result is None:
            missed = await self.explain_miss(envelope, request.attempt)
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
        """Return None: a recording has no counts of new requests."""
        return None

    async def aclose(self) -> None:
        """Do nothing."""


def _was_answered(result: LLMResult) -> bool:
    """Return whether an attempt got an answer, even an unusable one."""
    return result.reading is not None or bool(result.stop_reason) or bool(result.raw_output)
