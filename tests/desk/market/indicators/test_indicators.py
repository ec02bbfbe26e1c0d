"""Indicators by hand: small series whose values one can check on paper, and markets that stand still."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from math import isclose, log, sqrt
from statistics import fmean, pstdev, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.market.indicators.averages import (
    EMA,
    SMA,
    Lag,
    PercentileRank,
    SlopedMean,
    WilderAverage,
    WilderSum,
)
from agentic_trading.desk.market.indicators.momentum import ADX, MACD, RSI
from agentic_trading.desk.market.indicators.structure import Structure, Swing, SwingLabel, Swings
from agentic_trading.desk.market.indicators.volatility import (
    ATR,
    BollingerBands,
    RealisedVolatility,
    SampleDeviation,
    true_range,
)
from agentic_trading.desk.market.indicators.volume import Profile, VolumeProfile, value_area
from agentic_trading.desk.market.levels import classic_pivots, retracements, round_numbers
from tests.desk.market.bars import MONDAY

prices = st.floats(min_value=1e-3, max_value=1e6)
walks = st.lists(prices, min_size=1, max_size=60)


def test_sma_is_window_mean() -> None:
    sma = SMA(3)

    assert [sma.update(price) for price in (1, 2, 6, 7)] == [None, None, 3, 5]


def test_ema_starts_as_sma() -> None:
    ema = EMA(3)

    assert [ema.update(price) for price in (1, 2, 6, 7)] == [None, None, 3, 5]
    assert ema.update(5) == 5


def test_wilder_average_decays_by_period() -> None:
    average = WilderAverage(4)

    assert [average.update(value) for value in (2, 4, 6, 8, 9)] == [None, None, None, 5, 6]


def test_wilder_sum_decays_by_period() -> None:
    running = WilderSum(4)

    assert [running.update(value) for value in (4, 8, 12, 1, 2)] == [None, None, None, 19, 16.25]


@given(walks)
def test_rsi_is_between_0_and_100(walk: list[float]) -> None:
    rsi = RSI(3)

    assert all(value is None or 0 <= value <= 100 for value in map(rsi.update, walk))


def test_monotonic_prices_give_extreme_rsi() -> None:
    rising, falling = RSI(3), RSI(3)

    assert [rising.update(price) for price in (1, 2, 3, 4)][-1] == 100
    assert [falling.update(price) for price in (4, 3, 2, 1)][-1] == 0


def test_rsi_is_undefined_without_changes() -> None:
    rsi = RSI(3)

    assert [rsi.update(5) for _ in range(9)] == [None] * 9
    assert rsi.update(6) == 100


@given(st.lists(st.tuples(prices, prices, st.floats(0, 1)), min_size=1, max_size=60))
def test_directional_measures_between_0_and_100(drawn: list[tuple[float, float, float]]) -> None:
    adx = ADX(3)

    for one, other, share in drawn:
        low, high = sorted((one, other))
        adx.update(high, low, min(low + share * (high - low), high))
        for value in (adx.value, adx.plus_di, adx.minus_di):
            assert value is None or 0 <= value <= 100 * (1 + 1e-12)


def test_directional_measures_undefined_without_movement() -> None:
    adx = ADX(3)

    assert [adx.update(5, 5, 5) for _ in range(12)] == [None] * 12
    assert (adx.plus_di, adx.minus_di) == (None, None)


def test_true_range_includes_gap() -> None:
    assert true_range(high=12, low=11, last_close=9) == 3
    assert true_range(high=8, low=7, last_close=9) == 2
    assert true_range(high=10, low=7, last_close=9) == 3


def test_atr_waits_for_first_close() -> None:
    atr = ATR(2)

    assert [atr.update(high, low, 10) for high, low in ((11, 9), (12, 10), (10, 6))] == [None, None, 3]
    assert atr.value == 3


def test_macd_is_zero_on_flat_market() -> None:
    macd = MACD()
    for _ in range(40):
        macd.update(7)

    assert (macd.value, macd.signal, macd.histogram) == (0, 0, 0)


def test_bollinger_bands_are_centered_on_mean() -> None:
    bands = BollingerBands(4, 2.0)
    window = [1.0, 2.0, 3.0, 6.0]

    for price in window:
        bands.update(price)

    given_bands = bands.value
    assert given_bands is not None
    assert given_bands.middle == fmean(window)
    assert isclose(given_bands.upper - given_bands.middle, 2 * pstdev(window))
    assert isclose(given_bands.width, 4 * pstdev(window) / fmean(window))
    assert given_bands.percent_b is not None
    assert isclose(given_bands.percent_b, (6 - given_bands.lower) / (given_bands.upper - given_bands.lower))


@given(prices)
def test_flat_market_has_no_percent_b(price: float) -> None:
    bands = BollingerBands(20)

    for _ in range(25):
        bands.update(price)

    assert bands.value is not None
    assert bands.value.percent_b is None


@given(st.lists(prices, min_size=6, max_size=6))
def test_realised_volatility_is_log_return_deviation(walk: list[float]) -> None:
    realised = RealisedVolatility(5)

    for price in walk:
        assert realised.value is None
        realised.update(price)

    returns = [log(now / before) for before, now in pairwise(walk)]
    assert realised.value is not None
    assert isclose(realised.value, stdev(returns), rel_tol=1e-9, abs_tol=1e-12)


def test_relative_deviation_is_over_mean() -> None:
    deviation = SampleDeviation(3)

    for value in (1, 2, 6):
        assert (deviation.value, deviation.relative) == (None, None)
        deviation.update(value)

    assert (deviation.value, deviation.relative) == (sqrt(7), sqrt(7) / 3)


def test_zero_mean_has_no_relative_deviation() -> None:
    deviation = SampleDeviation(2)

    for value in (1, -1):
        deviation.update(value)

    assert deviation.relative is None


def test_lag_returns_earlier_value() -> None:
    lag = Lag(2)

    assert [lag.update(value) for value in (1, None, 3, 4)] == [None, None, 1, None]


def test_percentile_rank_counts_half_of_ties() -> None:
    assert [rank_of([3, 1, 2][:count], 4) for count in range(4)] == [None] * 4
    assert rank_of([3, 1, 2, 2], 4) == 100 * (1 + 2 / 2) / 4
    assert rank_of([3, 1, 2, 2, 9], 4) == 100 * (3 + 1 / 2) / 4


def rank_of(values: Sequence[float], period: int) -> float | None:
    rank = PercentileRank(period)
    for value in values:
        rank.update(value)
    return rank.value


@given(st.lists(st.floats(1, 9), max_size=30), st.integers(1, 8), st.integers(1, 4))
def test_sloped_mean_has_mean_and_slope(values: list[float], period: int, steps: int) -> None:
    sloped, mean, before = SlopedMean(period, steps), SMA(period), Lag(steps)

    for value in values:
        sloped.update(value)
        before.update(mean.update(value))

    gained = None if before.value is None or mean.value is None else (mean.value - before.value) / steps
    assert (sloped.value, sloped.slope) == (mean.value, gained)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 8))
def test_percentile_rank_matches_counting(values: list[int], period: int) -> None:
    rank = PercentileRank(period)

    for count, value in enumerate(values, 1):
        window = values[max(0, count - period) : count]
        counted = 100 * (sum(v < value for v in window) + sum(v <= value for v in window)) / 2 / period
        rank.update(value)
        assert rank.value == (pytest.approx(counted) if count >= period else None)


def swings_of(highs: Sequence[float], lows: Sequence[float], wing: int = 1) -> Swings:
    swings = Swings(wing)
    for place, (high, low) in enumerate(zip(highs, lows, strict=True)):
        swings.update(MONDAY + place * timedelta(hours=1), high, low)
    return swings


def test_swing_confirmed_after_enough_bars() -> None:
    highs = [1, 2, 3, 9, 3, 2, 1]

    assert swings_of(highs[:6], highs[:6], wing=3).highs == ()
    [swing] = swings_of(highs, highs, wing=3).highs
    assert (swing.price, swing.at, swing.confirmed_at) == (
        9,
        MONDAY + timedelta(hours=3),
        MONDAY + timedelta(hours=6),
    )


def test_first_of_equal_highs_is_swing() -> None:
    [swing] = swings_of([1, 5, 5, 1, 1], [1] * 5).highs

    assert swing.at == MONDAY + timedelta(hours=1)


def test_swing_labels_compare_same_side() -> None:
    swings = swings_of([1, 5, 1, 6, 1, 6, 1, 4, 1], [9, 3, 9, 4, 9, 4, 9, 2, 9])

    assert [swing.label for swing in swings.highs] == [None, "HH", "EH", "LH"]
    assert [swing.label for swing in swings.lows] == [None, "HL", "EL", "LL"]


@pytest.mark.parametrize(
    ("highs", "lows", "structure"),
    [
        ([1, 5, 1], [9, 3, 9], None),
        ([1, 5, 1, 6, 1], [9, 3, 9, 4, 9], Structure.UP),
        ([1, 5, 1, 4, 1], [9, 3, 9, 2, 9], Structure.DOWN),
        ([1, 5, 1, 6, 1], [9, 3, 9, 2, 9], Structure.MIXED),
        ([1, 5, 1, 5, 1], [9, 3, 9, 4, 9], Structure.MIXED),
        ([1, 1, 1], [1, 1, 1], None),
    ],
)
def test_structure_combines_last_swings(
    highs: list[float], lows: list[float], structure: Structure | None
) -> None:
    assert swings_of(highs, lows).structure is structure


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=60), st.integers(0, 60))
def test_later_bars_never_change_a_swing(drawn: list[tuple[int, int]], cut: int) -> None:
    highs, lows = [float(max(pair)) for pair in drawn], [float(min(pair)) for pair in drawn]

    def all_swings(until: int) -> list[Swing]:
        swings = Swings(wing=2, keep=100)
        for place in range(min(until, len(drawn))):
            swings.update(MONDAY + timedelta(minutes=5 * place), highs[place], lows[place])
        return list(swings.highs)

    early = all_swings(cut)
    assert all_swings(60)[: len(early)] == early
    assert all(swing.at < swing.confirmed_at for swing in early)
    assert all(swing.label in {None, SwingLabel.HH, SwingLabel.LH, SwingLabel.EH} for swing in early)


def test_classic_pivots_of_known_prices() -> None:
    pivots = classic_pivots(high=12, low=6, close=9)

    assert (pivots.p, pivots.r1, pivots.r2, pivots.r3) == (9, 12, 15, 18)
    assert (pivots.s1, pivots.s2, pivots.s3) == (6, 3, 0)


def test_retracements_start_from_leg_end() -> None:
    assert retracements(start=100, end=200) == pytest.approx((161.8, 150, 138.2))
    assert retracements(start=200, end=100) == pytest.approx((138.2, 150, 161.8))


@pytest.mark.parametrize(
    ("price", "below", "above"),
    [(27_953.83, 27_000, 28_000), (1_780.67, 1_700, 1_800), (28_000, 28_000, 29_000), (0.0123, 0.012, 0.013)],
)
def test_round_numbers_enclose_a_price(price: float, below: float, above: float) -> None:
    assert round_numbers(price) == pytest.approx((below, above))


def profile_of(bars: list[tuple[float, float, float]], bins: int = 4) -> Profile | None:
    profile = VolumeProfile(len(bars), bins)
    for high, low, volume in bars:
        profile.update(high, low, volume)
    return profile.value


def test_profile_spreads_volume_over_range() -> None:
    # bins 0-1, 1-2, 2-3, 3-4 hold 1, 1 + 4, 1, 1
    profile = profile_of([(4, 0, 4), (2, 1, 4)])

    assert profile == Profile(poc=1.5, vah=3.0, val=1.0)


def test_rangeless_bar_fills_single_bin() -> None:
    profile = profile_of([(4, 0, 4), (2.5, 2.5, 96)])

    assert profile == Profile(poc=2.5, vah=3.0, val=2.0)


def test_lower_equal_peak_is_control_point() -> None:
    profile = profile_of([(1, 0, 5), (4, 3, 5)])

    assert profile is not None
    assert profile.poc == 0.5


def test_single_price_market_has_point_profile() -> None:
    assert profile_of([(5, 5, 1), (5, 5, 2)]) == Profile(poc=5, vah=5, val=5)


def test_profile_needs_bars_and_volume() -> None:
    profile = VolumeProfile(2)

    assert profile.value is None
    profile.update(2, 1, 0)
    assert profile.value is None
    profile.update(2, 1, 0)
    assert profile.value is None
    profile.update(2, 1, 3)
    assert profile.value is not None


def test_value_area_prefers_fuller_then_upper() -> None:
    assert value_area([1, 2, 5, 3, 1], peak=2, wanted=7) == (2, 3)
    assert value_area([1, 2, 5, 2, 1], peak=2, wanted=7) == (2, 3)
    assert value_area([1, 2, 5, 3, 1], peak=2, wanted=10) == (1, 3)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.data())
def test_value_area_stops_at_edges(filled: list[float], data: st.DataObject) -> None:
    peak = data.draw(st.integers(0, len(filled) - 1))

    lower, upper = value_area(filled, peak, 2 * sum(filled) + 1)

    assert (lower, upper) == (0, len(filled) - 1)
    assert lower <= peak <= upper


@given(st.lists(st.tuples(prices, prices, st.floats(0.001, 1e6)), min_size=1, max_size=40))
def test_control_point_within_value_area_range(
    drawn: list[tuple[float, float, float]],
) -> None:
    bars = [(max(one, other), min(one, other), volume) for one, other, volume in drawn]

    profile = profile_of(bars, bins=50)

    assert profile is not None
    assert min(low for _, low, _ in bars) <= profile.val <= profile.poc <= profile.vah
    assert profile.vah <= max(high for high, _, _ in bars) * (1 + 1e-12)
