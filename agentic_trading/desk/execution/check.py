"""The rules of a fill strategy: limits, agreement of its terms, and evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ValidationError

from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.strategy import FillChoice, FillTerms, read_choice, slice_quantities
from agentic_trading.desk.instrument import Quantity
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.result import Violation


def check_fill_strategy(envelope: LLMEnvelope, text: str) -> list[Violation]:
    """Return the rules that an answer to `fill_strategy.v2` breaks.

    The answer is not changed. The limits are in `context["limits"]` of the envelope, and the quantity in
    `context["order"]["quantity"]`. The terms of a name are in `context["candidates"]` and `context["terms"]`.
    If these are missing, every answer breaks a rule.
    """
    try:
        question = _Question.of(envelope)
    except (ValidationError, KeyError) as e:
        # Refused, because the answer would otherwise pass without limits.
        return [_unusable(e)]
    try:
        choice = read_choice(text)
    except ValidationError as e:
        return [_unreadable(error) for error in e.errors()]
    cited = [*_unknown_evidence(choice.evidence_ids, question.evidence)]
    try:
        terms = terms_of(envelope, choice)
    except (ValidationError, KeyError):
        offered = ", ".join(_offered(envelope)) or "none"
        return [
            _violation("fill", "candidates", choice.fill, f"a candidate of this question: {offered}"),
            *cited,
        ]
    broken = terms_violations(terms, question.limits, question.quantity)
    return [*(_of_fill(violation) for violation in broken), *cited]


def terms_of(envelope: LLMEnvelope, choice: FillChoice) -> FillTerms:
    """Return the terms of a choice, by the name of a candidate or in full.

    A candidate contains only its own terms. The other terms are in `context["terms"]`.

    Raises:
        KeyError: If the envelope has no candidate of that name.
        pydantic.ValidationError: If a candidate is not valid.

    """
    if isinstance(choice.fill, FillTerms):
        return choice.fill
    offer = _Offer.model_validate(envelope.context)
    return FillTerms.model_validate({**offer.terms, **offer.candidates[choice.fill]})


def terms_violations(terms: FillTerms, limits: FillLimits, quantity: Decimal) -> list[Violation]:
    """Return the rules that terms break for an order of `quantity`.

    The order of the rules is always the same.
    """
    return [
        *_outside_limits(terms, limits),
        *_contradictions(terms),
        *_against_schedule(terms, limits, quantity),
        *_against_price(terms, limits),
    ]


class _Offer(BaseModel, frozen=True):
    """The candidates that a context offers."""

    terms: dict[str, Any] = {}
    candidates: dict[str, dict[str, Any]] = {}


class _Order(BaseModel, frozen=True):
    quantity: Quantity


@dataclass(frozen=True, slots=True)
class _Question:
    """The limits and the quantity in an envelope, and its number of evidence items."""

    limits: FillLimits
    quantity: Decimal
    evidence: int

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> "_Question":
        limits = FillLimits.model_validate(envelope.context["limits"])
        order = _Order.model_validate(envelope.context["order"])
        return cls(limits, order.quantity, len(envelope.retrieved_evidence))


def _outside_limits(terms: FillTerms, limits: FillLimits) -> Iterator[Violation]:
    if terms.order_type not in limits.allowed_order_types:
        yield _violation("order_type", "limits", terms.order_type, list(limits.allowed_order_types))
    if terms.slices > limits.max_slices:
        yield _violation("slices", "limits", terms.slices, f"1 to {limits.max_slices}", limits.max_slices)
    if not 0 < terms.max_participation <= limits.max_participation:
        allowed = f"above 0, at most {limits.max_participation}"
        yield _violation(
            "max_participation", "limits", terms.max_participation, allowed, limits.max_participation
        )
    if terms.deadline_seconds > limits.max_deadline_s:
        allowed = f"1 to {limits.max_deadline_s}"
        yield _violation("deadline_seconds", "limits", terms.deadline_seconds, allowed, limits.max_deadline_s)
    band = limits.price_band_bps
    if not -band <= terms.limit_offset_bps <= band:
        nearest = band if terms.limit_offset_bps > 0 else -band
        yield _violation("limit_offset_bps", "limits", terms.limit_offset_bps, f"{-band} to {band}", nearest)


def _contradictions(terms: FillTerms) -> Iterator[Violation]:
    """Yield contradictions between order type, time in force and algorithm."""
    if terms.order_type == "market" and terms.limit_offset_bps != 0:
        yield _violation("limit_offset_bps", "market", terms.limit_offset_bps, "0 for a market order", 0)
    if terms.order_type == "post_only" and terms.limit_offset_bps < 0:
        allowed = "at least 0 for post_only: an aggressive offset takes"
        yield _violation("limit_offset_bps", "post_only", terms.limit_offset_bps, allowed, 0)
    if terms.order_type == "post_only" and terms.time_in_force == "ioc":
        allowed = "gtc or day for post_only: it rests until its deadline"
        yield _violation("time_in_force", "post_only", terms.time_in_force, allowed, "gtc")
    if terms.time_in_force == "ioc" and terms.on_deadline == "cross":
        allowed = "cancel for ioc: nothing is left at the deadline"
        yield _violation("on_deadline", "ioc", terms.on_deadline, allowed, "cancel")
    if terms.algo == "passive_then_cross":
        if terms.order_type == "market":
            yield _violation(
                "order_type", "algo", terms.order_type, "limit or post_only for passive_then_cross"
            )
        if terms.on_deadline != "cross":
            yield _violation(
                "on_deadline", "algo", terms.on_deadline, "cross for passive_then_cross", "cross"
            )


def _against_schedule(terms: FillTerms, limits: FillLimits, quantity: Decimal) -> Iterator[Violation]:
    """Yield contradictions between slices, their size, interval and deadline."""
    if terms.algo == "twap":
        if terms.slices < 2:
            yield _violation("slices", "algo", terms.slices, "at least 2 for twap", 2)
        if terms.interval_seconds == 0:
            yield _violation("interval_seconds", "algo", 0, "at least 1 for twap", limits.bar_seconds)
    elif terms.slices != 1:
        yield _violation("slices", "algo", terms.slices, f"1 for {terms.algo}", 1)
    seconds = terms.slices * int(limits.interval(terms.interval_seconds).total_seconds())
    if seconds > terms.deadline_seconds:
        allowed = f"slices x interval in whole bars, here {seconds} s, at most the deadline {terms.deadline_seconds} s"
        yield _violation("interval_seconds", "deadline", terms.interval_seconds, allowed)
    smallest = min(slice_quantities(quantity, terms.slices, limits.lot_size))
    if terms.slices > 1 and smallest < limits.min_slice_quantity:
        allowed = f"slices of at least {limits.min_slice_quantity} each; these are {smallest}"
        yield _violation("slices", "min_slice_quantity", terms.slices, allowed)


def _against_price(terms: FillTerms, limits: FillLimits) -> Iterator[Violation]:
    """Yield terms that could trade at a worse price than the plan's, if not allowed."""
    if limits.may_cross:
        return
    if terms.on_deadline == "cross":
        yield _violation(
            "on_deadline", "may_cross", "cross", "cancel: the plan's price is the worst", "cancel"
        )
    if terms.price_reference != "arrival":
        allowed = "arrival: the plan's price is the worst"
        yield _violation("price_reference", "may_cross", terms.price_reference, allowed, "arrival")
    if terms.limit_offset_bps < 0:
        allowed = "at least 0: the plan's price is the worst"
        yield _violation("limit_offset_bps", "may_cross", terms.limit_offset_bps, allowed, 0)


def _unknown_evidence(evidence_ids: Sequence[str], count: int) -> Iterator[Violation]:
    known = {f"E{place}" for place in range(1, count + 1)}
    for index, evidence_id in enumerate(evidence_ids):
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


def _unusable(e: Exception) -> Violation:
    message = f"the envelope's context holds no usable limits and order: {e!r:.200}"
    return Violation(path="$", keyword="limits", message=message, allowed="FillLimits in context.limits")


def _offered(envelope: LLMEnvelope) -> list[str]:
    try:
        return [*_Offer.model_validate(envelope.context).candidates]
    except ValidationError:
        return []


def _of_fill(violation: Violation) -> Violation:
    return violation.model_copy(update={"path": f"$.fill{violation.path.removeprefix('$')}"})
