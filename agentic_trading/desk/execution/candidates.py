"""Candidates: the ways to fill an intent, and the rule that chooses one offline."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

from agentic_trading.canonical import exact_bytes
from agentic_trading.desk.exchange import OrderType
from agentic_trading.desk.execution.check import terms_violations
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.strategy import FillName, FillTerms, slice_quantities
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.llm.envelope import LLMEnvelope

SMALL = Decimal("0.01")
"""Up to this share of a mean bar's volume, an order is assumed not to move the price."""

PATIENCE_BARS = 3
PERSISTENCE_BARS = 6
"""Bars until an order near the price crosses (`PATIENCE_BARS`), and until any other order ends."""

NEAR = 10
FAR = 4
"""The distance of a waiting order from the price, as a part of a mean bar's range: a tenth, or a quarter."""

WIDE = Decimal(20)
"""From this many spreads in a mean bar's range on, waiting is assumed to pay."""

FillCandidates = Mapping[FillName, FillTerms]


@dataclass(frozen=True, slots=True)
class FillFacts:
    """The facts behind the candidates: limits, order, and measures from the evidence."""

    limits: FillLimits
    quantity: Decimal
    is_exit: bool
    share: Decimal
    mean_range_bps: Decimal
    spread_bps: Decimal

    @classmethod
    def of(
        cls, limits: FillLimits, order: Mapping[str, Any], evidence: Mapping[str, Mapping[str, Any]]
    ) -> "FillFacts":
        """Return the facts from the order of a context and from evidence by its source."""
        return cls(
            limits=limits,
            quantity=Decimal(order["quantity"]),
            is_exit=order["kind"] == "exit",
            # Without any volume the order counts as large, because its size cannot be compared.
            share=Decimal(evidence["volume"]["order_to_mean"] or 1),
            mean_range_bps=Decimal(evidence["volatility"]["mean_range_bps"]),
            spread_bps=Decimal(evidence["volatility"]["spread_bps"]),
        )

    @property
    def room(self) -> int:
        """The number of bars in the longest deadline."""
        return self.limits.max_deadline_s // self.limits.bar_seconds

    @property
    def slices(self) -> int:
        """The number of slices that makes each slice small, one per bar.

        At least two, unless deadline, limits or minimum size have no room for them.
        """
        wanted = max(2, int((self.share / SMALL).to_integral_value(ROUND_CEILING)))
        slices = max(1, min(wanted, self.room, self.limits.max_slices))
        while slices > 1 and self._smallest(slices) < self.limits.min_slice_quantity:
            slices -= 1
        return slices

    def _smallest(self, slices: int) -> Decimal:
        return min(slice_quantities(self.quantity, slices, self.limits.lot_size))

    def seconds(self, bars: int) -> int:
        """Return the length of so many bars, at most the longest deadline."""
        return min(bars * self.limits.bar_seconds, self.limits.max_deadline_s)

    def nearest(self, *preferred: OrderType) -> OrderType:
        """Return the first of these order types that is allowed, or any allowed type."""
        allowed = self.limits.allowed_order_types
        return next((kind for kind in preferred if kind in allowed), allowed[0])

    def part_of_range(self, part: int) -> Decimal:
        """Return one `part`-th of a mean bar's range in bps, within the price band."""
        return min(EXACT.divide(self.mean_range_bps, part), self.limits.price_band_bps)


def fill_candidates(facts: FillFacts) -> FillCandidates:
    """Return the ways to fill that break no rule of `terms_violations`.

    Equal facts give equal candidates, in the same order. A forbidden order type is replaced by the nearest
    allowed type. Ways that then make no sense, or have no room, are left out.
    """
    ways = _at_plan_price(facts) if not facts.limits.may_cross else _at_market_price(facts)
    terms = {name: _fill_terms(facts, **changes) for name, changes in ways}
    return {name: each for name, each in terms.items() if not _is_refused(each, facts)}


def _is_refused(terms: FillTerms, facts: FillFacts) -> bool:
    return bool(terms_violations(terms, facts.limits, facts.quantity))


