"""Read one JSON document, whatever it is: the front door for texts that belong to no schema."""

from typing import Any, Literal

from agentic_trading.llm.attempt_trace import Stage
from agentic_trading.structured.truncation import check_closed
from agentic_trading.structured.errors import ParserException, UnreadableError
from agentic_trading.structured.extract import json_candidates, only
from agentic_trading.structured.strict_json import decode


def read_json(text: str, *, mode: Literal["strict", "lossless"] = "strict") -> Any:
    """Return the JSON document that `text` is, with numbers as int and Decimal.

    `strict`: the whole text but for white space around is one document. A repeated key with different values,
    NaN, Infinity, a number beyond a double's range, a lone surrogate, more than 1 MiB and more than 128 levels are
    refused. `lossless`: slips that have one reading are mended, and the one document may stand in a fence or in
    prose; strict JSON reads the same in both. Raises `ParserException` for any text that is not one; its `stage` is `truncated`
    where the text ends in the middle, `ambiguous` where it has several readings, else `json_parse`. An unknown mode is a
    `ValueError`.
    """
    if mode not in {"strict", "lossless"}:
        raise ValueError(f"mode {mode!r} is unknown; allowed are 'strict' and 'lossless'")
    try:
        return _read(text, lossless=mode == "lossless")
    except UnreadableError as e:
        raise ParserException(f"read_json({mode})", "", e.stage, text, e) from e


def _read(text: str, *, lossless: bool) -> Any:
    try:
        return decode(text).value
    except UnreadableError as e:
        if e.stage is not Stage.JSON_PARSE:
            raise
        if not lossless:
            check_closed(text)
            raise
    return only(json_candidates(text, lossless=True)).value
