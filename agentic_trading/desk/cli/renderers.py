"""The lines that `trace` shows for the desk's events. Loaded only if a log has such an event."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.agent_events import AgentFailed, AgentNoted, AgentUndecided, AgentWoken
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
from agentic_trading.desk.execution.risk_events import RiskResumed, RiskTripped
from agentic_trading.desk.feed_events import BarLeftOut, FeedResumed, FeedSilent
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.desk.planning.events import (
    GenerationAccepted,
    GenerationProposed,
    GenerationRejected,
    PlanChosen,
    PlanUndecided,
)
from agentic_trading.llm.errors import UnreadableBodyError
from agentic_trading.llm.event import Event, Kinds
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.trace_lines import chosen, joined, value_at

FILLS: Final = Kinds[Fill](Fill)

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
    AgentWoken.KIND: (
        "agent handler symbol timer",
        "bar: bar.symbol bar.timeframe bar.close_time bar.open bar.high bar.low bar.close bar.volume",
    ),
    AgentUndecided.KIND: ("reason.category reason.description",),
    AgentNoted.KIND: ("text", "facts"),
    AgentFailed.KIND: ("agent handler symbol", "error place in_a_row halts_entries"),
    RiskTripped.KIND: ("rule percent base floor equity", "day zone resume"),
    RiskResumed.KIND: ("rules equity", "by why"),
    FeedSilent.KIND: ("symbol last_close missing",),
    FeedResumed.KIND: ("symbol last_close",),
    BarLeftOut.KIND: ("symbol timeframe open_time",),
})
"""The values of an event that are shown, by kind, in the form of `chains.SHOWN`."""


NAMES: Final = MappingProxyType({
    Triggered.KIND: "bar",
    Skipped.KIND: "no question",
    Assessment.KIND: "assessment",
    Undecided.KIND: "no decision",
    IntentUndecided.KIND: "no decision",
    IntentSkipped.KIND: "no intent",
    IntentDenied.KIND: "intent denied",
    OrderIntent.KIND: "intent",
    OrderDenied.KIND: "order denied",
    StrategyChosen.KIND: "how to fill",
    Order.KIND: "order",
    Cancellation.KIND: "order ended",
    Fill.KIND: "fill",
    GenerationProposed.KIND: "proposed set",
    GenerationRejected.KIND: "rejected set",
    GenerationAccepted.KIND: "tested set",
    PlanChosen.KIND: "plan",
    PlanUndecided.KIND: "no plan",
    AgentWoken.KIND: "agent",
    AgentUndecided.KIND: "no decision",
    AgentNoted.KIND: "note",
    AgentFailed.KIND: "agent error",
    RiskTripped.KIND: "entries halted",
    RiskResumed.KIND: "entries resumed",
    FeedSilent.KIND: "silent feed",
    FeedResumed.KIND: "feed resumed",
    BarLeftOut.KIND: "late bar",
})
"""The name of a step, by kind."""

NO_DECISION: Final = ("{reason.category}",)
DENIED: Final = ("{side} {quantity} {symbol}", "rule {rule}", "was {was}", "allowed {allowed}")

SENTENCES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    Triggered.KIND: (
        "{bar.symbol} {bar.timeframe} closed at {bar.close}",
        "open {bar.open}",
        "high {bar.high}",
        "low {bar.low}",
    ),
    Skipped.KIND: ("{reason}",),
    Assessment.KIND: (
        "{verdict}",
        "{stand_aside}",
        "score {total}",
        "needed {threshold}",
        "reward for risk {risk_reward}",
        "confidence {judgement.confidence}",
    ),
    Undecided.KIND: NO_DECISION,
    IntentUndecided.KIND: NO_DECISION,
    IntentSkipped.KIND: ("{reason}", "position {position}"),
    IntentDenied.KIND: DENIED,
    OrderIntent.KIND: (
        "{side} {quantity} {symbol}",
        "{kind}",
        "limit {limit_price}",
        "stop {stop_loss}",
        "target {take_profit}",
        "{sizing.risk_pct} % of {sizing.equity} at risk",
    ),
    OrderDenied.KIND: DENIED,
    StrategyChosen.KIND: (
        "{algo}",
        "{order_type}",
        "slices {slices}",
        "{on_deadline} after {deadline_seconds} s",
    ),
    Order.KIND: (
        "{side} {quantity} {symbol}",
        "{order_type}",
        "limit {limit_price}",
        "{on_expiry} at {expires_at}",
    ),
    Cancellation.KIND: ("{quantity} not filled", "{reason}"),
    Fill.KIND: (
        "{side} {quantity} {symbol} at {price}",
        "fee {fee} {fee_currency}",
        "{liquidity}",
        "by {cause}",
    ),
    GenerationProposed.KIND: ("round {round}", "{family}"),
    GenerationRejected.KIND: ("by {by}",),
    GenerationAccepted.KIND: (
        "Sharpe ratio {in_sample.sharpe} in sample",
        "{out_of_sample.sharpe} out of sample",
    ),
    PlanChosen.KIND: ("best of {tried} sets", "deflated Sharpe ratio {deflated_sharpe}", "regime {regime}"),
    PlanUndecided.KIND: NO_DECISION,
    AgentWoken.KIND: (
        "{agent}",
        "{handler}",
        "timer {timer}",
        "{bar.symbol} {bar.timeframe} closed at {bar.close}",
    ),
    AgentUndecided.KIND: NO_DECISION,
    AgentNoted.KIND: ("{text}",),
    AgentFailed.KIND: ("{agent}", "{handler}", "{error} in {place}", "{in_a_row} in a row"),
    RiskTripped.KIND: (
        "{rule} of {percent} % of {base} is reached",
        "equity {equity}",
        "floor {floor}",
        "day {day} in {zone}",
    ),
    RiskResumed.KIND: ("{rules}", "equity {equity}", "by {by}"),
    FeedSilent.KIND: ("{symbol}", "{missing} bars missing since {last_close}"),
    FeedResumed.KIND: ("{symbol}", "silent since {last_close}"),
    BarLeftOut.KIND: ("{symbol} {timeframe} opened at {open_time}",),
})
"""A sentence about a step, by kind, as parts with the names of values. A part without a value is left out."""

DETAILS: Final[Mapping[str, str]] = MappingProxyType({
    Triggered.KIND: "{kind}: {detail}",
    Skipped.KIND: "{detail}",
    Assessment.KIND: "{judgement.rationale}",
    Undecided.KIND: "{reason.description}",
    IntentUndecided.KIND: "{reason.description}",
    OrderIntent.KIND: "{reason}",
    StrategyChosen.KIND: "{rationale}",
    GenerationRejected.KIND: "{detail}",
    PlanUndecided.KIND: "{reason.description}",
    AgentUndecided.KIND: "{reason.description}",
    RiskResumed.KIND: "{why}",
})
"""A line with the reason of a step, by kind, in the form of a part of a sentence."""

_PLACE: Final = re.compile(r"\{([a-z_.]+)\}")
_MOST_DIGITS: Final = 15
_MOST_HELD: Final = 3


def sentence(event: Event) -> Sequence[str] | None:
    """Return the name of a step, a sentence about it and its reason, or None if the kind is unknown."""
    parts = SENTENCES.get(event.kind)
    if parts is None:
        return None
    told = ", ".join(filter(None, (_told(part, event.body) for part in parts)))
    reason = _told(DETAILS.get(event.kind, ""), event.body)
    return [NAMES[event.kind], told, *filter(None, [reason])]


def _told(part: str, body: Mapping[str, Any]) -> str:
    """Return a part with its values, or an empty text if one is missing."""
    values = {name: _word(value_at(body, name)) for name in _PLACE.findall(part)}
    return _PLACE.sub(lambda found: values[found[1]], part) if all(values.values()) else ""


def _word(value: Any) -> str:
    """Return a stored value for a reader: a number with separators, a time to the minute, or words."""
    text = "" if value is None or isinstance(value, dict) else joined(value)
    if isinstance(value, bool) or not text:
        return text
    if isinstance(value, float):
        return f"{value:,.4g}"
    try:
        number = Decimal(text)
    except InvalidOperation:
        return _time(text) or (text.replace("_", " ") if " " not in text else text)
    return f"{number:,f}" if number.is_finite() and abs(number.adjusted()) <= _MOST_DIGITS else text


def _time(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}" if text[4:5] == "-" else ""
    except ValueError:
        return ""


def profit(events: Sequence[Event]) -> tuple[str, str]:
    """Return the P&L of the fills of a trace, after fees, and a note. Both are empty without a fill.

    Fills that leave a position have no P&L yet: the note names the position.
    """
    try:
        read = (FILLS.must(event) for event in events if event.kind == Fill.KIND)
        fills = [fill for fill in read if fill is not None]
    except UnreadableBodyError:
        return "", "a fill cannot be read"
    if not fills:
        return "", ""
    left = dict.fromkeys((fill.symbol for fill in fills), ZERO)
    for fill in fills:
        left[fill.symbol] = EXACT.fma(fill.side.sign, fill.quantity, left[fill.symbol])
    [currency, *others] = dict.fromkeys(fill.fee_currency for fill in fills)
    if others:
        return "", f"{pluralize(len(fills), 'fill')} with fees in several currencies"
    fees = reduce(EXACT.add, (fill.fee for fill in fills), ZERO)
    note = f"{pluralize(len(fills), 'fill')}, fees {fees:,.2f} {currency}"
    held = [f"{quantity:+f} {symbol}" for symbol, quantity in left.items() if quantity]
    if held:
        more = f" and {len(held) - _MOST_HELD} more" if len(held) > _MOST_HELD else ""
        return "", f"{note}. They leave {', '.join(held[:_MOST_HELD])}{more}"
    cash = reduce(EXACT.add, (fill.cash_change for fill in fills), ZERO)
    return f"{cash:+,.2f} {currency}", note


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
    AgentFailed.KIND: "error",
    IntentDenied.KIND: "rejected",
    IntentSkipped.KIND: "skipped",
}
"""The outcome of a verdict without a fill: the first kind that the trace contains."""


def outcome(events: Sequence[Event]) -> str:
    """Return the verdict and its result: `long → 2 fills`, `stand_aside`, `refusal`.

    Empty without a verdict.
    """
    assessed = next((_verdict(event) for event in events if event.kind in DECIDED), "")
    failed = next((_reason(event) for event in events if event.kind in UNDECIDED), "")
    if not assessed:
        return failed
    followed = _followed(Counter(event.kind for event in events)) or failed
    return f"{assessed} → {followed}" if followed else assessed


DECIDED = (Assessment.KIND, AgentWoken.KIND)
UNDECIDED = (Undecided.KIND, IntentUndecided.KIND, AgentUndecided.KIND)


def _verdict(event: Event) -> str:
    """Return the verdict of an assessment, or the name of an agent."""
    return str(event.body.get("verdict" if event.kind == Assessment.KIND else "agent"))


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
