"""A body of every kind of event, as the golden log holds it, and events made from them."""

from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from agentic_trading.client.frames import FrameClosed, FrameOpened, RecursionLimits, UserAnswered, UserAsked
from agentic_trading.desk.agent_events import AgentFailed, AgentNoted, AgentUndecided, AgentWoken
from agentic_trading.desk.analysis.assessment import Demands, assess
from agentic_trading.desk.analysis.events import Skipped, TriggerBar, Triggered, Undecided
from agentic_trading.desk.analysis.plan import PlanPrices
from agentic_trading.desk.exchange import Cancellation, CancelReason, Fill, Order
from agentic_trading.desk.execution.events import (
    IntentDenied,
    IntentSkipped,
    IntentUndecided,
    OrderDenied,
    StrategyChosen,
)
from agentic_trading.desk.execution.order import OrderIntent, Sizing
from agentic_trading.desk.execution.risk_events import RiskResumed, RiskTripped
from agentic_trading.desk.feed_events import BarLeftOut, FeedResumed, FeedSilent
from agentic_trading.desk.instrument import Side
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.triggers import SkipReason, TriggerKind
from agentic_trading.desk.metrics import Performance
from agentic_trading.desk.planning.events import (
    GenerationAccepted,
    GenerationProposed,
    GenerationRejected,
    PlanChosen,
    PlanUndecided,
)
from agentic_trading.governance.controls_document import AppliedCommand
from agentic_trading.governance.events import (
    AttemptAnsweredLate,
    AttemptDispatched,
    AttemptUnsent,
    BudgetExhausted,
    BudgetExhaustionForecast,
    BudgetThresholdReached,
    LedgerCheckpointed,
    ReservationExpired,
)
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.event import KINDS as LOG
from agentic_trading.llm.event import (
    PLATFORM,
    ArchiveStarted,
    BarChecksums,
    CallRequested,
    CallUnanswered,
    EnvelopeRefused,
    Event,
    EventBody,
    RequestQuoted,
    RunData,
    RunEnded,
    RunStarted,
    TailSetAside,
)
from agentic_trading.llm.fields import FrozenObject
from agentic_trading.llm.interaction import reservation_id
from tests.build import NOW
from tests.desk.analysis.build import judgement, provenance

LATER: Final = NOW + timedelta(hours=1)
REASON: Final = FailureReason(category=FailureKind.REFUSAL, description="no")
SCOPES: Final = {
    ScopeKind.CALL: "key-1",
    ScopeKind.TRACE: "trace-1",
    ScopeKind.AGENT: "agent-1",
    ScopeKind.WORKFLOW: "analysis",
    ScopeKind.TENANT: "default",
}
SIZING: Final = Sizing(
    equity=Decimal(100_000), position=Decimal(0), pending=Decimal(0), gross=Decimal(0),
    risk_pct=Decimal(1), sized_by="risk",
)  # fmt: skip
COUNTER: Final[dict[str, Any]] = {
    "scope": ScopeKind.TENANT, "id": "default", "window": Window.DAY, "window_id": "2026-01-02",
    "unit": "nano-USD", "spent": 85, "most": 100, "nusd_per_hour": 10,
}  # fmt: skip

ORDER: Final = Order(
    order_id="order-1", intent_id="intent-1", symbol="BTCUSDT", side=Side.BUY, quantity=Decimal("0.10"),
    order_type="limit", limit_price=Decimal("99.50"), active_from=NOW, expires_at=LATER, stop_loss=Decimal(90),
    take_profit=Decimal(120), trace_id="trace-1", causation_id="strategy-1",
)  # fmt: skip

SET: Final[dict[str, Any]] = {
    "strategy_type": "momentum",
    "momentum_period": 20,
    "stop_loss": 0.1,
    "resample": "W",
}
FIGURES: Final = Performance(
    bars=61, total_return=0.04, cagr=0.17, sharpe=1.23, sortino=1.5, max_drawdown=-0.06, turnover=None
)

