"""What `parse --explain` tells: how an answer was read, what was changed, what else it held, what would be asked next."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, assert_never

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from agentic_trading.app.answer_parsing import AnswerForm, ParseQuestion, ParseReading, read_text
from agentic_trading.app.cli.output import (
    WIDTH_OF_A_PIPE,
    facts,
    heading,
    printable,
    rows,
    table,
    terminal_is_watching,
)
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.limits import SENTINEL_NAME, SENTINEL_VALUE
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import Fix
from agentic_trading.structured.decode import MAX_BYTES
from agentic_trading.structured.engine import AskAgain, GiveUp, RaiseCap, next_step
from agentic_trading.structured.outcome import Rejected, UnreadableError
from agentic_trading.structured.pipeline import read_candidates
from agentic_trading.structured.prompts import data_block, reask_request
from agentic_trading.structured.render import sizes

_SHOWN_CHARS: Final = 200
_MOST_CANDIDATES: Final = 10
_COERCE: Final = "coerce"
_DROP: Final = "drop_extra (no protected key, and nothing out of a text that had to be mended)"


def explain(raw: bytes, question: ParseQuestion, reading: ParseReading) -> None:
    """Tell on standard error how `raw` became `reading`, and what would follow."""
    _tell(explained(raw, question, reading))


def _tell(parts: Iterable[RenderableType]) -> None:
    """Print on standard error, without the blanks that tables leave at the ends of lines."""
    width = None if terminal_is_watching() else WIDTH_OF_A_PIPE
    out = Console(stderr=True, markup=False, highlight=False, emoji=False, width=width)
    with out.capture() as drawn:
        out.print(Group(*parts), crop=False)
    typer.echo("\n".join(line.rstrip() for line in drawn.get().splitlines()), err=True)


def explained(raw: bytes, question: ParseQuestion, reading: ParseReading) -> Iterator[RenderableType]:
    """Yield how an answer was read, what was changed, what else stood in it, and what would be asked next."""
    yield heading("How it was read")
    yield facts(_how(question, reading))
    yield heading("What was changed")
    yield _changes(reading)
    yield from _candidates(raw, question)
    if reading.rejected is not None and question.form is not None:
        yield heading("What follows")
        yield from _next(reading.rejected, question)
    if question.form is not None:
        yield from _sizes(question.form)


def _how(question: ParseQuestion, reading: ParseReading) -> Iterator[tuple[str, str]]:
    policy = question.policy
    may = {_COERCE: policy.coerce, _DROP: policy.drop_extra}
    yield "verdict", reading.trace.verdict
    yield "decode", reading.trace.decode
    yield "policy", f"mode {policy.mode} · decode {policy.decode} · candidates {policy.candidates}"
    yield "", f"allowed changes: {', '.join(name for name, allowed in may.items() if allowed) or 'none'}"
    if policy.require_sentinel:
        yield "", f'sentinel: the last property must be "{SENTINEL_NAME}": "{SENTINEL_VALUE}"'
    yield "stop reason", question.stop_reason


def _changes(reading: ParseReading) -> RenderableType:
    if not reading.changes:
        return Text("  nothing")
    drawn = table("  what", "kind", "where", "before", "after")
    trace = reading.trace
    in_order = sorted(trace.fixes, key=_offset)
    kinds = (("fix", in_order), ("coercion", trace.coercions), ("patch", trace.patches))
    return rows(
        drawn, ((f"  {kind}", c.kind, c.where, c.before, c.after) for kind, all_of in kinds for c in all_of)
    )


def _offset(fix: Fix) -> int:
    """Return where in the text something was mended; what was mended within a value of it comes last."""
    return int(fix.where) if fix.where.isdecimal() else MAX_BYTES


def _candidates(raw: bytes, question: ParseQuestion) -> Iterator[RenderableType]:
    """Yield the objects among which the policy had to choose, if there was a choice."""
    try:
        _, found = read_candidates(raw.decode(), question.policy)
    except (UnicodeDecodeError, UnreadableError):
        return
    if len(found) < 2:
        return
    alone = replace(question, stop_reason="", output_tokens=0)
    yield heading(f"What could have been meant: {len(found)} candidates")
    yield rows(
        table("  at", "by itself", "text", right=["  at"]),
        (
            (str(each.start), read_text(each.text, alone).trace.verdict, each.text[:_SHOWN_CHARS])
            for each in found[:_MOST_CANDIDATES]
        ),
    )


def _next(rejected: Rejected, question: ParseQuestion) -> Iterator[RenderableType]:
    step = next_step(rejected, None, question.policy, answers_read=1, cap_raised=False)
    match step:
        case RaiseCap():
            yield Text("  The same is asked once more, with room for a longer answer.")
        case GiveUp("terminal"):
            yield Text(f"  Nothing is asked again: {rejected.trace.verdict} is final.")
        case AskAgain():
            yield Text("  The model is asked again. The request is the first one, and after it:\n")
            yield _unwrapped(_correction(rejected))
        case GiveUp():
            mode = question.policy.mode
            yield Text(
                f"  Mode {mode} reads one answer. In mode reask the request would come again, and after it:\n"
            )
            yield _unwrapped(_correction(rejected))
        case _:
            assert_never(step)


def _unwrapped(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ignore")


def _correction(rejected: Rejected) -> str:
    """Return what a re-ask adds to the request."""
    envelope = EnvelopeBuilder().with_instructions("-").build()
    block = data_block(envelope)
    asked = ModelRequest(
        envelope=envelope,
        attempt=1,
        answer=1,
        system="",
        user=block,
        transport="prompted",
        max_tokens=envelope.budget.max_output_tokens,
    )
    added = reask_request(asked, rejected, attempt=2).user.removeprefix(block).strip("\n")
    return "\n".join(map(printable, added.split("\n")))


def _sizes(form: AnswerForm) -> Iterator[RenderableType]:
    try:
        of_schema = sizes(form.schema)
    except UnreadableError:
        return
    yield heading("The schema in a prompt")
    whole = of_schema.indented
    ways = {
        "indented JSON": whole,
        "compact JSON": of_schema.compact,
        "sanitised": of_schema.sanitised,
        "as it is sent": of_schema.rendered,
    }
    yield facts((name, f"{size:,} characters ({100 * size / whole:.0f} %)") for name, size in ways.items())
