"""Read answers under `ANSWER_SCHEMA`, without adding to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from typing import Any, Final, Literal, Self

from agentic_trading.llm.result import Violation
from agentic_trading.logger import get_logger
from agentic_trading.structured.extract import read_document
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.validation import validate

log = get_logger()

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
                "properties": {
                    "query": {
                        "type": ["string", "null"],
                        "description": "required: without it the task is skipped",
                    },
                    "priority": {"type": "integer", "minimum": 1, "description": "1 comes first"},
                },
            },
        },
        "needs_more_info": {"type": "boolean"},
        "next_action": {"enum": ["continue", "finalize", "ask_user"]},
        "error": {"type": "string", "description": "why this form cannot be kept"},
    },
}
"""The schema of the answer, for `EnvelopeBuilder.with_output_schema`. Only `conclusion` is required."""

_CHARS_A_TOKEN = 4  # a rule of thumb for English text; bills come from the provider's count


@dataclass(frozen=True, slots=True)
class StructuredResponse:
    """An answer under `ANSWER_SCHEMA`. No value is clamped, filled in or guessed.

    Missing fields are empty or None, except `next_action`: a valid answer without it is final. An invalid
    answer has no `reasoning`, `files` and `sub_tasks`, and `should_continue` and `should_ask_user` are False.

    Attributes:
        reasoning: The reasoning.
        conclusion: The conclusion. An invalid answer has it only if the model reported the error itself. It
            is then for display only.
        confidence: A number from 0 to 1, or None. In an invalid answer, the value that the model wrote, of
            any type.
        files: The paths that the answer names.
        sub_tasks: The sub-tasks with a `query`.
        without_query: The number of skipped sub-tasks. Their query is missing, null or blank.
        needs_more_info: Whether the model needs more information, or None.
        next_action: A `NextAction`. In an invalid answer, the value that the model wrote, of any type.
        error: None for a valid answer. `invalid_json` if the text is not one JSON document with one meaning.
            Otherwise the broken rules of the schema, or the error that the model reported.
        raw_response: The whole text.
        violations: The broken rules in full.

    """

    reasoning: str = ""
    conclusion: str = ""
    confidence: Any = None
    files: list[str] = field(default_factory=list)
    sub_tasks: list[dict[str, Any]] = field(default_factory=list)
    without_query: int = 0
    needs_more_info: bool | None = None
    next_action: Any = None
    error: str | None = None
    raw_response: str = ""
    violations: tuple[Violation, ...] = ()

    @classmethod
    def of(cls, answer: Any, raw: str) -> Self:
        """Return the response of a decoded answer, such as an accepted attempt.

        Args:
            answer: The decoded answer. Properties that are not in the schema are ignored.
            raw: Its text.

        """
        said = answer if isinstance(answer, dict) else {}
        broken = validate(answer, ANSWER_SCHEMA)
        error = "; ".join(f"{rule.path}: {rule.message}" for rule in broken) or said.get("error") or None
        if error:
            log.warning("answer_unusable", chars=len(raw), rules=[violation.keyword for violation in broken])
            return cls(
                conclusion="" if broken else said["conclusion"],
                confidence=_as_float(said.get("confidence")),
                next_action=said.get("next_action"),
                error=error,
                raw_response=raw,
                violations=tuple(broken),
            )
        _log_savings(raw, said["conclusion"])
        tasks = said.get("sub_tasks", [])
        asked = [task for task in tasks if (task.get("query") or "").strip()]
        return cls(
            reasoning=said.get("reasoning", ""),
            conclusion=said["conclusion"],
            confidence=_as_float(said.get("confidence")),
            files=said.get("files", []),
            sub_tasks=asked,
            without_query=len(tasks) - len(asked),
            needs_more_info=said.get("needs_more_info"),
            next_action=said.get("next_action", "finalize"),
            raw_response=raw,
        )

    @property
    def is_valid(self) -> bool:
        """Whether there is a conclusion to use."""
        return self.error is None and bool(self.conclusion)

    @property
    def should_continue(self) -> bool:
        """Whether the model asks for its sub-tasks to be done and names at least one."""
        return self.is_valid and self.next_action == "continue" and bool(self.sub_tasks)

    @property
    def should_ask_user(self) -> bool:
        """Whether the model needs more information."""
        return self.is_valid and (self.next_action == "ask_user" or self.needs_more_info is True)

    @property
    def display_text(self) -> str:
        """The conclusion, or the raw text without one. For people only, never for code."""
        return self.conclusion or self.raw_response

    @property
    def ordered_sub_tasks(self) -> list[dict[str, Any]]:
        """The sub-tasks by priority, 1 first and those without a priority last.

        Equal priorities keep the order of the model.
        """
        return sorted(self.sub_tasks, key=lambda task: task.get("priority", inf))


def parse_llm_response(raw: str) -> StructuredResponse:
    """Return the response that `raw` contains. Does not raise for any text.

    The text is read like `read_json(raw, mode="lossless")`: unambiguous syntax errors are repaired, and all
    others make the response invalid.
    """
    try:
        answer = read_document(raw, lossless=True)
    except UnreadableError as e:
        log.warning(
            "answer_unusable", chars=len(raw), rules=[violation.keyword for violation in e.violations]
        )
        return StructuredResponse(error="invalid_json", raw_response=raw, violations=e.violations)
    return StructuredResponse.of(answer, raw)


def extract_conclusion(raw: str) -> str:
    """Return the conclusion of a valid answer, or an empty string.

    To show an invalid answer to people, use `StructuredResponse.display_text`.
    """
    parsed = parse_llm_response(raw)
    return parsed.conclusion if parsed.is_valid else ""


def extract_sub_tasks(raw: str) -> list[dict[str, Any]]:
    """Return the sub-tasks of a valid answer in their order, or an empty list.

    Each has a `query`, and a `priority` if the model gave one. Priority 1 comes first.
    """
    return parse_llm_response(raw).sub_tasks


def _as_float(confidence: Any) -> Any:
    """Return a Decimal as a float, so that `== 0.9` works, and other values unchanged."""
    return float(confidence) if isinstance(confidence, Decimal) else confidence


def _log_savings(raw: str, conclusion: str) -> None:
    log.debug(
        "answer_parsed",
        chars=len(raw),
        conclusion_chars=len(conclusion),
        saved_tokens_estimate=(len(raw) - len(conclusion)) // _CHARS_A_TOKEN,
    )
