"""The page Trace: one decision chain as a line of steps, and all that is on record about each."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final
from urllib.parse import urlencode

from agentic_trading.audit import trace as causes
from agentic_trading.audit.logs import MergedRecords, merged_records, record_key
from agentic_trading.governance.events import AttemptDispatched
from agentic_trading.llm.envelope import EvidenceItem, LLMEnvelope
from agentic_trading.llm.errors import EventError, StoreError
from agentic_trading.llm.event import Event, Kinds
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import AttemptTrace, Fix, LLMResult, Violation
from agentic_trading.llm.store import ChainedRecord, Record
from agentic_trading.monitor import records as shown_records
from agentic_trading.monitor.page import NotShownError, PageAnswer, PageRequest, PlainText
from agentic_trading.monitor.sources import ShownLog, Sources
from agentic_trading.operate import trace_lines
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import printable, usd
from agentic_trading.operate.log_check import check_end_of

TEMPLATE: Final = "agentic_trading.monitor/trace.html.j2"
NEWEST: Final = 25
"""Chains on the page without an id."""

MOST_RECORDS: Final = 1_000
"""Records of a chain on its page."""

MOST_LEVELS: Final = 6
"""The deepest indentation."""

CHANGE_CHARS: Final = 200
SENDINGS: Final = Kinds[AttemptDispatched](AttemptDispatched)
ABSENT: Final = "-"


@dataclass(frozen=True, slots=True)
class ChainRow:
    """A chain in the list."""

    time: str
    subject: str
    outcome: str
    calls: str
    usd: str
    trace_id: str
    href: str


@dataclass(frozen=True, slots=True)
class TraceSearch:
    """The page without a chain: the newest chains, or the ids that a beginning may mean.

    Attributes:
        wanted: The id in the form.
        message: Why no chain is shown, or an empty text.
        matches: Id and address of each id that starts with `wanted`.
        chains: The newest chains with a call.
        problems: Banners about logs that cannot be read.

    """

    wanted: str
    message: str
    matches: tuple[tuple[str, str], ...]
    chains: tuple[ChainRow, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TraceFigure:
    """A figure in the head of the page. `tone` is good, bad or empty."""

    name: str
    value: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class TraceFact:
    """A name and its text. `is_code` is set for ids and hashes."""

    name: str
    text: str
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class ChangeView:
    """A change that was made while an answer was read."""

    kind: str
    where: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule that an answer broke."""

    path: str
    rule: str
    was: str
    allowed: str


@dataclass(frozen=True, slots=True)
class AttemptView:
    """An attempt at a call. `tone` is good or bad."""

    title: str
    outcome: str
    tone: str
    tags: tuple[str, ...]
    failure: str
    answer: shown_records.ShownText | None
    changes: tuple[ChangeView, ...]
    rules: tuple[RuleView, ...]
    facts: tuple[TraceFact, ...]


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """An item of evidence. `title` names its id, its source and its time."""

    title: str
    text: shown_records.ShownText


