"""Numbers stand beside the right form of their noun."""

import pytest

from agentic_trading.operate.choices import pluralize


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bars"), (1, "1 bar"), (2, "2 bars"), (2576, "2,576 bars")]
)
def test_one_is_one_and_all_others_are_many(number: int, text: str) -> None:
    assert pluralize(number, "bar") == text
