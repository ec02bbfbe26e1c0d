"""The page Calls: the attempts of logs, newest first, selected by a form whose filters are in the address."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import merge
from itertools import islice
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlencode

import orjson

from agentic_trading.audit.logs import MergedRecords
from agentic_trading.audit.trace import AmbiguousIdError, full_id
from agentic_trading.clock import MOMENTS, Clock, SystemClock, parse_moment
from agentic_trading.llm.errors import FailureKind, StoreError
from agentic_trading.llm.facts import ANY, NAME_FIELDS, RecordQuery
from agentic_trading.llm.log_line import INTERACTION, IndexRow, index_row_of
from agentic_trading.llm.store import ChainedRecord
from agentic_trading.monitor.page import PageAnswer, PageRequest
from agentic_trading.monitor.records import intact_lines, problem_of, problems_of, readable_logs
from agentic_trading.monitor.sources import ShownLog, Sources
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import printable, usd
from agentic_trading.platform.errors import OptionError

ROWS: Final = 50
"""Attempts on a page."""

SEARCHED: Final = 2_000
"""Attempts of each log that a page searches for words. The next page goes on from there."""

FIELDS: Final = ("tenant", "agent", "workflow", "model", "envelope", "grep", "since", "until")
"""The texts of the form, by the names of the options of `records`."""

ACCEPTED: Final = "accepted"
"""The value of the filter `failure` for attempts without a failure."""

_FORM: Final[Mapping[str, tuple[str, str, int]]] = MappingProxyType({
    "envelope": ("envelope", "id", 20),
    "grep": ("words", "in prompt or answer", 20),
    "since": ("from (UTC)", "2026-06-20 or 7d", 16),
    "until": ("before (UTC)", "2026-06-20T10:00", 16),
})
"""Label, hint and width of fields."""

_FILTERS: Final = frozenset({*NAME_FIELDS, *FIELDS, "trace"} - {"kind"})
_IN_FORM: Final = frozenset({*FIELDS, "failure"})
_MOST_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class CallField:
    """A field of the form. `size` is its width in characters."""

    name: str
    label: str
    value: str
    hint: str
    size: int


@dataclass(frozen=True, slots=True)
class CallChoice:
    """A value of the field `failure`."""

    value: str
    label: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class CallRow:
    """An attempt. `tone` is good, bad or dim, and `tags` are remarks such as `in doubt`."""

    time: str
    log: str
    tenant: str
    agent: str
    workflow: str
    model: str
    outcome: str
    sign: str
    tone: str
    tags: tuple[str, ...]
    input_tokens: str
    output_tokens: str
    milliseconds: str
    usd: str
    href: str


@dataclass(frozen=True, slots=True)
class CallsView:
    """Everything on the page.

    Attributes:
        fields: The texts of the form.
        outcomes: The values of its field `failure`.
        others: Name and value of filters of the address without a field.
        rows: The attempts.
        note: The rows in words.
        has_logs: Several logs are shown.
        newest: The address of the first page, or an empty text on it.
        older: The address of the next page, or an empty text on the last one.
        problems: Banners about logs that cannot be read.

    """

    fields: tuple[CallField, ...]
    outcomes: tuple[CallChoice, ...]
    others: tuple[tuple[str, str], ...]
    rows: tuple[CallRow, ...]
    note: str
    has_logs: bool
    newest: str
    older: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt on record."""

    log: ShownLog
    seq: int
    time: datetime
    row: IndexRow
    is_actionable: bool
    changes: int


@dataclass(frozen=True, slots=True)
class _LogPart:
    """The part of a log that a page has read, from line `start` downwards.

    Attributes:
        found: The selected attempts.
        reached: The number of the last line that was read, or 1 at the end of the log.

    """

    start: int
    found: Sequence[_Attempt]
    reached: int

    def end(self, shown: int) -> int:
        """Return the line before which the next page reads, if the first `shown` attempts are on this page."""
        if shown == len(self.found):
            return self.reached
        return self.found[shown - 1].seq if shown else self.start


