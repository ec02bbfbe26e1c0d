"""Take one answer from its text to a checked object: refusal, cut, decode, schema, meaning, in this order."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Never

from agentic_trading.canonical import CanonicalError, exact_bytes
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.provider import ModelResponse, Transport
from agentic_trading.llm.attempt_trace import AttemptTrace, Stage, Violation
from agentic_trading.structured import extract
from agentic_trading.structured.validation import CompiledSchema, compiled, spelled
from agentic_trading.structured.truncation import check_closed, truncation_sign
from agentic_trading.structured.errors import ParserException, UnreadableError
from agentic_trading.structured.extract import JsonCandidate
from agentic_trading.structured.candidate_selection import AnswerRequirements, select_candidate
from agentic_trading.structured.salvage import salvage_json
from agentic_trading.structured.outcome import Accepted
from agentic_trading.structured.prompt_echo import value_digest, object_digests
from agentic_trading.structured.strict_json import MAX_BYTES, MAX_DEPTH, decode
from agentic_trading.structured.semantic import SemanticCheck
from agentic_trading.structured.sentinel import check_sentinel_is_free

DecodeLevel = Literal["strict", "lossless", "guess"]

_UNSPEAKABLE = "\0 an object that JSON cannot spell"  # nothing reads a text with this character in it
_BEGINNINGS = (
    "{",
    "[",
    '"',
)  # of a text that is an object, or holds one in a string; any other is no strict JSON
_REFUSED = frozenset({"refusal", "content_filter"})


class RawAnswer(NamedTuple):
    """One answer, and all that decides how it is read. `schema_json` is `schema` in canonical JSON, if that is known."""

    response: ModelResponse
    schema: Mapping[str, Any]
    schema_json: bytes | None
    policy: OutputPolicy
    check: SemanticCheck | None
    max_tokens: int | None
    parser: str
    model: str
    transport: Transport
    shown: str = ""

    @property
    def check_name(self) -> str:
        """What the record calls the check: the schema's `$id`; nothing if there is none to run."""
        return str(self.schema.get("$id", "unnamed")) if self.check is not None else ""

    def was_shown(self, value: Any) -> bool:
        """Whether the request held `value`, in its data or in the answer that it asks to correct."""
        shown = object_digests(self.shown)
        return shown is None or (bool(shown) and value_digest(value) in shown)

    def trace(self, verdict: Stage, **found: Any) -> AttemptTrace:
        """Return how this answer was read, up to `verdict`."""
        logprobs = self.response.logprobs
        if logprobs:
            found |= {"logprob_mean": sum(logprobs) / len(logprobs), "logprob_min": min(logprobs)}
        return AttemptTrace(parser=self.parser, transport=self.transport, verdict=verdict, **found)

    def clean_trace(self) -> AttemptTrace:
        """Return how an answer was read that was accepted as it stood."""
        if self.response.logprobs:
            return self.trace(Stage.DONE, decode="strict", semantic_check=self.check_name)
        return _clean_trace(self.parser, self.transport, self.check_name)


@lru_cache(maxsize=256)
def _clean_trace(parser: str, transport: Transport, check_name: str) -> AttemptTrace:
    """Make the trace that nearly all answers share once: it is frozen, and making one costs as much as validation."""
    return AttemptTrace(
        parser=parser, transport=transport, verdict=Stage.DONE, decode="strict", semantic_check=check_name
    )


def parse_answer(answer: RawAnswer) -> Accepted:
    """Return the object that `answer` is; raises `ParserException` with the stage at which it fails."""
    try:
        return _parsed(answer)
    except UnreadableError as e:
        raise ParserException(
            answer.parser, answer.model, e.stage, text_that_was_read(answer.response), e
        ) from e


def usable_schema(schema: Mapping[str, Any], schema_json: bytes | None, policy: OutputPolicy) -> CompiledSchema:
    """Return the validator of a schema that an answer under `policy` can fit.

    Raises `UnreadableError` with stage `schema_invalid`.
    """
    usable = compiled(spelled(schema) if schema_json is None else schema_json)
    if policy.require_sentinel:
        check_sentinel_is_free(usable.schema)
    return usable


