"""The assessment of a judgement: total, vetoes, reward for risk and verdict."""

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
"""The name of this step of a decision."""

VETO_LAYERS: Final = (Layer.TREND, Layer.PATTERNS, Layer.INDICATORS)
VETO_SCORE: Final = -2


class Verdict(StrEnum):
    """The decision.

    Standing aside is a decision too, while a failed call is a `NoDecision`.
    """

    LONG = "long"
    SHORT = "short"
    STAND_ASIDE = "stand_aside"


VERDICTS: Final = {Side.BUY: Verdict.LONG, Side.SELL: Verdict.SHORT}


class StandAside(StrEnum):
    """The first reason that holds against a trade."""

    NEUTRAL = "neutral"
    VETO = "veto"
    BELOW_THRESHOLD = "below_threshold"
    POOR_RISK_REWARD = "poor_risk_reward"


@dataclass(frozen=True, slots=True)
class Demands:
    """The minimum figures of a trade.

    Attributes:
        threshold: The minimum total. With all nine layers the maximum is 13.
        min_risk_reward: The minimum reward for one unit of risk.

    """

    threshold: int = 4
    min_risk_reward: Decimal = field(default=Decimal("1.00"))


class Provenance(BaseModel, frozen=True):
    """The origin of a judgement: the ids of its chain, the market's time and price.

    Attributes:
        interaction_id: The attempt that gave the judgement.
        last_close: The price that was known at `as_of`, in the quote currency.

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
    """A judgement, and the verdict that follows from it.

    Attributes:
        risk_reward: The reward for risk of the proposed plan, traded or not.
        stand_aside: The reason against a trade. None if and only if the verdict is long or short.
        plan: The trade. Not None if and only if the verdict is long or short.
        not_available: The missing figures by layer, with their reasons.

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
    """Return the assessment of a judgement.

    Args:
        judgement: A judgement that has passed `check_cmt_assessment`.
        provenance: Its origin.
        demands: The minimum figures of a trade.
        prices: The prices of its plan, or None without a plan.
        not_available: The missing figures by layer, with their reasons.

    """
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
    """Return the sum of all scores for the overall direction, -11 to 13.

    A missing layer counts 0.
    """
    return sum(_for_direction(judgement, layer) for layer in judgement.layers)


def vetoes(judgement: Judgement) -> tuple[Layer, ...]:
    """Return the layers (trend, patterns, indicators) that contradict the direction.

    A layer has a veto only at its full score against the direction.
    """
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
