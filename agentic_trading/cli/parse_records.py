"""Read many raw answers, one JSON record a line, and answer each by one JSON line."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

from pydantic import BaseModel, Field, FiniteFloat, InstanceOf, ValidationError

from agentic_trading.cli.exits import ExitCode, say
from agentic_trading.cli.output import escape_json_line
from agentic_trading.cli.parse_answers import (
    ParseQuestion,
    ParseReading,
    policy_of,
    read_schema,
    read_text,
    strictly_loaded,
)
from agentic_trading.llm.fields import LARGEST_COUNT, Count, PositiveCount
from agentic_trading.llm.limits import OutputMode
from agentic_trading.llm.result import Violation
from agentic_trading.platform.errors import OptionError

MAX_LINE_BYTES: Final = 8 << 20
"""Of one record: an answer of 1 MiB of which each byte is escaped, and its schema."""
_USAGE: Final = "usage"  # the stage of a line that holds no answer that could be read
_SHOWN_NAMES: Final = 10
_BREAK: Final = re.compile(r"[\r\n][\r\n\t ]*")  # between the tokens of strict JSON; no string holds one

_Text = InstanceOf[str]  # as it was decoded: with a lone surrogate, which pydantic's own `str` refuses


class ParseRecord(BaseModel, frozen=True, extra="ignore", strict=True):
    """One line of input. For a member that is absent or null the options hold; unknown ones are ignored."""

    id: Annotated[_Text | int | FiniteFloat | None, Field(description="text or a number")] = None
    raw: Annotated[_Text, Field(description="the text of an answer")]
    answer_schema: Annotated[
        InstanceOf[dict[str, Any]] | _Text | None,
        Field(alias="schema", description="an object, or a name under --schemas"),
    ] = None
    mode: Annotated[Literal["native", "lossless"] | None, Field(description="native, lossless")] = None
    stop_reason: Annotated[_Text | None, Field(description="text")] = None
    output_tokens: Annotated[Count, Field(description=f"a whole number from 0 to {LARGEST_COUNT}")] = 0
    max_tokens: Annotated[
        PositiveCount | None, Field(description=f"a whole number from 1 to {LARGEST_COUNT}")
    ] = None


_ALLOWED: Final = {field.alias or name: field.description for name, field in ParseRecord.model_fields.items()}


class ParseRecordError(ValueError):
    """A line is no record that can be read: `path` is the member at fault, `record_id` the record's, if it has one."""

    def __init__(self, reason: str, *, path: str = "$", record_id: Any = None) -> None:
        self.reason = reason
        self.path = path
        self.record_id = record_id
        super().__init__(reason)


class SchemaFolder:
    """The schemas of a folder by name (`NAME.json`), each read once. Without a folder no name is known."""

    def __init__(self, folder: Path | None) -> None:
        """Raise `OptionError` for a path that is no folder."""
        if folder is not None and not folder.is_dir():
            raise OptionError("--schemas", folder, "a folder that holds NAME.json for each name")
        self._folder = folder
        self._found: dict[str, dict[str, Any]] = {}

    def find(self, name: str) -> dict[str, Any]:
        """Return the schema of that name; raises `ValueError`, which lists the allowed names, if there is none."""
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def _read(self, name: str) -> dict[str, Any]:
        if self._folder is None:
            raise ValueError(f"{name!r:.80} names a schema; allowed without --schemas: an object")
        if not name or any(mark in name for mark in "/\\\0") or not name.isprintable():
            raise ValueError(f"{name!r:.80} is no name of a schema; {self._allowed(self._folder)}")
        file = self._folder / f"{name}.json"
        try:
            return read_schema(file)
        except ValueError as e:
            raise ValueError(f"{name!r:.80}: {file.name:.80} {e}; {self._allowed(self._folder)}") from e

    def _allowed(self, folder: Path) -> str:
        names = sorted(file.stem for file in folder.glob("*.json"))
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        return f"allowed: {', '.join(names[:_SHOWN_NAMES]) or 'none, the folder has no .json file'}{more}"


@dataclass(frozen=True, slots=True)
class ParseDefaults:
    """What holds for a record that does not say otherwise."""

    workflow: str | None
    mode: OutputMode | None
    stop_reason: str
    schema: Mapping[str, Any] | None
    schemas: SchemaFolder


