"""A snapshot holds what had closed, in numbers that are finite, and says what it does not hold."""

import json
import math
from collections.abc import Iterable, Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.market.bar import Bar, ClosedBar, Timeframe
from agentic_trading.desk.market.errors import BarSequenceError, NoBarsError, UnclosedBarError
from agentic_trading.desk.market.frame import FrameGauge
from agentic_trading.desk.market.gauges import BARS_NEEDED
from agentic_trading.desk.market.layers.levels import patterns_layer
from agentic_trading.desk.market.layers.readings import (
    indicators_layer,
    sentiment_layer,
    trend_layer,
    volatility_layer,
)
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from tests.desk.market.bars import bar, sample, series, wave


def view_of(bars: Iterable[Bar], decision: Timeframe = Timeframe.H1) -> MarketView:
    view = MarketView("BTCUSDT", decision=decision)
    for each in bars:
        view.push(each)
    return view


def snapshot_of(bars: Iterable[Bar], decision: Timeframe = Timeframe.H1) -> MarketSnapshot:
    return view_of(bars, decision).snapshot()


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def with_takers(one: Bar) -> Bar:
    return one.model_copy(update={"taker_buy_volume": one.volume / 3, "trades": int(one.volume) + 3})


def test_unclosed_bar_is_rejected_without_effect() -> None:
    view = view_of([bar(0)])
    before = view.snapshot()

    with pytest.raises(UnclosedBarError) as refused:
        view.push(bar(1), as_of=bar(1).close_time - timedelta(microseconds=1))

    assert (refused.value.close_time, refused.value.as_of) == (
        bar(1).close_time,
        bar(1).close_time - timedelta(microseconds=1),
    )
    assert view.snapshot() == before
    view.push(bar(1), as_of=bar(1).close_time)


def test_snapshot_before_newest_close_is_rejected() -> None:
    view = view_of([bar(0), bar(1)])

    with pytest.raises(UnclosedBarError):
        view.snapshot(bar(0).close_time)


def test_snapshot_available_at_newest_close() -> None:
    view = view_of([bar(0)])
    later = bar(0).close_time + timedelta(minutes=3)

    assert view.snapshot().as_of == bar(0).close_time
    assert (view.snapshot(later).as_of, view.snapshot(later).available_at) == (later, bar(0).close_time)


def test_snapshot_without_bars_is_rejected() -> None:
    with pytest.raises(NoBarsError):
        MarketView("BTCUSDT").snapshot()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (bar(2, symbol="ETHUSDT"), "symbol"),
        (bar(0, timeframe=Timeframe.H1), "timeframe"),
        (bar(1), "open_time"),
        (bar(0), "open_time"),
    ],
)
def test_bar_out_of_sequence_is_rejected(wrong: Bar, field: str) -> None:
    view = view_of([bar(0), bar(1)])

    with pytest.raises(BarSequenceError) as refused:
        view.push(wrong)

    assert refused.value.field == field
    assert view.snapshot() == view_of([bar(0), bar(1)]).snapshot()


def test_push_returns_closed_bars_shortest_first() -> None:
    view = view_of(wave(47))

    closed = view.push(wave(48)[-1])

    found = [each.bar.timeframe for each in closed]
    assert found == [Timeframe.M5, Timeframe.M15, Timeframe.H1, Timeframe.H4]


@given(series(most=60), st.integers(1, 60))
def test_future_bars_keep_earlier_snapshot(bars: list[Bar], cut: int) -> None:
    view = view_of(bars[:cut])
    early = view.snapshot()
    found = early.layer_inputs()

    for each in bars[cut:]:
        view.push(each)

    assert early.layer_inputs() == found == snapshot_of(bars[:cut]).layer_inputs()


@given(series(most=60))
def test_frames_end_by_newest_close(bars: list[Bar]) -> None:
    snapshot = snapshot_of(bars)

    for frame in snapshot.frames.values():
        assert frame.close_time <= snapshot.available_at <= snapshot.as_of
        for swing in (*frame.swing_highs, *frame.swing_lows):
            assert swing.confirmed_at <= snapshot.available_at


