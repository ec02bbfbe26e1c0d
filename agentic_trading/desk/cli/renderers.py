"""The lines that `trace` shows for the desk's events. Loaded only if a log has such an event."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.analysis.assessment import Assessment
from agentic_trading.desk.analysis.events import Skipped, Triggered, Undecided
from agentic_trading.desk.exchange import Cancellation, Fill, Order
from agentic_trading.desk.execution.events import (
    IntentDenied,
    IntentSkipped,
    IntentUndecided,
    OrderDenied,
    StrategyChosen,
)
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.planning.events import (
    GenerationAccepted,
    GenerationProposed,
    GenerationRejected,
    PlanChosen,
    PlanUndecided,
)
from agentic_trading.llm.event import Event
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.trace_lines import chosen, joined, value_at

LAYERS: Final = "(layers)"
"""Placeholder for one line per layer of an assessment: score, first finding and cited evidence."""

SIZED: Final = (
    "sized: sizing.sized_by sizing.equity sizing.risk_pct sizing.position sizing.pending sizing.gross"
)

SHOWN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    Triggered.KIND: (
        "bar: bar.symbol bar.timeframe bar.close_time bar.open bar.high bar.low bar.close bar.volume",
        "kind detail",
    ),
    Skipped.KIND: ("reason detail",),
    Assessment.KIND: (
        "verdict stand_aside total threshold vetoed_by risk_reward judgement.confidence",
        LAYERS,
        "plan: plan.side plan.entry_type plan.entry plan.stop plan.target plan.risk_reward",
        "judgement.rationale",
    ),
    Undecided.KIND: ("reason.category reason.description",),
    IntentUndecided.KIND: ("reason.category reason.description",),
    IntentSkipped.KIND: ("reason position",),
    IntentDenied.KIND: ("rule was allowed", "side quantity", SIZED),
    OrderIntent.KIND: ("side quantity kind limit_price stop_loss take_profit", SIZED, "reason"),
    OrderDenied.KIND: ("rule was allowed", "side quantity", SIZED),
    StrategyChosen.KIND: (
        "algo order_type slices interval_seconds limit_offset_bps deadline_seconds on_deadline confidence",
        "rationale",
    ),
    Order.KIND: ("side quantity order_type limit_price peg_bps active_from expires_at on_expiry",),
    Cancellation.KIND: ("quantity reason",),
    Fill.KIND: ("side quantity price fee fee_currency liquidity cause",),
    GenerationProposed.KIND: ("round family params",),
    GenerationRejected.KIND: ("by detail",),
    GenerationAccepted.KIND: (
        "in sample: in_sample.sharpe in_sample.cagr in_sample.max_drawdown",
        "out of sample: out_of_sample.sharpe out_of_sample.cagr out_of_sample.max_drawdown",
    ),
    PlanChosen.KIND: ("tried deflated_sharpe regime", "params"),
    PlanUndecided.KIND: ("reason.category reason.description",),
})
"""The values of an event that are shown, by kind, in the form of `chains.SHOWN`."""


def lines(event: Event) -> Sequence[str] | None:
    """Return lines about an event of the desk, or None if its kind is unknown."""
    shown = SHOWN.get(event.kind)
    return None if shown is None else list(_lines(event.body, shown))


def _lines(body: Mapping[str, Any], shown: Sequence[str]) -> Iterator[str]:
    for line in shown:
        if line == LAYERS:
            yield from _layers(value_at(body, "judgement.layers"))
        else:
            yield from chosen(body, [line])


STOPPED = {
    OrderDenied.KIND: "rejected",
    Order.KIND: "unfilled",
    IntentDenied.KIND: "rejected",
    IntentSkipped.KIND: "skipped",
}
"""The outcome of a verdict without a fill: the first kind that the trace contains."""


def outcome(events: Sequence[Event]) -> str:
    """Return the verdict and its result: `long → 2 fills`, `stand_aside`, `refusal`.

    Empty without a verdict.
    """
    assessed = next((str(event.body.get("verdict")) for event in events if event.kind == Assessment.KIND), "")
    failed = next((_reason(event) for event in events if event.kind in UNDECIDED), "")
    if not assessed:
        return failed
    followed = _followed(Counter(event.kind for event in events)) or failed
    return f"{assessed} → {followed}" if followed else assessed


UNDECIDED = (Undecided.KIND, IntentUndecided.KIND)


def _reason(event: Event) -> str:
    reason = event.body.get("reason")
    return str(reason.get("category")) if isinstance(reason, dict) else "no_decision"


def _followed(kinds: Counter[str]) -> str:
    if kinds[Fill.KIND]:
        return pluralize(kinds[Fill.KIND], "fill")
    return next((word for kind, word in STOPPED.items() if kinds[kind]), "")


def _layers(layers: Any) -> Iterator[str]:
    for name, judged in layers.items() if isinstance(layers, Mapping) else ():
        scored = _scored(value_at(judged, "score"))
        text, cited = _finding(judged)
        rests_on = f" ({joined(cited)})" if cited else ""
        yield f"{name} {scored}: {text or 'no finding'}{rests_on}"


def _scored(score: Any) -> str:
    if not isinstance(score, int):
        return "no score"
    return f"{score:+d}" if score else "0"


def _finding(judged: Any) -> tuple[Any, Any]:
    """Return the first finding of a layer and the evidence that it cites."""
    # Both forms are read, because logs of the first release have a list of findings.
    findings = value_at(judged, "findings")
    if isinstance(findings, list) and findings:
        return value_at(findings[0], "text"), value_at(findings[0], "evidence_ids")
    return value_at(judged, "finding"), value_at(judged, "evidence")
