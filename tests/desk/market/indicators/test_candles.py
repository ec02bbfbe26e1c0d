"""Candles by their rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.market.indicators.structure import Candle, Prices, candles

DOWN, UP = Prices(105, 106, 99, 100), Prices(100, 106, 99, 105)


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (DOWN, Prices(100, 107, 100, 106), {Candle.BULLISH_ENGULFING}),
        (UP, Prices(105, 105, 98, 99), {Candle.BEARISH_ENGULFING}),
        (UP, Prices(100, 107, 100, 106), set()),
        (DOWN, Prices(104, 107, 98, 104.5), {Candle.DOJI, Candle.OUTSIDE}),
        (None, Prices(109, 110, 100, 109.5), {Candle.DOJI}),
        (None, Prices(108, 110, 100, 110), {Candle.HAMMER}),
        (None, Prices(102, 110, 100, 100), {Candle.SHOOTING_STAR}),
        (DOWN, Prices(101, 105, 100, 104), {Candle.INSIDE}),
        (DOWN, DOWN, set()),
        (DOWN, Prices(100, 100, 100, 100), set()),
    ],
)
def test_candle_names_follow_rules(before: Prices | None, now: Prices, named: set[Candle]) -> None:
    assert set(candles(before, now)) == named


OHLC = st.lists(st.integers(1, 100), min_size=4, max_size=4).map(
    lambda prices: Prices(prices[0], max(prices), min(prices), prices[3])
)


@given(OHLC, OHLC)
def test_inverted_bullish_candle_is_bearish(before: Prices, now: Prices) -> None:
    def turned(bar: Prices) -> Prices:
        return Prices(-bar.open, -bar.low, -bar.high, -bar.close)

    mirror = {
        Candle.BULLISH_ENGULFING: Candle.BEARISH_ENGULFING,
        Candle.BEARISH_ENGULFING: Candle.BULLISH_ENGULFING,
        Candle.HAMMER: Candle.SHOOTING_STAR,
        Candle.SHOOTING_STAR: Candle.HAMMER,
    }

    assert {mirror.get(name, name) for name in candles(before, now)} == set(
        candles(turned(before), turned(now))
    )
