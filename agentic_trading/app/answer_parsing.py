"""Read one raw text as a model's answer: the document that it is, or what is wrong with it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Never

from agentic_trading.app.options import OptionError
from agentic_trading.canonical import CanonicalError, canonical_bytes
from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.limits import OutputMode, OutputPolicy
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import AttemptTrace, Fix, Stage, Usage, Violation
from agentic_trading.structured.decode import MAX_BYTES
from agentic_trading.structured.engine import read
from agentic_trading.structured.extract import only
from agentic_trading.structured.outcome import Accepted, Rejected, UnreadableError
from agentic_trading.structured.pipeline import DecodeLevel, read_candidates

COMPLETE: Final = "end_turn"
"""The stop reason of an answer that ended by itself."""
_READER: Final = "read_json"


class SchemaFileError(TradingError, ValueError):
    """A file holds no schema that an answer could be held against: `file` names it, `reason` says why."""

    def __init__(self, file: Path, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(f"{file} {reason}; allowed: a file with a JSON Schema, which is one JSON object")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A JSON Schema. `spelled` is it in canonical JSON, or None where it has no such spelling."""

    schema: Mapping[str, Any]
    spelled: bytes | None


@dataclass(frozen=True, slots=True)
class ParseQuestion:
    """What is known of the call that a text answers.

    Without a form any JSON document is an answer. `max_tokens` is the cap that was asked with, None if unknown: an
    answer of as many `output_tokens` counts as cut.
    """

    policy: OutputPolicy
    form: AnswerForm | None = None
    stop_reason: str = COMPLETE
    output_tokens: int = 0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ParseReading:
    """How a text was read.

    `text` is the accepted document as strict JSON, every number digit for digit as it was written; nothing if the
    text was refused. `trace` says why, and what was changed.
    """

    text: str
    trace: AttemptTrace
    rejected: Rejected | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether there is a document."""
        return self.trace.verdict is Stage.DONE

    @property
    def changes(self) -> tuple[Fix, ...]:
        """All that was changed: slips in the text, values read as another type, properties dropped."""
        return self.trace.fixes + self.trace.coercions + self.trace.patches


def policy_of(workflow: str | None, mode: OutputMode | None) -> OutputPolicy:
    """Return how a workflow, a mode, or both have an answer read; without either it is `lossless`.

    Raises `OptionError` for a mode that the workflow does not allow.
    """
    try:
        return output_policy(EnvelopeWorkflow(workflow) if workflow else None, mode)
    except ValueError as e:
        raise OptionError("--mode", f"{mode} with --workflow {workflow}", str(e)) from e


def form_of(schema: Mapping[str, Any]) -> AnswerForm:
    """Return a schema with its spelling; whether it is fit for use is found when an answer is read."""
    try:
        return AnswerForm(schema, canonical_bytes(schema))
    except CanonicalError:
        return AnswerForm(schema, None)


def form_in(file: Path) -> AnswerForm:
    """Read a schema; raises `SchemaFileError` for a file that is missing or holds no JSON object."""
    try:
        schema = strictly_loaded(file.read_bytes())
    except OSError as e:
        raise SchemaFileError(file, f"cannot be read ({e.strerror})") from e
    except ValueError as e:
        raise SchemaFileError(file, f"is not JSON ({e})") from e
    if not isinstance(schema, dict):
        raise SchemaFileError(file, "holds no object")
    return form_of(schema)


def strictly_loaded(raw: bytes) -> Any:
    """Decode JSON in UTF-8; raises `ValueError` for anything else, NaN, a key that stands twice, and too deep a nesting."""
    try:
        return json.loads(raw.decode(), parse_constant=_no_number, object_pairs_hook=_each_once)
    except RecursionError as e:
        raise ValueError("nested too deep") from e


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{name!r:.80} stands twice in one object")
    return members


def _no_number(name: str) -> Never:
    raise ValueError(f"{name} is no JSON number")


def read_bytes(raw: bytes, question: ParseQuestion) -> ParseReading:
    """Read the bytes of an answer; those that no text is, or that are too many, are refused as one that is no JSON."""
    if len(raw) > MAX_BYTES:
        return _no_json(question, f"the text has more than {MAX_BYTES} bytes; allowed are {MAX_BYTES}")
    try:
        return read_text(raw.decode(), question)
    except UnicodeDecodeError as e:
        wrong = raw[e.start : e.end].hex(" ")
        return _no_json(question, f"byte {e.start} begins no UTF-8 character: {wrong} ({e.reason})")


def read_text(text: str, question: ParseQuestion) -> ParseReading:
    """Read the text of an answer; every text ends in a `Reading`, none in an error."""
    if question.form is None:
        return _stopped(text, question) or _document(text, question.policy)
    outcome = read(
        _response(text, question),
        question.form.schema,
        question.policy,
        max_tokens=question.max_tokens,
        schema_json=question.form.spelled,
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
    """Return the verdict on an answer that was refused, cut or never begun, whatever its form."""
    as_text = read(
        _response(text, question), {}, question.policy, max_tokens=question.max_tokens, transport="text"
    )
    return ParseReading("", as_text.trace, as_text) if isinstance(as_text, Rejected) else None


def _no_json(question: ParseQuestion, message: str) -> ParseReading:
    """Refuse bytes for `message`, unless the provider says that the answer was refused or cut: that comes first."""
    wrong = Violation(path="$", keyword="json", message=message)
    return _stopped("bytes", question) or ParseReading("", _trace(Stage.JSON_PARSE, "none", errors=(wrong,)))


def _document(text: str, policy: OutputPolicy) -> ParseReading:
    """Read a text as one JSON document of any kind."""
    try:
        level, candidates = read_candidates(text, policy)
        candidate = only(candidates)
    except UnreadableError as e:
        return ParseReading("", _trace(e.stage, policy.decode, errors=e.violations, fixes=e.fixes))
    if level == "guess" and not isinstance(candidate.value, dict | list):
        wrong = Violation(path="$", keyword="json", message="no object and no array, not even as a guess")
        return ParseReading("", _trace(Stage.JSON_PARSE, level, errors=(wrong,)))
    return ParseReading(candidate.text, _trace(Stage.DONE, level, fixes=candidate.fixes))


def _trace(verdict: Stage, decode: DecodeLevel | Literal["none"], **found: Any) -> AttemptTrace:
    return AttemptTrace(parser=_READER, transport="text", verdict=verdict, decode=decode, **found)
