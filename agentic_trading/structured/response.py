"""Read a model's answer of reasoning, conclusion and next step, and add nothing to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal

import structlog

from agentic_trading.llm.result import Violation
from agentic_trading.structured.extract import read_json
from agentic_trading.structured.outcome import ParserException
from agentic_trading.structured.validation import validate

log = structlog.get_logger()

NextAction = Literal["continue", "finalize", "ask_user"]

ANSWER_SCHEMA: Final[Mapping[str, Any]] = {
    "$id": "structured_response.v1",
    "type": "object",
    "required": ["conclusion"],
    "properties": {
        "reasoning": {"type": "string", "description": "the steps, in order"},
        "conclusion": {"type": "string", "pattern": "\\S", "description": "the answer, or a summary of it"},
        "confidence": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "0 (none) to 1, not a percentage",
        },
        "files": {"type": "array", "items": {"type": "string"}, "description": "paths that matter"},
        "sub_tasks": {
            "type": "array",
            "description": "what to ask separately",
            "items": {
                "type": "object",
                "required": ["query"],
                "properties": {
                    "query": {"type": "string", "pattern": "\\S"},
                    "priority": {"type": "integer", "minimum": 1, "description": "1 comes first"},
                },
            },
        },
        "needs_more_info": {"type": "boolean"},
        "next_action": {"enum": ["continue", "finalize", "ask_user"]},
        "error": {"type": "string", "description": "why this form cannot be kept"},
    },
}
"""The form of the answer, for `EnvelopeBuilder.with_output_schema`. Only `conclusion` is required."""

_CHARS_A_TOKEN = 4  # a rule of thumb for English text; bills come from the provider's count


@dataclass(frozen=True, slots=True)
class StructuredResponse:
    """What a model answered under `ANSWER_SCHEMA`: nothing in it is clamped, filled in or guessed.

    A field that the model left out is empty or None. `raw_response` is the whole text as it came.

    An answer is valid as a whole or not at all. Of one that is not, `conclusion`, `reasoning`, `files` and `sub_tasks`
    are empty, and `should_continue` and `should_ask_user` are False; `error` says why, `violations` in full. Its `confidence` and
    `next_action` are what the model wrote there, of whatever type, so that a wrong one is seen and not replaced.
    Of one that is valid, `confidence` is a number from 0 to 1 or None, `next_action` a `NextAction` or None.

    `error` is "invalid_json" for a text that is not one JSON document with one meaning; else the rules of the schema
    that it breaks; else what the model itself wrote there, if that is not empty.
    """

    reasoning: str = ""
    conclusion: str = ""
    confidence: Any = None
    files: list[str] = field(default_factory=list)
    sub_tasks: list[dict[str, Any]] = field(default_factory=list)
    needs_more_info: bool | None = None
    next_action: Any = None
    error: str | None = None
    raw_response: str = ""
    violations: tuple[Violation, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether there is a conclusion to use."""
        return self.error is None and bool(self.conclusion)

    @property
    def should_continue(self) -> bool:
        """Whether the model asks for its sub-tasks to be done, and names some."""
        return self.is_valid and self.next_action == "continue" and bool(self.sub_tasks)

    @property
    def should_ask_user(self) -> bool:
        """Whether the model needs to know more."""
        return self.is_valid and (self.next_action == "ask_user" or self.needs_more_info is True)

    @property
    def display_text(self) -> str:
        """What to show to people: the conclusion, or the raw text of an answer that has none. Never data."""
        return self.conclusion if self.is_valid else self.raw_response


def parse_llm_response(raw: str) -> StructuredResponse:
    """Return what `raw` says under `ANSWER_SCHEMA`; raises nothing for any text.

    The text is read as `read_json(raw, mode="lossless")` reads it: unambiguous syntax errors are repaired,
    everything else is refused. Properties that the schema does not know are left in `raw_response`.
    """
    try:
        answer = read_json(raw, mode="lossless")
    except ParserException as e:
        return _unusable(raw, "invalid_json", e.errors)
    broken = validate(answer, ANSWER_SCHEMA)
    if broken:
        said = answer if isinstance(answer, dict) else {}
        return _unusable(raw, "; ".join(f"{rule.path}: {rule.message}" for rule in broken), broken, said)
    if answer.get("error"):
        return _unusable(raw, answer["error"], (), answer)
    response = StructuredResponse(
        reasoning=answer.get("reasoning", ""),
        conclusion=answer["conclusion"],
        confidence=_as_float(answer.get("confidence")),
        files=answer.get("files", []),
        sub_tasks=answer.get("sub_tasks", []),
        needs_more_info=answer.get("needs_more_info"),
        next_action=answer.get("next_action"),
        raw_response=raw,
    )
    _log_savings(response)
    return response


def extract_conclusion(raw: str) -> str:
    """Return the conclusion of a valid answer, else an empty text.

    A text that cannot be used is no conclusion: to show it to people there is `StructuredResponse.display_text`.
    """
    return parse_llm_response(raw).conclusion


def extract_sub_tasks(raw: str) -> list[dict[str, Any]]:
    """Return the sub-tasks of a valid answer in the order of the model, else an empty list.

    Each has a `query`, and a `priority` (1 comes first) where the model gave one.
    """
    return parse_llm_response(raw).sub_tasks


def _unusable(
    raw: str, error: str, violations: Sequence[Violation], said: Mapping[str, Any] | None = None
) -> StructuredResponse:
    said = said or {}
    log.debug("answer_unusable", chars=len(raw), rules=[violation.keyword for violation in violations])
    return StructuredResponse(
        confidence=_as_float(said.get("confidence")),
        next_action=said.get("next_action"),
        error=error,
        raw_response=raw,
        violations=tuple(violations),
    )


def _as_float(confidence: Any) -> Any:
    """Return a decoded number as a float (`== 0.9`); anything else as it is."""
    return float(confidence) if isinstance(confidence, Decimal) else confidence


def _log_savings(response: StructuredResponse) -> None:
    chars, kept = len(response.raw_response), len(response.conclusion)
    log.debug(
        "answer_parsed",
        chars=chars,
        conclusion_chars=kept,
        saved_tokens_estimate=(chars - kept) // _CHARS_A_TOKEN,
    )
