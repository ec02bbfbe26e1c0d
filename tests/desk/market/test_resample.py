"""Longer bars come out when their window has closed, and never know what comes later."""

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.market.bar import Bar, ClosedBar, Resampler, Timeframe
from tests.desk.market.bars import MONDAY, bar, sample, series

LONGER = [timeframe for timeframe in Timeframe if timeframe.seconds > Timeframe.M5.seconds]


def resampled(bars: list[Bar], target: Timeframe) -> list[ClosedBar]:
    resampler = Resampler(Timeframe.M5, target)
    return [closed for each in bars for closed in resampler.push(each)]


def test_window_closes_with_last_bar() -> None:
    resampler = Resampler(Timeframe.M5, Timeframe.M15)

    assert resampler.push(bar(0, 10, close=12, high=13, low=9, volume="1.5")) == ()
    assert resampler.push(bar(1, 12, close=8, high=12, low="7.5", volume="2")) == ()
    [closed] = resampler.push(bar(2, 8, close="8.25", volume="0.50"))

    merged = closed.bar
    assert (merged.open_time, merged.close_time) == (bar(0).open_time, bar(2).close_time)
    assert (merged.open, merged.high, merged.low) == (10, 13, Decimal("7.5"))
    assert (merged.close, merged.volume, merged.trades) == (Decimal("8.25"), 4, 21)
    assert (closed.parts, closed.expected, closed.complete) == (3, 3, True)


def test_unfinished_window_closes_with_next_bar() -> None:
    resampler = Resampler(Timeframe.M5, Timeframe.M15)

    assert resampler.push(bar(1, 10)) == ()
    [cut] = resampler.push(bar(3, 11))

    assert cut.bar.open_time == bar(0).open_time
    assert (cut.bar.open, cut.bar.close) == (10, 10)
    assert (cut.parts, cut.complete) == (1, False)


def test_gap_closes_two_windows_oldest_first() -> None:
    resampler = Resampler(Timeframe.M5, Timeframe.M15)
    resampler.push(bar(0))

    closed = resampler.push(bar(5))

    assert [each.bar.open_time for each in closed] == [bar(0).open_time, bar(3).open_time]
    assert [each.parts for each in closed] == [1, 1]


def test_empty_window_is_omitted() -> None:
    closed = resampled([bar(0), bar(2), bar(9), bar(10), bar(11)], Timeframe.M15)

    assert [each.bar.open_time for each in closed] == [bar(0).open_time, bar(9).open_time]


def test_sum_with_unknown_part_is_unknown() -> None:
    full = bar(0).model_copy(update={"quote_volume": Decimal(5)})
    silent = bar(1).model_copy(update={"trades": None, "taker_buy_volume": None})

    [closed] = resampled([full, silent, bar(2)], Timeframe.M15)

    assert (closed.bar.quote_volume, closed.bar.trades) == (None, None)


def test_indivisible_timeframe_is_rejected() -> None:
    with pytest.raises(ValueError, match="Allowed: a multiple"):
        Resampler(Timeframe.H1, Timeframe.M15)


def test_bar_across_two_windows_is_rejected() -> None:
    half_past = bar(0, timeframe=Timeframe.H1).model_copy(
        update={"open_time": MONDAY + timedelta(hours=3, minutes=30)}
    )

    with pytest.raises(
        ValueError, match=r"is in two windows of 4h\. Allowed: bars that end at 2026-01-05T04:00"
    ):
        Resampler(Timeframe.H1, Timeframe.H4).push(half_past)


@given(series(), st.sampled_from(LONGER), st.integers(0, 80))
def test_later_bars_keep_closed_windows(bars: list[Bar], target: Timeframe, cut: int) -> None:
    past = resampled(bars[:cut], target)

    assert resampled(bars, target)[: len(past)] == past


@given(series(), st.sampled_from(LONGER))
def test_window_is_emitted_after_closing(bars: list[Bar], target: Timeframe) -> None:
    resampler = Resampler(Timeframe.M5, target)

    for each in bars:
        for closed in resampler.push(each):
            assert closed.bar.close_time <= each.close_time


@given(series(), st.sampled_from(LONGER))
def test_resampling_conserves_prices_and_volume(bars: list[Bar], target: Timeframe) -> None:
    closed = resampled(bars, target)

    windows = [target.start_of(each.open_time) for each in bars]
    assert [each.bar.open_time for each in closed] == sorted(set(windows))[: len(closed)]
    for each in closed:
        parts = [one for one in bars if target.start_of(one.open_time) == each.bar.open_time]
        assert each.parts == len(parts)
        assert each.bar.volume == sum(one.volume for one in parts)
        assert each.bar.high == max(one.high for one in parts)
        assert each.bar.low == min(one.low for one in parts)
        assert (each.bar.open, each.bar.close) == (parts[0].open, parts[-1].close)


def test_sample_halt_leaves_incomplete_hour() -> None:
    closed = resampled(list(sample()), Timeframe.H1)

    incomplete = {f"{each.bar.open_time:%d %H:%M}": each.parts for each in closed if not each.complete}
    assert len(closed) == 9 * 24 - 1
    assert incomplete == {"24 12:00": 8}