def answer_records(stream: BinaryIO, defaults: ParseDefaults) -> ExitCode:
    """Write a line for each record as soon as it is read, and in the end their number to standard error.

    Blank lines are no records. `FOUND_WRONG` says that a line was no record; rejected answers are `DONE`.
    """
    counts = Counter[str]()
    for number, line in _lines(stream):
        try:
            record = _record(line)
            reading = read_text(record.raw, _question(record, defaults))
        except ParseRecordError as e:
            counts["broken"] += 1
            answer = _error_line(e, number)
        else:
            counts["accepted" if reading.is_accepted else "rejected"] += 1
            answer = _answer_line(record.id, reading)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    counted = f"{counts['accepted']:,} accepted, {counts['rejected']:,} rejected"
    say(f"{counted}, {counts['broken']:,} that are no records", err=True)
    return ExitCode.FOUND_WRONG if counts["broken"] else ExitCode.DONE


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line that is not blank with its number; None for one that is too long, the rest of which is skipped."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        is_too_long = len(line) > MAX_LINE_BYTES
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES + 1)
        if is_too_long or line.strip():
            yield number, None if is_too_long else line


def _record(line: bytes | None) -> ParseRecord:
    if line is None:
        raise ParseRecordError(f"has more than {MAX_LINE_BYTES} bytes; allowed are {MAX_LINE_BYTES}")
    try:
        members = strictly_loaded(line)
    except ValueError as e:
        raise ParseRecordError(f"is no JSON: {e}") from e
    if not isinstance(members, dict):
        raise ParseRecordError("is no record; allowed: an object with `raw`")
    known = {name: members[name] for name in _ALLOWED if members.get(name) is not None}
    try:
        return ParseRecord.model_validate(known)
    except ValidationError as e:
        name = str(e.errors(include_url=False)[0]["loc"][0])
        was = f"is {known[name]!r:.80}" if name in known else "is missing"
        raise ParseRecordError(
            f"{name} {was}; allowed: {_ALLOWED[name]}",
            path=f"$.{name}",
            record_id=None if name == "id" else known.get("id"),
        ) from e


def _question(record: ParseRecord, defaults: ParseDefaults) -> ParseQuestion:
    try:
        policy = policy_of(defaults.workflow, record.mode or defaults.mode)
    except OptionError as e:
        raise ParseRecordError(str(e), path="$.mode", record_id=record.id) from e
    try:
        named = record.answer_schema
        schema = defaults.schemas.find(named) if isinstance(named, str) else named
    except ValueError as e:
        raise ParseRecordError(str(e), path="$.schema", record_id=record.id) from e
    return ParseQuestion(
        policy=policy,
        schema=defaults.schema if schema is None else schema,
        stop_reason=defaults.stop_reason if record.stop_reason is None else record.stop_reason,
        output_tokens=record.output_tokens,
        max_tokens=record.max_tokens,
    )


def _answer_line(record_id: Any, reading: ParseReading) -> bytes:
    members = {"id": _json(record_id), "ok": _json(reading.is_accepted)}
    if reading.is_accepted:
        members["value"] = reading.text
    else:
        members["stage"] = _json(reading.trace.verdict)
        members["errors"] = _json([_facts(violation) for violation in reading.trace.errors])
    if reading.changes:
        members["fixes"] = _json([change.model_dump() for change in reading.changes])
    return _line(members)


def _error_line(e: ParseRecordError, number: int) -> bytes:
    wrong = Violation(path=e.path, keyword=_USAGE, message=f"line {number}: {e.reason}")
    members = {"id": e.record_id, "ok": False, "stage": _USAGE, "line": number, "errors": [_facts(wrong)]}
    return _line({name: _json(value) for name, value in members.items()})


def _facts(violation: Violation) -> dict[str, Any]:
    return violation.model_dump(exclude_none=True)


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"))


def _line(members: Mapping[str, str]) -> bytes:
    line = ",".join(f'"{name}":{spelled}' for name, spelled in members.items())
    return f"{{{escape_json_line(_BREAK.sub('', line))}}}\n".encode(errors="backslashreplace")
