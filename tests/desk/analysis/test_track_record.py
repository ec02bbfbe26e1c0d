"""The agent's own record: nothing of the future, and figures that can be counted by hand."""

from datetime import UTC, datetime, timedelta
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.analysis.judgement import Direction
from agentic_trading.desk.analysis.portfolio_context import TrackRecord, figures_of, max_drawdown, runs_z
from agentic_trading.desk.market.bar import Timeframe
from tests.desk.analysis.build import record

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_outcome_known_four_bars_later() -> None:
    track = TrackRecord(Timeframe.H1)
    track.add_forecast(NOON, Direction.BEARISH, 100.0)

    for hours in (1, 2, 3):
        track.see(NOON + hours * HOUR, 50.0)
    before = track.outcomes
    track.see(NOON + 6 * HOUR, 99.0)

    assert before == ()
    (outcome,) = track.outcomes
    assert outcome.known_at == NOON + 6 * HOUR
    assert outcome.gain_pct == pytest.approx(1.0)


def test_neutral_call_has_no_outcome() -> None:
    track = TrackRecord(Timeframe.H1)

    track.add_forecast(NOON, Direction.NEUTRAL, 100.0)
    track.see(NOON + 9 * HOUR, 110.0)

    assert track.outcomes == ()


def test_short_record_reports_outcome_count() -> None:
    assert record(9).evidence() == {"not_available": {"record": "not enough decisions (9 of 10)"}}
    assert record(10).evidence()["decisions"] == 10


@given(
    st.lists(st.tuples(st.sampled_from(list(Direction)), st.integers(50, 150)), max_size=40),
    st.integers(0, 40),
)
def test_later_data_keeps_known_outcomes(calls: list[tuple[Direction, int]], cut: int) -> None:
    def fed(rows: list[tuple[Direction, int]]) -> TrackRecord:
        track = TrackRecord(Timeframe.H1)
        for place, (direction, price) in enumerate(rows):
            track.see(NOON + place * HOUR, float(price))
            track.add_forecast(NOON + place * HOUR, direction, float(price))
        return track

    early, late = fed(calls[:cut]), fed(calls)

    assert late.outcomes[: len(early.outcomes)] == early.outcomes
    assert all(outcome.known_at >= outcome.forecast.at + 4 * HOUR for outcome in late.outcomes)


def test_figures_of_hand_computed_gains() -> None:
    figures = figures_of([2.0, -1.0, 1.0, -2.0])

    assert figures["hit_rate_pct"] == 50.0
    assert figures["profit_factor"] == 1.0
    assert figures["sharpe"] == figures["sortino"] == figures["calmar"] == 0.0
    assert figures["max_drawdown_pct"] == 2.0
    assert figures["runs_z"] == pytest.approx((4 - 3) / sqrt(8 * 4 / (16 * 3)))


def test_undefined_figures_are_listed_unavailable() -> None:
    track = TrackRecord(Timeframe.H1)
    for place in range(10):
        track.add_forecast(NOON + place * 5 * HOUR, Direction.BULLISH, 100.0)
        track.see(NOON + (place * 5 + 4) * HOUR, 101.0)

    evidence = track.evidence()

    assert set(evidence["not_available"]) >= {"profit_factor", "sortino", "calmar", "runs_z"}
    assert evidence["hit_rate_pct"] == 100
    assert "profit_factor" not in evidence


@given(st.lists(st.floats(-50, 50).filter(lambda gain: abs(gain) > 1e-6), min_size=2, max_size=60))
def test_figures_keep_their_bounds(gains: list[float]) -> None:
    figures = figures_of(gains)

    assert 0 <= (figures["hit_rate_pct"] or 0) <= 100
    assert (figures["max_drawdown_pct"] or 0) >= 0
    assert (figures["profit_factor"] or 0) >= 0


@pytest.mark.parametrize(
    ("hits", "sign"),
    [([True] * 5 + [False] * 5, -1), ([True, False] * 5, 1), ([True] * 5, 0), ([True, False], 0), ([], 0)],
)
def test_streaks_negative_and_alternation_positive(hits: list[bool], sign: int) -> None:
    z = runs_z(hits)

    assert (0 if z is None else (z > 0) - (z < 0)) == sign


def test_drawdown_counts_from_start() -> None:
    assert max_drawdown([-1.0, -2.0, 5.0]) == 3.0
    assert max_drawdown([1.0, 2.0]) == 0.0
