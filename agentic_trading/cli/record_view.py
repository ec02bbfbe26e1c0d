"""The output of `records`: which records it prints, in which form, and its notes."""

import csv
import io
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, cast, get_args

import orjson
import typer

from agentic_trading.audit.records import LoggedFact, RecordReader, added_sums
from agentic_trading.audit.trace import AmbiguousIdError
from agentic_trading.canonical import utc_text
from agentic_trading.cli import output
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.look import warn_of_ends
from agentic_trading.cli.options import listed_names
from agentic_trading.llm.facts import ANY, FactKey, FactSums, RecordQuery
from agentic_trading.llm.log_line import INTERACTION, read_line
from agentic_trading.operate.lines import printable, usd
from agentic_trading.platform.errors import OptionError

Form = Literal["table", "json", "csv", "raw"]

_NEWEST_ON_A_TERMINAL: Final = 50
_NAMED: Final = tuple(key for key in get_args(FactKey) if key != "day")
_NEAREST: Final = 3
_AT_ONCE: Final = 1_000
_ROOM_FOR_FIGURES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """The options of `records`.

    Attributes:
        query: The selection.
        cause: Only records that follow from one of these.
        text: Only records with this text.
        limit: Only the newest records. None is the default, 0 means all.
        newest_first: The order.
        is_followed: Wait for new records.
        is_counted: Print only the number of records.
        keys: Print only sums by these keys.
        form: The form of the output.

    """

    query: RecordQuery
    cause: RecordQuery | None
    text: str
    limit: int | None
    newest_first: bool
    is_followed: bool
    is_counted: bool
    keys: tuple[FactKey, ...]
    form: Form

    def check(self) -> None:
        """Raise `OptionError` if two options exclude each other."""
        given = {
            "--follow": self.is_followed,
            "--reverse": self.newest_first,
            "--count": self.is_counted,
            "--count-by": bool(self.keys),
            "--limit": self.limit is not None,
            "--output raw": self.form == "raw",
        }
        for option, others in _EXCLUDED.items():
            for other in others:
                if given[option] and given[other]:
                    raise OptionError(option, f"given with {other}", "one of the two")


_EXCLUDED: Final[Mapping[str, Sequence[str]]] = MappingProxyType({
    "--follow": ("--reverse", "--count", "--count-by"),
    "--count": ("--reverse", "--count-by", "--limit", "--output raw"),
    "--count-by": ("--reverse", "--limit", "--output raw"),
})


def cause_of(texts: Sequence[str] | None) -> RecordQuery | None:
    """Return the query of `--caused-by`. Raises `OptionError` for an unknown key."""
    names: dict[str, Any] = {}
    for text in texts or ():
        key, mark, values = text.partition("=")
        if not mark or key not in _NAMED:
            raise OptionError(
                "--caused-by", repr(text), f"KEY=NAMES, with one of the keys {', '.join(_NAMED)}"
            )
        names[key] = (*names.get(key, ()), *listed_names([values]))
    return RecordQuery(**names) if names else None


def sum_keys(text: str) -> tuple[FactKey, ...]:
    """Return the keys of `--count-by`. Raises `OptionError` for an unknown key."""
    keys = tuple(dict.fromkeys(listed_names([text]))) if text else ()
    if unknown := [key for key in keys if key not in get_args(FactKey)]:
        raise OptionError(
            "--count-by", repr(unknown[0]), f"{', '.join(get_args(FactKey))}, separated by commas"
        )
    return cast(tuple[FactKey, ...], keys)


def output_form(text: str) -> Form:
    """Return the form of `--output`. Raises `OptionError` for an unknown one."""
    if text not in get_args(Form):
        raise OptionError("--output", repr(text), ", ".join(get_args(Form)))
    return cast(Form, text)


def print_view(logs: Sequence[Path], view: RecordView) -> None:
    """Print the records of logs."""
    tenants = view.query.tenant
    tenant = tenants[0] if len(tenants) == 1 and tenants[0] != ANY else None
    with RecordReader(logs, tenant) as reader:
        if view.query.trace_id:
            view = replace(
                view, query=replace(view.query, trace_id=_whole_trace(reader, view.query.trace_id))
            )
        if view.is_followed:
            _follow(reader, view)
            return
        warn_of_ends(logs, tenant)
        if view.is_counted:
            number = _count(reader, view)
            typer.echo(str(number))
        elif view.keys:
            number = _print_sums(_sums(reader, view), view)
        else:
            number = _print_facts(reader, view)
        if not number:
            _note_unknown_names(reader, view)


def _whole_trace(reader: RecordReader, trace_id: str) -> str:
    try:
        return reader.query(trace_id=trace_id).trace_id
    except AmbiguousIdError as e:
        stop(ExitCode.FOUND_WRONG, str(e))


