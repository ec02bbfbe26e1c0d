"""What the reading of one answer ends in."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agentic_trading.llm.failure import FailureReason
from agentic_trading.llm.attempt_trace import AttemptTrace, Violation


@dataclass(frozen=True, slots=True)
class Accepted:
    """An answer that keeps every rule.

    Numbers of `value` are int and Decimal, digit for digit as in the answer; `text` is the same object as JSON
    (for plain text: `value` is empty, `text` the answer). `instance` is that of the pydantic model that was given
    as the schema.
    """

    value: dict[str, Any]
    text: str
    trace: AttemptTrace
    instance: BaseModel | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """An answer that must not be used: why, which rules it breaks, and its text (from outside: not trusted)."""

    failure: FailureReason
    errors: tuple[Violation, ...]
    candidate: str
    trace: AttemptTrace
