"""A trade as it follows from a judgement."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentic_trading.desk.analysis.judgement import Direction
from agentic_trading.desk.analysis.plan import PlanPrices, risk_reward, trade_plan
from agentic_trading.desk.instrument import Side

PRICES = st.decimals(min_value="1e-18", max_value=999_999_999_999, places=18)


@pytest.mark.parametrize(
    ("entry", "stop", "target", "expected"),
    [
        ("100", "90", "120", "2.00"),
        ("100", "110", "80", "2.00"),
        ("100", "90", "110", "1.00"),
        ("100", "90", "109.99", "0.99"),
        ("100", "97", "102", "0.66"),
        ("27953.83", "27704.91", "28451.67", "2.00"),
        (
            "999999999999",
            "999999999998.999999999999999999",
            "1.123456789012345678",
            "999999999997876543210987654322.00",
        ),
    ],
)
def test_risk_reward_of_hand_computed_plans(entry: str, stop: str, target: str, expected: str) -> None:
    ratio = risk_reward(Decimal(entry), Decimal(stop), Decimal(target))

    assert str(ratio) == expected


@given(PRICES, PRICES, PRICES)
def test_risk_reward_rounds_down_once(entry: Decimal, stop: Decimal, target: Decimal) -> None:
    assume(entry != stop)
    exact = abs(Fraction(target) - Fraction(entry)) / abs(Fraction(entry) - Fraction(stop))

    ratio = risk_reward(entry, stop, target)

    assert 0 <= exact - Fraction(ratio) < Fraction(1, 100)
    assert ratio.as_tuple().exponent == -2


AT_MARKET = PlanPrices("market", Decimal(90), Decimal(120))


def test_bullish_buys_and_bearish_sells() -> None:
    sides = {
        direction: made.side
        for direction in Direction
        if (made := trade_plan("BTCUSDT", direction, AT_MARKET, Decimal(100)))
    }

    assert sides == {Direction.BULLISH: Side.BUY, Direction.BEARISH: Side.SELL}


def test_market_entry_uses_last_close() -> None:
    made = trade_plan("BTCUSDT", Direction.BULLISH, AT_MARKET, Decimal("100.50"))

    assert made is not None
    assert (made.entry_type, str(made.entry)) == ("market", "100.50")
    assert made.invalidation == "a trade at 90"


def test_limit_entry_uses_limit_price() -> None:
    prices = PlanPrices(Decimal(95), Decimal(90), Decimal(105))

    made = trade_plan("BTCUSDT", Direction.BULLISH, prices, Decimal(100), "a close below 90")

    assert made is not None
    assert (made.entry_type, made.entry, made.risk_reward) == ("limit", Decimal(95), Decimal("2.00"))
    assert made.invalidation == "a close below 90"
