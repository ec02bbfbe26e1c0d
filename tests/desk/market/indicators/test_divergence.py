"""Price against oscillators at confirmed swings."""

from datetime import UTC, datetime, timedelta

from agentic_trading.desk.market.bar import ClosedBar, Timeframe
from agentic_trading.desk.market.frame import FrameGauge
from agentic_trading.desk.market.indicators.momentum import Divergence, Divergences
from agentic_trading.desk.market.indicators.structure import Swings
from tests.desk.market.bars import sample

BEGUN = datetime(2023, 3, 20, tzinfo=UTC)
PEAKS = [1, 2, 3, 9, 3, 2, 1, 2, 3, 10, 3, 2, 1]
"""Highs with a peak of 9 at the fourth bar and one of 10 at the tenth."""


def found_after(
    highs: list[int], readings: dict[int, float | None], count: int | None = None
) -> tuple[tuple[Divergence, str], ...]:
    """Return the divergences after `count` bars; `readings` are of an oscillator by number of bar, else 50."""
    swings, divergences = Swings(3, 8), Divergences(3)
    for number, high in list(enumerate(highs))[:count]:
        at = BEGUN + number * timedelta(minutes=5)
        swings.update(at, high, high - 0.5)
        divergences.update(at, {"rsi": readings.get(number, 50.0)}, swings.highs, swings.lows)
    return divergences.found


def test_higher_high_lower_oscillator_is_bearish() -> None:
    assert found_after(PEAKS, {3: 80.0, 9: 70.0}) == ((Divergence.BEARISH, "rsi"),)


def test_lower_low_higher_oscillator_is_bullish() -> None:
    assert found_after([20 - high for high in PEAKS], {3: 20.0, 9: 30.0}) == ((Divergence.BULLISH, "rsi"),)


def test_agreeing_or_missing_oscillator_never_diverges() -> None:
    assert found_after(PEAKS, {3: 70.0, 9: 80.0}) == ()
    assert found_after(PEAKS, {3: 70.0, 9: 70.0}) == ()
    assert found_after(PEAKS, {3: None, 9: 70.0}) == ()


def test_divergence_waits_for_second_swing_confirmation() -> None:
    assert found_after(PEAKS, {3: 80.0, 9: 70.0}, count=12) == ()
    assert found_after(PEAKS, {3: 80.0, 9: 70.0}, count=13) != ()


def test_oscillator_is_read_at_swing() -> None:
    assert found_after(PEAKS, {3: 80.0, 9: 70.0, 12: 99.0, 6: 1.0}) == ((Divergence.BEARISH, "rsi"),)


def test_later_bars_keep_found_divergences() -> None:
    gauge, seen = FrameGauge(Timeframe.M5), []
    for each in sample()[:600]:
        gauge.update(ClosedBar(each))
        frame = gauge.read()
        seen.append(frame.momentum.divergences if frame else ())

    again = FrameGauge(Timeframe.M5)
    for each in sample()[:400]:
        again.update(ClosedBar(each))
    cut = again.read()
    assert cut is not None
    assert cut.momentum.divergences == seen[399]
    assert {way for found in seen for way, _ in found} == set(Divergence)