BODIES: Final[tuple[EventBody, ...]] = (
    Triggered(
        symbol="BTCUSDT",
        step="cmt",
        kind=TriggerKind.THESIS_DUE,
        detail="12 bars since the last assessment",
        bar=TriggerBar(
            symbol="BTCUSDT", timeframe=Timeframe.H1, open_time=NOW, close_time=LATER, open=Decimal(99),
            high=Decimal("101.50"), low=Decimal(98), close=Decimal(100), volume=Decimal("17.375"),
            quote_volume=None, trades=12, taker_buy_volume=None, parts=12, expected=12,
        ),
        last_close=Decimal(100),
    ),
    Skipped(symbol="BTCUSDT", step="cmt", reason=SkipReason.NOTHING_NEW, detail="no flip"),
    assess(
        judgement(), provenance(), Demands(), prices=PlanPrices("market", Decimal(90), Decimal(120))
    ),
    Undecided(
        reason=REASON, envelope_id="envelope-1", trace_id="trace-1", as_of=NOW, symbol="BTCUSDT", step="cmt",
        request_hash="rk1:0",
    ),
    IntentSkipped(symbol="BTCUSDT", reason="position_open", position=Decimal("0.10")),
    IntentDenied(symbol="BTCUSDT", rule="min_quantity", was="0", allowed="0.00001", sizing=SIZING),
    OrderIntent(
        intent_id="intent-1", symbol="BTCUSDT", side=Side.BUY, quantity=Decimal("0.10"), kind="entry",
        arrival_price=Decimal(100), stop_loss=Decimal(90), take_profit=Decimal(120), sizing=SIZING,
        reason="long: total 4", as_of=NOW, expires_at=LATER, trace_id="trace-1", causation_id="assessment-1",
    ),
    IntentUndecided(
        reason=REASON, envelope_id="envelope-2", trace_id="trace-1", as_of=NOW, symbol="BTCUSDT",
        request_hash="rk1:1",
    ),
    StrategyChosen(
        symbol="BTCUSDT", request_hash="rk1:1", order_type="limit", time_in_force="gtc", algo="twap", slices=2,
        interval_seconds=300, limit_offset_bps=Decimal("2.5"), price_reference="arrival",
        max_participation=Decimal("0.05"), deadline_seconds=900, on_deadline="cross",
        expected_slippage_bps=Decimal(1), confidence=Decimal("0.7"), rationale="The volume is low",
        evidence_ids=("E1",),
    ),
    ORDER,
    OrderDenied(symbol="BTCUSDT", rule="max_open_orders", was="21", allowed="20", side=Side.BUY, sizing=SIZING),
    Cancellation(
        order_id="order-1", intent_id="intent-1", symbol="BTCUSDT", quantity=Decimal("0.05"),
        reason=CancelReason.DEADLINE, time=LATER, trace_id="trace-1",
    ),
    Fill(
        fill_id="fill-1", intent_id="intent-1", order_id="order-1", symbol="BTCUSDT", side=Side.BUY,
        price=Decimal("99.50"), quantity=Decimal("0.05"), fee=Decimal("0.01"), fee_currency="USDT",
        liquidity="maker", cause="order", time=LATER, bar_open_time=NOW, trace_id="trace-1",
    ),
    GenerationProposed(
        round=7, family="momentum", params=SET, params_sha256="6" * 64, interaction_id="interaction-1",
        repeat_of="7" * 64,
    ),
    GenerationRejected(round=7, params_sha256="6" * 64, by="repeat", detail="it trades like set 3 that was tried"),
    GenerationAccepted(
        round=8, params_sha256="6" * 64, code_sha256="8" * 64, template_sha256="9" * 64, data_sha256="a" * 64,
        in_sample=FIGURES, out_of_sample=FIGURES, cached=False,
    ),
    PlanChosen(
        regime="", params=SET, params_sha256="6" * 64, tried=8, deflated_sharpe=0.44, as_of=NOW,
    ),
    PlanUndecided(family="momentum", reason=REASON, trace_id="trace-1", as_of=NOW),
    FrameOpened(
        frame_id="frame-1", parent_frame_id="frame-0", depth=1, place=2, question="Which agent spent most?",
        priority=1, envelope_id="envelope-1", request_hash="rk1:0", share_nusd=10_000_000,
        limits=RecursionLimits(max_cost_nusd=50_000_000),
    ),
    FrameClosed(
        frame_id="frame-1", state="concluded", stopped_by="depth", conclusion="The analyst", confidence=0.7,
        cost_nusd=900_000, calls=1, skipped=4,
    ),
    UserAsked(frame_id="frame-1", number=1, question="Which time zone is meant?"),
    UserAnswered(frame_id="frame-1", number=1, answer="UTC", by="ann"),
    AttemptDispatched(
        attempt=1, request_hash="rk1:0", provider="scripted", model="scripted-1",
        reservation_id="default:key-1:1", scopes=SCOPES, reserved_nusd=1_000, reserved_tokens=50, window_at=NOW,
    ),
    AttemptUnsent(attempt=1, reservation_id="default:key-1:1", why="the deadline was reached"),
    AttemptAnsweredLate(
        attempt=1, reservation_id="default:key-1:1", cost_nusd=900, tokens=40, model="scripted-1",
        raw_output='{"action":"buy"}',
    ),
    ReservationExpired(
        reservation_id="default:key-1:1", state=ReservationState.IN_DOUBT, nusd=1_000, tokens=50, scopes=SCOPES,
        window_at=NOW,
    ),
    LedgerCheckpointed(
        generation=1, mark="mark-1", sequence=7,
        snapshot={
            "version": 1, "line": 40, "head": "0" * 64, "mode": "paper", "zone": "UTC",
            "charges": [[{"agent": "desk-1", "workflow": "general"}, "2026-01-02T00:00:00Z", 900, 40, 1]],
        },
    ),
    BudgetThresholdReached(**COUNTER),
    BudgetExhausted(**COUNTER),
    BudgetExhaustionForecast(**COUNTER, exhausted_at=LATER),
    AppliedCommand(
        version=1, kind="set_limit", subject="tenant * per day", before="no limit", after="25 USD", by="ann",
        why="tests", at=NOW, scope="tenant", id="*", window=Window.DAY, ceiling_after=(25 * 10**9, None, None),
    ),
    TailSetAside(bytes=17, kept_as="interactions.jsonl.torn", sha256="0" * 64),
    RunStarted(
        session_id="session-1", run_number=2, start_number=2, resumed=True, mode="backtest", provider="scripted",
        model="scripted-1", data=(RunData(name="btcusdt-5m", symbol="BTCUSDT"),), seed="1", package="0.1.0",
        config_sha256="5" * 64, first_seq=40,
    ),
    RunEnded(
        session_id="session-1", run_number=2, bars_done=300, interrupted=True, digest="1" * 64, lines=81,
        head="2" * 64, bars=(BarChecksums(symbol="BTCUSDT", rows=300, sha256="3" * 64, marks=("4" * 16,)),),
    ),
    ArchiveStarted(archive_id="archive-1"),
    CallRequested(envelope=FrozenObject(envelope_id="envelope-1", instructions="Advise.")),
    CallUnanswered(reason=REASON),
    EnvelopeRefused(
        envelope_id="envelope-1", envelope_hash="6" * 64, reason="too_old", detail="it is too old", sent_at=NOW,
    ),
    RequestQuoted(interactions=("interaction-1", "interaction-2")),
    AgentWoken(
        agent="Breakout", handler="on_bar", symbol="BTCUSDT",
        bar=TriggerBar(
            symbol="BTCUSDT", timeframe=Timeframe.H1, open_time=NOW, close_time=LATER, open=Decimal(99),
            high=Decimal("101.50"), low=Decimal(98), close=Decimal(100), volume=Decimal("17.375"),
            quote_volume=None, trades=12, taker_buy_volume=None, parts=12, expected=12,
        ),
    ),
    AgentUndecided(
        agent="Breakout", reason=REASON, envelope_id="envelope-1", trace_id="trace-1", as_of=NOW,
        symbol="BTCUSDT", step="on_bar.1", request_hash="rk1:0",
    ),
    AgentNoted(agent="Breakout", symbol="BTCUSDT", text="position", facts=FrozenObject(quantity="0.10")),
    AgentFailed(
        agent="Breakout", handler="on_bar", symbol="BTCUSDT", error="KeyError", place="breakout.py:17",
        in_a_row=3, halts_entries=True,
    ),
    RiskTripped(
        rule="max_daily_loss_pct", percent=Decimal(2), base=Decimal(100_000), floor=Decimal(98_000),
        equity=Decimal("97900.5"), day="2026-01-02", zone="UTC",
    ),
    RiskResumed(
        rules=("max_daily_loss_pct",), equity=Decimal("97900.5"), by="ann", why="checked", command_id="command-1"
    ),
    FeedSilent(symbol="BTCUSDT", last_close=NOW, missing=3),
    FeedResumed(symbol="BTCUSDT", last_close=NOW),
    BarLeftOut(symbol="BTCUSDT", timeframe=Timeframe.H1, open_time=NOW),
)  # fmt: skip
"""One body of each kind, in the order of a decision."""

