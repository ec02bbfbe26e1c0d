"""Read one answer, from its text to a checked object.

The order is refusal, truncation, decoding, candidates, schema, check.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, Never

from agentic_trading.canonical import CanonicalError, exact_bytes
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.provider import ModelResponse, Transport
from agentic_trading.llm.result import AttemptTrace, Fix, Stage, Violation
from agentic_trading.structured import decode as decoding
from agentic_trading.structured import extract
from agentic_trading.structured.extract import strip_thinking
from agentic_trading.structured.json_repair import RepairedJson, repair_json
from agentic_trading.structured.outcome import Accepted, ParserException, UnreadableError
from agentic_trading.structured.patch import declared_names, is_protected, patch_value, protected_name
from agentic_trading.structured.pydantic_schema import SemanticCheck, violations_of
from agentic_trading.structured.schema import check_sentinel_is_free, without_sentinel
from agentic_trading.structured.tokens import COMMENT_CHARS, SHOWN_CHARS
from agentic_trading.structured.validation import (
    CompiledSchema,
    compile_schema,
    find_violations,
    schema_bytes,
)

_SETS = re.compile(r"[:=]")
# A line, or what stands behind a semicolon, that gives a property a value: `veto: true`, `- "Stop loss" = 41000`.
_MEMBER = re.compile(
    r"""(?:^|[;,}\]])[ \t>*+"'“‘`-]*([^\W\d_][\w \t-]{0,40}?)["'”’`*]*[ \t]*[:=]""", re.MULTILINE
)
_QUOTED_MEMBER = re.compile(r"""["'“‘`]([\w -]{1,40})["'”’`]\s*[:=]""")


class AnswerRequirements(NamedTuple):
    """The schema, policy and check that an answer must satisfy."""

    schema: CompiledSchema
    policy: OutputPolicy
    check: SemanticCheck | None


class ValidCandidate(NamedTuple):
    """A candidate that passes all rules, and the changes made to it."""

    value: dict[str, Any]
    text: str
    fixes: tuple[Fix, ...] = ()
    coercions: tuple[Fix, ...] = ()
    patches: tuple[Fix, ...] = ()


def select_candidate(
    candidates: Sequence[decoding.JsonCandidate],
    wanted: AnswerRequirements,
    *,
    text: str,
    is_copy: Callable[[Any], bool],
) -> ValidCandidate:
    """Return the candidate that is the answer, by the policy's `candidates`.

    A candidate that is not the whole text, and for which `is_copy` is true, was shown to the model and is
    skipped.

    Raises:
        UnreadableError: `ambiguous` if the policy leaves a choice, or if a protected property is outside of
            the object. Otherwise the reason why the candidates do not fit.

    """
    if len(candidates) == 1 and candidates[0].is_whole:
        return validate_candidate(candidates[0], wanted)
    if wanted.policy.candidates == "whole":
        raise _ambiguous("whole", "something stands beside the object; allowed is the object alone")
    own = [candidate for candidate in candidates if not is_copy(candidate.value)]
    if not own:
        raise _copied()
    if len(own) > 1 and wanted.policy.candidates == "exactly_one":
        raise _several(own)
    candidate, found = _select_valid(own, wanted)
    if (found.coercions or found.patches or found.fixes) and is_copy(found.value):
        raise _copied()
    _check_prose(text, candidates, found.value, wanted.policy)
    if len(candidates) == 1:
        return found
    note = Fix(kind="chosen", where=str(candidate.start), before=f"one of {len(candidates)} in the text")
    return found._replace(fixes=(*found.fixes, note))


