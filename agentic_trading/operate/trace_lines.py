"""The lines about the steps of a trace, with those of installed renderers."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, assert_never, cast

from agentic_trading import plugins
from agentic_trading.audit.logs import MergedRecords
from agentic_trading.audit.trace import CallNode, EventNode, TraceNode, TraceTree
from agentic_trading.canonical import exact_bytes
from agentic_trading.client.frames import (
    CausalFrame,
    FrameClosed,
    FrameOpened,
    FrameRecords,
    UserAnswered,
    UserAsked,
)
from agentic_trading.client.gateway import verdict_of
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import EventError
from agentic_trading.llm.event import CallRequested, CallUnanswered, EnvelopeRefused, Event
from agentic_trading.llm.facts import EVERYTHING, RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import AttemptTrace, Fix, LLMResult, Violation
from agentic_trading.llm.store import Record, Records, TraceSummary
from agentic_trading.logger import get_logger
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import printable, usd

T = TypeVar("T")
log = get_logger()

Warn = Callable[[str], None]
"""Takes a warning about a renderer."""


@cache
def log_warning(text: str) -> None:
    """Log a warning about a renderer, once for each text."""
    log.warning("renderer_failed", error=text)


ChainOutcome = tuple[TraceSummary, str]
"""A chain with its outcome."""

MARKS: Final[Mapping[str, str]] = MappingProxyType({
    "concluded": "✓",
    "repeated": "=",
    "failed": "✗",
    "unfinished": "!",
    "waiting": "?",
    "open": "…",
})
"""Marks of frame states."""


NOT_GIVEN: Final = "\u2013"
"""Shown instead of a confidence that the model did not give."""


def remarks(frame: CausalFrame) -> Iterator[str]:
    """Yield remarks about a frame."""
    if frame.state == "waiting":
        yield f"asks: {frame.asked}"
    if frame.state == "repeated":
        yield (
            f"leads back to {frame.repeat_of}"
            if frame.stopped_by == "cycle"
            else f"same as {frame.repeat_of}"
        )
        return
    if frame.state == "concluded":
        yield f"confidence {NOT_GIVEN if frame.confidence is None else format(frame.confidence, '.2f')}"
    skipped = f"{pluralize(frame.skipped, 'part')} not asked" if frame.skipped else ""
    if why := ": ".join(part for part in (frame.stopped_by, skipped) if part):
        yield why


class TraceFrames:
    """The frames of a trace, which are shown with their calls."""

    def __init__(self, chain: TraceTree) -> None:
        self._records = FrameRecords()
        self._bodies: dict[str, FrameOpened | FrameClosed] = {}
        for node in chain.nodes:
            if isinstance(node, EventNode):
                with suppress(EventError):  # an event that cannot be parsed is shown unchanged
                    self._add(node)
        self._frames = {frame.frame_id: frame for frame in self._records.frames()}
        called = {node.id for node in chain.nodes if isinstance(node, CallNode)}
        self._called = {frame.frame_id for frame in self._frames.values() if frame.envelope_id in called}

    def hides(self, node: TraceNode) -> bool:
        """Return whether a node is hidden, because its frame is shown at its call or at its opening event."""
        body = self._bodies.get(node.id)
        return isinstance(body, FrameClosed) or (body is not None and body.frame_id in self._called)

    def lines(self, node: TraceNode) -> list[str]:
        """Return lines about the frame of a node."""
        if isinstance(node, CallNode):
            frame = self._frames.get(node.envelope.step)
            if frame is None:
                return []
            if frame.envelope_id != node.id:
                return [f"frame {frame.path}: {node.envelope.prompt_version}"]
            first = f"frame {frame.path} {MARKS[frame.state]} {frame.question}"
            return [" · ".join([first, *remarks(frame)]), *filter(None, [frame.conclusion])]
        body = self._bodies.get(node.id)
        frame = None if body is None else self._frames.get(body.frame_id)
        if frame is None:
            return []
        return [" · ".join([f"frame {frame.path} {MARKS[frame.state]}", *remarks(frame)])]

    def _add(self, node: EventNode) -> None:
        body = self._records.add(node.event)
        if isinstance(body, FrameOpened | FrameClosed):
            self._bodies[node.id] = body


SHOWN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    FrameOpened.KIND: ("question",),
    FrameClosed.KIND: ("state stopped_by", "conclusion"),
    UserAsked.KIND: ("question",),
    UserAnswered.KIND: ("answer by",),
    CallRequested.KIND: (),
    CallUnanswered.KIND: ("reason.category reason.description",),
    EnvelopeRefused.KIND: ("reason detail",),
})
"""The values to show by event kind: a string per line, with an optional `label:` before dotted names."""


RENDERERS: Final = "agentic_trading.renderers"
"""The entry point group of renderers. The name of an entry point is the first word of the kinds it shows."""


class Renderer(Protocol):
    """Shows the events of a package in `trace`. A module with these two functions is a renderer."""

    def lines(self, event: Event) -> Sequence[str] | None:
        """Return lines about an event, without its kind and id, or None if the kind is unknown."""
        ...

    def outcome(self, events: Sequence[Event]) -> str:
        """Return the outcome of a trace in a few words, or an empty string."""
        ...


class PageRenderer(Renderer, Protocol):
    """A renderer with two more functions, for the trace page of the dashboard. A renderer may have neither."""

    def sentence(self, event: Event) -> Sequence[str] | None:
        """Return the name of a step, one sentence about it, and more lines, or None if the kind is unknown."""
        ...

    def profit(self, events: Sequence[Event]) -> tuple[str, str]:
        """Return the P&L of a trace with its sign and its currency, and a note. Both may be empty."""
        ...


@cache
def renderer_of(namespace: str, warn: Warn) -> Renderer | None:
    """Return the installed renderer for kinds with this first word, or None."""
    # The word is only compared with names of entry points, so that a log cannot import anything else.
    try:
        offer = plugins.offer_of(RENDERERS, namespace)
        return cast("Renderer", plugins.loaded(offer)) if offer is not None else None
    except plugins.OfferError as e:
        warn(str(e))
        return None


def _rendered(namespace: str, ask: Callable[[Renderer], T], warn: Warn) -> T | None:
    """Return an answer of the renderer for a namespace, or None if there is no renderer or it fails."""
    renderer = renderer_of(namespace, warn)
    try:
        return ask(renderer) if renderer is not None else None
    except Exception as e:  # noqa: BLE001 - otherwise a faulty package would hide the log
        warn(f"the renderer {namespace} failed ({type(e).__name__}: {e}). Its events are shown without it.")
        return None


async def newest_chains(
    records: Records | MergedRecords,
    limit: int,
    *,
    query: RecordQuery = EVERYTHING,
    with_calls: bool,
    tenant: str | None,
    warn: Warn = log_warning,
) -> list[ChainOutcome]:
    """Return the newest chains with a selected record and their outcomes, of `tenant` or of all tenants."""
    chains = await records.traces(limit, query=query, with_calls=with_calls, tenant=tenant)
    outcomes = []
    for chain in chains:
        trace = await records.trace(chain.trace_id, tenant=tenant)
        outcomes.append((
            chain,
            await asyncio.to_thread(chain_outcome, trace, warn),
        ))  # in a thread, because it may import a renderer
    return outcomes


def chain_outcome(records: Sequence[Record], warn: Warn = log_warning) -> str:
    """Return the outcome of a trace: from a renderer, or the verdict of the last call, or an empty string."""
    events = [record for record in records if isinstance(record, Event)]
    for namespace in dict.fromkeys(_namespace_of(event) for event in events):
        if outcome := _rendered(namespace, lambda renderer: renderer.outcome(events), warn):
            return outcome
    calls = [record for record in records if isinstance(record, LLMInteraction)]
    return verdict_of(calls[-1]) if calls else ""


def profit_of(records: Sequence[Record], warn: Warn = log_warning) -> tuple[str, str]:
    """Return the P&L of a trace and a note, from a renderer. Both are empty without one."""
    events = [record for record in records if isinstance(record, Event)]
    for namespace in dict.fromkeys(_namespace_of(event) for event in events):
        value, note = _rendered(namespace, lambda renderer: _profit(renderer, events), warn) or ("", "")
        if value or note:
            return printable(value), printable(note)
    return "", ""


def _profit(renderer: Renderer, events: Sequence[Event]) -> tuple[str, str]:
    # Asked for by name, because renderers of older packages have only lines and an outcome.
    return cast("PageRenderer", renderer).profit(events) if hasattr(renderer, "profit") else ("", "")


def sentence_of(event: Event, warn: Warn = log_warning) -> list[str]:
    """Return the name of a step, a sentence about it, and more lines. Control characters are escaped."""
    told = None
    if event.kind not in SHOWN:
        told = _rendered(_namespace_of(event), lambda renderer: _sentence(renderer, event), warn)
    if told is not None:
        return [*map(printable, told)]
    name = printable(event.kind.replace(".", " ").replace("_", " "))
    return [name, *(step_text(EventNode(event), warn) or [""])]


def _sentence(renderer: Renderer, event: Event) -> Sequence[str] | None:
    return cast("PageRenderer", renderer).sentence(event) if hasattr(renderer, "sentence") else None


def _namespace_of(event: Event) -> str:
    return event.kind.partition(".")[0]


def step_text(node: TraceNode, warn: Warn = log_warning) -> list[str]:
    """Return lines about a step, without its kind and id. Control characters are escaped."""
    match node:
        case CallNode():
            envelope = node.envelope
            call = f"{envelope.agent_id or 'no agent'} → {envelope.provider}/{envelope.model}"
            return [printable(call), *question_lines(envelope), *attempt_lines(node.attempts)]
        case EventNode():
            return [printable(line) for line in _event_lines(node.event, warn) if line]
        case _:
            assert_never(node)


def _event_lines(event: Event, warn: Warn) -> Iterable[str]:
    if (names := SHOWN.get(event.kind)) is not None:
        return chosen(event.body, names)
    lines = _rendered(_namespace_of(event), lambda renderer: renderer.lines(event), warn)
    return _plain(event.body) if lines is None else lines


EXPONENT: Final = re.compile(r"-?\d+(\.\d+)?E[+-]?\d+")
MOST_DIGITS: Final = 30


def chosen(body: Mapping[str, Any], lines: Sequence[str]) -> Iterator[str]:
    """Yield lines about a body. `lines` has the form of a value of `SHOWN`."""
    for line in lines:
        label, _, names = line.rpartition(": ")
        values = ((name.rpartition(".")[2], value_at(body, name)) for name in names.split())
        facts = [f"{name} {_shown(value)}" for name, value in values if _says_something(value)]
        if facts:
            yield (f"{label}: " if label else "") + " · ".join(facts)


def _shown(value: Any) -> str:
    """Return a value of a body for a reader: the names and values of an object, and decimals without exponent."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    text = joined(value)
    if EXPONENT.fullmatch(text):
        number = Decimal(text)
        # Bounded, because a foreign event could ask for a line of a million zeros.
        if abs(number.adjusted()) <= MOST_DIGITS:
            return f"{number:f}" if number else "0"
    return text