SAMPLES: Final = {body.KIND: body for body in BODIES}


def sample(of: str, /, **changes: Any) -> Event:
    """Return an event of the kind `of` with a whole body; `changes` are fields of the body."""
    body = SAMPLES[of]
    fresh = type(body).model_validate({**body.model_dump(), **changes})
    return as_event(fresh)


def as_event(body: EventBody) -> Event:
    """Return the event of a body, under an id that follows from its kind."""
    tenant_id = PLATFORM if type(body) in LOG.bodies else "default"
    return body.as_event(
        event_id=f"{body.KIND}-1",
        trace_id="trace-1",
        tenant_id=tenant_id,
        time=NOW,
        causation_id="cause-1",
        as_of=NOW,
    )


def dispatched_body(key: str, *, tenant: str = "default", attempt: int = 1, nusd: int = 1) -> dict[str, Any]:
    """Return the body of `attempt.dispatched` for an attempt that reserved this sum."""
    return AttemptDispatched(
        attempt=attempt,
        request_hash="rk1:0",
        provider="scripted",
        model="scripted-1",
        reservation_id=reservation_id(tenant, key, attempt),
        scopes={ScopeKind.CALL: key, ScopeKind.TENANT: tenant},
        reserved_nusd=nusd,
    ).model_dump(mode="json")
