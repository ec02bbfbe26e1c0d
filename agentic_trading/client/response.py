"""Read a model's answer of reasoning, conclusion and next step, and add nothing to it."""

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
"""The form of the answer, for `EnvelopeBuilder.with_output_schema`. Only `conclusion` is required."""

_CHARS_A_TOKEN = 4  # a rule of thumb for English text; bills come from the provider's count


@dataclass(frozen=True, slots=True)
class StructuredResponse:
    """What a model answered under `ANSWER_SCHEMA`: nothing in it is clamped, filled in or guessed.

    A field that the model left out is empty or None, but for `next_action`: an answer that asks for nothing more is
    final. `raw_response` is the whole text as it came.

    An answer is valid as a whole or not at all. Of one that is not, `reasoning`, `files` and `sub_tasks` are empty, and
    `should_continue` and `should_ask_user` are False; `error` says why, `violations` in full. Its `confidence` and
    `next_action` are what the model wrote there, of whatever type, so that a wrong one is seen and not replaced.
    Of one that is valid, `confidence` is a number from 0 to 1 or None, `next_action` a `NextAction`.

    A sub-task without a query, which is missing, null or blank, is skipped: `without_query` counts them, and `sub_tasks`
    has the others.

    `error` is "invalid_json" for a text that is not one JSON document with one meaning; else the rules of the schema
    that it breaks; else what the model itself wrote there, if that is not empty: only then is there a `conclusion`
    although the answer is not valid, for people to read and no finding.
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
        """Return what a decoded answer says, that of an accepted attempt for one; `raw` is its text.

        Of what breaks `ANSWER_SCHEMA` the violations are kept. Properties that the schema does not know are left in
        `raw_response`.
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
        """Whether the model asks for its sub-tasks to be done, and names some."""
        return self.is_valid and self.next_action == "continue" and bool(self.sub_tasks)

    @property
    def should_ask_user(self) -> bool:
        """Whether the model needs to know more."""
        return self.is_valid and (self.next_action == "ask_user" or self.needs_more_info is True)

    @property
    def display_text(self) -> str:
        """What to show to people: the conclusion, or the raw text of an answer that has none. Never data."""
        return self.conclusion or self.raw_response

    @property
    def ordered_sub_tasks(self) -> list[dict[str, Any]]:
        """The sub-tasks by priority, 1 first; those of equal priority as the model wrote them, those without one last."""
        return sorted(self.sub_tasks, key=lambda task: task.get("priority", inf))


def parse_llm_response(raw: str) -> StructuredResponse:
    """Return what `raw` says under `ANSWER_SCHEMA`; raises nothing for any text.

    The text is read as `read_json(raw, mode="lossless")` reads it: unambiguous syntax errors are repaired,
    everything else is refused.
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
    """Return the conclusion of a valid answer, else an empty text.

    A text that cannot be used is no conclusion: to show it to people there is `StructuredResponse.display_text`.
    """
    parsed = parse_llm_response(raw)
    return parsed.conclusion if parsed.is_valid else ""


def extract_sub_tasks(raw: str) -> list[dict[str, Any]]:
    """Return the sub-tasks of a valid answer in the order of the model, else an empty list.

    Each has a `query`, and a `priority` (1 comes first) where the model gave one.
    """
    return parse_llm_response(raw).sub_tasks


def _as_float(confidence: Any) -> Any:
    """Return a decoded number as a float (`== 0.9`); anything else as it is."""
    return float(confidence) if isinstance(confidence, Decimal) else confidence


def _log_savings(raw: str, conclusion: str) -> None:
    log.debug(
        "answer_parsed",
        chars=len(raw),
        conclusion_chars=len(conclusion),
        saved_tokens_estimate=(len(raw) - len(conclusion)) // _CHARS_A_TOKEN,
    )
