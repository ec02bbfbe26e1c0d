"""Round trips, drawdown and periods of small accounts."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.instrument import ZERO, Side
from agentic_trading.desk.report.figures import days, drawdowns, months
from agentic_trading.desk.report.record import ClosePoint
from agentic_trading.desk.session.round_trips import FillOnRecord, trips_of

BEGIN = datetime(2023, 3, 31, 12, tzinfo=UTC)
MARKS = {"BTCUSDT": Decimal(110), "ETHUSDT": Decimal(10)}


def filled(
    number: int, quantity: str, price: str, *, symbol: str = "BTCUSDT", trace: str = "t", cause: str = "order"
) -> FillOnRecord:
    """Return a fill. A negative quantity is a sale."""
    amount = Decimal(quantity)
    fill = Fill.model_validate({
        "fill_id": f"f-{number}",
        "intent_id": "i",
        "order_id": "o",
        "symbol": symbol,
        "side": Side.BUY if amount > 0 else Side.SELL,
        "price": Decimal(price),
        "quantity": abs(amount),
        "fee": Decimal("0.3"),
        "fee_currency": "USDT",
        "liquidity": "taker",
        "cause": cause,
        "time": BEGIN + timedelta(minutes=5 * number),
        "bar_open_time": BEGIN,
        "trace_id": trace,
    })
    return FillOnRecord(f"e-{number}", fill)


def test_round_trip_ends_when_position_is_flat() -> None:
    fills = [filled(1, "2", "100"), filled(2, "1", "103"), filled(3, "-3", "105", cause="take_profit")]

    [trip] = trips_of(fills, MARKS, Counter(t=7))

    assert (trip.is_long, trip.quantity, trip.pnl, trip.fees) == (True, 3, Decimal("11.1"), Decimal("0.9"))
    assert (trip.fill_id, trip.ended_by, trip.inference_nusd) == ("e-1", "take_profit", 7)
    assert (trip.opened, trip.closed) == (fills[0].fill.time, fills[2].fill.time)


def test_fill_through_zero_ends_and_begins() -> None:
    fills = [filled(1, "1", "100", trace="a"), filled(2, "-3", "104", trace="b")]

    long, short = trips_of(fills, MARKS, Counter(a=1, b=2))

    assert (long.pnl, long.fees, long.inference_nusd) == (Decimal("3.6"), Decimal("0.4"), 3)
    assert (short.pnl, short.fees, short.inference_nusd) == (Decimal("-12.2"), Decimal("0.2"), 0)
    assert (short.is_long, short.closed, short.ended_by, short.quantity) == (False, None, "", 2)


def test_trace_with_two_round_trips_counts_once() -> None:
    fills = [filled(1, "1", "100"), filled(2, "1", "10", symbol="ETHUSDT"), filled(3, "-1", "100")]

    trips = trips_of(fills, MARKS, Counter(t=5, other=9))

    assert [(trip.symbol, trip.inference_nusd) for trip in trips] == [("BTCUSDT", 5), ("ETHUSDT", 0)]


@given(st.lists(st.integers(-5, 5).filter(bool), max_size=12))
def test_round_trips_add_up_to_the_account(quantities: list[int]) -> None:
    fills = [filled(n, str(quantity), str(100 + n)) for n, quantity in enumerate(quantities)]
    cash = sum((each.fill.cash_change for each in fills), ZERO)

    trips = trips_of(fills, MARKS, Counter())

    assert sum((trip.pnl for trip in trips), ZERO) == cash + sum(quantities) * MARKS["BTCUSDT"]
    assert sum((trip.fees for trip in trips), ZERO) == Decimal("0.3") * len(fills)
    assert sum(trip.closed is None for trip in trips) == (sum(quantities) != 0)


def test_drawdown_is_fall_from_highest_equity() -> None:
    falls = drawdowns([Decimal(value) for value in (100, 120, 90, 130, 130)])

    assert falls == [0.0, 0.0, -0.25, 0.0, 0.0]
    assert drawdowns([Decimal(0), Decimal(-1)]) == [0.0, 0.0]


def test_midnight_close_belongs_to_ending_period() -> None:
    midnight = datetime(2023, 4, 1, tzinfo=UTC)
    equity = {BEGIN: "101", midnight: "102", midnight + timedelta(hours=1): "99"}
    points = [ClosePoint(at, Decimal(value), ZERO, ZERO, {}) for at, value in equity.items()]

    by_day, by_month = days(points, Decimal(100)), months(points, Decimal(100))

    assert [(each.name, each.pnl) for each in by_day] == [("Fri 31 Mar 2023", 2), ("Sat 01 Apr 2023", -3)]
    assert [(each.name, each.pnl) for each in by_month] == [("Mar 2023", 2), ("Apr 2023", -3)]
    assert days(points, ZERO)[0].share == 0.0
