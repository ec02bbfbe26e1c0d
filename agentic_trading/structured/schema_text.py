"""The words of a schema in a prompt: rules, literals, notes, and how they are put together."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from agentic_trading.structured.schema import Schema
from agentic_trading.structured.suggestions import number_bounds

SHORT_NOTE = 60
"""A description of at most so many characters is kept."""
NOTE_WITH_UNIT = 120
"""Likewise, of one that says a unit or a sign: without it 0.5 may be a fraction or a percentage."""

_UNIT = re.compile(
    r"[%$€£¥‰]|\b(?:per ?cent|percentage|fraction|share|ratio|bps?|basis points?|pips?|ticks?|lots?|contracts?|coins?"
    r"|shares|dollars?|cents?|usd[tc]?|eur|gbp|jpy|btc|eth|utc|iso|epoch|unix|time ?zone|milliseconds?|ms|seconds?"
    r"|minutes?|hours?|days?|weeks?|months?|years?|bars?|tokens?|positive|negative|sign(?:ed)?|above"
    r"|below)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SchemaPhrase:
    """The words for one schema, and the descriptions that belong at the end of their line."""

    text: str
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return f"{self.text}{_comment(self.notes)}"


def text_rules(node: Schema) -> list[str]:
    rules = size_rules(node.get("minLength"), node.get("maxLength"), "character", "characters")
    if "pattern" in node:
        rules.append(f"matching {json_text(node['pattern'])}")
    if "format" in node:
        rules.append(f"format {json_text(node['format'])}")
    return rules


def number_rules(node: Schema) -> list[str]:
    least, most, above, below = number_bounds(node)
    if None not in (least, most) and above is below is None:
        rules = [f"{json_text(least)} to {json_text(most)}"]
    else:
        signs = ((">=", least), (">", above), ("<=", most), ("<", below))
        rules = [f"{sign} {json_text(bound)}" for sign, bound in signs if bound is not None]
    if "multipleOf" in node:
        rules.append(f"multiple of {json_text(node['multipleOf'])}")
    return rules


def size_rules(least: int | None, most: int | None, one: str, many: str) -> list[str]:
    if least is None and most is None:
        return []
    if least == most:
        return [f"exactly {least} {one if least == 1 else many}"]
    if least is not None and most is not None:
        return [f"{least} to {most} {many}"]
    words, count = ("at least", least) if most is None else ("at most", most)
    return [f"{words} {count} {one if count == 1 else many}"]


def with_rules(text: str, rules: list[str]) -> str:
    return f"{text} ({', '.join(rules)})" if rules else text


def either(pieces: Iterable[SchemaPhrase]) -> SchemaPhrase:
    branches = list(pieces)
    return SchemaPhrase(
        " | ".join(piece.text for piece in branches),
        tuple(note for piece in branches for note in piece.notes),
    )


def object_text(members: list[tuple[str, SchemaPhrase]], *, spread: bool) -> str:
    """Return an object on one line, or a line a member where a description or a longer member stands in it."""
    is_short = not any(piece.notes or "\n" in piece.text for _, piece in members)
    if not members or (is_short and not spread):
        return f"{{{', '.join(f'{name}: {piece.text}' for name, piece in members)}}}"
    ends = [","] * (len(members) - 1) + [""]
    lines = [
        f"{name}: {piece.text}{end}{_comment(piece.notes)}"
        for (name, piece), end in zip(members, ends, strict=True)
    ]
    inner = "\n".join(lines).replace("\n", "\n ")  # strings have no raw line end in them
    return f"{{\n {inner}\n}}"


def with_note(node: Any, piece: SchemaPhrase) -> SchemaPhrase:
    """Return `piece` with the description of `node`, if it is short enough."""
    description = node.get("description") if isinstance(node, dict) else None
    if not isinstance(description, str):
        return piece
    note = " ".join("".join(char if char.isprintable() else " " for char in description).split())
    most = NOTE_WITH_UNIT if _UNIT.search(note) else SHORT_NOTE
    return SchemaPhrase(piece.text, (note, *piece.notes)) if 0 < len(note) <= most else piece


def _comment(notes: tuple[str, ...]) -> str:
    return f" // {'; '.join(dict.fromkeys(notes))}" if notes else ""


def literal(value: Any) -> str:
    return f"exactly {json_text(value)}" if isinstance(value, dict | list) else json_text(value)


def json_text(value: Any) -> str:
    return escape_control(orjson.dumps(value).decode())


def escape_control(text: str) -> str:
    """Return JSON without a character that could end a line or hide: such ones stand in strings only, as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
