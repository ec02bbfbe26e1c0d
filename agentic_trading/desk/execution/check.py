"""Is a fill strategy inside its limits, and does it agree with itself: the check named `fill_strategy.v1`."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ValidationError

from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.schedule import slice_quantities
from agentic_trading.desk.execution.strategy import FillStrategy, read_strategy
from agentic_trading.desk.instrument import Quantity
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.reading import Violation


def check_fill_strategy(envelope: LLMEnvelope, text: str) -> list[Violation]:
    """Return every rule that an answer breaks; nothing is clamped or filled in.

    The limits are `context["limits"]` of the envelope and the quantity `context["order"]["quantity"]`: an
    envelope without them lets nothing pass.
    """
    try:
        asked = _Asked.of(envelope)
    except (ValidationError, KeyError) as e:
        message = f"the envelope's context holds no usable limits and order: {e!r:.200}"
        return [
            Violation(path="$", keyword="limits", message=message, allowed="FillLimits in context.limits")
        ]
    try:
        strategy = read_strategy(text)
    except ValidationError as e:
        return [_unreadable(error) for error in e.errors()]
    return [
        *_outside_limits(strategy, asked.limits),
        *_contradictions(strategy),
        *_against_schedule(strategy, asked),
        *_against_price(strategy, asked.limits),
        *_unknown_evidence(strategy, asked.evidence),
    ]


class _Order(BaseModel, frozen=True):
    quantity: Quantity


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an envelope asks a strategy for: limits, quantity, and how many items of evidence it gives."""

    limits: FillLimits
    quantity: Decimal
    evidence: int

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> "_Asked":
        limits = FillLimits.model_validate(envelope.context["limits"])
        order = _Order.model_validate(envelope.context["order"])
        return cls(limits, order.quantity, len(envelope.retrieved_evidence))


def _outside_limits(strategy: FillStrategy, limits: FillLimits) -> Iterator[Violation]:
    if strategy.order_type not in limits.allowed_order_types:
        yield _violation("order_type", "limits", strategy.order_type, list(limits.allowed_order_types))
    if strategy.slices > limits.max_slices:
        yield _violation("slices", "limits", strategy.slices, f"1 to {limits.max_slices}", limits.max_slices)
    if not 0 < strategy.max_participation <= limits.max_participation:
        allowed = f"above 0, at most {limits.max_participation}"
        yield _violation(
            "max_participation", "limits", strategy.max_participation, allowed, limits.max_participation
        )
    if strategy.deadline_seconds > limits.max_deadline_s:
        allowed = f"1 to {limits.max_deadline_s}"
        yield _violation(
            "deadline_seconds", "limits", strategy.deadline_seconds, allowed, limits.max_deadline_s
        )
    band = limits.price_band_bps
    if not -band <= strategy.limit_offset_bps <= band:
        nearest = band if strategy.limit_offset_bps > 0 else -band
        yield _violation(
            "limit_offset_bps", "limits", strategy.limit_offset_bps, f"{-band} to {band}", nearest
        )


def _contradictions(strategy: FillStrategy) -> Iterator[Violation]:
    """Yield where the order's type, its life and the algorithm do not fit each other."""
    if strategy.order_type == "market" and strategy.limit_offset_bps != 0:
        yield _violation("limit_offset_bps", "market", strategy.limit_offset_bps, "0 for a market order", 0)
    if strategy.order_type == "post_only" and strategy.limit_offset_bps < 0:
        allowed = "at least 0 for post_only: an aggressive offset takes"
        yield _violation("limit_offset_bps", "post_only", strategy.limit_offset_bps, allowed, 0)
    if strategy.order_type == "post_only" and strategy.time_in_force == "ioc":
        allowed = "gtc or day for post_only: it rests until its deadline"
        yield _violation("time_in_force", "post_only", strategy.time_in_force, allowed, "gtc")
    if strategy.time_in_force == "ioc" and strategy.on_deadline == "cross":
        allowed = "cancel for ioc: nothing is left at the deadline"
        yield _violation("on_deadline", "ioc", strategy.on_deadline, allowed, "cancel")
    if strategy.algo == "passive_then_cross":
        if strategy.order_type == "market":
            yield _violation(
                "order_type", "algo", strategy.order_type, "limit or post_only for passive_then_cross"
            )
        if strategy.on_deadline != "cross":
            yield _violation(
                "on_deadline", "algo", strategy.on_deadline, "cross for passive_then_cross", "cross"
            )


def _against_schedule(strategy: FillStrategy, asked: _Asked) -> Iterator[Violation]:
    """Yield where slices, their size, the interval and the deadline do not fit each other."""
    if strategy.algo == "twap":
        if strategy.slices < 2:
            yield _violation("slices", "algo", strategy.slices, "at least 2 for twap", 2)
        if strategy.interval_seconds == 0:
            yield _violation("interval_seconds", "algo", 0, "at least 1 for twap", asked.limits.bar_seconds)
    elif strategy.slices != 1:
        yield _violation("slices", "algo", strategy.slices, f"1 for {strategy.algo}", 1)
    seconds = strategy.slices * int(asked.limits.interval(strategy.interval_seconds).total_seconds())
    if seconds > strategy.deadline_seconds:
        allowed = f"slices x interval in whole bars, here {seconds} s, at most the deadline {strategy.deadline_seconds} s"
        yield _violation("interval_seconds", "deadline", strategy.interval_seconds, allowed)
    smallest = min(slice_quantities(asked.quantity, strategy.slices, asked.limits.lot_size))
    if strategy.slices > 1 and smallest < asked.limits.min_slice_quantity:
        allowed = f"slices of at least {asked.limits.min_slice_quantity} each; these are {smallest}"
        yield _violation("slices", "min_slice_quantity", strategy.slices, allowed)


def _against_price(strategy: FillStrategy, limits: FillLimits) -> Iterator[Violation]:
    """Yield what could trade at a worse price than the plan's, where the limits say that it must not."""
    if limits.may_cross:
        return
    if strategy.on_deadline == "cross":
        yield _violation(
            "on_deadline", "may_cross", "cross", "cancel: the plan's price is the worst", "cancel"
        )
    if strategy.price_reference != "arrival":
        allowed = "arrival: the plan's price is the worst"
        yield _violation("price_reference", "may_cross", strategy.price_reference, allowed, "arrival")
    if strategy.limit_offset_bps < 0:
        allowed = "at least 0: the plan's price is the worst"
        yield _violation("limit_offset_bps", "may_cross", strategy.limit_offset_bps, allowed, 0)


def _unknown_evidence(strategy: FillStrategy, count: int) -> Iterator[Violation]:
    known = {f"E{place}" for place in range(1, count + 1)}
    for index, evidence_id in enumerate(strategy.evidence_ids):
        if evidence_id not in known:
            yield _violation(f"evidence_ids[{index}]", "evidence", evidence_id, f"E1 to E{count}")


def _violation(field: str, keyword: str, actual: Any, allowed: Any, suggestion: Any = None) -> Violation:
    spelled = str(actual) if isinstance(actual, Decimal) else actual
    return Violation(
        path=f"$.{field}",
        keyword=keyword,
        message=f"{field} is {actual}; allowed: {allowed}",
        actual=spelled,
        allowed=allowed,
        suggestion=str(suggestion) if isinstance(suggestion, Decimal) else suggestion,
    )


def _unreadable(error: Any) -> Violation:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    return Violation(path=f"${path}", keyword=error["type"], message=error["msg"])
