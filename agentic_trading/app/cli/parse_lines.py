"""Many answers, one JSON record a line, each read by itself and answered by one JSON line."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

import typer

from agentic_trading.app.answer_parsing import (
    AnswerForm,
    ParseQuestion,
    ParseReading,
    SchemaFileError,
    form_in,
    form_of,
    policy_of,
    read_text,
    strictly_loaded,
)
from agentic_trading.app.cli.exits import ExitCode
from agentic_trading.app.options import OptionError
from agentic_trading.llm.fields import LARGEST_COUNT
from agentic_trading.llm.limits import OutputMode
from agentic_trading.llm.result import Violation

MAX_LINE_BYTES: Final = 8 << 20
"""Of one record: an answer of 1 MiB of which each byte is escaped, and a schema beside it."""
USAGE: Final = "usage"
"""The stage of a record that holds no answer that could be read."""
_NAMES_TOLD = 10
# Line breaks can stand between the tokens of strict JSON only; within its strings, what a terminal or another reader
# of lines would take for more than text.
_BREAK = re.compile(r"[\r\n][\r\n\t ]*")
_STEERING = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class ParseRecordError(ValueError):
    """A line is no record that can be read: `record_id` names it if it has a name, `path` the member at fault."""

    def __init__(self, reason: str, *, path: str = "$", record_id: Any = None) -> None:
        self.reason = reason
        self.path = path
        self.record_id = record_id
        super().__init__(reason)


class Schemas:
    """The schemas of a folder by name (`NAME.json`), each read once. Without a folder no name is known."""

    def __init__(self, folder: Path | None) -> None:
        """Raise `OptionError` for a folder that is none."""
        if folder is not None and not folder.is_dir():
            raise OptionError("--schemas", folder, "a folder that holds NAME.json for each name")
        self._folder = folder
        self._found: dict[str, AnswerForm] = {}

    def named(self, name: str) -> AnswerForm:
        """Return the schema of that name; raises `RecordError` if there is none."""
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def _read(self, name: str) -> AnswerForm:
        if self._folder is None:
            raise ParseRecordError(
                f"{name!r:.80} names a schema; allowed without --schemas: an object", path="$.schema"
            )
        if not name or any(mark in name for mark in "/\\\0") or not name.isprintable():
            raise ParseRecordError(f"{name!r:.80} is no name of a schema; {self._allowed()}", path="$.schema")
        try:
            return form_in(self._folder / f"{name}.json")
        except SchemaFileError as e:
            raise ParseRecordError(
                f"{name!r:.80}: {e.file.name:.80} {e.reason}; {self._allowed()}", path="$.schema"
            ) from e

    def _allowed(self) -> str:
        names = sorted(file.stem for file in self._folder.glob("*.json")) if self._folder else []
        more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
        return f"allowed: {', '.join(names[:_NAMES_TOLD]) or 'none, the folder has no .json file'}{more}"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for a record that does not say otherwise."""

    workflow: str | None
    mode: OutputMode | None
    stop_reason: str
    form: AnswerForm | None
    schemas: Schemas


def answer_lines(stream: BinaryIO, defaults: Defaults) -> ExitCode:
    """Write a line for each record to standard output as soon as it is read, and how many there were to standard error.

    `FOUND_WRONG` says that a line was no record; rejected answers are `DONE`.
    """
    parsed = Parsed(stream, defaults)
    for line in parsed:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    typer.echo(parsed.tally.told, err=True)
    return ExitCode.FOUND_WRONG if parsed.tally.broken else ExitCode.DONE


@dataclass(slots=True)
class ParseCounts:
    """How many records were accepted, were rejected, and could not be read as records."""

    accepted: int = 0
    rejected: int = 0
    broken: int = 0

    @property
    def told(self) -> str:
        """The counts in words."""
        return f"{self.accepted:,} accepted, {self.rejected:,} rejected, {self.broken:,} that are no records"


@dataclass(frozen=True, slots=True)
class Parsed:
    """The answers to lines of records, in their order; `tally` counts those that were given."""

    stream: BinaryIO
    defaults: Defaults
    tally: ParseCounts = field(default_factory=ParseCounts)

    def __iter__(self) -> Iterator[bytes]:
        """Yield one line a record, its line break included, as soon as the record is there; blank lines are none."""
        for number, line in _lines(self.stream):
            if line is None or line.strip():
                yield self._answer(number, line)

    def _answer(self, number: int, line: bytes | None) -> bytes:
        try:
            record = _record(line)
            reading = read_text(record["raw"], _question(record, self.defaults))
        except ParseRecordError as e:
            self.tally.broken += 1
            return _told(e, number)
        if reading.is_accepted:
            self.tally.accepted += 1
        else:
            self.tally.rejected += 1
        return _spelled(record.get("id"), reading)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number; None for one that is too long, which is then skipped."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        is_too_long = len(line) > MAX_LINE_BYTES
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES + 1)
        yield number, None if is_too_long else line


