"""Take one answer from its text to a checked object: refusal, cut, decode, schema, meaning, in this order."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, Never

from agentic_trading.canonical import CanonicalError, exact_bytes
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.provider import ModelResponse, Transport
from agentic_trading.llm.result import AttemptTrace, Fix, Stage, Violation
from agentic_trading.structured import extract
from agentic_trading.structured.candidate_selection import AnswerRequirements, select_candidate
from agentic_trading.structured.decode import MAX_BYTES, MAX_DEPTH, check_closed, decode, truncation_sign
from agentic_trading.structured.extract import JsonCandidate
from agentic_trading.structured.json_repair import RepairedJson, repair_json
from agentic_trading.structured.outcome import Accepted, ParserException, UnreadableError
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.structured.schema import check_sentinel_is_free
from agentic_trading.structured.tokens import SHOWN_CHARS
from agentic_trading.structured.validation import CompiledSchema, compile_schema, schema_bytes

MAX_CHARS = 65_536  # json-repair takes seconds for longer ones
_BREAKDOWNS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_WORD = re.compile(r"[\w.+\-%$€£/]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")


def salvage_json(text: str, why: UnreadableError) -> JsonCandidate:
    """Return what json-repair makes of `text`; raises `why`, or an `UnreadableError` that says what is missing.

    It invents keys, values and ends. What is held on to here: each number stands as it is in the text.
    """
    if (
        len(text) > MAX_CHARS or "\0" in text
    ):  # so a log keeps what it cannot spell: a replay must end like the call
        raise why
    try:
        import json_repair  # noqa: PLC0415 - an extra, and only for texts that nothing else can read
    except ImportError as e:
        hint = 'guessing needs json-repair: pip install "agentic-trading[salvage]"'
        raise UnreadableError(why.stage, [*why.violations, _violation("salvage", hint)]) from e
    try:
        guess = json_repair.loads(text, skip_json_loads=True)
    except _BREAKDOWNS as e:  # it makes no promise for texts from outside
        raise why from e
    try:
        value = _salvage_exact(guess, _numbers_in(text))
        spelled = exact_bytes(value).decode()
    except KeyError as e:
        reason = f"a guess holds the number {e.args[0]}, which does not stand in the text"
        raise UnreadableError(Stage.JSON_PARSE, [*why.violations, _violation("guess", reason)]) from e
    except (RecursionError, ValueError, ArithmeticError) as e:
        raise why from e
    fix = Fix(kind="guess", where="0", before=text[:SHOWN_CHARS], after=spelled[:SHOWN_CHARS])
    return JsonCandidate(value, spelled, (fix,), 0, len(text), is_whole=False, is_repaired=True)


def _violation(keyword: str, message: str) -> Violation:
    return Violation(path="$", keyword=keyword, message=message)


def _numbers_in(text: str) -> dict[Decimal, Decimal]:
    """Return the numbers that stand in `text` as words of their own, digit for digit, by their values."""
    words = (word for word in _WORD.findall(text) if _NUMBER.fullmatch(word))
    return {number: number for number in map(Decimal, words)}


def _salvage_exact(value: Any, numbers: dict[Decimal, Decimal]) -> Any:
    """Return `value` with its numbers as they stand in the text; raises `KeyError` for one that does not."""
    match value:
        case bool():
            return value
        case int() | float():
            exact = numbers[Decimal(repr(value))]
            return int(exact) if isinstance(value, int) else exact
        case dict():
            return {str(key): _salvage_exact(child, numbers) for key, child in value.items()}
        case list():
            return [_salvage_exact(child, numbers) for child in value]
        case _:
            return value


_MARK_BYTES: Final = 16
_TRIES: Final = 200
_SLOPPY_CHARS: Final = 16_384  # of an object with slips: to look at more from each bracket takes too long
_BEGINNING = re.compile(r"\{")
_DECODER = json.JSONDecoder(parse_float=Decimal)


@lru_cache(maxsize=2)
def object_digests(text: str) -> frozenset[bytes] | None:
    """Return a mark of every JSON object in `text`, those within others and within their strings too.

    Objects with slips count as well. None where the text holds more that may be one than can be looked into: any
    object may then have been shown.
    """
    found: set[bytes] = set()
    left = [text]
    tries = 0
    try:
        while left:
            for document in _documents(left.pop()):
                tries += document is None
                if tries > _TRIES:
                    return None
                _mark(document, found, left, 0)
    except _TooLongError:
        return None
    return frozenset(found)


class _TooLongError(Exception):
    """What may be an object with slips goes on for longer than is looked at."""


def value_digest(value: Any) -> bytes:
    """Return what equal JSON values have in common, whatever the order of their members and the form of their numbers."""
    return _mark(value, set(), [], 0)


def _mark(value: Any, found: set[bytes], texts: list[str], depth: int) -> bytes:
    """Return the mark of `value`; add those of its objects to `found`, and texts that may hold more to `texts`."""
    if depth > MAX_DEPTH:  # no answer is as deep
        return b""
    match value:
        case dict():
            members = sorted(
                key.encode("utf-8", "replace") + _mark(child, found, texts, depth + 1)
                for key, child in value.items()
            )
            mark = _digest(b"{", *members)
            found.add(mark)
        case list():
            mark = _digest(b"[", *(_mark(child, found, texts, depth + 1) for child in value))
        case str():
            if "{" in value:
                texts.append(value)
            mark = _digest(b'"', value.encode("utf-8", "replace"))
        case bool() | None:
            mark = _digest(str(value).encode())
        case _:
            mark = _digest(b"0", str(Decimal(value).normalize()).encode())
    return mark


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=_MARK_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _documents(words: str) -> Iterator[Any]:
    """Yield each object that stands in `words`, and None for each bracket that begins none."""
    position = 0
    while beginning := _BEGINNING.search(words, position):
        start = beginning.start()
        try:
            document, position = _object_at(words, start)
        except (ValueError, ArithmeticError, RecursionError):
            document, position = None, start + 1
        yield document


def _object_at(words: str, start: int) -> tuple[Any, int]:
    """Return the object at `start`, read strictly or else with its slips mended, and where it ends."""
    try:
        document, end = _DECODER.raw_decode(words, start)
    except (ValueError, ArithmeticError):
        repaired = _mended_at(words, start)
        document, end = decode(repaired.text).value, start + repaired.end
    return document, end


def _mended_at(words: str, start: int) -> RepairedJson:
    end = start + _SLOPPY_CHARS
    try:
        return repair_json(words[start:end], 0)
    except UnreadableError as e:
        if e.stage is Stage.TRUNCATED and end < len(words):
            raise _TooLongError from e
        raise


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
        raise ParserException(answer.parser, answer.model, e.stage, raw_output_of(answer.response), e) from e


def usable_schema(
    schema: Mapping[str, Any], schema_json: bytes | None, policy: OutputPolicy
) -> CompiledSchema:
    """Return the validator of a schema that an answer under `policy` can fit.

    Raises `UnreadableError` with stage `schema_invalid`.
    """
    usable = compile_schema(schema_bytes(schema) if schema_json is None else schema_json)
    if policy.require_sentinel:
        check_sentinel_is_free(usable.schema)
    return usable


def raw_output_of(response: ModelResponse) -> str:
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
        return Accepted({}, text, text, answer.trace(Stage.DONE))
    schema = usable_schema(answer.schema, answer.schema_json, answer.policy)
    level, candidates = read_candidates(text, answer.policy)
    wanted = AnswerRequirements(schema, answer.policy, answer.check)
    try:
        found = select_candidate(candidates, wanted, text=text, is_copy=answer.was_shown)
    except UnreadableError as e:
        e.level = level
        raise
    if level == "strict" and not (found.fixes or found.coercions or found.patches):
        return Accepted(found.value, found.text, text, answer.clean_trace())
    trace = answer.trace(
        Stage.DONE,
        decode=level,
        fixes=found.fixes,
        coercions=found.coercions,
        patches=found.patches,
        semantic_check=answer.check_name,
    )
    return Accepted(found.value, found.text, text, trace)


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
