"""An error is told in one line, without what it was raised over."""

import pytest
from pydantic import ValidationError

from agentic_trading.llm.limits import LLMBudget
from agentic_trading.worker.error_boundary import describe_error


def test_error_text_includes_code_location() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("x")

    assert describe_error(caught.value).startswith("ValueError: invalid literal")
    assert "test_error_text_includes_code_location" in describe_error(caught.value)


def test_validation_error_text_omits_values() -> None:
    with pytest.raises(ValidationError) as caught:
        LLMBudget.model_validate({"max_output_tokens": "my private answer"})

    assert "private" not in describe_error(caught.value)
    assert "max_output_tokens: int_parsing" in describe_error(caught.value)
