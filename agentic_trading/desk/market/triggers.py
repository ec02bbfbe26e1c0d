"""Decide whether to ask an analyst now, with a reason."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from agentic_trading.desk.market.snapshot import MarketSnapshot
from agentic_trading.desk.prompts import ratio

WATCHED = ("swing_", "pivot_", "profile_poc")


class TriggerKind(StrEnum):
    """The events that justify a call, in order of importance."""

    REGIME_FLIP = "regime_flip"
    VOLATILITY_JUMP = "volatility_jump"
    LEVEL_TOUCH = "level_touch"
    THESIS_DUE = "thesis_due"


class SkipReason(StrEnum):
    """The reasons for not asking."""

    NO_NEW_BAR = "no_new_bar"
    WARMING_UP = "warming_up"
    NOTHING_NEW = "nothing_new"


@dataclass(frozen=True, slots=True)
class Trigger:
    """A decision to ask, with the event on the bar that has just closed."""

    kind: TriggerKind
    detail: str


@dataclass(frozen=True, slots=True)
class Skip:
    """A decision not to ask, with its reason."""

    reason: SkipReason
    detail: str


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """The thresholds of triggers.

    Attributes:
        touch_atr: The distance at which a level is touched, in ATR of the decision timeframe.
        jump_percentile: Volatility jumps when the rank of ATR or of realised volatility (0..100) reaches this
            from below.
        thesis_bars: The number of bars of the decision timeframe after which a thesis is due again.

    """

    touch_atr: float = 0.1
    jump_percentile: float = 90.0
    thesis_bars: int = 12


def decide(
    before: MarketSnapshot | None,
    now: MarketSnapshot,
    rules: TriggerRules,
    *,
    assessed_at: datetime | None,
) -> Trigger | Skip:
    """Compare two snapshots at closes of the decision timeframe. Returns the first trigger, or a `Skip`.

    The kinds are tried in the order of `TriggerKind`. Equal arguments give equal results.

    Args:
        before: The snapshot at the previous decision bar, or None.
        now: The snapshot at this decision bar.
        rules: The thresholds.
        assessed_at: The time of the last assessment of the thesis, or None if there was no assessment.

    """
    frame = now.frames.get(now.decision)
    if frame is None or frame.direction is None or not frame.volatility.atr_14:
        bars = frame.bars if frame else 0
        return Skip(SkipReason.WARMING_UP, f"{bars} bars of {now.decision}: too few for a trend and an ATR")
    earlier = before.frames.get(before.decision) if before else None
    if earlier is not None and earlier.close_time >= frame.close_time:
        return Skip(
            SkipReason.NO_NEW_BAR, f"no {now.decision} bar has closed since {earlier.close_time.isoformat()}"
        )
    found = before and (
        regime_flip(before, now) or volatility_jump(before, now, rules) or level_touch(before, now, rules)
    )
    due = found or thesis_due(now, rules, assessed_at)
    return due or Skip(SkipReason.NOTHING_NEW, "no flip, jump or touch, and the thesis is not due")


def regime_flip(before: MarketSnapshot, now: MarketSnapshot) -> Trigger | None:
    """Return a trigger if the direction of the decision timeframe has changed."""
    was = before.frames[before.decision].direction if before.decision in before.frames else None
    is_now = now.frames[now.decision].direction if now.decision in now.frames else None
    if was is None or is_now is None or was is is_now:
        return None
    return Trigger(TriggerKind.REGIME_FLIP, f"{now.decision} was {was}, is {is_now}")


def volatility_jump(before: MarketSnapshot, now: MarketSnapshot, rules: TriggerRules) -> Trigger | None:
    """Return a trigger if the rank of ATR or of realised volatility reaches the threshold from below."""
    ranks_before, ranks_now = _ranks(before), _ranks(now)
    for name, rank in ranks_now.items():
        earlier = ranks_before.get(name)
        if earlier is not None and earlier < rules.jump_percentile <= rank:
            return Trigger(
                TriggerKind.VOLATILITY_JUMP, f"{now.decision} {name} was {ratio(earlier)}, is {ratio(rank)}"
            )
    return None


def level_touch(before: MarketSnapshot, now: MarketSnapshot, rules: TriggerRules) -> Trigger | None:
    """Return a trigger if the price has come near an earlier swing, pivot or point of control."""
    known = {level.name for level in before.levels.named}
    near_before = set(_near(before, rules.touch_atr))
    for name, level in _near(now, rules.touch_atr).items():
        # A new level does not count, because it appeared near the price: the price did not come to it.
        if name in known and name not in near_before:
            return Trigger(TriggerKind.LEVEL_TOUCH, f"{now.last:.8g} is at {name} {level:.8g}")
    return None


def thesis_due(now: MarketSnapshot, rules: TriggerRules, assessed_at: datetime | None) -> Trigger | None:
    """Return a trigger if the thesis was never assessed, or its time is over."""
    if assessed_at is None:
        return Trigger(TriggerKind.THESIS_DUE, "never assessed")
    bars = (now.as_of - assessed_at) // now.decision.length
    if bars < rules.thesis_bars:
        return None
    return Trigger(TriggerKind.THESIS_DUE, f"assessed {bars} bars of {now.decision} ago")


def _ranks(snapshot: MarketSnapshot) -> dict[str, float]:
    frame = snapshot.frames.get(snapshot.decision)
    if frame is None:
        return {}
    ranks = {
        "ATR percentile": frame.volatility.atr_percentile,
        "realised volatility percentile": frame.volatility.realised_percentile,
    }
    return {name: rank for name, rank in ranks.items() if rank is not None}


def _near(snapshot: MarketSnapshot, atrs: float) -> dict[str, float]:
    frame = snapshot.frames.get(snapshot.decision)
    atr = frame.volatility.atr_14 if frame else None
    if not atr:
        return {}
    return {
        level.name: level.price
        for level in snapshot.levels.named
        if level.name.startswith(WATCHED) and abs(level.price - snapshot.last) <= atrs * atr
    }
