"""A check beyond the schema says what is wrong; one that fails itself lets nothing pass, and ends nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from agentic_trading.llm.result import Stage, Violation
from agentic_trading.structured import Rejected, read, validate
from agentic_trading.structured.pydantic_schema import violations_of
from agentic_trading.structured.violations import MAX_VIOLATIONS
from tests.build import response
from tests.structured.asking import ORDER, REASKED

VALID = '{"side": "BUY", "qty": 1}'


def broken(_text: str) -> Sequence[Violation]:
    """Fail for a reason of its own."""
    raise ZeroDivisionError("no price yet")


def silent(_text: str) -> Any:
    """Forget to return anything."""


def wordy(_text: str) -> Any:
    """Return what is not a violation."""
    return ["too large"]


@pytest.mark.parametrize(
    ("check", "why"), [(broken, "ZeroDivisionError: no price yet"), (silent, "TypeError"), (wordy, "str")]
)
def test_failing_check_rejects_the_answer(check: Callable[[str], Any], why: str) -> None:
    outcome = read(response(VALID), ORDER, REASKED, check=check)

    assert isinstance(outcome, Rejected)
    assert outcome.trace.verdict is Stage.SEMANTIC
    (violation,) = outcome.errors
    assert (violation.path, violation.keyword) == ("$", "check_failed")
    assert why in violation.message


class Legs(BaseModel):
    """A list whose items are judged one by one."""

    legs: list[int]

    @field_validator("legs", mode="before")
    @classmethod
    def _no_price(cls, legs: Any) -> Any:
        if legs == [0]:
            raise ZeroDivisionError("no price yet")
        return legs


def test_failing_validator_becomes_violation() -> None:
    (violation,) = validate({"legs": [0]}, Legs)

    assert (violation.keyword, violation.message) == (
        "check_failed",
        "the check failed: ZeroDivisionError: no price yet",
    )


def test_surplus_check_violations_are_counted() -> None:
    def each(_text: str) -> list[Violation]:
        return [Violation(path=f"$[{index}]", keyword="x", message="wrong") for index in range(1_000)]

    def by_model(_text: str) -> Sequence[Violation]:
        Legs.model_validate({"legs": ["a"] * 1_000})
        return ()

    for check in (each, by_model):
        named = violations_of(check, "{}")
        assert len(named) == MAX_VIOLATIONS + 1
        assert named[-1].message == f"{1_000 - MAX_VIOLATIONS} more rules are broken"


def test_check_sees_coerced_text() -> None:
    seen: list[str] = []

    def refuse(text: str) -> list[Violation]:
        seen.append(text)
        return [Violation(path="$.qty", keyword="limit", message="not today")]

    outcome = read(response('{"side": "BUY", "qty": "1"}'), ORDER, REASKED, check=refuse)

    assert outcome.trace.verdict is Stage.SEMANTIC
    assert seen == ['{"side":"BUY","qty":1}']
    assert [fix.where for fix in outcome.trace.coercions] == ["$.qty"]