@dataclass(frozen=True, slots=True)
class _Filter:
    """A selection, and the conditions that only a line can show."""

    query: RecordQuery
    envelope: str
    words: frozenset[bytes]

    @property
    def limit(self) -> int:
        """The most lines of each log that a page reads."""
        return SEARCHED if self.words or self.envelope else ROWS + 1

    def attempt(self, source: ShownLog, line: ChainedRecord) -> _Attempt | None:
        """Return the attempt in a line, or None if it is not selected."""
        if self.words and not any(words in line.line[: line.cut] for words in self.words):
            return None
        try:
            # Parsed again, because the row of an index has no field for a guessed answer.
            row, result = index_row_of(line.line), orjson.loads(line.line)["result"]
            reading = result.get("reading") or {}
            changes = sum(len(reading.get(name, ())) for name in ("fixes", "coercions", "patches"))
            time = datetime.fromisoformat(row.time)
        except (ValueError, LookupError, TypeError, AttributeError) as e:
            raise StoreError(source.path, f"its record cannot be read ({e})", line=line.seq) from e
        if self.envelope and row.envelope_id != self.envelope:
            return None
        return _Attempt(source, line.seq, time, row, bool(result.get("actionable")), changes)


class CallsPage:
    """The page Calls."""

    name = "Calls"
    paths = ("/calls",)

    def __init__(self, sources: Sources, *, clock: Clock | None = None) -> None:
        self._sources = sources
        self._clock = clock or SystemClock()

    async def answer(self, request: PageRequest) -> PageAnswer:
        """Return the page of the filters in the address."""
        page = await self.page(request.query)
        return PageAnswer("agentic_trading.monitor/calls.html.j2", page)

    async def page(self, values: Mapping[str, str]) -> CallsView:
        """Return the page of filters.

        Raises:
            OptionError: If the value of a filter is not allowed.

        """
        # Each log by itself, because one that cannot be read would otherwise hide the others.
        logs, problems = await readable_logs(self._sources)
        chosen = await self._filter(logs, values)
        starts = _starts(values.get("before", ""), len(logs))
        parts = []
        for source, start in zip(logs, starts, strict=True):
            part, more = await self._part(source, chosen, start)
            parts.append(part)
            problems += more
        shown = list(islice(merge(*(each.found for each in parts), key=_time, reverse=True), ROWS))
        ends = [
            part.end(sum(each.log is source for each in shown))
            for part, source in zip(parts, logs, strict=True)
        ]
        given = {name: value for name, value in values.items() if name in _FILTERS and value}
        is_last = all(end == 1 for end in ends)
        return CallsView(
            fields=tuple(_field(name, values) for name in self._fields),
            outcomes=tuple(_outcomes(values.get("failure", ""))),
            others=tuple((name, text) for name, text in given.items() if name not in _IN_FORM),
            rows=tuple(map(_row, shown)),
            note=_note(len(shown), is_first=not any(starts), is_last=is_last),
            has_logs=len(logs) > 1,
            newest=_address(given) if any(starts) else "",
            older="" if is_last else _address({**given, "before": "-".join(map(str, ends))}),
            problems=tuple(problems),
        )

    @property
    def _fields(self) -> tuple[str, ...]:
        return FIELDS if self._sources.tenant is None else FIELDS[1:]

    async def _filter(self, logs: Sequence[ShownLog], values: Mapping[str, str]) -> _Filter | None:
        """Return the selection, or None if no record has its envelope."""
        names: dict[str, Any] = {name: _names(values[name]) for name in NAME_FIELDS if values.get(name)}
        if values.get("failure") == ACCEPTED:
            names["failure"] = ("",)
        times = {name: self._moment(name, values[name]) for name in ("since", "until") if values.get(name)}
        if len(times) > 1 and times["since"] >= times["until"]:
            raise OptionError("until", f"{values['until']}, at or before since", "a later time")
        records, tenant = MergedRecords([each.records for each in logs]), self._sources.tenant
        envelope, trace = values.get("envelope", ""), values.get("trace", "")
        try:
            trace = await full_id(records, trace, of="trace", tenant=tenant)
            if envelope:
                envelope = await full_id(records, envelope, tenant=tenant)
                attempts = await records.by_envelope(envelope, tenant=tenant)
                if not attempts:
                    return None
                trace = attempts[0].trace_id
        except AmbiguousIdError as e:
            raise OptionError("envelope or trace", repr(e.prefix), f"one of {', '.join(e.matches)}") from e
        selection: dict[str, Any] = {
            **dict[str, Any](names),
            **times,
            "kind": (INTERACTION,),
            "trace_id": trace,
        }
        return _Filter(RecordQuery(**selection), envelope, _words(values.get("grep", "")))

    def _moment(self, name: str, text: str) -> datetime:
        try:
            return parse_moment(text, self._clock.now())
        except ValueError as e:
            raise OptionError(name, repr(text), MOMENTS) from e

    async def _part(self, source: ShownLog, chosen: _Filter | None, start: int) -> tuple[_LogPart, list[str]]:
        """Return the part of a log below a line, and problems."""
        found, broken, reached, read = list[_Attempt](), list[StoreError](), 1, 0
        if chosen is None or start == 1:
            return _LogPart(start, (), 1), []
        lines = intact_lines(
            source,
            lambda line: (line.seq, chosen.attempt(source, line)),
            replace(chosen.query, before=start),
            broken,
            newest_first=True,
            limit=chosen.limit,
            tenant=self._sources.tenant,
        )
        try:
            async with aclosing(lines):
                async for seq, attempt in lines:
                    read += 1
                    reached = seq
                    if attempt is not None:
                        found.append(attempt)
                    if len(found) > ROWS:
                        break
        except StoreError as e:
            return _LogPart(start, found, 1), [problem_of(self._sources, source, e)]
        # Lines are counted, because a broken one is left out and does not mean the end.
        is_whole = read < chosen.limit and len(found) <= ROWS
        return _LogPart(start, found, 1 if is_whole else reached), problems_of(self._sources, source, broken)


