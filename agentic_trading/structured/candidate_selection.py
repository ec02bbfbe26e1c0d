"""Validate the candidates of an answer against its schema, patch what the policy allows, and select one."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agentic_trading.canonical import exact_bytes
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.result import Fix, Stage, Violation
from agentic_trading.structured.decode import JsonCandidate, decode, keys_in
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.patch import is_protected, patch_value, protected_name
from agentic_trading.structured.pydantic_schema import SemanticCheck, violations_of
from agentic_trading.structured.schema import without_sentinel
from agentic_trading.structured.tokens import COMMENT_CHARS, SHOWN_CHARS
from agentic_trading.structured.validation import CompiledSchema, find_violations

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
    candidates: Sequence[JsonCandidate],
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


def validate_candidate(candidate: JsonCandidate, wanted: AnswerRequirements) -> ValidCandidate:
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
    candidates: Sequence[JsonCandidate], wanted: AnswerRequirements
) -> tuple[JsonCandidate, ValidCandidate]:
    valid: list[tuple[JsonCandidate, ValidCandidate]] = []
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


def _several(candidates: Sequence[JsonCandidate]) -> UnreadableError:
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
    text: str, candidates: Sequence[JsonCandidate], value: dict[str, Any], policy: OutputPolicy
) -> None:
    """Refuse an answer with a line like `veto: true` outside an object that has no such property."""
    ends = [0, *(candidate.end for candidate in candidates)]
    starts = [*(candidate.start for candidate in candidates), len(text)]
    for end, start in zip(ends, starts, strict=True):
        for member in (*_MEMBER.finditer(text, end, start), *_QUOTED_MEMBER.finditer(text, end, start)):
            name = protected_name(member[1], policy)
            if name and name not in {protected_name(key, policy) for key in keys_in(value)}:
                raise _ambiguous(
                    "members", f"{member[1]!r} stands beside the object", actual=member[0].strip()
                )


def _unwrap(inner: str, text: str, fixes: tuple[Fix, ...]) -> tuple[Any, str, tuple[Fix, ...]]:
    """Read a string that is itself one strict JSON object; any other string is left as it is."""
    try:
        decoded = decode(inner)
    except UnreadableError:
        return inner, text, fixes
    if not isinstance(decoded.value, dict):
        return inner, text, fixes
    unwrapped = inner.strip() if not decoded.fixes else exact_bytes(decoded.value).decode()
    fix = Fix(kind="double_encoded", where="$", before=text[:SHOWN_CHARS], after=unwrapped[:SHOWN_CHARS])
    return decoded.value, unwrapped, (*fixes, *decoded.fixes, fix)
