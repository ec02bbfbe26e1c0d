"""One answer: its object on standard output, or the verdict on standard error."""

import json
from pathlib import Path
from typing import Any, BinaryIO, Final

import typer

from agentic_trading.app.answer_parsing import (
    AnswerForm,
    ParseQuestion,
    ParseReading,
    SchemaFileError,
    form_in,
    read_bytes,
)
from agentic_trading.app.cli.exits import ExitCode
from agentic_trading.app.cli.output import printable
from agentic_trading.app.cli.parse_lines import escape_json_line
from agentic_trading.app.options import OptionError
from agentic_trading.llm.result import Violation
from agentic_trading.structured.decode import MAX_BYTES

_SHOWN_CHARS: Final = 200


def form_at(file: Path) -> AnswerForm:
    """Return the schema of `--schema`; raises `OptionError` for a file without one."""
    try:
        return form_in(file)
    except SchemaFileError as e:
        raise OptionError("--schema", f"{e.file}, which {e.reason}", "a file with one JSON object") from e


def answer_one(stream: BinaryIO, question: ParseQuestion, *, explain: bool) -> ExitCode:
    """Read one answer, of which no more is taken than can be one; `FOUND_WRONG` says that it was not accepted."""
    raw = stream.read(MAX_BYTES + 1)
    reading = read_bytes(raw, question)
    if reading.is_accepted:
        typer.echo(escape_json_line(reading.text).encode())
        if reading.trace.decode == "guess":
            typer.echo("this is a guess of what a broken text may have meant; do not act on it", err=True)
    else:
        typer.echo(verdict(reading), err=True)
    if explain:
        from agentic_trading.app.cli import parse_explain

        parse_explain.explain(raw, question, reading)
    return ExitCode.DONE if reading.is_accepted else ExitCode.FOUND_WRONG


def verdict(reading: ParseReading) -> str:
    """Say at which stage an answer was rejected, and a line for each rule that it breaks."""
    return "\n".join([f"rejected: {reading.trace.verdict}", *map(_told, reading.trace.errors)])


def _told(violation: Violation) -> str:
    is_said = violation.allowed is not None or str(violation.expected) in violation.message
    facts = {
        "was": _json(violation.actual),
        "expected": "" if is_said else _rule(violation.expected),
        "allowed": _rule(violation.allowed),
        "suggestion": _json(violation.suggestion),
    }
    told = [f"{name}: {_short(value)}" for name, value in facts.items() if value]
    return printable("; ".join([f"  {violation.path}: {violation.message}", *told]))


def _rule(rule: Any) -> str:
    """Spell what is allowed: a rule in words as it stands, such as `> 0`, values as JSON."""
    return rule if isinstance(rule, str) else _json(rule)


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, default=str, ensure_ascii=False)


def _short(spelled: str) -> str:
    return spelled if len(spelled) <= _SHOWN_CHARS else f"{spelled[:_SHOWN_CHARS]}…"
