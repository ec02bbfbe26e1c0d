"""Numbers stand beside the right form of their noun."""

import pytest

from agentic_trading.operate.choices import pluralize


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bars"), (1, "1 bar"), (2, "2 bars"), (2576, "2,576 bars")]
)
def test_pluralize_uses_singular_only_for_1(number: int, text: str) -> None:
    assert pluralize(number, "bar") == text
