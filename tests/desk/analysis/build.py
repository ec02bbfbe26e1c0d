"""Builders for tests of the analyst: real markets, questions about them, and answers that fit."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

from agentic_trading.client.gateway import Answer
from agentic_trading.clock import SimClock
from agentic_trading.desk.analysis.assessment import Provenance
from agentic_trading.desk.analysis.context import Limits
from agentic_trading.desk.analysis.judgement import Judgement, Layer
from agentic_trading.desk.analysis.question import put_question
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from agentic_trading.desk.market.triggers import Trigger, TriggerKind
from agentic_trading.ids import seeded_ids
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event

TRIGGER = Trigger(TriggerKind.REGIME_FLIP, "1h was down, is up")
MOMENT = datetime(2023, 3, 25, tzinfo=UTC)


@cache
def hours(sample: str = "btcusdt-5m", decision: Timeframe = Timeframe.H1) -> tuple[MarketSnapshot, ...]:
    """Return the market at each close of the decision timeframe of a shipped sample."""
    bars = load_sample(sample)
    view = MarketView(bars[0].symbol, decision=decision)
    return tuple(
        view.snapshot() for bar in bars if any(closed.bar.timeframe is decision for closed in view.push(bar))
    )


def market(hour: int = 120) -> MarketSnapshot:
    """Return BTCUSDT after so many closed hours of the sample."""
    return hours()[hour - 1]


def question(
    snapshot: MarketSnapshot | None = None,
    *,
    trigger: Trigger = TRIGGER,
    position: Position | None = None,
    limits: Limits | None = None,
    seed: str = "question",
) -> LLMEnvelope:
    """Return the envelope of a question; `seed` is where its ids come from."""
    asked = snapshot or market()
    builder = EnvelopeBuilder(clock=SimClock(asked.as_of), ids=seeded_ids(seed))
    return put_question(builder, asked, trigger, position=position, limits=limits or Limits()).build()


def layer(score: int = 0, direction: str = "neutral", *evidence: str, **changes: Any) -> dict[str, Any]:
    """Return one layer of an answer with one finding that cites `evidence`, by default E1."""
    finding = {"text": "as the numbers say", "evidence_ids": list(evidence or ("E1",))}
    return {
        "direction": direction,
        "score": score,
        "confidence": "medium",
        "findings": [finding],
        "unavailable": False,
        **changes,
    }


def layers(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return all layers of an answer: neutral ones but for those given."""
    return {**{name.value: layer() for name in Layer}, **changes}


def plan(entry: str = "market", stop: str = "90", target: str = "120", **changes: Any) -> dict[str, Any]:
    """Return a proposed trade."""
    return {
        "entry": entry,
        "stop": stop,
        "target": target,
        "invalidation": "a close below the stop",
        **changes,
    }


def answer(**changes: Any) -> dict[str, Any]:
    """Return an answer to a question about a market at 100: bullish, with a total of 4."""
    return {
        "rationale": "trend and indicators agree",
        "direction": "bullish",
        "confidence": "medium",
        "layers": layers(trend=layer(2, "bullish"), indicators=layer(2, "bullish")),
        "trade_plan": plan(),
        **changes,
    }


def judgement(**changes: Any) -> Judgement:
    """Return the judgement in an answer."""
    return Judgement.model_validate(answer(**changes))


def provenance(last_close: str = "100") -> Provenance:
    """Return where a judgement about a market at `last_close` comes from."""
    return Provenance(
        assessment_id="assessment-1",
        trace_id="trace-1",
        envelope_id="envelope-1",
        interaction_id="interaction-1",
        request_hash="rk1:0",
        symbol="BTCUSDT",
        as_of=MOMENT,
        last_close=Decimal(last_close),
    )


class Desk:
    """A gateway that answers by a function of the envelope and keeps the events."""

    def __init__(self, answer_to: Callable[[LLMEnvelope], Answer]) -> None:
        self._answer_to = answer_to
        self.asked: list[LLMEnvelope] = []
        self.events: list[Event] = []

    async def ask(self, envelope: LLMEnvelope) -> Answer:
        """Answer at once."""
        self.asked.append(envelope)
        return self._answer_to(envelope)

    async def record(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)

    def kinds(self) -> list[str]:
        """Return the kinds of all events, in order."""
        return [event.kind for event in self.events]
