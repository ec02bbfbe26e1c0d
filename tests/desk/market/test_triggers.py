"""An analyst is asked when something happened at a closed bar, and otherwise there is a reason."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.levels import PriceLevels
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from agentic_trading.desk.market.triggers import (
    Skip,
    SkipReason,
    Trigger,
    TriggerKind,
    TriggerRules,
    decide,
    level_touch,
    regime_flip,
    thesis_due,
    volatility_jump,
)
from tests.desk.market.bars import sample, wave

RULES = TriggerRules()
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def calm() -> MarketSnapshot:
    """Return a snapshot at a closed hour of the sample, with every measure on the hour known."""
    view = MarketView("BTCUSDT")
    for each in sample()[: 12 * 150]:
        view.push(each)
    return view.snapshot()


def an_hour_later(snapshot: MarketSnapshot, **volatility: float | None) -> MarketSnapshot:
    frame = snapshot.frames[Timeframe.H1]
    bar = frame.last.bar.model_copy(update={"open_time": frame.last.bar.open_time + HOUR})
    later = replace(
        frame, last=replace(frame.last, bar=bar), volatility=replace(frame.volatility, **volatility)
    )
    return replace(
        snapshot,
        as_of=snapshot.as_of + HOUR,
        available_at=snapshot.available_at + HOUR,
        frames={**snapshot.frames, Timeframe.H1: later},
    )


def pointing(snapshot: MarketSnapshot, sign: int) -> MarketSnapshot:
    frame = snapshot.frames[Timeframe.H1]
    trend = replace(
        frame.trend, ema_21=frame.close - sign, sma_50=frame.close - sign, ema_21_slope=float(sign)
    )
    return replace(
        snapshot,
        frames={**snapshot.frames, Timeframe.H1: replace(frame, trend=trend, structure=None)},
    )


def with_pivot_at(snapshot: MarketSnapshot, price: float) -> MarketSnapshot:
    assert snapshot.levels.pivots is not None
    far = replace(snapshot.levels.pivots, **dict.fromkeys(("r1", "r2", "r3", "s1", "s2", "s3"), 1.0), p=price)
    levels: PriceLevels = replace(snapshot.levels, pivots=far, profile=None, swings=())
    return replace(snapshot, levels=levels)


def test_no_trigger_before_next_decision_bar(calm: MarketSnapshot) -> None:
    in_between = replace(calm, as_of=calm.as_of + timedelta(minutes=5))

    decided = decide(calm, in_between, RULES, assessed_at=None)

    assert isinstance(decided, Skip)
    assert decided.reason is SkipReason.NO_NEW_BAR


@pytest.mark.parametrize("bars", [5, 12 * 25])
def test_no_trigger_during_warm_up(bars: int) -> None:
    view = MarketView("BTCUSDT")
    for each in wave(bars):
        view.push(each)

    decided = decide(None, view.snapshot(), RULES, assessed_at=None)

    assert isinstance(decided, Skip)
    assert decided.reason is SkipReason.WARMING_UP


def test_trend_reversal_is_regime_flip(calm: MarketSnapshot) -> None:
    up, down = pointing(calm, 1), pointing(an_hour_later(calm), -1)

    decided = decide(up, down, RULES, assessed_at=calm.as_of)

    assert decided == Trigger(TriggerKind.REGIME_FLIP, "1h was up, is down")
    assert regime_flip(up, pointing(an_hour_later(calm), 1)) is None


def test_unknown_trend_cannot_flip(calm: MarketSnapshot) -> None:
    frame = calm.frames[Timeframe.H1]
    unknown = replace(frame, trend=replace(frame.trend, ema_21=None))

    assert regime_flip(replace(calm, frames={Timeframe.H1: unknown}), pointing(calm, 1)) is None
    assert regime_flip(replace(calm, frames={}), pointing(calm, 1)) is None


@pytest.mark.parametrize("measure", ["atr_percentile", "realised_percentile"])
def test_rank_reaching_threshold_is_jump(calm: MarketSnapshot, measure: str) -> None:
    low = an_hour_later(calm, atr_percentile=50.0, realised_percentile=50.0)
    high = an_hour_later(low, **{measure: 90.0})
    higher = an_hour_later(high, **{measure: 95.0})

    jumped = volatility_jump(low, high, RULES)

    assert jumped is not None
    assert jumped.kind is TriggerKind.VOLATILITY_JUMP
    assert "was 50.0, is 90.0" in jumped.detail
    assert volatility_jump(high, higher, RULES) is None
    assert volatility_jump(high, low, RULES) is None


def test_unknown_rank_cannot_jump(calm: MarketSnapshot) -> None:
    unknown = an_hour_later(calm, atr_percentile=None, realised_percentile=None)
    high = an_hour_later(calm, atr_percentile=99.0, realised_percentile=99.0)

    assert volatility_jump(unknown, high, RULES) is None
    assert volatility_jump(replace(calm, frames={}), high, RULES) is None


def test_level_is_touched_once_on_arrival(calm: MarketSnapshot) -> None:
    atr = calm.frames[Timeframe.H1].volatility.atr_14
    assert atr is not None
    far = with_pivot_at(calm, calm.last + atr)
    near = with_pivot_at(an_hour_later(calm), calm.last + 0.09 * atr)

    touched = level_touch(far, near, RULES)

    assert touched is not None
    assert touched.kind is TriggerKind.LEVEL_TOUCH
    assert "pivot_p" in touched.detail
    assert level_touch(near, near, RULES) is None
    assert level_touch(near, far, RULES) is None
    assert level_touch(far, near, replace(RULES, touch_atr=0.05)) is None


def test_new_level_cannot_be_touched(calm: MarketSnapshot) -> None:
    none = replace(calm, levels=replace(calm.levels, pivots=None, profile=None, swings=()))

    assert level_touch(none, with_pivot_at(an_hour_later(calm), calm.last), RULES) is None


def test_no_touch_without_atr(calm: MarketSnapshot) -> None:
    blind = replace(with_pivot_at(calm, calm.last), frames={})

    assert level_touch(with_pivot_at(calm, 1.0), blind, RULES) is None


def test_thesis_due_if_missing_or_expired(calm: MarketSnapshot) -> None:
    rules = TriggerRules(thesis_bars=3)

    assert thesis_due(calm, rules, None) == Trigger(TriggerKind.THESIS_DUE, "never assessed")
    assert thesis_due(calm, rules, calm.as_of - 3 * HOUR) is not None
    assert thesis_due(calm, rules, calm.as_of - 3 * HOUR + timedelta(seconds=1)) is None


def test_unchanged_market_skip_has_reason(calm: MarketSnapshot) -> None:
    decided = decide(calm, an_hour_later(calm), RULES, assessed_at=calm.as_of)

    assert isinstance(decided, Skip)
    assert decided.reason is SkipReason.NOTHING_NEW


def test_sample_yields_tens_of_triggers() -> None:
    view, before, assessed_at = MarketView("BTCUSDT"), None, None
    kinds: Counter[str] = Counter()
    for each in sample():
        if all(closed.bar.timeframe is not Timeframe.H1 for closed in view.push(each)):
            continue
        now = view.snapshot()
        decided = decide(before, now, RULES, assessed_at=assessed_at)
        if isinstance(decided, Trigger):
            assessed_at = now.as_of
            kinds[decided.kind] += 1
        before = now

    assert set(kinds) == set(TriggerKind)
    assert 30 < sum(kinds.values()) < 100
