"""Decode strict JSON with exact numbers, and detect truncated texts."""

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, Never
from urllib.parse import unquote

import orjson

from agentic_trading.canonical import exact_bytes
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Fix, Stage, Violation
from agentic_trading.structured.outcome import UnreadableError

MAX_BYTES = 1 << 20
MAX_DEPTH = 128
MOST_REPEATED = 1_000
STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)("?)|[{}\[\]]', re.DOTALL)
"""Matches a string or a bracket. The group is empty for an unclosed string."""
_SNIPPET_CHARS = 40
_KEY_CHARS = 80
_SHORT_NUMBER = 16  # 15 digits and the point: more digits would not be exact in every double
_SHORT_INTEGER = 18  # below 2^63
_LARGEST_EXPONENT = 308  # a larger or smaller number would not fit into a double
# An allow-list, because a list of all other reasons would never be complete (docs/explanation/decisions/0065).
_COMPLETE = frozenset({
    "stop", "tool_calls", "function_call",  # OpenAI
    "end_turn", "stop_sequence", "tool_use",  # Anthropic
    "eos",  # Together
    "eos_token",  # Hugging Face
    "complete", "tool_call",  # Cohere
})  # fmt: skip
"""Stop reasons of a complete answer."""
_STOPPED_EARLY = frozenset({"max_tokens", "length", "model_length", "model_context_window_exceeded"})
_AROUND = " \t\r\n`~"
_OPENING = re.compile(r"[{\[]")


class JsonCandidate(NamedTuple):
    """JSON in a text that may be the answer.

    Attributes:
        value: The decoded value.
        text: The value as strict JSON.
        fixes: The repairs.
        start: The offset of its first character.
        end: The offset after its last character.
        is_whole: Whether the rest of the text is white space, comments and one fence.
        is_repaired: Whether the value itself was repaired. A fence or prose around it does not count.
        rounded: See `DecodedJson.rounded`.

    """

    value: Any
    text: str
    fixes: tuple[Fix, ...]
    start: int
    end: int
    is_whole: bool
    is_repaired: bool
    rounded: Any = None


class DecodedJson(NamedTuple):
    """A decoded JSON document.

    Attributes:
        value: The value, with int and Decimal.
        fixes: The repeated keys that were merged.
        text: The document as JSON after merging keys. Empty if it was not changed.
        rounded: The value with float in place of Decimal, or None if a number is too long for a double.
            Validating it takes a fifth of the time.

    """

    value: Any
    fixes: tuple[Fix, ...] = ()
    text: str = ""
    rounded: Any = None

    def candidate(self, text: str, start: int, end: int, *, is_whole: bool) -> JsonCandidate:
        """Return the document, decoded from `text[start:end]`, as a candidate."""
        return JsonCandidate(
            self.value,
            self.text or text[start:end].strip(),
            self.fixes,
            start,
            end,
            is_whole=is_whole,
            is_repaired=bool(self.fixes),
            rounded=self.rounded,
        )


def decode(text: str) -> DecodedJson:
    """Decode strict JSON.

    Raises:
        UnreadableError: With stage `json_parse` or `ambiguous`.

    """
    check_size(text)
    try:
        rounded = orjson.loads(text)  # first, because the exact decoder would accept NaN and lone surrogates
    except orjson.JSONDecodeError as e:
        _refuse(
            f"{e.msg}: line {e.lineno} column {e.colno} (char {e.pos})", text[e.pos : e.pos + _SNIPPET_CHARS]
        )
    _check_depth(text, rounded)
    try:
        value, _ = _SHORT.raw_decode(text, len(text) - len(text.lstrip()))
        return DecodedJson(value, rounded=rounded)
    except _LongNumberError:
        pass
    except _RepeatedKeyError:
        return _merge_repeated(text)
    try:
        return DecodedJson(_EXACT.decode(text))
    except _RepeatedKeyError:
        return _merge_repeated(text)


def decode_at(text: str, start: int) -> tuple[DecodedJson, int] | None:
    """Return the strict document at `start` and its end, or None."""
    is_short = True
    try:
        try:
            value, end = _SHORT.raw_decode(text, start)
        except _LongNumberError:
            is_short = False
            value, end = _EXACT.raw_decode(text, start)
        document = text[start:end]
        rounded = orjson.loads(document)
        _check_depth(document, rounded)
    except (ValueError, RecursionError, _RepeatedKeyError):
        return None
    return DecodedJson(value, rounded=rounded if is_short else None), end


def check_size(text: str) -> None:
    """Raise `UnreadableError` (`json_parse`) if a text has more than 1 MiB in UTF-8."""
    size = len(text)
    if size <= MAX_BYTES and not text.isascii():
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        _refuse(f"the text has {size} bytes; allowed are {MAX_BYTES}", "")


def truncation_sign(response: ModelResponse, max_tokens: int | None) -> str:
    """Return the sign that an answer may be truncated, or an empty string.

    Only known stop reasons mean a complete answer, in any case of letters. Without a stop reason, the text
    must show its end: see `has_ended`.
    """
    word = response.stop_reason.strip().lower()
    if word in _STOPPED_EARLY:
        return f"stop reason {response.stop_reason}"
    if word and word not in _COMPLETE:
        return (
            f"stop reason {response.stop_reason} is not known to mean a complete answer; "
            f"known are {', '.join(sorted(_COMPLETE))}"
        )
    # Counted for every stop reason, because servers report wrong ones.
    used = response.usage.output_tokens
    if max_tokens is not None and used >= max_tokens:
        return f"{used} output tokens reach the cap of {max_tokens}"
    return ""


def has_ended(text: str, candidates: Sequence[JsonCandidate]) -> bool:
    """Return whether a text ends with its last object, white space and a fence."""
    return bool(candidates) and not text[max(one.end for one in candidates) :].strip(_AROUND)


def check_closed(text: str) -> None:
    """Raise `UnreadableError` (`truncated`) if a text ends inside a string or bracket."""
    if len(text) <= MAX_BYTES and is_open(text):
        message = "truncated: unclosed string, object or array"
        raise UnreadableError(Stage.TRUNCATED, [Violation(path="$", keyword="json", message=message)])


def is_open(text: str) -> bool:
    """Return whether a string or bracket is unclosed. Takes linear time."""
    position = 0
    while root := _OPENING.search(text, position):
        depth = 0
        for token in STRING_OR_BRACKET.finditer(text, root.start()):
            position = token.end()
            match token[0][0]:
                case "{" | "[":
                    depth += 1
                case "}" | "]":
                    depth -= 1
                case _:
                    if not token[1]:
                        return True
            if depth == 0:
                break
        else:
            return True
    return False


def keys_in(value: Any) -> Iterator[str]:
    """Yield the keys of all objects in a decoded document or a dumped model."""
    if isinstance(value, dict):
        yield from value
        for child in value.values():
            yield from keys_in(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from keys_in(child)


def pointer_steps(pointer: str) -> list[str]:
    """Return the steps of a JSON pointer, or of a `#/…` reference."""
    return [step.replace("~1", "/").replace("~0", "~") for step in unquote(pointer).split("/")[1:]]


def member_path(path: str, key: str) -> str:
    """Return the JSON path of a member: `$.a`, or `$["odd key"]`.

    The second form is for keys that are not identifiers. Long keys are shortened.
    """
    name = key if len(key) <= _KEY_CHARS else f"{key[:_KEY_CHARS]}…"
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name, ensure_ascii=False)}]"


