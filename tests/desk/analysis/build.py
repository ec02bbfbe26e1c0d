"""Builders for tests of the analyst: real markets, questions about them, and answers that fit."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

from agentic_trading.client.gateway import GatewayReply
from agentic_trading.clock import SimClock
from agentic_trading.desk.analysis.analyst import put_question
from agentic_trading.desk.analysis.assessment import Provenance
from agentic_trading.desk.analysis.context import TradeLimits
from agentic_trading.desk.analysis.judgement import Direction, Judgement, Layer
from agentic_trading.desk.analysis.portfolio_context import Holding, PortfolioContext, TrackRecord
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.correlation import ReferenceMarket
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from agentic_trading.desk.market.triggers import Trigger, TriggerKind
from agentic_trading.ids import seeded_ids
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event

TRIGGER = Trigger(TriggerKind.REGIME_FLIP, "1h was down, is up")
MOMENT = datetime(2023, 3, 25, tzinfo=UTC)
OTHER = {"btcusdt-5m": "ethusdt-5m", "ethusdt-5m": "btcusdt-5m"}


@cache
def hours(sample: str = "btcusdt-5m", decision: Timeframe = Timeframe.H1) -> tuple[MarketSnapshot, ...]:
    """Return the market at each close of the decision timeframe of a sample, with the other one as reference."""
    bars, others = (load_sample(name) for name in (sample, OTHER[sample]))
    view, other = (MarketView(row[0].symbol, decision=decision) for row in (bars, others))
    seen = []
    for bar, other_bar in zip(bars, others, strict=True):
        other.push(other_bar)
        if any(closed.bar.timeframe is decision for closed in view.push(bar)):
            seen.append(view.snapshot(reference=other.reference_market(bar.close_time)))
    return tuple(seen)


def record(outcomes: int = 12, *, since: datetime = MOMENT) -> TrackRecord:
    """Return a record of calls, every other one right, that ended before `since`."""
    track = TrackRecord(Timeframe.H1)
    begun = since - timedelta(hours=5 * outcomes)
    for place in range(outcomes):
        at = begun + timedelta(hours=5 * place)
        track.add_forecast(at, Direction.BULLISH, 100.0)
        track.see(at + timedelta(hours=4), 101.0 if place % 2 else 99.5)
    return track


def market(hour: int = 120) -> MarketSnapshot:
    """Return BTCUSDT after so many closed hours of the sample."""
    return hours()[hour - 1]


def question(
    snapshot: MarketSnapshot | None = None,
    *,
    trigger: Trigger = TRIGGER,
    position: Position | None = None,
    limits: TradeLimits | None = None,
    record: TrackRecord | None = None,
    portfolio: PortfolioContext | None = None,
    seed: str = "question",
) -> LLMEnvelope:
    """Return the envelope of a question; `seed` is where its ids come from."""
    asked = snapshot or market()
    builder = EnvelopeBuilder(clock=SimClock(asked.as_of), ids=seeded_ids(seed))
    put_question(
        builder,
        asked,
        trigger,
        position=position,
        limits=limits or TradeLimits(),
        record=record,
        portfolio=portfolio,
    )
    return builder.build()


def portfolio(equity: str = "100000", *holdings: Holding, gross: str = "0") -> PortfolioContext:
    """Return an account that may lose a percent at a stop and hold 95 percent."""
    worth = Decimal(equity)
    return PortfolioContext(worth, Decimal(gross), Decimal(1), worth * 95 / 100, holdings)


def holding(value: str, to_stop: str | None, snapshot: MarketSnapshot, symbol: str = "") -> Holding:
    """Return a position in the market of a snapshot, or in its prices under another name."""
    market = ReferenceMarket(symbol or snapshot.symbol, snapshot.closes)
    return Holding(market.symbol, Decimal(value), None if to_stop is None else Decimal(to_stop), market)


def layer(score: int = 0, evidence: str = "E1", **changes: Any) -> dict[str, Any]:
    """Return one layer of an answer with a finding that cites `evidence`."""
    return {"finding": "as the numbers say", "evidence": evidence, "score": score, **changes}


def layers(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return all layers of an answer: neutral ones but for those given."""
    return {**{name.value: layer() for name in Layer}, **changes}


def plan(
    entry: str = "market", stop: str = "atr_1.5", target: str = "atr_3.0", **changes: Any
) -> dict[str, Any]:
    """Return a proposed trade; in prices, if prices are given."""
    return {"entry": entry, "stop": stop, "target": target, **changes}


def answer(**changes: Any) -> dict[str, Any]:
    """Return an answer to a question about a market at 100: bullish, with a total of 4."""
    return {
        "layers": layers(trend=layer(2), indicators=layer(2)),
        "rationale": "trend and indicators agree",
        "direction": "bullish",
        "confidence": "medium",
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

    def __init__(self, answer_to: Callable[[LLMEnvelope], GatewayReply]) -> None:
        self._answer_to = answer_to
        self.asked: list[LLMEnvelope] = []
        self.events: list[Event] = []

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Answer at once."""
        self.asked.append(envelope)
        return self._answer_to(envelope)

    async def record(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)

    def kinds(self) -> list[str]:
        """Return the kinds of all events, in order."""
        return [event.kind for event in self.events]
