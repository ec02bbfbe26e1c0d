"""Parse one raw answer, or each record of a JSON Lines file."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, Never, assert_never

from pydantic import BaseModel, Field, FiniteFloat, InstanceOf, ValidationError

from agentic_trading.cli.exits import ExitCode, say
from agentic_trading.cli.output import escape_json_line, print_json
from agentic_trading.files import read_file, whole_number
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.fields import LARGEST_COUNT, Count, PositiveCount
from agentic_trading.llm.limits import OutputMode, OutputPolicy
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import AttemptTrace, Fix, Stage, Usage, Violation
from agentic_trading.operate.lines import printable
from agentic_trading.platform.errors import OptionError
from agentic_trading.structured.decode import MAX_BYTES
from agentic_trading.structured.engine import AskAgain, GiveUp, RaiseCap, next_step, read
from agentic_trading.structured.extract import only
from agentic_trading.structured.outcome import Accepted, Rejected, UnreadableError
from agentic_trading.structured.pipeline import DecodeLevel, read_candidates
from agentic_trading.structured.prompts import data_block, reask_request

_SHOWN_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class ParseQuestion:
    """The known facts about the call of an answer.

    Without a schema, any JSON document is accepted. `max_tokens` is the cap of the request, or None if
    unknown. An answer with as many `output_tokens` counts as truncated.
    """

    policy: OutputPolicy
    schema: Mapping[str, Any] | None = None
    stop_reason: str = "end_turn"
    output_tokens: int = 0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ParseReading:
    """The result of parsing an answer.

    `text` is the accepted document as strict JSON, with every number digit for digit as written. It is empty
    if the answer was rejected.
    """

    text: str
    trace: AttemptTrace
    rejected: Rejected | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the answer was accepted."""
        return self.trace.verdict is Stage.DONE

    @property
    def changes(self) -> tuple[Fix, ...]:
        """All changes: repaired syntax, values converted to another type, and dropped properties."""
        return self.trace.fixes + self.trace.coercions + self.trace.patches


def answer_one(stream: BinaryIO, question: ParseQuestion, *, explain: bool) -> ExitCode:
    """Print the object on standard output, or the verdict on standard error with `FOUND_WRONG`."""
    reading = read_bytes(stream.read(MAX_BYTES + 1), question)
    if reading.is_accepted:
        print_json(reading.text)
        if reading.trace.decode == "guess":
            say("Warning: this is a guess at the meaning of a broken answer. Do not act on it.", err=True)
    else:
        say(verdict_text(reading), err=True)
    if explain:
        say(explanation(reading, question), err=True)
    return ExitCode.DONE if reading.is_accepted else ExitCode.FOUND_WRONG


def verdict_text(reading: ParseReading) -> str:
    """Return the stage of a rejected answer, and a line for each broken rule."""
    return "\n".join([f"rejected: {reading.trace.verdict}", *map(_violation_text, reading.trace.errors)])


def _violation_text(violation: Violation) -> str:
    is_in_message = violation.allowed is not None or str(violation.expected) in violation.message
    facts = {
        "was": _json(violation.actual),
        "expected": "" if is_in_message else _rule(violation.expected),
        "allowed": _rule(violation.allowed),
        "suggestion": _json(violation.suggestion),
    }
    shown = [
        f"{name}: {text[:_SHOWN_CHARS]}{'…' * (len(text) > _SHOWN_CHARS)}"
        for name, text in facts.items()
        if text
    ]
    return printable("; ".join([f"  {violation.path}: {violation.message}", *shown]))


def _rule(rule: Any) -> str:
    """Format a rule: text such as `> 0` unchanged, values as JSON."""
    return rule if isinstance(rule, str) else _json(rule)


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, default=str, ensure_ascii=False)


def explanation(reading: ParseReading, question: ParseQuestion) -> str:
    """Return the trace of an answer as JSON and, if a schema rejected it, the text of a re-ask."""
    trace = reading.trace.model_dump(mode="json", exclude_none=True)
    parts = [escape_json_line(json.dumps(trace, indent=2, ensure_ascii=False))]
    if reading.rejected is not None and question.schema is not None:
        parts += _next_step(reading.rejected, question.policy)
    return "\n".join(parts)


def _next_step(rejected: Rejected, policy: OutputPolicy) -> Sequence[str]:
    step = next_step(rejected, None, policy, answers_read=1, cap_raised=False)
    match step:
        case RaiseCap():
            return ["Re-ask: the same request with room for a longer answer."]
        case GiveUp("terminal"):
            return [f"No re-ask: {rejected.trace.verdict} is final."]
        case AskAgain():
            return ["Re-ask: the first request, followed by:", "", _correction(rejected)]
        case GiveUp():
            head = f"No re-ask in mode {policy.mode}. In mode reask: the first request, followed by:"
            return [head, "", _correction(rejected)]
        case _:
            assert_never(step)