def _follow(reader: RecordReader, view: RecordView) -> None:
    """Print records, and wait for more until Ctrl-C."""
    put = _printer(reader, view)
    limit, ends = _limit(view), {}
    if limit is not None:
        ends = reader.ends()
        # Later records are printed below.
        put([fact for fact in _selected(reader, view, limit) if fact.seq <= ends[fact.log]])
    followed = reader.follow(view.query, ends=ends, cause=view.cause)
    for fact in _with_text(reader, view, followed, at_once=1):
        put([fact])


def _print_facts(reader: RecordReader, view: RecordView) -> int:
    """Print the selected records. Return their number."""
    put, limit = _printer(reader, view), _limit(view)
    facts, number = iter(_selected(reader, view, limit)), 0
    while chunk := list(islice(facts, _AT_ONCE)):
        put(chunk)
        number += len(chunk)
    if view.limit is None and number == limit:
        _note_rest(reader, view, number)
    return number


def _note_rest(reader: RecordReader, view: RecordView, number: int) -> None:
    """Say that there may be more records than on the terminal."""
    if view.text or view.cause:  # counting would read them all
        say(f"The {number} newest records. -n 0 shows all.", err=True)
    elif (total := reader.count(view.query)) > number:
        say(f"{number} of {total:,} records. -n 0 shows all.", err=True)


def _limit(view: RecordView) -> int | None:
    """Return the maximum number of records, None for all."""
    if view.limit is None:
        return _NEWEST_ON_A_TERMINAL if output.console().is_terminal else None
    return view.limit or None


def _selected(reader: RecordReader, view: RecordView, limit: int | None) -> Iterable[LoggedFact]:
    """Return the newest selected records, in the order of the view."""
    if view.cause is not None:
        found = _with_text(reader, view, reader.caused_by(view.cause, view.query))
        if limit is None and not view.newest_first:
            return found
        kept = deque(found, maxlen=limit)
        return reversed(kept) if view.newest_first else kept
    if limit is None:
        return _with_text(reader, view, reader.select(view.query, newest_first=view.newest_first))
    # With a text, the limit is applied later, because records without it do not count.
    most = None if view.text else limit
    newest = _with_text(reader, view, reader.select(view.query, newest_first=True, limit=most))
    kept = deque(islice(newest, limit))
    return kept if view.newest_first else reversed(kept)


def _with_text(
    reader: RecordReader, view: RecordView, facts: Iterator[LoggedFact], *, at_once: int = _AT_ONCE
) -> Iterator[LoggedFact]:
    """Yield the facts of records with the text of the view, as it is or as a JSON string."""
    if not view.text:
        yield from facts
        return
    quoted = json.dumps(view.text, ensure_ascii=False)[1:-1]
    wanted = {text.encode("utf-8", "surrogateescape") for text in (view.text, quoted)}
    for fact, line in reader.lines(facts, at_once=at_once):
        record = read_line(line).record
        if any(text in record for text in wanted):
            yield fact


def _count(reader: RecordReader, view: RecordView) -> int:
    if view.text or view.cause:
        return sum(1 for _ in _selected(reader, view, None))
    return reader.count(view.query)


def _sums(reader: RecordReader, view: RecordView) -> list[FactSums]:
    if not view.text and not view.cause:
        return reader.sums(*view.keys, query=view.query)
    return added_sums(
        FactSums(
            key=tuple(f"{fact.time:%Y-%m-%d}" if key == "day" else getattr(fact, key) for key in view.keys),
            records=1,
            failed=int(fact.failure != ""),
            input_tokens=fact.input_tokens,
            output_tokens=fact.output_tokens,
            cost_nusd=fact.cost_nusd,
        )
        for fact in _selected(reader, view, None)
    )


def _note_unknown_names(reader: RecordReader, view: RecordView) -> None:
    """Say that no record is selected, and which names of the options no record has, with similar names."""
    say("No record is selected.", err=True)
    queries = [query for query in (view.query, view.cause) if query is not None]
    for key in _NAMED:
        wanted = {name: None for query in queries for name in getattr(query, key) if name not in {"", ANY}}
        known = {row.key[0] for row in reader.sums(key)} - {""} if wanted else set()
        for name in wanted:
            if name not in known:
                nearest = get_close_matches(name, sorted(known), n=_NEAREST, cutoff=0.0)
                # A tenant sees no other tenant, so that the names of others are not known.
                hint = "" if key == "tenant" else f" No record has a {key}."
                if nearest:
                    hint = f" The nearest: {', '.join(nearest)}."
                say(printable(f"Note: no record has the {key} {name!r}.{hint}"), err=True)


Printer = Callable[[Sequence[LoggedFact]], None]