def validate_candidate(candidate: decoding.JsonCandidate, wanted: AnswerRequirements) -> ValidCandidate:
    """Return `candidate` with the changes that make it fit.

    Raises:
        UnreadableError: If it breaks rules.

    """
    value, text, fixes = candidate.value, candidate.text, candidate.fixes
    if fixes:
        _check_comments(fixes, wanted.policy)
    if isinstance(value, str) and wanted.policy.decode != "strict":
        value, text, fixes = _unwrap(value, text, fixes)
    if not isinstance(value, dict):
        wrong = Violation(path="$", keyword="type", message="is not an object", expected="object")
        raise UnreadableError(Stage.SCHEMA_VALIDATION, [wrong], fixes=fixes)
    _check_echo(value, wanted.schema)
    is_as_read = value is candidate.value
    rounded = candidate.rounded if is_as_read else None
    if wanted.policy.require_sentinel:
        value, text = without_sentinel(value), ""
        rounded = None if rounded is None else without_sentinel(rounded)
    if broken := find_violations(value, wanted.schema, rounded):
        may_drop = is_as_read and not candidate.is_repaired
        return _patch(value, broken, fixes, wanted, may_drop=may_drop)
    text = text or exact_bytes(value).decode()
    _check_meaning(text, wanted, fixes)
    return ValidCandidate(value, text, fixes)


def _patch(
    value: dict[str, Any],
    broken: Sequence[Violation],
    fixes: tuple[Fix, ...],
    wanted: AnswerRequirements,
    *,
    may_drop: bool,
) -> ValidCandidate:
    """Return `value` with the changes that the policy allows."""
    coercions: tuple[Fix, ...] = ()
    patches: tuple[Fix, ...] = ()
    if wanted.policy.coerce or wanted.policy.drop_extra:
        change = patch_value(value, wanted.schema, wanted.policy, may_drop=may_drop)
        value, broken, coercions, patches = change.value, change.violations, change.coercions, change.patches
    changes = {"fixes": fixes, "coercions": coercions, "patches": patches}
    if broken:
        raise UnreadableError(Stage.SCHEMA_VALIDATION, broken, **changes)
    text = exact_bytes(value).decode()
    _check_meaning(text, wanted, **changes)
    return ValidCandidate(value, text, **changes)


def _check_meaning(
    text: str,
    wanted: AnswerRequirements,
    fixes: tuple[Fix, ...],
    coercions: tuple[Fix, ...] = (),
    patches: tuple[Fix, ...] = (),
) -> None:
    if wanted.check is not None and (wrong := violations_of(wanted.check, text)):
        raise UnreadableError(Stage.SEMANTIC, wrong, fixes=fixes, coercions=coercions, patches=patches)


def _select_valid(
    candidates: Sequence[decoding.JsonCandidate], wanted: AnswerRequirements
) -> tuple[decoding.JsonCandidate, ValidCandidate]:
    valid: list[tuple[decoding.JsonCandidate, ValidCandidate]] = []
    errors: list[UnreadableError] = []
    for candidate in candidates:
        try:
            valid.append((candidate, validate_candidate(candidate, wanted)))
        except UnreadableError as e:
            errors.append(e)
    if not valid:
        raise errors[-1]
    if len(valid) > 1 and wanted.policy.candidates != "last_valid":
        raise _several([candidate for candidate, _ in valid])
    return valid[-1]


def _several(candidates: Sequence[decoding.JsonCandidate]) -> UnreadableError:
    shown = [f"at {candidate.start}: {candidate.text[:SHOWN_CHARS]}" for candidate in candidates[:2]]
    message = f"{len(candidates)} objects could be the answer; allowed is one"
    return _ambiguous("candidates", message, actual=shown)


def _ambiguous(keyword: str, message: str, **facts: Any) -> UnreadableError:
    return UnreadableError(Stage.AMBIGUOUS, [Violation(path="$", keyword=keyword, message=message, **facts)])


def _copied() -> UnreadableError:
    return _ambiguous("copied", "the only object in the answer is one that the request held")


def _check_echo(value: dict[str, Any], schema: CompiledSchema) -> None:
    """Refuse the schema itself as an answer."""
    # Refused because the schema might fit after its undeclared properties are dropped.
    if isinstance(value.get("properties"), dict) and "properties" not in schema.schema.get("properties", {}):
        wrong = Violation(path="$", keyword="echo", message="is a schema, not an answer to one")
        raise UnreadableError(Stage.SCHEMA_VALIDATION, [wrong])