def _correction(rejected: Rejected) -> str:
    """Return the text that a re-ask adds to the request."""
    envelope = EnvelopeBuilder().with_instructions("-").build()
    block = data_block(envelope)
    first = ModelRequest(
        envelope=envelope, attempt=1, answer=1, system="", user=block, transport="prompted",
        max_tokens=envelope.budget.max_output_tokens,
    )  # fmt: skip
    added = reask_request(first, rejected, attempt=2).user.removeprefix(block).strip("\n")
    return "\n".join(map(printable, added.split("\n")))


def policy_of(workflow: str | None, mode: OutputMode | None) -> OutputPolicy:
    """Return the policy of a workflow, a mode, or both. The default mode is `lossless`.

    Raises `OptionError` if the workflow does not allow the mode.
    """
    try:
        return output_policy(EnvelopeWorkflow(workflow) if workflow else None, mode)
    except ValueError as e:
        raise OptionError("--mode", f"{mode} with --workflow {workflow}", str(e)) from e


def read_schema(file: Path) -> dict[str, Any]:
    """Read a JSON Schema. Raises `ValueError` with the reason if the file has no JSON object."""
    try:
        schema = strictly_loaded(read_file(file))
    except OSError as e:
        raise ValueError(f"cannot be read ({e.strerror})") from e
    except ValueError as e:
        raise ValueError(f"is not JSON ({e})") from e
    if isinstance(schema, dict):
        return schema
    raise ValueError("is not a JSON object")


def strictly_loaded(raw: bytes) -> Any:
    """Decode JSON in UTF-8. Raises `ValueError` for invalid JSON, NaN, a repeated key or too deep nesting."""
    try:
        return json.loads(
            raw.decode(),
            parse_int=whole_number,
            parse_constant=_no_number,
            object_pairs_hook=_each_once,
        )
    except RecursionError as e:
        raise ValueError("nested too deep") from e


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{name!r:.80} occurs twice in one object")
    return members


def _no_number(name: str) -> Never:
    raise ValueError(f"{name} is not a JSON number")


def read_bytes(raw: bytes, question: ParseQuestion) -> ParseReading:
    """Parse the bytes of an answer. Too many bytes, or invalid UTF-8, are rejected as `json_parse`."""
    if len(raw) > MAX_BYTES:
        return _no_json(question, f"the text is longer than {MAX_BYTES} bytes")
    try:
        return read_text(raw.decode(), question)
    except UnicodeDecodeError as e:
        wrong = raw[e.start : e.end].hex(" ")
        return _no_json(
            question, f"byte {e.start} is not the start of a UTF-8 character: {wrong} ({e.reason})"
        )


def read_text(text: str, question: ParseQuestion) -> ParseReading:
    """Parse the text of an answer. Invalid text does not raise."""
    if question.schema is None:
        return _stopped(text, question) or _document(text, question.policy)
    outcome = read(
        _response(text, question), question.schema, question.policy, max_tokens=question.max_tokens
    )
    match outcome:
        case Accepted():
            return ParseReading(outcome.text, outcome.trace)
        case Rejected():
            return ParseReading("", outcome.trace, outcome)


def _response(text: str, question: ParseQuestion) -> ModelResponse:
    usage = Usage(output_tokens=question.output_tokens)
    return ModelResponse(text=text, stop_reason=question.stop_reason, usage=usage, model="")


def _stopped(text: str, question: ParseQuestion) -> ParseReading | None:
    """Return the verdict on a refused, truncated or empty answer. The schema does not matter."""
    as_text = read(
        _response(text, question), {}, question.policy, max_tokens=question.max_tokens, transport="text"
    )
    return ParseReading("", as_text.trace, as_text) if isinstance(as_text, Rejected) else None


def _no_json(question: ParseQuestion, message: str) -> ParseReading:
    """Reject bytes for `message`. A stop reason of refusal or truncation takes precedence."""
    return _stopped("bytes", question) or _unreadable(message, "none")


def _document(text: str, policy: OutputPolicy) -> ParseReading:
    """Parse a text as one JSON document of any type."""
    try:
        level, candidates = read_candidates(text, policy, {})
        candidate = only(candidates)
    except UnreadableError as e:
        return ParseReading("", _trace(e.stage, policy.decode, errors=e.violations, fixes=e.fixes))
    if level == "guess" and not isinstance(candidate.value, dict | list):
        return _unreadable("there is no object or array, even as a guess", level)
    return ParseReading(candidate.text, _trace(Stage.DONE, level, fixes=candidate.fixes))


def _unreadable(message: str, decode: DecodeLevel | Literal["none"]) -> ParseReading:
    wrong = Violation(path="$", keyword="json", message=message)
    return ParseReading("", _trace(Stage.JSON_PARSE, decode, errors=(wrong,)))


def _trace(verdict: Stage, decode: DecodeLevel | Literal["none"], **found: Any) -> AttemptTrace:
    return AttemptTrace(parser="read_json", transport="text", verdict=verdict, decode=decode, **found)