@given(series(most=60))
def test_layer_inputs_are_finite_json(bars: list[Bar]) -> None:
    found = snapshot_of(bars, Timeframe.M15).layer_inputs()

    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for leaf in leaves(found):
        assert type(leaf) in {str, int, float, bool}
        assert not isinstance(leaf, float) or math.isfinite(leaf)


def test_layer_inputs_have_eight_layers() -> None:
    assert list(snapshot_of([bar(0)]).layer_inputs()) == [
        "trend",
        "levels",
        "patterns",
        "indicators",
        "sentiment",
        "risk",
        "volatility",
        "intermarket",
    ]


@pytest.mark.parametrize("name", ["trend", "patterns", "indicators", "sentiment", "volatility"])
def test_layer_reports_timeframes_without_bars(name: str) -> None:
    layer = snapshot_of(wave(5)).layer_inputs()[name]

    assert list(layer["timeframes"]) == ["5m", "15m"]
    for timeframe in ("1h", "4h", "1d"):
        assert layer["not_available"][timeframe] == "no closed bar yet"


def test_risk_layer_reports_missing_atr() -> None:
    no_hour = snapshot_of(wave(5)).layer_inputs()["risk"]
    no_atr = snapshot_of(wave(30)).layer_inputs()["risk"]

    assert no_hour["not_available"] == {"1h": "no closed bar yet"}
    assert no_atr["not_available"] == {"1h": "needs an ATR: 15 bars that move, has 2"}
    assert "long" not in no_hour


def test_measures_appear_at_required_bars() -> None:
    gauge, layers = (
        FrameGauge(Timeframe.M5),
        (trend_layer, patterns_layer, indicators_layer, sentiment_layer, volatility_layer),
    )
    turning = {count for needed in BARS_NEEDED.values() for count in (needed - 1, needed)}

    for count, each in enumerate(map(with_takers, wave(205)), 1):
        gauge.update(ClosedBar(each))
        frame = gauge.read()
        if count in turning and frame is not None:
            found = [layer({Timeframe.M5: frame})["timeframes"] for layer in layers]
            present = {measure for timeframes in found for measure in timeframes["5m"]}
            for measure, needed in BARS_NEEDED.items():
                assert (measure in present) == (count >= needed), (measure, count)


def test_missing_measure_shows_bars_needed() -> None:
    absent = snapshot_of(wave(20)).layer_inputs()["trend"]["not_available"]

    assert absent["5m.ema_21"] == "needs 21 bars, has 20"
    assert absent["15m.structure"] == "needs two confirmed swing highs and two lows"


def test_flat_market_reports_undefined_measures() -> None:
    layers = snapshot_of([bar(place) for place in range(60)]).layer_inputs()

    assert layers["indicators"]["not_available"]["5m.rsi_14"] == "not defined on bars that do not move"
    assert layers["indicators"]["not_available"]["market_breadth"] == "no source"
    assert layers["volatility"]["not_available"]["implied_volatility"] == "no source"
    assert "5m.vol_of_vol" in layers["volatility"]["not_available"]


def test_prices_have_8_digits_others_5() -> None:
    trend = snapshot_of(sample()[:400]).layer_inputs()["trend"]["timeframes"]["5m"]

    assert float(f"{trend['ema_21']:.8g}") == trend["ema_21"]
    assert float(f"{trend['range_width_pct']:.5g}") == trend["range_width_pct"]


def test_conflict_names_timeframes_and_directions() -> None:
    falling = [bar(place, 5_000 - place, close=4_999 - place) for place in range(12 * 60)]
    rising = [bar(12 * 60 + place, 4_280 + place, close=4_281 + place) for place in range(24)]

    conflicts = snapshot_of([*falling, *rising]).layer_inputs()["trend"]["conflicts"]

    assert {"lower": "5m", "lower_direction": "up", "higher": "1h", "higher_direction": "down"} in conflicts