def _check_comments(fixes: Sequence[Fix], policy: OutputPolicy) -> None:
    """Refuse a comment that hides a property which must not be dropped."""
    for fix in fixes:
        if fix.kind not in {"comment", "hidden_key"}:
            continue
        is_forbidden = fix.kind == "hidden_key" and not policy.drop_extra
        is_shortened = len(fix.before) >= COMMENT_CHARS  # refused, because the rest may hide a property
        hides_protected = _SETS.search(fix.before) is not None and is_protected(fix.before, policy)
        if is_forbidden or is_shortened or hides_protected:
            shown = fix.before[:SHOWN_CHARS]
            raise _ambiguous("hidden_key", f"a comment at {fix.where} hides a property", actual=shown)


def _check_prose(
    text: str, candidates: Sequence[decoding.JsonCandidate], value: dict[str, Any], policy: OutputPolicy
) -> None:
    """Refuse a line such as `veto: true` outside an object that lacks the property."""
    ends = [0, *(candidate.end for candidate in candidates)]
    starts = [*(candidate.start for candidate in candidates), len(text)]
    for end, start in zip(ends, starts, strict=True):
        for member in (*_MEMBER.finditer(text, end, start), *_QUOTED_MEMBER.finditer(text, end, start)):
            name = protected_name(member[1], policy)
            if name and name not in {protected_name(key, policy) for key in decoding.keys_in(value)}:
                raise _ambiguous(
                    "members", f"{member[1]!r} stands beside the object", actual=member[0].strip()
                )


def _unwrap(inner: str, text: str, fixes: tuple[Fix, ...]) -> tuple[Any, str, tuple[Fix, ...]]:
    """Read a string that is one strict JSON object. Other strings stay unchanged."""
    try:
        decoded = decoding.decode(inner)
    except UnreadableError:
        return inner, text, fixes
    if not isinstance(decoded.value, dict):
        return inner, text, fixes
    unwrapped = inner.strip() if not decoded.fixes else exact_bytes(decoded.value).decode()
    fix = Fix(kind="double_encoded", where="$", before=text[:SHOWN_CHARS], after=unwrapped[:SHOWN_CHARS])
    return decoded.value, unwrapped, (*fixes, *decoded.fixes, fix)


DecodeLevel = Literal["strict", "lossless", "guess"]

_UNSPELLABLE = "\0 an object that JSON cannot spell"  # no mode reads a text with this character in it
# A text with another beginning is not decoded strictly, because it is neither an object nor a string with one.
_STRICT_OPENINGS = ("{", "[", '"')
_REFUSED = frozenset({
    "refusal", "content_filter", "content_filtered", "guardrail_intervened",
    "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety",  # Gemini
})  # fmt: skip
_NO_REASON = "no stop reason, and "


class RawAnswer(NamedTuple):
    """One answer and everything that decides how it is read.

    Attributes:
        schema_json: The schema in canonical JSON, if known.
        needs_stop_reason: Reject an answer without a stop reason, even if its text is complete.
        judged: The part of a passed-on answer that the schema applies to, or None.

    """

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
    tool: str = ""
    needs_stop_reason: bool = False
    judged: str | None = None

    @property
    def raw_output(self) -> str:
        """The text that is read."""
        return text_of(self.response)

    @property
    def check_name(self) -> str:
        """The name of the check on record: the schema's `$id`. Empty without a check."""
        return str(self.schema.get("$id", "unnamed")) if self.check is not None else ""

    def was_shown(self, value: Any) -> bool:
        """Return whether the request contained `value`, in its data or in the last answer."""
        shown = object_digests(self.shown)
        return shown is None or (bool(shown) and value_digest(value) in shown)

    def trace(self, verdict: Stage, **found: Any) -> AttemptTrace:
        """Return the trace of this answer, up to `verdict`."""
        logprobs = self.response.logprobs
        if logprobs:
            found |= {"logprob_mean": sum(logprobs) / len(logprobs), "logprob_min": min(logprobs)}
        return AttemptTrace(parser=self.parser, transport=self.transport, verdict=verdict, **found)

    def clean_trace(self) -> AttemptTrace:
        """Return the trace of an answer that was accepted unchanged."""
        if self.response.logprobs:
            return self.trace(Stage.DONE, decode="strict", semantic_check=self.check_name)
        return _clean_trace(self.parser, self.transport, self.check_name)