def text_that_was_read(response: ModelResponse) -> str:
    """Return the text that an answer was read as: reading it again, without `structured`, ends in the same way.

    An object that the provider parsed already goes before what stands beside it; one that JSON cannot spell is said
    to be one, which is no JSON either.
    """
    try:
        return _text(response)
    except UnreadableError:
        return _UNSPEAKABLE


def _parsed(answer: RawAnswer) -> Accepted:
    response = answer.response
    if response.stop_reason in _REFUSED:
        _fail(Stage.REFUSAL, "stop_reason", f"the model refused (stop reason {response.stop_reason})")
    if sign := truncation_sign(response, answer.max_tokens):
        _fail(Stage.TRUNCATED, "stop_reason", f"the answer was cut: {sign}")
    text = _text(response)
    if not text.strip():
        _fail(Stage.RESPONSE_EMPTY, "json", "the answer is empty")
    if answer.transport == "text":
        return Accepted({}, text, answer.trace(Stage.DONE))
    schema = usable_schema(answer.schema, answer.schema_json, answer.policy)
    level, candidates = read_candidates(text, answer.policy)
    wanted = AnswerRequirements(schema, answer.policy, answer.check)
    try:
        found = select_candidate(candidates, wanted, text=text, is_copy=answer.was_shown)
    except UnreadableError as e:
        e.level = level
        raise
    if level == "strict" and not (found.fixes or found.coercions or found.patches):
        return Accepted(found.value, found.text, answer.clean_trace())
    trace = answer.trace(
        Stage.DONE,
        decode=level,
        fixes=found.fixes,
        coercions=found.coercions,
        patches=found.patches,
        semantic_check=answer.check_name,
    )
    return Accepted(found.value, found.text, trace)


def read_candidates(text: str, policy: OutputPolicy) -> tuple[DecodeLevel, Sequence[JsonCandidate]]:
    """Return what in `text` may be the answer, and how strictly it had to be read; raises `UnreadableError`."""
    is_bare = policy.decode == "strict" and policy.candidates == "whole"
    if not is_bare and not text.lstrip().startswith(_BEGINNINGS):
        return _read_loosely(text, policy)
    try:
        decoded = decode(text)
    except UnreadableError as e:
        if e.stage is not Stage.JSON_PARSE or len(text) > MAX_BYTES:
            raise
        if is_bare:
            check_closed(text)
            raise
        return _read_loosely(text, policy)
    return "strict", (extract.strict_candidate(text, decoded, 0, len(text), is_whole=True),)


def _read_loosely(text: str, policy: OutputPolicy) -> tuple[DecodeLevel, Sequence[JsonCandidate]]:
    if policy.decode == "strict":
        return "strict", extract.json_candidates(text, lossless=False)
    try:
        return "lossless", extract.json_candidates(text, lossless=True)
    except UnreadableError as e:
        if policy.decode == "lossless" or e.stage is not Stage.JSON_PARSE:
            raise
        return "guess", (salvage_json(text, e),)


def _fail(stage: Stage, keyword: str, message: str, **facts: Any) -> Never:
    raise UnreadableError(stage, [Violation(path="$", keyword=keyword, message=message, **facts)])


def _text(response: ModelResponse) -> str:
    return response.text if response.structured is None else _spelled(response.structured)


def _spelled(structured: Mapping[str, Any]) -> str:
    try:
        return exact_bytes(_exact(structured, 0)).decode()
    except CanonicalError as e:
        violation = Violation(path=e.path, keyword="json", message=e.reason)
        raise UnreadableError(Stage.JSON_PARSE, [violation]) from e


def _exact(value: Any, depth: int) -> Any:
    """Give a float the Decimal that its shortest spelling says: NaN and Infinity are then seen, not nulled."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: _exact(child, depth + 1) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(child, depth + 1) for child in value]
    return value
