"""The question to the model: instructions, context and evidence as of one moment."""

from decimal import Decimal

from agentic_trading.desk.analysis.portfolio_context import PortfolioContext
from agentic_trading.desk.analysis.context import LAYER_SOURCES, Context, TradeLimits, Prompting, is_available
from agentic_trading.desk.analysis.evidence import layer_evidence, timeframes_told
from agentic_trading.desk.analysis.prompts import CMT_ASSESSMENT_PROMPT
from agentic_trading.desk.analysis.schema import asked_assessment_schema
from agentic_trading.desk.analysis.track_record import TrackRecord
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.rounding import price
from agentic_trading.desk.market.snapshot import BASE, MarketSnapshot
from agentic_trading.desk.market.triggers import Trigger
from agentic_trading.llm.builder import EnvelopeBuilder

STEP = "cmt"
"""The step of the analyst, in envelopes and events."""


def put_question(
    builder: EnvelopeBuilder,
    snapshot: MarketSnapshot,
    trigger: Trigger,
    *,
    position: Position | None,
    limits: TradeLimits,
    record: TrackRecord | None = None,
    book: PortfolioContext | None = None,
) -> EnvelopeBuilder:
    """Give an envelope everything that the answer depends on; equal markets and records give equal requests.

    All nine layers have their evidence, in the order of `Layer`; one that can tell nothing says why, and is not
    asked for. Without a `record` the agent has none yet; `book` is the account as of the newest bar.

    Everything in it is as old as the newest bar of the snapshot, and is refused at `build()` if that bar
    closes after `snapshot.as_of`. The decision timeframe must have an ATR; a trigger sees to it.
    """
    context = market_context(snapshot, trigger, position=position, limits=limits)
    builder.for_analysis()
    builder.with_instructions(CMT_ASSESSMENT_PROMPT.text, prompt_version=CMT_ASSESSMENT_PROMPT.version)
    builder.with_subject(snapshot.symbol, step=STEP)
    builder.with_as_of(snapshot.as_of)
    builder.with_context(context.model_dump(mode="json", exclude_none=True), as_of=snapshot.available_at)
    evidence = layer_evidence(snapshot, record or TrackRecord(snapshot.decision), book)
    builder.with_output_schema(
        asked_assessment_schema(frozenset(layer for layer, content in evidence.items() if is_available(content)))
    )
    for source, layer in LAYER_SOURCES.items():
        builder.add_evidence(source, evidence[layer], available_at=snapshot.available_at)
    return builder


def market_context(
    snapshot: MarketSnapshot,
    trigger: Trigger,
    *,
    position: Position | None,
    limits: TradeLimits,
) -> Context:
    """Return what holds for the whole question, the last close digit for digit as it traded."""
    return Context(
        symbol=snapshot.symbol,
        decision_timeframe=snapshot.decision,
        timeframes=timeframes_told(snapshot),
        last_close=last_close(snapshot),
        atr=Decimal(str(price(snapshot.frames[snapshot.decision].volatility.atr_14))),
        prompted_by=Prompting(kind=trigger.kind, detail=trigger.detail),
        position=position,
        limits=limits,
    )


def last_close(snapshot: MarketSnapshot) -> Decimal:
    """Return the close of the newest bar, exact."""
    return snapshot.frames[BASE].last.bar.close