def _record(line: bytes | None) -> dict[str, Any]:
    """Return a line as a record whose members are what they may be; absent and null are the same."""
    if line is None:
        raise ParseRecordError(f"has more than {MAX_LINE_BYTES} bytes; allowed are {MAX_LINE_BYTES}")
    try:
        record = strictly_loaded(line)
    except ValueError as e:
        raise ParseRecordError(f"is no JSON: {e}") from e
    if not isinstance(record, dict):
        raise ParseRecordError("is no record; allowed: an object with `raw`")
    known = {name: record[name] for name in _MEMBERS if record.get(name) is not None}
    for name, member in _MEMBERS.items():
        if name in known and not member.fits(known[name]):
            reason = f"{name} is {known[name]!r:.80}; allowed: {member.allowed}"
            raise ParseRecordError(reason, path=f"$.{name}", record_id=_id_of(known))
    if "raw" not in known:
        raise ParseRecordError(
            f"raw is missing; allowed: {_MEMBERS['raw'].allowed}", path="$.raw", record_id=_id_of(known)
        )
    return known


@dataclass(frozen=True, slots=True)
class _Member:
    allowed: str
    fits: Callable[[Any], bool]


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST_COUNT


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


_MEMBERS: Final[Mapping[str, _Member]] = MappingProxyType({
    "id": _Member("text or a number", lambda it: isinstance(it, str | int) or _is_finite(it)),
    "raw": _Member("the text of an answer", lambda it: isinstance(it, str)),
    "schema": _Member("an object, or a name under --schemas", lambda it: isinstance(it, dict | str)),
    "mode": _Member("native, lossless", lambda it: it in ("native", "lossless")),
    "stop_reason": _Member("text", lambda it: isinstance(it, str)),
    "output_tokens": _Member(f"a whole number from 0 to {LARGEST_COUNT}", lambda it: _is_count(it, 0)),
    "max_tokens": _Member(f"a whole number from 1 to {LARGEST_COUNT}", lambda it: _is_count(it, 1)),
})


def _id_of(record: Mapping[str, Any]) -> Any:
    return record.get("id") if "id" in record and _MEMBERS["id"].fits(record["id"]) else None


def _question(record: Mapping[str, Any], defaults: Defaults) -> ParseQuestion:
    try:
        policy = policy_of(defaults.workflow, record.get("mode", defaults.mode))
        form = _form(record.get("schema"), defaults)
    except OptionError as e:
        raise ParseRecordError(str(e), path="$.mode", record_id=_id_of(record)) from e
    except ParseRecordError as e:
        raise ParseRecordError(e.reason, path=e.path, record_id=_id_of(record)) from e
    return ParseQuestion(
        policy=policy,
        form=form,
        stop_reason=record.get("stop_reason", defaults.stop_reason),
        output_tokens=record.get("output_tokens", 0),
        max_tokens=record.get("max_tokens"),
    )


def _form(schema: Any, defaults: Defaults) -> AnswerForm | None:
    match schema:
        case None:
            return defaults.form
        case str():
            return defaults.schemas.named(schema)
        case _:
            return form_of(schema)


def escape_json_line(text: str) -> str:
    """Return JSON with its marks that steer a terminal, or break a line for some reader, as escapes: the same value."""
    return _STEERING.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def _spelled(record_id: Any, reading: ParseReading) -> bytes:
    members = {"id": _json(record_id), "ok": _json(reading.is_accepted)}
    if reading.is_accepted:
        members["value"] = reading.text
    else:
        members["stage"] = _json(reading.trace.verdict)
        members["errors"] = _json([_facts(violation) for violation in reading.trace.errors])
    if reading.changes:
        members["fixes"] = _json([change.model_dump() for change in reading.changes])
    return _line(members)


def _told(e: ParseRecordError, number: int) -> bytes:
    wrong = Violation(path=e.path, keyword=USAGE, message=f"line {number}: {e.reason}")
    told = {"id": e.record_id, "ok": False, "stage": USAGE, "line": number, "errors": [_facts(wrong)]}
    return _line({name: _json(value) for name, value in told.items()})


def _facts(violation: Violation) -> dict[str, Any]:
    return {name: value for name, value in violation.model_dump().items() if value is not None}


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"))


def _line(members: Mapping[str, str]) -> bytes:
    line = ",".join(f'"{name}":{spelled}' for name, spelled in members.items())
    return f"{{{escape_json_line(_BREAK.sub('', line))}}}\n".encode(errors="backslashreplace")
