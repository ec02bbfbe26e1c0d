"""Breaks, sweeps, order blocks and gaps by their rules."""

from datetime import UTC, datetime, timedelta

from agentic_trading.desk.market.indicators.structure import (
    Break,
    BreakKind,
    FairValueGaps,
    Prices,
    StructureBreaks,
    Sweep,
    Swing,
    SwingKind,
    Way,
    Zone,
)

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def swing(price: float, kind: SwingKind = SwingKind.HIGH, *, hour: int = 0) -> Swing:
    at = NOON + timedelta(hours=hour)
    return Swing(kind, price, at, at, None)


def rising(low: float, high: float) -> Prices:
    return Prices(low, high, low, high)


def falling(high: float, low: float) -> Prices:
    return Prices(high, high, low, low)


HIGH, LOW = swing(110), swing(90, SwingKind.LOW)


def test_break_happens_once_and_leaves_block() -> None:
    breaks = StructureBreaks()

    for bar in (rising(100, 102), falling(102, 99), rising(99, 112), rising(112, 115)):
        breaks.update(bar, [HIGH], [LOW])

    assert breaks.last_break == Break(BreakKind.BOS, Way.UP, 110, 3)
    assert breaks.blocks == {Way.UP: Zone(Way.UP, 99, 102, 2)}


def test_opposite_break_changes_character_once() -> None:
    breaks = StructureBreaks()
    lower = swing(80, SwingKind.LOW, hour=1)

    breaks.update(rising(100, 112), [HIGH], [LOW])
    breaks.update(falling(112, 85), [HIGH], [LOW])
    turned = breaks.last_break
    breaks.update(falling(85, 75), [HIGH], [LOW, lower])

    assert turned == Break(BreakKind.CHOCH, Way.DOWN, 90, 2)
    assert breaks.last_break == Break(BreakKind.BOS, Way.DOWN, 80, 3)


def test_rejected_high_is_sweep_not_break() -> None:
    breaks = StructureBreaks()

    breaks.update(Prices(105, 111, 104, 109), [HIGH], [LOW])
    breaks.update(Prices(95, 96, 89, 91), [HIGH], [LOW])

    assert breaks.last_sweep == Sweep(Way.UP, 90, 2)
    assert breaks.last_break is None


def test_block_ends_when_closed_beyond() -> None:
    breaks = StructureBreaks()
    for bar in (falling(102, 99), rising(99, 112)):
        breaks.update(bar, [HIGH], [])

    breaks.update(Prices(112, 112, 95, 100), [HIGH], [])
    touched = dict(breaks.blocks)
    breaks.update(falling(100, 98), [HIGH], [])

    assert touched == {Way.UP: Zone(Way.UP, 99, 102, 1)}
    assert breaks.blocks == {}


def test_break_without_opposite_has_no_block() -> None:
    breaks = StructureBreaks()

    for bar in (rising(100, 102), rising(102, 112)):
        breaks.update(bar, [HIGH], [])

    assert breaks.last_break is not None
    assert breaks.blocks == {}


def test_gap_stays_open_until_filled() -> None:
    gaps = FairValueGaps()

    for bar in (rising(100, 102), rising(102, 106), rising(104, 108)):
        gaps.update(bar)
    opened = gaps.open
    gaps.update(falling(108, 103))
    entered = gaps.open
    gaps.update(falling(104, 102))

    assert opened == entered == (Zone(Way.UP, 102, 104, 3),)
    assert gaps.open == ()


def test_downward_gap_mirrors_upward_gap() -> None:
    gaps = FairValueGaps()

    for bar in (falling(108, 106), falling(106, 103), falling(104, 101)):
        gaps.update(bar)
    opened = gaps.open
    gaps.update(rising(101, 106))

    assert opened == (Zone(Way.DOWN, 104, 106, 3),)
    assert gaps.open == ()