def _at_market_price(facts: FillFacts) -> Iterator[tuple[FillName, dict[str, Any]]]:
    yield "take_now", {}
    if "limit" in facts.limits.allowed_order_types and not facts.is_exit:
        yield "take_capped", _capped(facts)
    if facts.slices > 1:
        yield "slices", _sliced(facts, bars=1)
        if facts.room // facts.slices > 1:
            yield "slices_slow", _sliced(facts, bars=facts.room // facts.slices)
    if facts.nearest("post_only", "limit") != "market":
        yield "wait_near", _patient(facts, facts.part_of_range(NEAR), PATIENCE_BARS)
        yield "wait_far", _patient(facts, facts.part_of_range(FAR), PERSISTENCE_BARS)


def _at_plan_price(facts: FillFacts) -> Iterator[tuple[FillName, dict[str, Any]]]:
    resting = {
        "order_type": facts.nearest("limit", "post_only"),
        "price_reference": "arrival",
        "deadline_seconds": facts.limits.max_deadline_s,
        "on_deadline": "cancel",
        "expected_slippage_bps": ZERO,
    }
    yield "at_plan", resting
    if (brief := facts.seconds(PERSISTENCE_BARS)) < facts.limits.max_deadline_s:
        yield "at_plan_brief", {**resting, "deadline_seconds": brief}


def _fill_terms(facts: FillFacts, **changes: Any) -> FillTerms:
    """Return terms that take everything at the market, with `changes`."""
    fields = {
        "order_type": facts.nearest("market", "limit", "post_only"),
        "time_in_force": "gtc",
        "algo": "single",
        "slices": 1,
        "interval_seconds": 0,
        "limit_offset_bps": ZERO,
        "price_reference": "last",
        "max_participation": facts.limits.max_participation,
        "deadline_seconds": facts.seconds(PERSISTENCE_BARS),
        "on_deadline": "cross",
        "expected_slippage_bps": EXACT.divide(facts.spread_bps, 2),
    }
    return FillTerms.model_validate({**fields, **changes})


def _capped(facts: FillFacts) -> dict[str, Any]:
    """Return changes that take up to a cap beyond the last close, and cancel the rest."""
    # The order follows the close. A limit beyond the price of the decision would be worth more than the
    # intent was sized for, and limits on positions would deny it.
    cap = min(max(facts.part_of_range(NEAR), facts.spread_bps), facts.limits.price_band_bps)
    return {
        "order_type": "limit",
        "limit_offset_bps": EXACT.subtract(ZERO, cap),
        "on_deadline": "cancel",
    }


def _sliced(facts: FillFacts, *, bars: int) -> dict[str, Any]:
    return {
        "algo": "twap",
        "slices": facts.slices,
        "interval_seconds": bars * facts.limits.bar_seconds,
        "deadline_seconds": facts.limits.max_deadline_s,
    }


def _patient(facts: FillFacts, offset: Decimal, bars: int) -> dict[str, Any]:
    return {
        "order_type": facts.nearest("post_only", "limit"),
        "algo": "passive_then_cross",
        "limit_offset_bps": offset,
        "deadline_seconds": facts.seconds(bars),
        "expected_slippage_bps": EXACT.subtract(ZERO, offset),
    }


def fill_strategy_rule(envelope: LLMEnvelope) -> str:
    """Choose a candidate by fixed thresholds, from the context and the evidence only.

    A plan with a price waits at it until the deadline. Otherwise a large order is sliced at the market, one
    slice per bar. An exit is taken at once. A small entry waits a little for a better price if bars are wide,
    and is taken at once if they are not.
    """
    evidence = {item.source: item.content for item in envelope.retrieved_evidence}
    limits = FillLimits.model_validate(envelope.context["limits"])
    facts = FillFacts.of(limits, envelope.context["order"], evidence)
    name, why = _rule_choice(facts, envelope.context["candidates"])
    answer = {"evidence_ids": ["E2", "E3"], "rationale": why, "fill": name, "confidence": Decimal("0.6")}
    return exact_bytes(answer).decode()


def _rule_choice(facts: FillFacts, candidates: dict[str, Any]) -> tuple[FillName, str]:
    if "at_plan" in candidates:
        return "at_plan", "The plan names a price: wait there and do not pay more."
    if facts.share > SMALL and "slices" in candidates:
        return "slices", f"The order is {facts.share} of a mean bar's volume: one slice a bar."
    if facts.is_exit or _range_in_spreads(facts) < WIDE or "wait_near" not in candidates:
        why = "An exit does not wait." if facts.is_exit else "Bars are narrow: waiting saves little."
        return "take_now", f"{why} The order is {facts.share} of a mean bar's volume."
    ranges = f"A mean bar ranges {facts.mean_range_bps} bps and the spread is {facts.spread_bps}"
    return "wait_near", f"{ranges}: wait a little."


def _range_in_spreads(facts: FillFacts) -> Decimal:
    return EXACT.divide(facts.mean_range_bps, facts.spread_bps) if facts.spread_bps else WIDE
