"""The outcome of reading one answer: `Accepted` or `Rejected`, and reading errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from pydantic import BaseModel

from agentic_trading.errors import TradingError
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.result import AttemptTrace, Fix, Stage, Violation

_CONTENT_CHARS = 200
_NAMED_RULES = 3


@dataclass(frozen=True, slots=True)
class Accepted:
    """An answer that passed all checks.

    Attributes:
        value: The object. Its numbers are int and Decimal, with the digits of the answer. Empty for plain
            text.
        text: The object as JSON, or the plain text.
        raw_output: The text that was read. Reading it again gives the same outcome.
        trace: How the answer was read.
        instance: The instance, if the schema was a pydantic model.

    """

    value: dict[str, Any]
    text: str
    raw_output: str
    trace: AttemptTrace
    instance: BaseModel | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """An answer that must not be used.

    Attributes:
        failure: The reason.
        errors: The broken rules.
        raw_output: The text that was read. Do not trust it.
        trace: How the answer was read.

    """

    failure: FailureReason
    errors: tuple[Violation, ...]
    raw_output: str
    trace: AttemptTrace


class UnreadableError(ValueError):
    """A text or a value breaks rules.

    Attributes:
        stage: The stage at which reading ended.
        violations: The broken rules.
        fixes: The repairs before the error.
        coercions: The type changes before the error.
        patches: The removed or wrapped values before the error.
        level: How strictly the text was read, if it could be read.

    """

    level: Literal["strict", "lossless", "guess"] | None = None

    def __init__(
        self,
        stage: Stage,
        violations: Sequence[Violation],
        *,
        fixes: Sequence[Fix] = (),
        coercions: Sequence[Fix] = (),
        patches: Sequence[Fix] = (),
    ) -> None:
        self.stage = stage
        self.violations = tuple(violations)
        self.fixes = tuple(fixes)
        self.coercions = tuple(coercions)
        self.patches = tuple(patches)
        super().__init__("; ".join(f"{v.path}: {v.message}" for v in self.violations[:_NAMED_RULES]))


class ParserException(TradingError):
    """An answer cannot be read.

    Attributes:
        parser: The name of the parser. `parser_type` is the same.
        model: The name of the model.
        stage: The stage at which reading ended.
        content: The text of the answer.
        error: The cause. `original_error` is the same.

    Raises:
        ValueError: If the stage is unknown.

    """

    def __init__(self, parser_type: str, model: str, stage: str, content: str, error: Exception) -> None:
        self.parser = self.parser_type = parser_type
        self.model = model
        self.stage = Stage(stage)
        self.content = content
        self.error = self.original_error = error
        super().__init__(f"{parser_type} failed at {stage}: {error}")

    @property
    def errors(self) -> tuple[Violation, ...]:
        """The broken rules."""
        return self.error.violations if isinstance(self.error, UnreadableError) else ()

    @property
    def level(self) -> Literal["strict", "lossless", "guess"] | None:
        """How strictly the text was read, if it could be read."""
        return self.error.level if isinstance(self.error, UnreadableError) else None

    @property
    def changes(self) -> dict[str, tuple[Fix, ...]]:
        """The changes before the error, as `fixes`, `coercions` and `patches`."""
        if not isinstance(self.error, UnreadableError):
            return {}
        return {name: getattr(self.error, name) for name in ("fixes", "coercions", "patches")}


def to_failure(e: ParserException) -> FailureReason:
    """Return an error as a failure. It is `recoverable` if another answer may succeed."""
    return FailureReason(
        category=_category(e.stage),
        description=f"{e.parser} failed at {e.stage}",
        technical_details=(
            f"Model: {e.model}\nStage: {e.stage}\nOriginal Error: {e.error}\nContent: {_excerpt(e.content)}"
        ),
        recoverable=may_be_asked_again(e.stage),
    )


def may_be_asked_again(stage: Stage) -> bool:
    """Return whether another answer to the same request may get past `stage`."""
    match stage:
        case (
            Stage.RESPONSE_EMPTY
            | Stage.JSON_PARSE
            | Stage.AMBIGUOUS
            | Stage.SCHEMA_VALIDATION
            | Stage.SEMANTIC
        ):
            return True
        case (
            Stage.REFUSAL
            | Stage.TRUNCATED
            | Stage.TRANSPORT
            | Stage.SCHEMA_INVALID
            | Stage.DONE
            | Stage.PASSED_ON
        ):
            return False
        case _:
            assert_never(stage)


def _category(stage: Stage) -> FailureKind:
    match stage:
        case Stage.REFUSAL:
            return FailureKind.REFUSAL
        case Stage.TRUNCATED:
            return FailureKind.TRUNCATED
        case Stage.SCHEMA_INVALID | Stage.TRANSPORT:  # the request is at fault, not the answer
            return FailureKind.INVALID_REQUEST
        case _:
            return FailureKind.PARSING_ERROR


def _excerpt(content: str) -> str:
    text = content.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _CONTENT_CHARS else f"{text[:_CONTENT_CHARS]}..."
