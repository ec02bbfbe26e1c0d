"""Take one answer from its text to a checked object: refusal, truncation, decode, candidates, schema, meaning, in this order."""

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
    """What an answer must be, and how much of it may be changed to become it."""

    schema: CompiledSchema
    policy: OutputPolicy
    check: SemanticCheck | None


class ValidCandidate(NamedTuple):
    """A candidate that keeps every rule, and what was changed until it did."""

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
    """Return the one candidate in `text` that is the answer, by the policy's `candidates`.

    One that is not the whole text and for which `is_copy` holds is what the model was shown, and is left out.
    Raises `UnreadableError`: `ambiguous` where the policy leaves a choice, or where a protected property stands outside
    the object; else why the candidates do not fit.
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
    """Return `candidate` as it fits; raises `UnreadableError` with the rules that it breaks."""
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
    """Return `value` with the changes that the policy allows, if it fits then."""
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
    """Refuse the schema itself as an answer: with its undeclared properties dropped it might fit."""
    if isinstance(value.get("properties"), dict) and "properties" not in schema.schema.get("properties", {}):
        wrong = Violation(path="$", keyword="echo", message="is a schema, not an answer to one")
        raise UnreadableError(Stage.SCHEMA_VALIDATION, [wrong])


def _check_comments(fixes: Sequence[Fix], policy: OutputPolicy) -> None:
    """Refuse a comment that hides a property where none may be dropped, or a protected one."""
    for fix in fixes:
        if fix.kind not in {"comment", "hidden_key"}:
            continue
        is_forbidden = fix.kind == "hidden_key" and not policy.drop_extra
        is_shortened = len(fix.before) >= COMMENT_CHARS  # what else it hides is not known
        hides_protected = _SETS.search(fix.before) is not None and is_protected(fix.before, policy)
        if is_forbidden or is_shortened or hides_protected:
            shown = fix.before[:SHOWN_CHARS]
            raise _ambiguous("hidden_key", f"a comment at {fix.where} hides a property", actual=shown)


def _check_prose(
    text: str, candidates: Sequence[decoding.JsonCandidate], value: dict[str, Any], policy: OutputPolicy
) -> None:
    """Refuse an answer with a line like `veto: true` outside an object that has no such property."""
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
    """Read a string that is itself one strict JSON object; any other string is left as it is."""
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
# A text that begins otherwise is neither an object nor a string with one in it: it is not worth a strict decoding.
_STRICT_OPENINGS = ("{", "[", '"')
_REFUSED = frozenset({
    "refusal", "content_filter", "content_filtered", "guardrail_intervened",
    "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety",  # Gemini
})  # fmt: skip
_NO_REASON = "no stop reason, and "


class RawAnswer(NamedTuple):
    """One answer, and all that decides how it is read. `schema_json` is `schema` in canonical JSON, if that is known.

    `needs_stop_reason` refuses an answer without one, however complete its text is.
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

    @property
    def raw_output(self) -> str:
        """The text that is read."""
        return text_of(self.response)

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


def text_of(response: ModelResponse) -> str:
    """Return the text that is read: reading it again, without `structured`, ends in the same way.

    An object that the provider parsed already goes before the text of the response; one that JSON cannot spell
    is named as such, which is no JSON either.
    """
    try:
        return _text(response)
    except UnreadableError:
        return _UNSPELLABLE


def parse_answer(answer: RawAnswer) -> Accepted:
    """Return the object that `answer` is; raises `ParserException` with the stage at which it fails."""
    try:
        return _parse(answer)
    except UnreadableError as e:
        raise ParserException(answer.parser, answer.model, e.stage, answer.raw_output, e) from e


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


def read_candidates(
    text: str, policy: OutputPolicy, schema: Mapping[str, Any]
) -> tuple[DecodeLevel, Sequence[decoding.JsonCandidate]]:
    """Return what in `text` may be the answer, and how strictly it had to be read; raises `UnreadableError`."""
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


