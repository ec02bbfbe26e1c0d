"""Guess what a broken text may have meant: for display, never for an order."""

import re
from decimal import Decimal
from typing import Any

from agentic_trading.canonical import exact_bytes
from agentic_trading.llm.attempt_trace import Fix, Stage, Violation
from agentic_trading.structured.errors import UnreadableError
from agentic_trading.structured.extract import JsonCandidate
from agentic_trading.structured.tokens import SHOWN_CHARS

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
        value = _exact(guess, _numbers_in(text))
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


def _exact(value: Any, numbers: dict[Decimal, Decimal]) -> Any:
    """Return `value` with its numbers as they stand in the text; raises `KeyError` for one that does not."""
    match value:
        case bool():
            return value
        case int() | float():
            exact = numbers[Decimal(repr(value))]
            return int(exact) if isinstance(value, int) else exact
        case dict():
            return {str(key): _exact(child, numbers) for key, child in value.items()}
        case list():
            return [_exact(child, numbers) for child in value]
        case _:
            return value