# Cached because nearly all answers share it, and building it would take as long as validation.
@lru_cache(maxsize=256)
def _clean_trace(parser: str, transport: Transport, check_name: str) -> AttemptTrace:
    """Return the shared trace of answers that were accepted unchanged."""
    return AttemptTrace(
        parser=parser, transport=transport, verdict=Stage.DONE, decode="strict", semantic_check=check_name
    )


def text_of(response: ModelResponse) -> str:
    """Return the text that is read. Reading it again gives the same outcome.

    An object that the provider has parsed takes precedence over the text of the response.
    """
    try:
        return _text(response)
    except UnreadableError:
        return _UNSPELLABLE  # not JSON either, so that reading it again fails too


def parse_answer(answer: RawAnswer) -> Accepted:
    """Return the object of an answer.

    Raises:
        ParserException: With the stage at which reading failed.

    """
    try:
        return _passed_on(answer) if answer.transport == "verbatim" else _parse(answer)
    except UnreadableError as e:
        raise ParserException(answer.parser, answer.model, e.stage, answer.raw_output, e) from e


def usable_schema(
    schema: Mapping[str, Any], schema_json: bytes | None, policy: OutputPolicy
) -> CompiledSchema:
    """Return the validator of a schema that an answer under `policy` can fit.

    Raises:
        UnreadableError: With stage `schema_invalid`.

    """
    usable = compile_schema(schema_bytes(schema) if schema_json is None else schema_json)
    if policy.require_sentinel:
        check_sentinel_is_free(usable.schema)
    return usable


def read_candidates(
    text: str, policy: OutputPolicy, schema: Mapping[str, Any]
) -> tuple[DecodeLevel, Sequence[decoding.JsonCandidate]]:
    """Return the possible answers in `text`, and how strictly they were read.

    Raises:
        UnreadableError: If there is no candidate.

    """
    is_bare = policy.decode == "strict" and policy.candidates == "whole"
    if not is_bare and not text.lstrip().startswith(_STRICT_OPENINGS):
        return _read_loosely(text, policy, schema)
    try:
        decoded = decoding.decode(text)
    except UnreadableError as e:
        if e.stage is not Stage.JSON_PARSE or len(text) > decoding.MAX_BYTES:
            raise
        if is_bare:
            decoding.check_closed(text)
            raise
        return _read_loosely(text, policy, schema)
    return "strict", (decoded.candidate(text, 0, len(text), is_whole=True),)


def _read_loosely(
    text: str, policy: OutputPolicy, schema: Mapping[str, Any]
) -> tuple[DecodeLevel, Sequence[decoding.JsonCandidate]]:
    if policy.decode == "strict":
        return "strict", extract.json_candidates(text, lossless=False)
    try:
        keys = frozenset(declared_names(schema))
        return "lossless", extract.json_candidates(text, lossless=True, keys=keys)
    except UnreadableError as e:
        if policy.decode == "lossless" or e.stage is not Stage.JSON_PARSE:
            raise
        said, thinking = strip_thinking(text)
        guess = salvage_json(said, e)
        return "guess", (guess._replace(fixes=(*guess.fixes, *thinking)),)


def _parse(answer: RawAnswer) -> Accepted:
    response = answer.response
    has_reason = bool(response.stop_reason.strip())
    _check_stop_reason(answer, has_reason=has_reason)
    if response.tool_called != answer.tool:
        allowed = "allowed is the answer, or one call of a tool that is offered"
        _fail(Stage.SCHEMA_VALIDATION, "tool", f"calls {response.tool_called!r}; {allowed}")
    text = _text(response)
    if not text.strip():
        _fail(Stage.RESPONSE_EMPTY, "json", "the answer is empty")
    if answer.transport == "text":
        if not has_reason:
            _fail_as_cut(f"{_NO_REASON}a text without a schema does not show its end")
        return _plain_text(text, answer)
    schema = usable_schema(answer.schema, answer.schema_json, answer.policy)
    level, candidates = read_candidates(text, answer.policy, schema.schema)
    if not has_reason and (level == "guess" or not decoding.has_ended(text, candidates)):
        _fail_as_cut(f"{_NO_REASON}the text does not end with the object")
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


