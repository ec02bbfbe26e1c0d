"""Money as dollars and as nano-dollars, and the bounds of a budget."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from agentic_trading.llm import LLMBudget, LLMResult
from agentic_trading.llm.limits import nusd_from_usd


@pytest.mark.parametrize("usd", [1, 1.0, Decimal(1), Decimal("1.0000000001")])
def test_dollar_amounts_convert_to_nano_dollars(usd: Any) -> None:
    assert LLMBudget.model_validate({"max_cost_usd": usd}).max_cost_nusd == 1_000_000_000
    assert LLMResult.model_validate({"envelope_id": "e", "cost_usd": usd}).cost_nusd == 1_000_000_000


@pytest.mark.parametrize(
    "usd",
    [
        *("a", "", b"1", True, [1]),
        *(float("inf"), float("-inf"), float("nan"), Decimal("nan"), Decimal("inf")),
        *(-1, 9_007_200, 10**400, Decimal("1e999999")),
    ],
)
def test_invalid_dollar_amount_is_refused(usd: Any) -> None:
    for model, fields in (
        (LLMBudget, {"max_cost_usd": usd}),
        (LLMResult, {"envelope_id": "e", "cost_usd": usd}),
        (LLMResult, {"envelope_id": "e", "cost_usd": usd, "cost_nusd": 5}),
    ):
        with pytest.raises(ValidationError, match=r"no amount of dollars\. (Allowed|Pass)"):
            model.model_validate(fields)


def test_max_dollar_amount_converts_exactly() -> None:
    assert nusd_from_usd(Decimal("9007199.254740992")) == 2**53


@pytest.mark.parametrize(
    "field",
    [
        "max_output_tokens",
        "thinking_budget",
        "max_input_tokens",
        "max_cost_nusd",
        "max_calls_per_day",
        "max_trace_cost_nusd",
        "max_trace_calls",
    ],
)
@pytest.mark.parametrize("value", [-1, 2**53 + 1, 2**70])
def test_inexact_budget_count_is_refused(field: str, value: int) -> None:
    with pytest.raises(ValidationError, match=field):
        LLMBudget.model_validate({field: value})


def test_unset_trace_ceilings_are_not_serialized() -> None:
    plain, limited = LLMBudget(), LLMBudget(max_trace_cost_nusd=5, max_trace_calls=2)

    assert b"trace" not in plain.wire
    assert b'"max_trace_calls":2,"max_trace_cost_nusd":5' in limited.wire
    assert LLMBudget(max_trace_calls=None).given_wire == b"{}"
    assert LLMBudget.model_validate_json(limited.wire) == limited