@dataclass(frozen=True, slots=True)
class CallView:
    """An opened call: its question, and each attempt."""

    facts: tuple[TraceFact, ...]
    prompt: shown_records.ShownText
    context: shown_records.ShownText
    evidence: tuple[EvidenceView, ...]
    evidence_title: str
    schema: shown_records.ShownText
    attempts: tuple[AttemptView, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A step of a chain.

    Attributes:
        name: The kind of the step in a word or two.
        sentence: One sentence about it.
        lines: More lines about it.
        time: Its market time, or the time of its record.
        level: The indentation, from 0.
        tone: `call`, `call-fault` or empty.
        is_asked: The id in the address is that of this step. It is open.
        call: The parts of a call, or None.
        body: The body of an event, or None.
        facts: The record of an event.

    """

    name: str
    sentence: str
    lines: tuple[str, ...]
    time: str
    level: int
    tone: str
    is_asked: bool
    call: CallView | None
    body: shown_records.ShownText | None
    facts: tuple[TraceFact, ...]


@dataclass(frozen=True, slots=True)
class TraceView:
    """Everything on the page of a chain.

    Attributes:
        wanted: The id in the form.
        trace_id: The id of the chain.
        outcome: The outcome in a few words, or an empty text.
        figures: Steps, cost, P&L and the check of each log.
        nodes: The steps, each after its cause.
        problems: Banners about missing and broken records.

    """

    wanted: str
    trace_id: str
    outcome: str
    figures: tuple[TraceFigure, ...]
    nodes: tuple[NodeView, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The place of a record: its log, its line, and the hashes of the chain."""

    log: ShownLog
    seq: int
    hash: str
    prev: str

    @property
    def text(self) -> str:
        """The line and the log."""
        return f"line {self.seq:,} of {self.log.name}"


RecordKey = tuple[str, str, str]


class TracePage:
    """The page Trace."""

    name = "Trace"
    paths = ("/trace", "/trace/text")

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def answer(self, request: PageRequest) -> PageAnswer | PlainText:
        """Return the page of an id, a whole text of a record, or the newest chains.

        Raises:
            NotShownError: If no record of the tenant has the text.

        """
        wanted = request.query.get("id", "").strip()
        if request.path == "/trace/text":
            return PlainText(await self.text(wanted, request.query.get("field", "")))
        page = await self.page(wanted)
        is_unknown = isinstance(page, TraceSearch) and bool(page.message)
        return PageAnswer(TEMPLATE, page, 404 if is_unknown else 200)

    async def page(self, wanted: str) -> TraceView | TraceSearch:
        """Return the page of the chain of an id, or the newest chains."""
        logs, problems = await shown_records.readable_logs(self._sources)
        records = MergedRecords([each.records for each in logs])
        if not wanted:
            return await self._search(records, problems)
        try:
            trace_id, record_id = await self._found(records, wanted)
        except causes.AmbiguousIdError as e:
            matches = tuple((printable(each), _address(each)) for each in e.matches)
            message = "Several ids start like this. Give more characters, or choose one."
            return TraceSearch(printable(wanted), message, matches, (), tuple(problems))
        except causes.UnknownRecordError:
            return await self._search(records, problems, wanted, "No record with this id is known here.")
        except StoreError as e:
            broken = next(each for each in logs if each.path == e.path)
            return await self._search(
                records, [*problems, shown_records.problem_of(self._sources, broken, e)], wanted
            )
        return await self._trace_page(logs, problems, trace_id, record_id or wanted)

    async def text(self, record_id: str, field: str) -> str:
        """Return a text of a record. Raises `NotShownError` if no record of the tenant has it."""
        logs, _ = await shown_records.readable_logs(self._sources)
        records = MergedRecords([each.records for each in logs])
        record = await records.find(record_id, tenant=self._sources.tenant)
        if record is None:
            raise NotShownError
        texts = dict(_texts_of(record))
        if field not in texts:
            raise NotShownError
        return texts[field]

    async def _found(self, records: MergedRecords, wanted: str) -> tuple[str, str]:
        """Return the chain of an id and the id. The latter is empty for the id of a chain."""
        tenant = self._sources.tenant
        record_id = await causes.full_id(records, wanted, tenant=tenant)
        try:
            return (await causes.find_record(records, record_id, tenant)).trace_id, record_id
        except causes.UnknownRecordError:
            trace_id = await causes.full_id(records, wanted, of="trace", tenant=tenant)
            if not await records.traces(1, query=RecordQuery(trace_id=trace_id), tenant=tenant):
                raise
            return trace_id, ""

    async def _search(
        self, records: MergedRecords, problems: Sequence[str], wanted: str = "", message: str = ""
    ) -> TraceSearch:
        found = []
        try:
            found = await trace_lines.newest_chains(
                records,
                NEWEST,
                with_calls=True,
                tenant=self._sources.tenant,
            )
        except StoreError:
            problems = [*problems, "The newest chains cannot be listed, because a record cannot be read."]
        rows = tuple(
            ChainRow(
                time=one.last[:19].replace("T", " "),
                subject=printable(one.subject) or ABSENT,
                outcome=printable(outcome) or ABSENT,
                calls=f"{one.attempts:,}",
                usd=usd(one.cost_nusd),
                trace_id=printable(one.trace_id),
                href=_address(one.trace_id),
            )
            for one, outcome in found
        )
        return TraceSearch(printable(wanted), message, (), rows, tuple(dict.fromkeys(problems)))

    async def _trace_page(
        self, logs: Sequence[ShownLog], problems: list[str], trace_id: str, wanted: str
    ) -> TraceView:
        parts, places, checked = list[list[Record]](), dict[RecordKey, RecordPlace](), list[TraceFigure]()
        for source in logs:
            part, more = await self._records(source, trace_id, places)
            problems += more
            if part or more:
                checked.append(await self._check(source))
            parts.append(part[:MOST_RECORDS])
            if len(part) > MOST_RECORDS:
                problems.append(
                    f"The first {MOST_RECORDS:,} records of this chain in {source.name} are shown."
                )
        records = merged_records(parts)
        is_whole = not problems
        # In a thread, because the texts of a chain may be long, and a renderer may be imported.
        return await asyncio.to_thread(
            _page_of, records, places, wanted, trace_id, tuple(checked), problems, is_whole=is_whole
        )

    async def _records(
        self, source: ShownLog, trace_id: str, places: dict[RecordKey, RecordPlace]
    ) -> tuple[list[Record], list[str]]:
        """Return the records of a chain in a log, and problems. Adds their places."""

        def make(line: ChainedRecord) -> tuple[Record, RecordPlace]:
            entry = source.records.entry(line)
            return entry.record, RecordPlace(source, line.seq, line.hash, line.prev)

        broken, records, query = list[StoreError](), list[Record](), RecordQuery(trace_id=trace_id)
        lines = shown_records.intact_lines(
            source, make, query, broken, limit=MOST_RECORDS + 1, tenant=self._sources.tenant
        )
        try:
            async with aclosing(lines):
                async for record, place in lines:
                    # The first log that has a record is named, as `MergedRecords` takes it from there.
                    places.setdefault(record_key(record), place)
                    records.append(record)
        except StoreError as e:
            return records, [shown_records.problem_of(self._sources, source, e)]
        return records, shown_records.problems_of(self._sources, source, broken)

    async def _check(self, source: ShownLog) -> TraceFigure:
        """Return the check of the end of a log. The whole log is never read for a page."""
        name = f"log {source.name}"
        try:
            check = await check_end_of(source.records, source.path)
        except StoreError as e:
            return TraceFigure(name, "✗ broken", shown_records.problem_of(self._sources, source, e), "bad")
        if check.findings and self._sources.tenant is not None:
            return TraceFigure(name, "✗ not whole", "records may be missing", "bad")
        if check.findings:
            note = printable(self._sources.without_paths(str(check.findings[0])))
            return TraceFigure(name, f"✗ {check.verdict}", note, "bad")
        lines = "" if self._sources.tenant is not None else f"{pluralize(check.lines, 'line')}. "
        return TraceFigure(
            name, "✓ whole at its end", f"{lines}The command audit verify checks every line", "good"
        )


def _page_of(
    records: Sequence[Record],
    places: Mapping[RecordKey, RecordPlace],
    wanted: str,
    trace_id: str,
    checked: tuple[TraceFigure, ...],
    problems: list[str],
    *,
    is_whole: bool,
) -> TraceView:
    tree = causes.TraceTree(records)
    if tree.orphans:
        missing = ", ".join(dict.fromkeys(node.cause for node in tree.orphans))
        problems.append(printable(f"Causes that are not in this chain: {missing[:CHANGE_CHARS]}."))
    problems += [printable(f"A cycle of causes: {', '.join(ring)[:CHANGE_CHARS]}.") for ring in tree.cycles]
    nodes = tuple(_Steps(tree, places, wanted).views())
    calls = [node for node in tree.nodes if isinstance(node, causes.CallNode)]
    attempts = [attempt.result for call in calls for attempt in call.attempts]
    changes = sum(len(_changes_of(result.reading)) for result in attempts)
    made = f"{pluralize(len(calls), 'call')}, {pluralize(len(attempts), 'attempt')}, {pluralize(changes, 'change')}"
    first = sum(r.cost_nusd if r.first_cost_nusd is None else r.first_cost_nusd for r in attempts)
    cost_note = "" if first == tree.cost_nusd else f"The recorded calls cost {usd(first)} USD"
    return TraceView(
        wanted=printable(wanted),
        trace_id=printable(trace_id),
        outcome=printable(trace_lines.chain_outcome(records)),
        figures=(
            TraceFigure("steps", f"{len(nodes):,}", made),
            TraceFigure("cost of inference", f"{usd(tree.cost_nusd)} USD", cost_note),
            _profit(records, is_whole=is_whole),
            *checked,
        ),
        nodes=nodes,
        problems=tuple(problems),
    )


def _profit(records: Sequence[Record], *, is_whole: bool) -> TraceFigure:
    value, note = trace_lines.profit_of(records)
    # A sum of some fills would look like that of all.
    if not is_whole and value:
        return TraceFigure("P&L", ABSENT, "not shown, because records may be missing")
    if not value:
        return TraceFigure("P&L", ABSENT, note or "no fill")
    return TraceFigure("P&L after fees", value, note, "bad" if value.startswith("-") else "good")


class _Steps:
    """Makes the views of the steps of a chain."""

    def __init__(self, tree: causes.TraceTree, places: Mapping[RecordKey, RecordPlace], wanted: str) -> None:
        self._tree = tree
        self._places = places
        self._wanted = wanted
        self._texts = shown_records.PageTexts()
        self._frames = trace_lines.TraceFrames(tree)
        self._sent = dict(self._sendings())
        self._levels: dict[int, int] = {}

    def views(self) -> Iterator[NodeView]:
        """Yield the steps, each after its cause. The sending of an attempt is shown with the attempt."""
        for row in self._tree.rows():
            level = self._level(row.node)
            self._levels[id(row.node)] = level
            # The level is kept of each step, because effects of a hidden one may follow.
            if not self._is_sending(row.node) and not self._frames.hides(row.node):
                yield self._view(row.node, min(level, MOST_LEVELS))

    def _sendings(self) -> Iterator[tuple[tuple[str, int], Event]]:
        """Yield the events before the attempts that were sent, by envelope and number of the attempt."""
        for node in self._tree.nodes:
            if isinstance(node, causes.EventNode) and self._is_sending(node):
                with suppress(EventError):  # an event that cannot be read has no number
                    if (body := SENDINGS.of(node.event)) is not None:
                        yield (node.cause, body.attempt), node.event

    def _is_sending(self, node: causes.TraceNode) -> bool:
        return node.kind == AttemptDispatched.KIND and isinstance(self._tree.parent(node.id), causes.CallNode)

    def _level(self, node: causes.TraceNode) -> int:
        """Return the indentation: one more than that of the cause if the cause has several effects."""
        # Otherwise a chain of ten steps would be a staircase.
        parent = self._tree.parent(node.id)
        if parent is None:
            return 0
        effects = [each for each in self._tree.children(parent.id) if not self._is_sending(each)]
        return self._levels[id(parent)] + (len(effects) > 1)

    def _view(self, node: causes.TraceNode, level: int) -> NodeView:
        time = _moment(node.as_of)
        if isinstance(node, causes.EventNode):
            name, sentence, *lines = trace_lines.sentence_of(node.event)
            return NodeView(
                name=name,
                sentence=sentence,
                lines=(*lines, *map(printable, self._frames.lines(node))),
                time=time if node.as_of else _moment(node.event.time),
                level=level,
                tone="",
                is_asked=node.id == self._wanted,
                call=None,
                body=self._texts.shown(node.event.body_json.decode(), node.id, "body"),
                facts=tuple(self._event_facts(node)),
            )
        last = node.attempts[-1]
        return NodeView(
            name=printable(f"call, {node.envelope.workflow}"),
            sentence=_call_sentence(node),
            lines=tuple(map(printable, self._frames.lines(node))),
            time=time,
            level=level,
            tone="call" if last.result.actionable else "call-fault",
            is_asked=self._wanted in {node.id, *(each.interaction_id for each in node.attempts)},
            call=self._call(node),
            body=None,
            facts=(),
        )

    def _event_facts(self, node: causes.EventNode) -> Iterator[TraceFact]:
        event = node.event
        yield TraceFact("event", printable(f"{event.kind} {event.id}"), is_code=True)
        yield TraceFact("tenant", printable(event.tenant_id))
        yield TraceFact("recorded", _moment(event.time))
        yield from self._place_facts(event)

    def _place_facts(self, record: Record) -> Iterator[TraceFact]:
        if (place := self._places.get(record_key(record))) is not None:
            yield TraceFact("on record", place.text)
            yield TraceFact("hash of the line", place.hash, is_code=True)
            yield TraceFact("hash before it", place.prev, is_code=True)

    def _call(self, node: causes.CallNode) -> CallView:
        envelope, first = node.envelope, node.attempts[0].interaction_id
        texts = dict(_envelope_texts(envelope))
        evidence = tuple(
            EvidenceView(_evidence_title(item), self._texts.shown(texts[field], first, field))
            for field, item in _evidence_fields(envelope)
        )
        return CallView(
            facts=tuple(_envelope_facts(envelope)),
            prompt=self._texts.shown(texts["instructions"], first, "instructions"),
            context=self._texts.shown(texts["context"], first, "context"),
            evidence=evidence,
            evidence_title=f"Evidence, {pluralize(len(evidence), 'item')}",
            schema=self._texts.shown(texts["schema"], first, "schema"),
            attempts=tuple(map(self._attempt, node.attempts)),
        )

    def _attempt(self, attempt: LLMInteraction) -> AttemptView:
        result, reading = attempt.result, attempt.result.reading
        tags = ["in doubt"] if result.in_doubt else []
        if result.served_from != "live":
            tags.append(printable(f"{result.served_from} answer"))
        failure = result.failure.description if result.failure is not None else result.error or ""
        return AttemptView(
            title=f"Attempt {result.attempt_number}",
            outcome=_outcome(result),
            tone="good" if result.actionable else "bad",
            tags=tuple(tags),
            failure=shown_records.page_text(failure),
            answer=self._texts.shown(result.raw_output, attempt.interaction_id, "answer")
            if result.raw_output
            else None,
            changes=tuple(map(_change, _changes_of(reading))),
            rules=tuple(map(_rule, reading.errors if reading else ())),
            facts=(*_attempt_facts(result), *self._attempt_places(attempt)),
        )

    def _attempt_places(self, attempt: LLMInteraction) -> Iterator[TraceFact]:
        result = attempt.result
        sent = self._sent.get((attempt.envelope.envelope_id, result.attempt_number))
        place = None if sent is None else self._places.get(record_key(sent))
        yield TraceFact("interaction", printable(attempt.interaction_id), is_code=True)
        if place is not None:
            yield TraceFact("sending", f"recorded before, in {place.text}")
        yield from self._place_facts(attempt)
        yield TraceFact("hash of the answer", result.output_hash, is_code=True)


def _call_sentence(node: causes.CallNode) -> str:
    envelope, results = node.envelope, [attempt.result for attempt in node.attempts]
    who = envelope.agent_id or envelope.agent_type or "no agent"
    parts = [
        f"{who} asked {envelope.provider}/{results[-1].model or envelope.model}: {_outcome(results[-1])}",
        pluralize(len(results), "attempt"),
        f"{sum(each.usage.total_input_tokens for each in results):,} tokens in",
        f"{sum(each.output_tokens for each in results):,} out",
        f"{usd(node.cost_nusd)} USD",
    ]
    return printable(", ".join(parts))


def _outcome(result: LLMResult) -> str:
    if result.actionable:
        return "accepted"
    return "degraded" if result.failure is None else printable(str(result.failure.category).replace("_", " "))


def _envelope_facts(envelope: LLMEnvelope) -> Iterator[TraceFact]:
    yield TraceFact("envelope", printable(envelope.envelope_id), is_code=True)
    who = printable(envelope.agent_id or envelope.agent_type or ABSENT)
    yield TraceFact("agent", f"{who}, tenant {printable(envelope.tenant_id)}")
    if envelope.subject:
        yield TraceFact("subject", printable(envelope.subject))
    times = f"as of {_moment(envelope.as_of)}, evidence up to {_moment(envelope.context_as_of)}"
    yield TraceFact("time (UTC)", f"{times}, deadline {_moment(envelope.deadline)}")
    version = f", prompt {envelope.prompt_version}" if envelope.prompt_version else ""
    yield TraceFact(
        "determinism", printable(f"{envelope.determinism}, temperature {envelope.temperature}{version}")
    )
    yield TraceFact("hash of the request", printable(envelope.request_hash), is_code=True)
    yield TraceFact("hash of the envelope", printable(envelope.envelope_hash), is_code=True)


def _attempt_facts(result: LLMResult) -> Iterator[TraceFact]:
    reading, used = result.reading, result.usage
    if reading is not None:
        stages = (reading.parser, reading.transport, reading.decode, str(reading.verdict).replace("_", " "))
        names = ("parser", "transport", "decoded", "ended at")
        read = ", ".join(f"{name} {stage}" for name, stage in zip(names, stages, strict=True))
        yield TraceFact("read", printable(read))
    if result.next_step:
        yield TraceFact("next step", printable(str(result.next_step).replace("_", " ")))
    yield TraceFact(
        "tokens",
        f"{used.total_input_tokens:,} in ({used.cache_read_tokens:,} from a cache), "
        f"{used.output_tokens:,} out ({used.thinking_tokens:,} for thinking)",
    )
    again = (
        "" if result.first_cost_nusd is None else f". The first call cost {usd(result.first_cost_nusd)} USD"
    )
    yield TraceFact("cost", f"{usd(result.cost_nusd)} USD of {usd(result.reserved_nusd)} USD reserved{again}")
    if result.price_book:
        yield TraceFact("prices", printable(result.price_book))
    stop = printable(result.stop_reason) or ABSENT
    yield TraceFact("latency", f"{result.latency_ms:,.0f} ms, stop reason {stop}")


def _changes_of(reading: AttemptTrace | None) -> list[Fix]:
    return [] if reading is None else [*chain(reading.fixes, reading.coercions, reading.patches)]


def _change(fix: Fix) -> ChangeView:
    return ChangeView(
        printable(fix.kind.replace("_", " ")), _short(fix.where), _short(fix.before), _short(fix.after)
    )


def _rule(violation: Violation) -> RuleView:
    was, allowed = (
        ABSENT if value is None else _short(trace_lines.joined(value))
        for value in (violation.actual, violation.allowed)
    )
    nearest = (
        "" if violation.suggestion is None else f". The nearest: {trace_lines.joined(violation.suggestion)}"
    )
    return RuleView(_short(violation.path), _short(f"{violation.message}{nearest}"), was, allowed)


def _short(text: str) -> str:
    shown = printable(text[:CHANGE_CHARS])
    return f"{shown}…" if len(text) > CHANGE_CHARS else shown


def _texts_of(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the fields of a record that have texts of their own."""
    if isinstance(record, Event):
        yield "body", record.body_json.decode()
        return
    yield from _envelope_texts(record.envelope)
    yield "answer", record.result.raw_output


def _envelope_texts(envelope: LLMEnvelope) -> Iterator[tuple[str, str]]:
    yield "instructions", envelope.instructions
    yield "context", envelope.context_json.decode()
    for (field, _), content in zip(_evidence_fields(envelope), envelope.evidence_json, strict=True):
        yield field, content.decode()
    yield "schema", envelope.output_schema_json.decode()


def _evidence_fields(envelope: LLMEnvelope) -> list[tuple[str, EvidenceItem]]:
    return [(f"evidence-{number}", item) for number, item in enumerate(envelope.retrieved_evidence, start=1)]


def _evidence_title(item: EvidenceItem) -> str:
    known = "" if item.available_at is None else f", known from {_moment(item.available_at)}"
    return printable(f"{item.evidence_id}, {item.source}{known}")


def _moment(value: datetime | None) -> str:
    return ABSENT if value is None else f"{value:%Y-%m-%d %H:%M:%S}".removesuffix(":00")


def _address(record_id: str) -> str:
    return f"/trace?{urlencode({'id': record_id})}"
