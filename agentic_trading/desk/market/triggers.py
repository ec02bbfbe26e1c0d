"""Whether an analyst should be asked now, and if not, why not."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from agentic_trading.desk.market.snapshot import MarketSnapshot
from agentic_trading.desk.prompts import ratio

WATCHED = ("swing_", "pivot_", "profile_poc")


class TriggerKind(StrEnum):
    """What makes a question worth its price, in order of importance."""

    REGIME_FLIP = "regime_flip"
    VOLATILITY_JUMP = "volatility_jump"
    LEVEL_TOUCH = "level_touch"
    THESIS_DUE = "thesis_due"


class SkipReason(StrEnum):
    """Why nothing is asked."""

    NO_NEW_BAR = "no_new_bar"
    WARMING_UP = "warming_up"
    NOTHING_NEW = "nothing_new"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Ask: this happened on the bar that has just closed."""

    kind: TriggerKind
    detail: str


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not ask, for this reason."""

    reason: SkipReason
    detail: str


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """How much must happen.

    A level is touched within `touch_atr` ATR of the decision timeframe; volatility jumps when the rank of
    ATR or realised volatility reaches `jump_percentile` (0..100) from below; a thesis is due again after
    `thesis_bars` bars of the decision timeframe.
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
    """Compare the snapshots at two closes of the decision timeframe; return the first trigger, or why none.

    `before` is the one at the last decision bar, `assessed_at` when the thesis was last assessed (None:
    never). The kinds are tried in the order of `TriggerKind`. Same arguments, same answer.
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
    """Fire when the decision timeframe points another way than before."""
    was = before.frames[before.decision].direction if before.decision in before.frames else None
    is_now = now.frames[now.decision].direction if now.decision in now.frames else None
    if was is None or is_now is None or was is is_now:
        return None
    return Trigger(TriggerKind.REGIME_FLIP, f"{now.decision} was {was}, is {is_now}")


def volatility_jump(before: MarketSnapshot, now: MarketSnapshot, rules: TriggerRules) -> Trigger | None:
    """Fire when the rank of ATR or of realised volatility comes up to the threshold from below it."""
    ranks_before, ranks_now = _ranks(before), _ranks(now)
    for name, rank in ranks_now.items():
        earlier = ranks_before.get(name)
        if earlier is not None and earlier < rules.jump_percentile <= rank:
            return Trigger(
                TriggerKind.VOLATILITY_JUMP, f"{now.decision} {name} was {ratio(earlier)}, is {ratio(rank)}"
            )
    return None


def level_touch(before: MarketSnapshot, now: MarketSnapshot, rules: TriggerRules) -> Trigger | None:
    """Fire when the price has come to a swing, a pivot or the point of control that was there, but not near."""
    known = {level.name for level in before.levels.named}
    near_before = set(_near(before, rules.touch_atr))
    for name, level in _near(now, rules.touch_atr).items():
        if name in known and name not in near_before:
            return Trigger(TriggerKind.LEVEL_TOUCH, f"{now.last:.8g} is at {name} {level:.8g}")
    return None


def thesis_due(now: MarketSnapshot, rules: TriggerRules, assessed_at: datetime | None) -> Trigger | None:
    """Fire when no thesis was ever assessed, or when its time is up."""
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