def _plain(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the scalar values of an event of an unknown kind."""
    scalars = (f"{name} {value}" for name, value in body.items() if not isinstance(value, dict | list))
    yield " · ".join(scalars)


def value_at(body: Any, name: str) -> Any:
    """Return the value at a dotted name, or None."""
    value: Any = body
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _says_something(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


MOST_CHANGES: Final = 5
MOST_ERRORS: Final = 3
ANSWER_CHARS: Final = 160
VALUE_CHARS: Final = 80
TEXT_CHARS: Final = 320
"""The characters of a question and of an accepted answer, about three lines of a terminal. JSON has all of them."""


def question_lines(envelope: LLMEnvelope) -> list[str]:
    """Return a line with the start of the instructions, or no line without instructions."""
    text = _one_line(envelope.instructions, TEXT_CHARS)
    return [printable(f"question: {text}")] if text else []


def attempt_lines(attempts: Sequence[LLMInteraction]) -> list[str]:
    """Return lines for each attempt and its parsing, and the sum if there are several attempts."""
    lines = [line for attempt in attempts for line in _attempt(attempt)]
    if len(attempts) > 1:
        lines.append(_total([attempt.result for attempt in attempts]))
    return [printable(line) for line in lines]


def _attempt(attempt: LLMInteraction) -> Iterator[str]:
    result = attempt.result
    facts = [f"attempt {result.attempt_number} {verdict_of(attempt)}", *_sums([result])]
    if result.served_from == "recorded":
        facts.append("from the recording")
    elif result.served_from != "live":
        facts.append(f"served from {result.served_from}")
    if result.failure is not None:
        facts.append(result.failure.description)
    yield " · ".join(facts)
    if result.reading is not None:
        yield from (f"  {line}" for line in _read(result.reading, result))
    if result.actionable and (answer := _answer(result)):
        yield f"  answer: {answer}"


def _answer(result: LLMResult) -> str:
    """Return the accepted answer: its compact JSON, or its text if it has no fields."""
    # Whole numbers and decimals keep their digits, because an order may follow from them.
    text = exact_bytes(result.parsed_output).decode() if result.parsed_output else result.raw_output
    return _one_line(text, TEXT_CHARS)


def _one_line(text: str, most: int) -> str:
    """Return the start of a text without line breaks."""
    # Cut first, because an answer may have a million characters.
    line = " ".join(text[: 2 * most].split())
    return f"{line[:most]}…" if len(line) > most or len(text) > 2 * most else line


def _read(reading: AttemptTrace, result: LLMResult) -> Iterator[str]:
    """Yield the changes and errors. An answer that was accepted unchanged has none."""
    changes = [*reading.fixes, *reading.coercions, *reading.patches]
    if changes or reading.errors:
        yield f"answered: {_one_line(result.raw_output, ANSWER_CHARS)}"
    if changes:
        more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
        yield f"read as {reading.decode}: {'; '.join(map(_change, changes[:MOST_CHANGES]))}{more}"
    yield from map(_error, reading.errors[:MOST_ERRORS])
    if len(reading.errors) > MOST_ERRORS:
        yield f"{len(reading.errors) - MOST_ERRORS} more broken rules"


def _change(fix: Fix) -> str:
    before, after = _short(fix.before), _short(fix.after)
    if before and after:
        became = f"{before} became {after}"
    else:
        became = f"{before} left out" if before else f"{after} put in"
    return f"{fix.kind.replace('_', ' ')} at {fix.where}: {became}"


def _error(violation: Violation) -> str:
    facts = {"was": violation.actual, "allowed": violation.allowed, "nearest": violation.suggestion}
    shown = [f"{name}: {_short(joined(value))}" for name, value in facts.items() if value is not None]
    return "; ".join([f"{violation.path}: {violation.message}", *shown])


def joined(value: Any) -> str:
    """Return a value as text. A list is joined with commas."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _short(text: str) -> str:
    return f"{text[:VALUE_CHARS]}…" if len(text) > VALUE_CHARS else text


def _total(results: Sequence[LLMResult]) -> str:
    return " · ".join([f"{len(results)} attempts in total", *_sums(results)])


def _sums(results: Sequence[LLMResult]) -> tuple[str, str]:
    tokens_in = sum(result.usage.total_input_tokens for result in results)
    tokens_out = sum(result.output_tokens for result in results)
    return f"{tokens_in:,} tokens in, {tokens_out:,} out", f"{usd(sum(r.cost_nusd for r in results))} USD"