def days(count: int) -> list[Bar]:
    """Return one bar an hour, each day 10 higher, from Monday on."""
    made = []
    for hour in range(count * 24):
        price = 1_000 + 10 * (hour // 24)
        made.append(
            bar(12 * hour, price, high=price + 5 + hour % 3, low=price - 5 - hour % 4, close=price + 1)
        )
    return made


def test_prior_day_gives_pivots() -> None:
    levels = snapshot_of(days(3)).layer_inputs()["levels"]

    day = levels["prior_day"]
    assert (day["opened"], day["high"], day["low"], day["close"]) == (
        "2026-01-06T00:00:00Z",
        1017,
        1002,
        1011,
    )
    assert (day["parts"], day["expected"]) == (24, 288)
    assert levels["pivots"]["p"] == 1010
    assert levels["pivots"]["r1"] == 2 * 1010 - 1002


def test_prior_week_runs_monday_to_sunday() -> None:
    before = snapshot_of(days(7)).layer_inputs()["levels"]
    after = snapshot_of(days(9)).layer_inputs()["levels"]

    week = after["prior_week"]
    assert "prior_week" in before["not_available"]
    assert (week["opened"], week["parts"], week["expected"]) == ("2026-01-05T00:00:00Z", 7, 7)
    assert (week["high"], week["low"], week["close"]) == (1067, 992, 1061)


def test_fibonacci_leg_uses_last_two_swings() -> None:
    snapshot = snapshot_of(sample()[:1_500])
    frame = snapshot.frames[Timeframe.H1]
    high, low = frame.swing_highs[-1], frame.swing_lows[-1]

    fib = snapshot.layer_inputs()["levels"]["fib"]

    start, end = (low.price, high.price) if low.at < high.at else (high.price, low.price)
    assert (fib["from"], fib["to"]) == (start, end)
    assert fib["50.0"] == pytest.approx((start + end) / 2, rel=1e-7)


def test_single_bar_swing_has_no_leg() -> None:
    snapshot = snapshot_of(wave(600))
    frame = snapshot.frames[Timeframe.H1]

    assert frame.swing_highs[-1].at == frame.swing_lows[-1].at
    assert "fib" in snapshot.layer_inputs()["levels"]["not_available"]


def test_nearest_levels_are_ordered_by_side() -> None:
    snapshot = snapshot_of(sample()[:1_500])

    nearest = snapshot.layer_inputs()["levels"]["nearest"]

    above = [level["price"] for level in nearest["above"]]
    below = [level["price"] for level in nearest["below"]]
    assert above == sorted(above)
    assert below == sorted(below, reverse=True)
    assert min(above) > snapshot.last >= max(below)
    assert all(level["distance_atr"] > 0 for level in nearest["above"])
    assert all(level["distance_atr"] <= 0 for level in nearest["below"])


def test_risk_stops_and_target_ratios_consistent() -> None:
    risk = snapshot_of(sample()[:1_500]).layer_inputs()["risk"]

    entry, atr = risk["entry"], risk["atr"]
    for side, sign in (("long", 1), ("short", -1)):
        assert [stop["kind"] for stop in risk[side]["stops"]][:4] == [
            "atr_1.0",
            "atr_1.5",
            "atr_2.0",
            "atr_3.0",
        ]
        assert all(sign * (entry - stop["price"]) > 0 for stop in risk[side]["stops"])
        for target in risk[side]["targets"]:
            assert target["rr"] == pytest.approx(sign * (target["price"] - entry) / (2 * atr), rel=1e-4)


def test_missing_swing_stop_is_reported() -> None:
    rising = [bar(place, 1_000 + place, close=1_001 + place) for place in range(12 * 20)]

    absent = snapshot_of(rising).layer_inputs()["risk"]["not_available"]

    assert set(absent) == {"long.swing_stop", "short.swing_stop"}


def test_day_profile_needs_full_day() -> None:
    assert "volume_profile" in snapshot_of(wave(287)).layer_inputs()["levels"]["not_available"]
    assert "volume_profile" in snapshot_of(wave(288)).layer_inputs()["levels"]


def test_gap_marks_window_incomplete() -> None:
    halted = [*wave(10), *wave(6, start=12)]

    trend = snapshot_of(halted).layer_inputs()["trend"]["timeframes"]

    assert trend["1h"]["complete"] is False
    assert trend["5m"]["complete"] is True
