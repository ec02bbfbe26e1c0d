"""Two markets side by side."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from statistics import correlation as pearson
from statistics import covariance as sample_covariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.correlation import (
    RETURNS,
    Close,
    Quadrant,
    ReferenceMarket,
    correlation,
    covariance,
    market_correlation,
)
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import MarketView

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def closes(prices: list[float]) -> list[Close]:
    return [Close(NOON + timedelta(hours=place), price) for place, price in enumerate(prices)]


WALK = [100.0 + (place * 37) % 11 - (place * 13) % 7 for place in range(RETURNS + 1)]
ROWS = st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=3, max_size=30)


@given(ROWS)
def test_covariance_and_correlation_match_statistics_module(
    rows: list[tuple[float, float]],
) -> None:
    ones, others = [list(row) for row in zip(*rows, strict=True)]
    moves = all(covariance(row, row) > 1e-6 for row in (ones, others))

    assert covariance(ones, others) == pytest.approx(sample_covariance(ones, others), abs=1e-9)
    if moves:
        assert correlation(ones, others) == pytest.approx(pearson(ones, others), abs=1e-6)


def test_identical_markets_have_full_correlation() -> None:
    found = market_correlation(closes(WALK), ReferenceMarket("B", closes(WALK)))

    assert found is not None
    assert found.correlation == pytest.approx(1.0)
    assert found.beta == pytest.approx(1.0)
    assert found.relative_strength_pct == 0.0
    assert found.other_leads == found.own_leads


def test_leading_market_moves_first() -> None:
    follower = [WALK[0], *WALK[:-1]]

    found = market_correlation(closes(follower), ReferenceMarket("B", closes(WALK)))

    assert found is not None
    assert found.other_leads == pytest.approx(1.0, abs=0.05)
    assert (found.own_leads or 0) < 0.9


def test_flat_market_has_no_correlation() -> None:
    found = market_correlation(closes(WALK), ReferenceMarket("B", closes([5.0] * len(WALK))))

    assert found is not None
    assert found.correlation is found.beta is found.other_leads is None


def test_correlation_needs_49_common_closes() -> None:
    assert market_correlation(closes(WALK), ReferenceMarket("B", closes(WALK)[1:])) is None


@pytest.mark.parametrize(
    ("tail", "quadrant"),
    [
        ([100.0] * 43 + [100, 101, 102, 103, 104, 105], Quadrant.LEADING),
        ([100.0] * 40 + [110, 109, 108, 107, 106, 105, 104.5, 104.2, 104.1], Quadrant.WEAKENING),
        ([100.0] * 43 + [99, 98, 97, 96, 95, 94], Quadrant.LAGGING),
        ([100.0] * 40 + [80, 81, 82, 83, 84, 85, 86, 87, 88], Quadrant.IMPROVING),
    ],
)
def test_quadrant_reflects_strength_and_momentum(tail: list[float], quadrant: Quadrant) -> None:
    found = market_correlation(closes(tail), ReferenceMarket("B", closes([100.0] * len(tail))))

    assert found is not None
    assert found.quadrant is quadrant


def fed(sample: str, count: int) -> tuple[MarketView, Sequence[Bar]]:
    bars = load_sample(sample)[:count]
    view = MarketView(bars[0].symbol)
    for bar in bars:
        view.push(bar)
    return view, bars


def test_reference_is_truncated_to_snapshot_time() -> None:
    view, bars = fed("btcusdt-5m", 900)
    same, _ = fed("ethusdt-5m", 900)
    ahead, _ = fed("ethusdt-5m", 1_000)
    moment = bars[-1].close_time

    honest = view.snapshot(reference=same.reference_market(moment)).layer_inputs()["intermarket"]
    snapshot = view.snapshot(reference=ahead.reference_market(ahead.snapshot().as_of))

    assert "correlation" in honest
    assert snapshot.layer_inputs()["intermarket"] == honest
    assert snapshot.reference is not None
    assert max(close.at for close in snapshot.reference.closes) <= moment


def test_missing_second_market_is_reported() -> None:
    view, bars = fed("btcusdt-5m", 100)
    other, _ = fed("ethusdt-5m", 100)

    alone = view.snapshot().layer_inputs()["intermarket"]
    early = view.snapshot(reference=other.reference_market(bars[-1].close_time)).layer_inputs()["intermarket"]

    assert alone["not_available"]["second_market"] == "none is fed"
    assert early["not_available"]["second_market"] == "needs 48 returns in common, has 7"
    assert set(alone) == set(early) == {"not_available"}


def test_closes_use_decision_timeframe() -> None:
    view, _ = fed("btcusdt-5m", 100)

    assert [close.at.minute for close in view.snapshot().closes] == [0] * 8
    assert view.decision is Timeframe.H1
