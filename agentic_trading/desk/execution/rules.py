"""The baseline that answers `fill_strategy.v1` without a model: a function of the envelope, written as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

from agentic_trading.canonical import exact_bytes
from agentic_trading.desk.exchange import OrderType
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.schedule import slice_quantities
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.llm.envelope import LLMEnvelope

SMALL = Decimal("0.01")
"""Up to this share of a mean bar's volume an order is taken to move nothing."""

WIDE = Decimal(20)
"""From this many spreads in a mean bar's range on, waiting is taken to pay."""

PATIENCE_BARS = 3
PERSISTENCE_BARS = 6
"""How long a patient order rests before it crosses, and how long one at the market may take."""


def fill_strategy_rule(envelope: LLMEnvelope) -> str:
    """Write a fill strategy by fixed thresholds; reads the envelope's context and evidence and nothing else.

    A plan with a price waits at it until the deadline. Otherwise: a large order in market slices, one a bar;
    an exit at once; a small entry waits a little for a better price where bars are wide, and takes at once
    where they are not. An order type that the limits do not allow is replaced by the nearest one.
    """
    facts = _Facts.of(envelope)
    if not facts.limits.may_cross:
        choice = _at_plan_price(facts)
    elif facts.share > SMALL and facts.slices > 1:
        choice = _in_slices(facts)
    elif facts.is_exit or facts.range_in_spreads < WIDE:
        choice = _at_once(facts)
    else:
        choice = _patiently(facts)
    return exact_bytes({**_defaults(facts), **choice}).decode()


@dataclass(frozen=True, slots=True)
class _Facts:
    limits: FillLimits
    quantity: Decimal
    is_exit: bool
    share: Decimal
    mean_range_bps: Decimal
    spread_bps: Decimal

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> "_Facts":
        order = envelope.context["order"]
        evidence: Mapping[str, Any] = {item.source: item.content for item in envelope.retrieved_evidence}
        return cls(
            limits=FillLimits.model_validate(envelope.context["limits"]),
            quantity=Decimal(order["quantity"]),
            is_exit=order["kind"] == "exit",
            # Bars without any volume say nothing about size: then it is taken to be large.
            share=Decimal(evidence["volume"]["order_to_mean"] or 1),
            mean_range_bps=Decimal(evidence["volatility"]["mean_range_bps"]),
            spread_bps=Decimal(evidence["volatility"]["spread_bps"]),
        )

    @property
    def range_in_spreads(self) -> Decimal:
        return EXACT.divide(self.mean_range_bps, self.spread_bps) if self.spread_bps else WIDE

    @property
    def slices(self) -> int:
        """As many slices, one a bar, as make each small; fewer where the limits leave no room for them."""
        wanted = int((self.share / SMALL).to_integral_value(ROUND_CEILING))
        room = self.limits.max_deadline_s // self.limits.bar_seconds
        slices = max(1, min(wanted, room, self.limits.max_slices))
        while slices > 1 and self._smallest(slices) < self.limits.min_slice_quantity:
            slices -= 1
        return slices

    def _smallest(self, slices: int) -> Decimal:
        return min(slice_quantities(self.quantity, slices, self.limits.lot_size))

    def seconds(self, bars: int) -> int:
        """Return the length of so many bars, within the longest deadline."""
        return min(bars * self.limits.bar_seconds, self.limits.max_deadline_s)

    def nearest(self, *preferred: OrderType) -> OrderType:
        """Return the first of these order types that is allowed, or whichever is."""
        allowed = self.limits.allowed_order_types
        return next((kind for kind in preferred if kind in allowed), allowed[0])


def _defaults(facts: _Facts) -> dict[str, Any]:
    return {
        "order_type": facts.nearest("market", "limit", "post_only"),
        "time_in_force": "gtc",
        "algo": "single",
        "slices": 1,
        "interval_seconds": 0,
        "limit_offset_bps": 0,
        "price_reference": "last",
        "max_participation": facts.limits.max_participation,
        "deadline_seconds": facts.seconds(PERSISTENCE_BARS),
        "on_deadline": "cross",
        "expected_slippage_bps": EXACT.divide(facts.spread_bps, 2),
        "confidence": Decimal("0.6"),
        "evidence_ids": ["E2", "E3"],
    }


def _at_plan_price(facts: _Facts) -> dict[str, Any]:
    return {
        "order_type": facts.nearest("limit", "post_only"),
        "price_reference": "arrival",
        "deadline_seconds": facts.limits.max_deadline_s,
        "on_deadline": "cancel",
        "expected_slippage_bps": 0,
        "rationale": "The plan names a price: wait there and do not pay more.",
    }


def _in_slices(facts: _Facts) -> dict[str, Any]:
    return {
        "algo": "twap",
        "slices": facts.slices,
        "interval_seconds": facts.limits.bar_seconds,
        "deadline_seconds": facts.limits.max_deadline_s,
        "rationale": f"The order is {facts.share} of a mean bar's volume: one slice a bar.",
    }


def _at_once(facts: _Facts) -> dict[str, Any]:
    why = "An exit does not wait." if facts.is_exit else "Bars are narrow: waiting saves little."
    return {"rationale": f"{why} The order is {facts.share} of a mean bar's volume."}


def _patiently(facts: _Facts) -> dict[str, Any]:
    """Wait a tenth of a mean bar's range away from the last close, and cross after a few bars."""
    kind = facts.nearest("post_only", "limit")
    if kind == "market":
        return _at_once(facts)
    offset = min(EXACT.divide(facts.mean_range_bps, 10), facts.limits.price_band_bps)
    return {
        "order_type": kind,
        "algo": "passive_then_cross",
        "limit_offset_bps": offset,
        "deadline_seconds": facts.seconds(PATIENCE_BARS),
        "expected_slippage_bps": EXACT.subtract(ZERO, offset),
        "rationale": f"A mean bar ranges {facts.mean_range_bps} bps and the spread is {facts.spread_bps}: wait a little.",
    }