def _time(attempt: _Attempt) -> datetime:
    return attempt.time


def _starts(before: str, count: int) -> list[int]:
    """Return the line of each log below which the page begins, 0 for its end."""
    parts = before.split("-")
    # Otherwise the page is the first one, because other logs may have been found since.
    is_known = len(parts) == count and all(
        part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts
    )
    return [*map(int, parts)] if is_known else [0] * count


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _words(text: str) -> frozenset[bytes]:
    """Return the bytes of a text in a log, as it is or as a JSON string. Empty for no text."""
    quoted = json.dumps(text, ensure_ascii=False)[1:-1]
    return frozenset(each.encode("utf-8", "surrogatepass") for each in (text, quoted) if each)


def _address(values: Mapping[str, str]) -> str:
    return f"/calls?{urlencode(values)}" if values else "/calls"


def _field(name: str, values: Mapping[str, str]) -> CallField:
    label, hint, size = _FORM.get(name, (name, "", 12))
    return CallField(name, label, values.get(name, ""), hint, size)


def _outcomes(chosen: str) -> Iterator[CallChoice]:
    kinds = [(str(kind), str(kind).replace("_", " ")) for kind in FailureKind]
    known = [("", "any"), (ACCEPTED, "accepted"), (ANY, "any failure"), *kinds]
    if chosen not in {value for value, _ in known}:
        known.append((chosen, chosen))
    for value, label in known:
        yield CallChoice(value, label, value == chosen)


def _note(count: int, *, is_first: bool, is_last: bool) -> str:
    if not count:
        return "No attempt is selected." if is_last else "No attempt is selected in this part of the log."
    place = "newest " if is_first and not is_last else ""
    return f"{pluralize(count, f'{place}attempt')}, newest first. Times are UTC."


def _row(attempt: _Attempt) -> CallRow:
    row = attempt.row
    tags = [f"attempt {row.attempt}"] if row.attempt > 1 else []
    if attempt.changes:
        tags.append(f"{attempt.changes} changed")
    if row.in_doubt:
        tags.append("in doubt")
    if row.recorded:
        tags.append("from a record")
    elif not row.sent:
        tags.append("not sent")
    outcome = row.failure or ("accepted" if attempt.is_actionable else "degraded")
    return CallRow(
        time=f"{attempt.time:%Y-%m-%d %H:%M:%S}",
        log=attempt.log.name,
        tenant=printable(row.tenant),
        agent=printable(row.agent),
        workflow=printable(row.workflow),
        model=printable(f"{row.provider}/{row.model}"),
        outcome=printable(outcome.replace("_", " ")),
        sign="✓" if attempt.is_actionable else "✗",
        tone="good" if attempt.is_actionable else "bad",
        tags=tuple(tags),
        input_tokens=f"{row.input_tokens:,}",
        output_tokens=f"{row.output_tokens:,}",
        milliseconds=f"{row.latency_ms:,.0f}",
        usd=usd(row.cost_nusd),
        href=f"/trace?{urlencode({'id': row.id})}",
    )