def _plain_text(text: str, answer: RawAnswer) -> Accepted:
    said, thinking = strip_thinking(text)
    if not thinking:
        return Accepted({}, text, text, answer.trace(Stage.DONE))
    if not said.strip():
        _fail(Stage.RESPONSE_EMPTY, "text", "the answer is empty: there is only thinking")
    return Accepted({}, said.strip(), text, answer.trace(Stage.DONE, fixes=thinking))


def _check_stop_reason(answer: RawAnswer, *, has_reason: bool) -> None:
    """Refuse an answer that refuses, and one that is not known to be complete."""
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
    """Return the text of a response, or the JSON of the object that the provider parsed."""
    if response.structured is None:
        return response.text
    try:
        return exact_bytes(_exact(response.structured, 0)).decode()
    except CanonicalError as e:
        violation = Violation(path=e.path, keyword="json", message=e.reason)
        raise UnreadableError(Stage.JSON_PARSE, [violation]) from e


def _exact(value: Any, depth: int) -> Any:
    """Give a float the Decimal that its shortest spelling says: NaN and Infinity are then seen, not nulled."""
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    if depth > decoding.MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: _exact(child, depth + 1) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(child, depth + 1) for child in value]
    return value


MAX_SALVAGE_CHARS: Final = 65_536  # json-repair takes seconds for longer ones
_SALVAGE_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_WORD = re.compile(r"[\w.+\-%$€£/]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")


def salvage_json(text: str, why: UnreadableError) -> decoding.JsonCandidate:
    """Return what json-repair makes of `text`; raises `why`, or an `UnreadableError` that says what is missing.

    It invents keys, values and ends. What is held on to here: each number stands as it is in the text.
    """
    if (
        len(text) > MAX_SALVAGE_CHARS or "\0" in text
    ):  # a log spells a lone surrogate as \0: a replay must end as it did
        raise why
    try:
        import json_repair  # noqa: PLC0415 - an extra, and only for texts that nothing else can read
    except ImportError as e:
        hint = 'guessing needs json-repair: pip install "agentic-trading[salvage]"'
        raise UnreadableError(why.stage, [*why.violations, _violation("salvage", hint)]) from e
    try:
        guess = json_repair.loads(text, skip_json_loads=True)
    except _SALVAGE_ERRORS as e:  # it makes no promise for texts from outside
        raise why from e
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
    """Return the numbers that stand in `text` as words of their own, digit for digit, by their values."""
    words = (word for word in _WORD.findall(text) if _NUMBER.fullmatch(word))
    return {number: number for number in map(Decimal, words)}


def _with_exact_numbers(value: Any, numbers: dict[Decimal, Decimal]) -> Any:
    """Return `value` with its numbers as they stand in the text; raises `KeyError` for one that does not."""
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
_REPAIR_CHARS: Final = (
    16_384  # of an object with syntax errors: to look at more from each bracket takes too long
)
_DECODER = json.JSONDecoder(parse_float=Decimal)


@lru_cache(maxsize=2)
def object_digests(text: str) -> frozenset[bytes] | None:
    """Return a digest of every JSON object in `text`, those within others and within their strings too.

    Objects with syntax errors count as well. None where the text holds more that may be one than can be looked into: any
    object may then have been shown.
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
    """What may be an object with syntax errors goes on for longer than is looked at."""


def value_digest(value: Any) -> bytes:
    """Return what equal JSON values have in common, whatever the order of their members and the form of their numbers."""
    return _collect(value, set(), [], 0)


def _collect(value: Any, found: set[bytes], texts: list[str], depth: int) -> bytes:
    """Return the digest of `value`; add those of its objects to `found`, and texts that may hold more to `texts`."""
    if depth > decoding.MAX_DEPTH:  # no answer is as deep
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
    """Yield each object that stands in `text`, and None for each bracket that begins none."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = _object_at(text, start)
        except (ValueError, ArithmeticError, RecursionError):
            value, end = None, start + 1
        yield value
        start = text.find("{", end)


def _object_at(text: str, start: int) -> tuple[Any, int]:
    """Return the object at `start`, read strictly or else repaired, and where it ends."""
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
