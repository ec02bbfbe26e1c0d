"""A finished run as a report, of which a test says only what matters to it."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentic_trading.desk.execution.shortfall import Shortfall, TotalShortfall
from agentic_trading.desk.instrument import Side
from agentic_trading.desk.session.report import DataReport, FillingCost, OpenPosition, RunReport, WorkingOrder


def report(**changes: Any) -> RunReport:
    """Return the report of a small run with rules; `changes` are fields of `RunReport`."""
    fields: dict[str, Any] = {
        "session_id": "s-1",
        "run_number": 1,
        "mode": "backtest",
        "provider": "rules",
        "model": "rules-1",
        "data": [fed()],
        "decisions": {"analysis": {"long": 3, "stand_aside": 12}, "execution": {"twap": 2}},
        "no_decisions": {"analysis": {"refusal": 1, "timeout": 2}},
        "skips": {"no_trigger": 200},
        "attempts": 21,
        "attempts_by_outcome": {"accepted": 17, "timeout": 4},
        "injected": {"timeout": {"retried, then accepted": 3, "no decision": 1}},
        "input_tokens": 12_345,
        "output_tokens": 678,
        "cost_nusd": 1_234_567,
        "budget_nusd": 5_000_000_000,
        "in_doubt": 0,
        "intents": 4,
        "intents_rejected": {"max_position": 1},
        "orders": 3,
        "cancelled": {"deadline": 2},
        "open_positions": [held()],
        "fills": 5,
        "first_fill_id": "f-1",
        "fees": Decimal("1.25"),
        "pnl": Decimal("-12.50"),
        "equity_start": Decimal(10_000),
        "equity_end": Decimal("9987.50"),
        "buy_and_hold_pnl": Decimal("310.00"),
        "market_now_pnl": Decimal("-15.75"),
        "shortfall": FillingCost(
            total=shortfall(),
            market_now=TotalShortfall(total_bps=Decimal("7.5")),
            intents=[sent("1.4", price_cost="0.01"), sent("5.3", price_cost="3.50"), sent(None)],
        ),
        "knowledge": {"unknown": 21},
        "assumed": ["fees of 2 bps", "no latency"],
        "log": Path("runs/demo/interactions.jsonl"),
        "decision_log": Path("runs/demo/decisions.jsonl"),
        "digest": "ab" * 32,
        "elapsed_s": 1.25,
        "interrupted": False,
    }
    return RunReport(**{**fields, **changes})


def shortfall() -> TotalShortfall:
    """Return what filling has cost in all."""
    return TotalShortfall(
        arrival_value=Decimal(14_000),
        price_cost=Decimal("3.51"),
        fees=Decimal("1.25"),
        total_bps=Decimal("3.4000"),
        whole=1,
        in_part=1,
        not_at_all=1,
    )


def sent(total_bps: str | None, *, price_cost: str = "0") -> Shortfall:
    """Return what filling one intent has cost; None if nothing of it was filled."""
    return Shortfall(
        intent_id="i-1",
        symbol="BTCUSDT",
        side=Side.BUY,
        filled=Decimal(total_bps is not None) / 4,
        unfilled=Decimal(0),
        arrival_value=Decimal(7_000),
        price_cost=Decimal(price_cost),
        fees=Decimal("0.5"),
        total_bps=None if total_bps is None else Decimal(total_bps),
    )


def held(**changes: Any) -> OpenPosition:
    """Return what was held at the end; `changes` are fields of `OpenPosition`."""
    fields: dict[str, Any] = {
        "symbol": "BTCUSDT",
        "quantity": Decimal("-0.5"),
        "average_price": Decimal(28_000),
        "mark": Decimal("27900.50"),
        "unrealised": Decimal("49.75"),
    }
    return OpenPosition(**{**fields, **changes})


def working(**changes: Any) -> WorkingOrder:
    """Return an order that was open at the end; `changes` are fields of `WorkingOrder`."""
    fields: dict[str, Any] = {
        "order_id": "o-1",
        "symbol": "BTCUSDT",
        "side": "buy",
        "order_type": "limit",
        "left": Decimal("0.25"),
        "expires_at": datetime(2023, 3, 29, 1, tzinfo=UTC),
    }
    return WorkingOrder(**{**fields, **changes})


def fed(**changes: Any) -> DataReport:
    """Return what was fed of the shipped Bitcoin sample; `changes` are fields of `DataReport`."""
    fields: dict[str, Any] = {
        "name": "btcusdt-5m",
        "symbol": "BTCUSDT",
        "bars": 2_576,
        "first": datetime(2023, 3, 20, tzinfo=UTC),
        "last": datetime(2023, 3, 29, tzinfo=UTC),
        "gaps": ["2023-03-24 12:40 to 14:00, 16 bars"],
        "duplicates": 0,
        "is_sample": True,
    }
    return DataReport(**{**fields, **changes})