def _passed_on(answer: RawAnswer) -> Accepted:
    """Return the whole body of an answer. Only the part with a schema is validated."""
    text = answer.response.text
    if answer.judged is None:
        return Accepted({}, text, text, answer.trace(Stage.PASSED_ON))
    schema = usable_schema(answer.schema, answer.schema_json, answer.policy)
    _, candidates = read_candidates(answer.judged, answer.policy, schema.schema)
    wanted = AnswerRequirements(schema, answer.policy, answer.check)
    select_candidate(candidates, wanted, text=answer.judged, is_copy=answer.was_shown)
    return Accepted({}, text, text, answer.clean_trace())


def _plain_text(text: str, answer: RawAnswer) -> Accepted:
    said, thinking = strip_thinking(text)
    if not thinking:
        return Accepted({}, text, text, answer.trace(Stage.DONE))
    if not said.strip():
        _fail(Stage.RESPONSE_EMPTY, "text", "the answer is empty: there is only thinking")
    return Accepted({}, said.strip(), text, answer.trace(Stage.DONE, fixes=thinking))


def _check_stop_reason(answer: RawAnswer, *, has_reason: bool) -> None:
    """Reject a refusal, and an answer that may be incomplete."""
    reason = answer.response.stop_reason
    if reason.strip().lower() in _REFUSED:
        _fail(Stage.REFUSAL, "stop_reason", f"the model refused (stop reason {reason})")
    if sign := decoding.truncation_sign(answer.response, answer.max_tokens):
        _fail_as_cut(sign)
    if answer.needs_stop_reason and not has_reason:
        _fail_as_cut(f"{_NO_REASON}an execution needs one")


def _fail_as_cut(sign: str) -> Never:
    _fail(Stage.TRUNCATED, "stop_reason", f"truncated: {sign}")


def _fail(stage: Stage, keyword: str, message: str) -> Never:
    raise UnreadableError(stage, [_violation(keyword, message)])


def _violation(keyword: str, message: str) -> Violation:
    return Violation(path="$", keyword=keyword, message=message)


def _text(response: ModelResponse) -> str:
    """Return the text of a response, or the JSON of an object parsed by the provider."""
    if response.structured is None:
        return response.text
    try:
        return exact_bytes(_exact(response.structured, 0)).decode()
    except CanonicalError as e:
        violation = Violation(path=e.path, keyword="json", message=e.reason)
        raise UnreadableError(Stage.JSON_PARSE, [violation]) from e


def _exact(value: Any, depth: int) -> Any:
    """Return `value` with Decimals in place of floats."""
    # As Decimals, NaN and Infinity are refused. As floats they would become null.
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    if depth > decoding.MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: _exact(child, depth + 1) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(child, depth + 1) for child in value]
    return value


MAX_SALVAGE_CHARS: Final = 65_536  # json-repair would take seconds for longer texts
_SALVAGE_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_WORD = re.compile(r"[\w.+\-%$€£/]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")


def salvage_json(text: str, why: UnreadableError) -> decoding.JsonCandidate:
    """Return the guess of json-repair for `text`.

    Raises:
        UnreadableError: `why` if there is no guess. Otherwise `why` with the missing package, or the number
            that is not in the text.

    """
    # A log writes a lone surrogate as U+0000. Such a text is refused, so that a replay ends like the call.
    if len(text) > MAX_SALVAGE_CHARS or "\0" in text:
        raise why
    try:
        import json_repair  # noqa: PLC0415 - an extra, and only for texts that nothing else can read
    except ImportError as e:
        hint = 'guessing needs json-repair: pip install "agentic-trading[salvage]"'
        raise UnreadableError(why.stage, [*why.violations, _violation("salvage", hint)]) from e
    try:
        guess = json_repair.loads(text, skip_json_loads=True)
    except _SALVAGE_ERRORS as e:  # json-repair may raise any of them for untrusted texts
        raise why from e
    # json-repair invents keys, values and ends. Its numbers are accepted only if they are in the text.
    try:
        value = _with_exact_numbers(guess, _numbers_in(text))
        value_json = exact_bytes(value).decode()
    except KeyError as e:
        reason = f"a guess holds the number {e.args[0]}, which does not stand in the text"
        raise UnreadableError(Stage.JSON_PARSE, [*why.violations, _violation("guess", reason)]) from e
    except (RecursionError, ValueError, ArithmeticError) as e:
        raise why from e
    fix = Fix(kind="guess", where="0", before=text[:SHOWN_CHARS], after=value_json[:SHOWN_CHARS])
    return decoding.JsonCandidate(value, value_json, (fix,), 0, len(text), is_whole=False, is_repaired=True)


