"""The outcome of reading one answer: `Accepted` or `Rejected`, and the errors behind a rejection."""

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
    """An answer that keeps every rule.

    Numbers of `value` are int and Decimal, digit for digit as in the answer; `text` is the same object as JSON
    (for plain text: `value` is empty, `text` the answer). `raw_output` is the text that was read, whatever stands
    around the object; reading it again ends in the same way. `instance` is that of the pydantic model that was given
    as the schema.
    """

    value: dict[str, Any]
    text: str
    raw_output: str
    trace: AttemptTrace
    instance: BaseModel | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """An answer that must not be used: why, which rules it breaks, and the text that was read (not to be trusted)."""

    failure: FailureReason
    errors: tuple[Violation, ...]
    raw_output: str
    trace: AttemptTrace


class UnreadableError(ValueError):
    """A text or a value breaks rules: `stage` says at which step, `violations` which rules.

    `fixes`, `coercions` and `patches` are what was changed before; `level` is how strictly the text was read, where it
    could be.
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
    """An answer of `model` cannot be read: `stage` says at which step, `error` why, `content` is its text.

    `parser` and `original_error` are other names of `parser_type` and `error`. Raises `ValueError` for an unknown stage.
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
        """Every rule that the answer breaks."""
        return self.error.violations if isinstance(self.error, UnreadableError) else ()

    @property
    def level(self) -> Literal["strict", "lossless", "guess"] | None:
        """How strictly the text was read, where it could be."""
        return self.error.level if isinstance(self.error, UnreadableError) else None

    @property
    def changes(self) -> dict[str, tuple[Fix, ...]]:
        """What was changed before reading failed: `fixes`, `coercions` and `patches`."""
        if not isinstance(self.error, UnreadableError):
            return {}
        return {name: getattr(self.error, name) for name in ("fixes", "coercions", "patches")}


def to_failure(e: ParserException) -> FailureReason:
    """Return `e` as the value that leaves the package; `recoverable` says that asking again may help."""
    return FailureReason(
        category=_category(e.stage),
        description=f"{e.parser} failed at {e.stage}",
        technical_details=(
            f"Model: {e.model}\nStage: {e.stage}\nOriginal Error: {e.error}\nContent: {_excerpt(e.content)}"
        ),
        recoverable=may_be_asked_again(e.stage),
    )


def may_be_asked_again(stage: Stage) -> bool:
    """Whether another answer to the same request may end better than at `stage`."""
    match stage:
        case (
            Stage.RESPONSE_EMPTY
            | Stage.JSON_PARSE
            | Stage.AMBIGUOUS
            | Stage.SCHEMA_VALIDATION
            | Stage.SEMANTIC
        ):
            return True
        case Stage.REFUSAL | Stage.TRUNCATED | Stage.TRANSPORT | Stage.SCHEMA_INVALID | Stage.DONE:
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
