"""A step of a decision chain in a few words."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, assert_never

from agentic_trading.app.cli.attempt_text import attempts_told
from agentic_trading.app.cli.output import printable
from agentic_trading.audit.trace import CallNode, EventNode, TraceNode

LAYERS: Final = "(layers)"
"""Stands for a line for each layer of an assessment: its score, its first finding, and what that rests on."""

SIZED: Final = (
    "sized: sizing.sized_by sizing.equity sizing.risk_pct sizing.position sizing.pending sizing.gross"
)

SHOWN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "trigger": (
        "bar: bar.symbol bar.timeframe bar.close_time bar.open bar.high bar.low bar.close bar.volume",
        "kind detail",
    ),
    "skip": ("reason detail",),
    "assessment": (
        "verdict stand_aside total threshold vetoed_by risk_reward judgement.confidence",
        LAYERS,
        "plan: plan.side plan.entry_type plan.entry plan.stop plan.target plan.risk_reward",
        "judgement.rationale",
    ),
    "no_decision": ("reason.category reason.description",),
    "intent.skipped": ("reason position",),
    "intent.rejected": ("rule was allowed", "side quantity", SIZED),
    "order.intent": ("side quantity kind limit_price stop_loss take_profit", SIZED, "reason"),
    "order.rejected": ("rule was allowed", "side quantity", SIZED),
    "fill.strategy": (
        "algo order_type slices interval_seconds limit_offset_bps deadline_seconds on_deadline confidence",
        "rationale",
    ),
    "order.submitted": ("side quantity order_type limit_price peg_bps active_from expires_at on_expiry",),
    "order.cancelled": ("quantity reason",),
    "fill": ("side quantity price fee fee_currency liquidity cause",),
})
"""What of an event's body is told, by kind: a line each, `label:` before the dotted names of its values."""


def step_text(node: TraceNode) -> list[str]:
    """Return lines about a step, without its kind and id; nothing in them can steer a terminal."""
    match node:
        case CallNode():
            asked = node.envelope
            who = f"{asked.agent_id or 'somebody'} asked {asked.provider} ({asked.model})"
            return [printable(who), *attempts_told(node.attempts)]
        case EventNode():
            lines = SHOWN.get(node.kind)
            body = node.event.body
            return [line for line in (_plain(body) if lines is None else _chosen(body, lines)) if line]
        case _:
            assert_never(node)


def _chosen(body: Mapping[str, Any], lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        if line == LAYERS:
            yield from _layers(_value_at(body, "judgement.layers"))
            continue
        label, _, names = line.rpartition(": ")
        values = ((name.rpartition(".")[2], _value_at(body, name)) for name in names.split())
        facts = [f"{name} {_spelled(value)}" for name, value in values if _says_something(value)]
        if facts:
            yield printable((f"{label}: " if label else "") + " · ".join(facts))


def _layers(layers: Any) -> Iterator[str]:
    for name, judged in layers.items() if isinstance(layers, Mapping) else ():
        score = _value_at(judged, "score")
        text, cited = _finding(judged)
        scored = _scored(score)
        rests_on = f" ({_spelled(cited)})" if cited else ""
        yield printable(f"{name} {scored}: {text or 'no finding'}{rests_on}")


def _scored(score: Any) -> str:
    if not isinstance(score, int):
        return "no score"
    return f"{score:+d}" if score else "0"


def _finding(judged: Any) -> tuple[Any, Any]:
    """Return the first finding of a layer and what it cites; logs of the first release hold a list of them."""
    findings = _value_at(judged, "findings")
    if isinstance(findings, list) and findings:
        return _value_at(findings[0], "text"), _value_at(findings[0], "evidence_ids")
    return _value_at(judged, "finding"), _value_at(judged, "evidence")


def _plain(body: Mapping[str, Any]) -> Iterator[str]:
    """Tell what an event of an unknown kind says, but for what it holds inside."""
    scalars = (f"{name} {value}" for name, value in body.items() if not isinstance(value, dict | list))
    yield printable(" · ".join(scalars))


def _value_at(body: Any, name: str) -> Any:
    value: Any = body
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _says_something(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def _spelled(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