MAX_LINE_BYTES: Final = 8 << 20
"""Maximum bytes of a record: an answer of 1 MiB with every byte escaped, and its schema."""
_USAGE: Final = "usage"  # the stage of a line that is not a record
_SHOWN_NAMES: Final = 10
_BREAK: Final = re.compile(
    r"[\r\n][\r\n\t ]*"
)  # only between tokens, because strict JSON strings have no raw line breaks

_Text = InstanceOf[str]  # not `str`, because pydantic would refuse a lone surrogate


class ParseRecord(BaseModel, frozen=True, extra="ignore", strict=True):
    """One line of input. Options apply to absent or null members. Unknown members are ignored."""

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
    """An invalid record. `path` is the wrong member, and `record_id` the id of the record, or None."""

    def __init__(self, reason: str, *, path: str = "$", record_id: Any = None) -> None:
        self.reason = reason
        self.path = path
        self.record_id = record_id
        super().__init__(reason)


class SchemaFolder:
    """The schemas of a folder by name (`NAME.json`). Each file is read once."""

    def __init__(self, folder: Path | None) -> None:
        """Raise `OptionError` if the path is not a folder."""
        if folder is not None and not folder.is_dir():
            raise OptionError("--schemas", folder, "a folder with NAME.json for each name")
        self._folder = folder
        self._found: dict[str, dict[str, Any]] = {}

    def find(self, name: str) -> dict[str, Any]:
        """Return the schema with this name. Raises `ValueError` with the allowed names if there is none."""
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def _read(self, name: str) -> dict[str, Any]:
        if self._folder is None:
            raise ValueError(
                f"the schema name {name!r:.80} requires --schemas. Allowed without it: an object"
            )
        if not name or any(mark in name for mark in "/\\\0") or not name.isprintable():
            raise ValueError(f"{name!r:.80} is not a schema name. {self._allowed(self._folder)}")
        file = self._folder / f"{name}.json"
        try:
            return read_schema(file)
        except ValueError as e:
            raise ValueError(f"{name!r:.80}: {file.name:.80} {e}. {self._allowed(self._folder)}") from e

    def _allowed(self, folder: Path) -> str:
        names = sorted(file.stem for file in folder.glob("*.json"))
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        return f"Allowed: {', '.join(names[:_SHOWN_NAMES]) or 'none, because the folder has no .json file'}{more}"


@dataclass(frozen=True, slots=True)
class ParseDefaults:
    """Values for records without their own."""

    workflow: str | None
    mode: OutputMode | None
    stop_reason: str
    schema: Mapping[str, Any] | None
    schemas: SchemaFolder


def answer_records(stream: BinaryIO, defaults: ParseDefaults) -> ExitCode:
    """Print a result for each record as soon as it is read, and finally the counts on standard error.

    Blank lines are skipped. Returns `FOUND_WRONG` if a line was not a record. Rejected answers alone return
    `DONE`.
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
    say(f"{counted}, {counts['broken']:,} invalid records", err=True)
    return ExitCode.FOUND_WRONG if counts["broken"] else ExitCode.DONE


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line that is not blank, with its number. A line that is too long is None."""
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
        raise ParseRecordError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        members = strictly_loaded(line)
    except ValueError as e:
        raise ParseRecordError(f"not JSON: {e}") from e
    if not isinstance(members, dict):
        raise ParseRecordError("not a record. Allowed: an object with `raw`")
    known = {name: members[name] for name in _ALLOWED if members.get(name) is not None}
    try:
        return ParseRecord.model_validate(known)
    except ValidationError as e:
        name = str(e.errors(include_url=False)[0]["loc"][0])
        was = f"is {known[name]!r:.80}" if name in known else "is missing"
        raise ParseRecordError(
            f"{name} {was}. Allowed: {_ALLOWED[name]}",
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
    members = {"id": _record_json(record_id), "ok": _record_json(reading.is_accepted)}
    if reading.is_accepted:
        members["value"] = reading.text
    else:
        members["stage"] = _record_json(reading.trace.verdict)
        members["errors"] = _record_json([_facts(violation) for violation in reading.trace.errors])
    if reading.changes:
        members["fixes"] = _record_json([change.model_dump() for change in reading.changes])
    return _line(members)


def _error_line(e: ParseRecordError, number: int) -> bytes:
    wrong = Violation(path=e.path, keyword=_USAGE, message=f"line {number}: {e.reason}")
    members = {"id": e.record_id, "ok": False, "stage": _USAGE, "line": number, "errors": [_facts(wrong)]}
    return _line({name: _record_json(value) for name, value in members.items()})


def _facts(violation: Violation) -> dict[str, Any]:
    return violation.model_dump(exclude_none=True)


def _record_json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"))


def _line(members: Mapping[str, str]) -> bytes:
    line = ",".join(f'"{name}":{spelled}' for name, spelled in members.items())
    return f"{{{escape_json_line(_BREAK.sub('', line))}}}\n".encode(errors="backslashreplace")
