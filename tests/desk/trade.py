"""Builders of what the trading tests share: bars, orders, intents and strategies around a price of 100."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from agentic_trading.desk.exchange import ExecutionReport, Fill, Order
from agentic_trading.desk.exchanges.account import TradingCosts
from agentic_trading.desk.exchanges.paper import PaperExchange
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.strategy import FillStrategy
from agentic_trading.desk.instrument import Instrument
from agentic_trading.desk.market.bar import Bar, Timeframe

START = datetime(2026, 1, 2, tzinfo=UTC)
FIVE_MINUTES = timedelta(minutes=5)
BTC = Instrument(symbol="BTCUSDT", lot_size=Decimal("0.001"), min_quantity=Decimal("0.001"))
CHEAP = TradingCosts(half_spread_bps=Decimal(1), maker_fee_bps=Decimal(2), taker_fee_bps=Decimal(5))


def bar(number: int, prices: str, volume: str = "1000", *, symbol: str = "BTCUSDT") -> Bar:
    """Return the bar that opens `number` times five minutes after the start; `prices` are open, high, low, close."""
    opened, high, low, close = map(Decimal, prices.split())
    return Bar(
        symbol=symbol,
        timeframe=Timeframe.M5,
        open_time=START + number * FIVE_MINUTES,
        open=opened,
        high=high,
        low=low,
        close=close,
        volume=Decimal(volume),
    )


def order(**changes: Any) -> Order:
    """Return a market order to buy 1 that the bar after the first may fill; `changes` are fields of `Order`."""
    fields = {
        "order_id": "o1",
        "intent_id": "i1",
        "symbol": "BTCUSDT",
        "side": "buy",
        "quantity": Decimal(1),
        "order_type": "market",
        "active_from": START + FIVE_MINUTES,
        "expires_at": START + timedelta(hours=2),
        "trace_id": "t1",
    }
    return Order.model_validate({**fields, **changes})


def intent(**changes: Any) -> OrderIntent:
    """Return an approved intent to buy 1 at 100 with stop and target; `changes` are fields of `OrderIntent`."""
    fields = {
        "intent_id": "i1",
        "symbol": "BTCUSDT",
        "side": "buy",
        "quantity": Decimal(1),
        "kind": "entry",
        "arrival_price": Decimal(100),
        "stop_loss": Decimal(98),
        "take_profit": Decimal(104),
        "as_of": START + FIVE_MINUTES,
        "expires_at": START + timedelta(hours=2),
        "trace_id": "t1",
        "causation_id": "assessment-1",
    }
    return OrderIntent.model_validate({**fields, **changes})


def exit_intent(**changes: Any) -> OrderIntent:
    """Return an intent to sell what is held."""
    fields = {"intent_id": "i2", "side": "sell", "kind": "exit", "stop_loss": None, "take_profit": None}
    return intent(**{**fields, **changes})


def strategy(**changes: Any) -> FillStrategy:
    """Return a strategy to take the whole at once; `changes` are fields of `FillStrategy`."""
    fields = {
        "order_type": "market",
        "time_in_force": "gtc",
        "algo": "single",
        "slices": 1,
        "interval_seconds": 0,
        "limit_offset_bps": 0,
        "price_reference": "last",
        "max_participation": Decimal("0.1"),
        "deadline_seconds": 1800,
        "on_deadline": "cross",
        "expected_slippage_bps": Decimal("0.5"),
        "confidence": Decimal("0.6"),
        "rationale": "Small beside the volume.",
        "evidence_ids": ["E2"],
    }
    return FillStrategy.model_validate({**fields, **changes})


def listed(*instruments: Instrument) -> dict[str, Instrument]:
    """Return instruments by their symbols."""
    return {instrument.symbol: instrument for instrument in instruments}


def paper(**changes: Any) -> PaperExchange:
    """Return an exchange with 10,000 in cash; `changes` are arguments of `PaperExchange`."""
    arguments: dict[str, Any] = {"instruments": listed(BTC), "cash": Decimal(10_000), "costs": CHEAP}
    return PaperExchange(**{**arguments, **changes})


def fills_of(reports: Sequence[ExecutionReport]) -> list[Fill]:
    """Return the fills among reports."""
    return [report for report in reports if isinstance(report, Fill)]