def _numbers_in(text: str) -> dict[Decimal, Decimal]:
    """Return the numbers that are separate words in `text`, exact, by value."""
    words = (word for word in _WORD.findall(text) if _NUMBER.fullmatch(word))
    return {number: number for number in map(Decimal, words)}


def _with_exact_numbers(value: Any, numbers: dict[Decimal, Decimal]) -> Any:
    """Return `value` with its numbers as in the text. Raise `KeyError` for others."""
    match value:
        case bool():
            return value
        case int() | float():
            exact = numbers[Decimal(repr(value))]
            return int(exact) if isinstance(value, int) else exact
        case dict():
            return {str(key): _with_exact_numbers(child, numbers) for key, child in value.items()}
        case list():
            return [_with_exact_numbers(child, numbers) for child in value]
        case _:
            return value


_DIGEST_BYTES: Final = 16
_MOST_FAILURES: Final = 200
# Of an object with syntax errors. A higher limit would take too long, because it applies to each bracket.
_REPAIR_CHARS: Final = 16_384
_DECODER = json.JSONDecoder(parse_float=Decimal)


@lru_cache(maxsize=2)
def object_digests(text: str) -> frozenset[bytes] | None:
    """Return a digest of every JSON object in `text`, including nested ones.

    Objects inside of strings and objects with syntax errors count too. Returns None if there are too many
    possible objects: any object may then have been shown.
    """
    found: set[bytes] = set()
    unread = [text]
    failures = 0
    try:
        while unread:
            for document in _objects_in(unread.pop()):
                failures += document is None
                if failures > _MOST_FAILURES:
                    return None
                _collect(document, found, unread, 0)
    except _TooLongError:
        return None
    return frozenset(found)


class _TooLongError(Exception):
    """A possible object with syntax errors is longer than the limit."""


def value_digest(value: Any) -> bytes:
    """Return a digest that is the same for equal JSON values.

    The order of members and the notation of numbers do not matter.
    """
    return _collect(value, set(), [], 0)


def _collect(value: Any, found: set[bytes], texts: list[str], depth: int) -> bytes:
    """Return the digest of `value`. Collect its objects, and texts with more of them."""
    if depth > decoding.MAX_DEPTH:  # not compared, because a deeper answer would be refused
        return b""
    match value:
        case dict():
            members = sorted(
                key.encode("utf-8", "replace") + _collect(child, found, texts, depth + 1)
                for key, child in value.items()
            )
            digest = _digest(b"{", *members)
            found.add(digest)
        case list():
            digest = _digest(b"[", *(_collect(child, found, texts, depth + 1) for child in value))
        case str():
            if "{" in value:
                texts.append(value)
            digest = _digest(b'"', value.encode("utf-8", "replace"))
        case bool() | None:
            digest = _digest(str(value).encode())
        case _:
            digest = _digest(b"0", str(Decimal(value).normalize()).encode())
    return digest


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _objects_in(text: str) -> Iterator[Any]:
    """Yield each object in `text`, and None for each bracket without one."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = _object_at(text, start)
        except (ValueError, ArithmeticError, RecursionError):
            value, end = None, start + 1
        yield value
        start = text.find("{", end)


def _object_at(text: str, start: int) -> tuple[Any, int]:
    """Return the object at `start`, read strictly or repaired, and its end."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, ArithmeticError):
        repaired = _repair_at(text, start)
        return decoding.decode(repaired.text).value, start + repaired.end


def _repair_at(text: str, start: int) -> RepairedJson:
    end = start + _REPAIR_CHARS
    try:
        return repair_json(text[start:end], 0)
    except UnreadableError as e:
        if e.stage is Stage.TRUNCATED and end < len(text):
            raise _TooLongError from e
        raise