def _check_depth(text: str, document: Any) -> None:
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    _refuse(f"nested deeper than {MAX_DEPTH} levels", "")


def _children(node: Any) -> list[Any]:
    inside = node.values() if isinstance(node, dict) else node
    return (
        [child for child in inside if isinstance(child, dict | list)] if isinstance(node, dict | list) else []
    )


def _refuse(reason: str, snippet: str) -> Never:
    shown = snippet.encode("utf-8", "backslashreplace").decode()
    violation = Violation(
        path="$", keyword="json", message=reason, expected="one JSON document and nothing else", actual=shown
    )
    raise UnreadableError(Stage.JSON_PARSE, [violation])


class _LongNumberError(Exception):
    """A number has an exponent, or more digits than every double holds."""


class _RepeatedKeyError(Exception):
    """An object has a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RepeatedKeyError
    return members


def _number(token: str) -> Decimal:
    try:
        number = Decimal(token)
    except InvalidOperation:  # an exponent that not even Decimal can hold
        _refuse("a number is beyond the range of a double", token[:_SNIPPET_CHARS])
    if number and not -_LARGEST_EXPONENT <= number.adjusted() <= _LARGEST_EXPONENT:
        _refuse("a number is beyond the range of a double", token[:_SNIPPET_CHARS])
    return number


def _short_number(token: str) -> Decimal:
    if len(token) > _SHORT_NUMBER or "e" in token or "E" in token:
        raise _LongNumberError
    return Decimal(token)


def _short_integer(token: str) -> int:
    if len(token) > _SHORT_INTEGER:
        raise _LongNumberError
    return int(token)


class _Pairs(list[tuple[str, Any]]):
    """The members of an object in order, with repeated keys."""


_SHORT = json.JSONDecoder(object_pairs_hook=_object, parse_float=_short_number, parse_int=_short_integer)

_EXACT = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number)

_PAIRS = json.JSONDecoder(object_pairs_hook=_Pairs, parse_float=_number)


def _merge_repeated(text: str) -> DecodedJson:
    """Decode a document with repeated keys. Different values of one key are refused."""
    fixes: list[Fix] = []
    value = _merge(_PAIRS.decode(text), "$", fixes)
    return DecodedJson(value, tuple(fixes), exact_bytes(value).decode())


def _merge(node: Any, path: str, fixes: list[Fix]) -> Any:
    if isinstance(node, _Pairs):
        members: dict[str, Any] = {}
        for key, child in node:
            value = _merge(child, member_path(path, key), fixes)
            if key in members:
                _check_repeated(member_path(path, key), members[key], value, fixes)
            members[key] = value
        return members
    if isinstance(node, list):
        return [_merge(child, f"{path}[{index}]", fixes) for index, child in enumerate(node)]
    return node


def _check_repeated(path: str, first: Any, second: Any, fixes: list[Fix]) -> None:
    before, after = exact_bytes(first), exact_bytes(second)
    if before == after:
        if len(fixes) == MOST_REPEATED:
            _refuse(f"more than {MOST_REPEATED} keys stand twice", path[:_SNIPPET_CHARS])
        fixes.append(Fix(kind="repeated_key", where=path, before=before.decode(), after=""))
        return
    violation = Violation(
        path=path,
        keyword="repeated_key",
        message="stands twice with different values",
        expected="each key once",
        actual=f"{before.decode():.40} and {after.decode():.40}",
    )
    raise UnreadableError(Stage.AMBIGUOUS, [violation])
