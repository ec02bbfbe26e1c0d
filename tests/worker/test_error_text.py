"""An error is told in one line, without what it was raised over."""

import pytest
from pydantic import ValidationError

from agentic_trading.llm.limits import LLMBudget
from agentic_trading.worker.error_boundary import describe_error


def test_an_error_is_told_with_its_place() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("x")

    assert describe_error(caught.value).startswith("ValueError: invalid literal")
    assert "test_an_error_is_told_with_its_place" in describe_error(caught.value)


def test_of_a_validation_error_no_value_is_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        LLMBudget.model_validate({"max_output_tokens": "my private answer"})

    assert "private" not in describe_error(caught.value)
    assert "max_output_tokens: int_parsing" in describe_error(caught.value)
