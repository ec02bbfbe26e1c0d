"""What follows from a judgement: total, vetoes, reward for risk and the verdict, all computed here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from pydantic import AwareDatetime, BaseModel, Field

from agentic_trading.desk.analysis.judgement import POINTING, Judgement, Layer
from agentic_trading.desk.analysis.plan import PlanPrices, TradePlan, trade_plan
from agentic_trading.desk.instrument import Side
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import Open

STEP: Final = "cmt"
"""The step of a decision that an assessment is."""

VETO_LAYERS: Final = (Layer.TREND, Layer.PATTERNS, Layer.INDICATORS)
VETO_SCORE: Final = -2


class Verdict(StrEnum):
    """What was decided. To stand aside is a decision; a call that failed is a `NoDecision`, and none of these."""

    LONG = "long"
    SHORT = "short"
    STAND_ASIDE = "stand_aside"


VERDICTS: Final = {Side.BUY: Verdict.LONG, Side.SELL: Verdict.SHORT}


class StandAside(StrEnum):
    """Why there is no trade, the first reason that holds."""

    NEUTRAL = "neutral"
    VETO = "veto"
    BELOW_THRESHOLD = "below_threshold"
    POOR_RISK_REWARD = "poor_risk_reward"


@dataclass(frozen=True, slots=True)
class Demands:
    """What a judgement must reach to become a trade.

    `threshold` is the least total, of at most 13 with all nine layers; `min_risk_reward` the least reward for one
    unit of risk.
    """

    threshold: int = 4
    min_risk_reward: Decimal = field(default=Decimal("1.00"))


class Provenance(BaseModel, frozen=True):
    """Where a judgement comes from: the ids of its chain, the market's moment and price.

    `interaction_id` is that of the attempt that gave it. `last_close` is the price that was known at
    `as_of`, in the quote currency.
    """

    assessment_id: str
    trace_id: str
    envelope_id: str
    interaction_id: str
    request_hash: str
    symbol: str
    as_of: AwareDatetime
    last_close: Decimal


class Assessment(Provenance, EventBody, frozen=True):
    """A judgement and what we make of it.

    `plan` is there if and only if the verdict is long or short, `stand_aside` if and only if it is not.
    `risk_reward` is that of the proposed plan, whether it is traded or not. `not_available` says by layer what was
    missing, and why.
    """

    KIND = "analysis.assessed"

    step: str = STEP
    judgement: Judgement
    total: int
    threshold: int
    vetoed_by: tuple[Open[Layer], ...]
    risk_reward: Decimal | None
    min_risk_reward: Decimal
    verdict: Open[Verdict]
    stand_aside: Open[StandAside] | None
    plan: TradePlan | None
    not_available: Mapping[Open[Layer], Mapping[str, str]] = Field(default_factory=dict)


def assess(
    judgement: Judgement,
    provenance: Provenance,
    demands: Demands,
    *,
    prices: PlanPrices | None,
    not_available: Mapping[Layer, Mapping[str, str]] = MappingProxyType({}),
) -> Assessment:
    """Return the assessment of a judgement that has passed `check_cmt_assessment`; `prices` are those of its plan."""
    proposed = None
    if prices is not None and judgement.trade_plan is not None:
        proposed = trade_plan(
            provenance.symbol,
            judgement.direction,
            prices,
            provenance.last_close,
            judgement.trade_plan.invalidation,
        )
    total, vetoed_by = total_score(judgement), vetoes(judgement)
    reason = _why_not(proposed, total, vetoed_by, demands)
    return Assessment(
        **dict(provenance),
        judgement=judgement,
        total=total,
        threshold=demands.threshold,
        vetoed_by=vetoed_by,
        risk_reward=proposed.risk_reward if proposed else None,
        min_risk_reward=demands.min_risk_reward,
        verdict=Verdict.STAND_ASIDE if reason or not proposed else VERDICTS[proposed.side],
        stand_aside=reason,
        plan=None if reason else proposed,
        not_available=dict(not_available),
    )


def total_score(judgement: Judgement) -> int:
    """Return the sum of what the layers say for the overall direction, -11 to 13; a layer not judged says 0."""
    return sum(_for_direction(judgement, layer) for layer in judgement.layers)


def vetoes(judgement: Judgement) -> tuple[Layer, ...]:
    """Return which of trend, patterns and indicators speak against the overall direction as far as they can."""
    return tuple(
        layer
        for layer in VETO_LAYERS
        if layer in judgement.layers and _for_direction(judgement, layer) <= VETO_SCORE
    )


def _for_direction(judgement: Judgement, layer: Layer) -> int:
    score = judgement.layers[layer].score
    return score * judgement.direction.sign if layer in POINTING else score


def _why_not(
    proposed: TradePlan | None,
    total: int,
    vetoed_by: tuple[Layer, ...],
    demands: Demands,
) -> StandAside | None:
    if proposed is None:
        return StandAside.NEUTRAL
    if vetoed_by:
        return StandAside.VETO
    if total < demands.threshold:
        return StandAside.BELOW_THRESHOLD
    if proposed.risk_reward < demands.min_risk_reward:
        return StandAside.POOR_RISK_REWARD
    return None
