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


def test_a_higher_high_with_a_lower_oscillator_is_bearish() -> None:
    assert found_after(PEAKS, {3: 80.0, 9: 70.0}) == ((Divergence.BEARISH, "rsi"),)


def test_a_lower_low_with_a_higher_oscillator_is_bullish() -> None:
    assert found_after([20 - high for high in PEAKS], {3: 20.0, 9: 30.0}) == ((Divergence.BULLISH, "rsi"),)


def test_an_oscillator_that_goes_along_or_is_not_there_yet_does_not_diverge() -> None:
    assert found_after(PEAKS, {3: 70.0, 9: 80.0}) == ()
    assert found_after(PEAKS, {3: 70.0, 9: 70.0}) == ()
    assert found_after(PEAKS, {3: None, 9: 70.0}) == ()


def test_it_is_not_known_before_its_second_swing_is_confirmed() -> None:
    assert found_after(PEAKS, {3: 80.0, 9: 70.0}, count=12) == ()
    assert found_after(PEAKS, {3: 80.0, 9: 70.0}, count=13) != ()


def test_the_oscillator_is_read_at_the_swing_and_not_when_it_is_confirmed() -> None:
    assert found_after(PEAKS, {3: 80.0, 9: 70.0, 12: 99.0, 6: 1.0}) == ((Divergence.BEARISH, "rsi"),)


def test_what_was_found_does_not_change_with_bars_that_come_later() -> None:
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