def _printer(reader: RecordReader, view: RecordView) -> Printer:
    """Return a function that prints facts. It may be called repeatedly."""
    match view.form:
        case "raw":
            return lambda facts: _print_raw(line for _, line in reader.lines(facts))
        case "json":
            return lambda facts: _print_json(_members(fact) for fact in facts)
        case "csv":
            put = _CsvPrinter(_FIELDS)
            return lambda facts: put.add(_members(fact).values() for fact in facts)
        case "table":
            drawn = _TablePrinter(_columns(has_logs=len(reader.logs) > 1))
            return drawn.add


_FIELDS: Final = tuple(part.name for part in fields(LoggedFact))


def _members(fact: LoggedFact) -> dict[str, Any]:
    members = {name: getattr(fact, name) for name in _FIELDS}
    return {**members, "time": utc_text(fact.time), "log": printable(str(fact.log))}


def _print_raw(lines: Iterable[bytes]) -> None:
    raw = b"".join(line + b"\n" for line in lines)
    if sys.stdout.isatty():  # a line is JSON, so that it keeps its value with steering characters escaped
        raw = b"".join(
            output.escape_json_line(line.decode(errors="replace")).encode() + b"\n"
            for line in raw.splitlines()
        )
    typer.echo(raw, nl=False)


def _print_json(items: Iterable[Mapping[str, Any]]) -> None:
    lines = "".join(f"{output.escape_json_line(orjson.dumps(item).decode())}\n" for item in items)
    typer.echo(lines.encode(), nl=False)


class _CsvPrinter:
    """Print rows as CSV, below one header."""

    def __init__(self, header: Sequence[str]) -> None:
        self._ahead = [header]

    def add(self, items: Iterable[Iterable[Any]]) -> None:
        """Print rows."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(self._ahead)
        writer.writerows([_cell(value) for value in item] for item in items)
        self._ahead = []
        typer.echo(text.getvalue().encode(), nl=False)


def _cell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else printable(str(value))


Columns = Mapping[str, Callable[[LoggedFact], str]]

_NUMBERS: Final = ("ms", "USD")


def _columns(*, has_logs: bool) -> Columns:
    """Return the columns of the table. Narrow windows have fewer."""
    is_wide = output.console().width >= _ROOM_FOR_FIGURES
    columns: dict[str, tuple[bool, Callable[[LoggedFact], str]]] = {
        "time": (True, lambda fact: f"{fact.time:%Y-%m-%d %H:%M:%S}"),
        "log": (has_logs, lambda fact: fact.log.parent.name or str(fact.log)),
        "agent or kind": (
            True,
            lambda fact: fact.agent if fact.kind == INTERACTION and fact.agent else fact.kind,
        ),
        "model": (is_wide, lambda fact: fact.model),
        "subject": (True, lambda fact: fact.subject),
        "verdict or failure": (True, lambda fact: fact.failure or fact.verdict),
        "ms": (is_wide, lambda fact: f"{fact.latency_ms:,.0f}" if fact.attempt else ""),
        "USD": (True, lambda fact: usd(fact.cost_nusd) if fact.attempt else ""),
    }
    return {name: text for name, (is_shown, text) in columns.items() if is_shown}


class _TablePrinter:
    """Print facts as rows below one header. A column never gets narrower, so that later rows stay in line."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._widths = dict.fromkeys(columns, 0)
        self._has_header = False

    def add(self, facts: Sequence[LoggedFact]) -> None:
        """Print rows."""
        cells = [[printable(text(fact)) for text in self._columns.values()] for fact in facts]
        if not cells:
            return
        for place, name in enumerate(self._columns):
            self._widths[name] = max(self._widths[name], *(len(row[place]) for row in cells))
        drawn = output.table(*self._columns, right=_NUMBERS)
        drawn.show_header = not self._has_header
        for row in cells:
            drawn.add_row(
                *(cell.ljust(width) for cell, width in zip(row, self._widths.values(), strict=True))
            )
        self._has_header = True
        output.print_table(drawn)


def _print_sums(sums: Sequence[FactSums], view: RecordView) -> int:
    """Print sums. Return their number."""
    names = (*view.keys, *(part.name for part in fields(FactSums) if part.name != "key"))
    values = [(*row.key, *_figures(row)) for row in sums]
    match view.form:
        case "json":
            _print_json(dict(zip(names, row, strict=True)) for row in values)
        case "csv":
            _CsvPrinter(names).add(values)
        case _:
            headings = ("records", "failed", "tokens in", "tokens out", "USD")
            shown = (
                [*row.key, *(f"{each:,}" for each in _figures(row)[:-1]), usd(row.cost_nusd)] for row in sums
            )
            output.print_table(output.rows(output.table(*view.keys, *headings, right=headings), shown))
    return len(sums)


def _figures(row: FactSums) -> tuple[int, ...]:
    return row.records, row.failed, row.input_tokens, row.output_tokens, row.cost_nusd
