"""Orders out and fills back: all of a strategy's orders or none, and every step on record with its cause."""

from datetime import timedelta
from decimal import Decimal

import pytest
from typing_extensions import override

from agentic_trading.clock import SimClock
from agentic_trading.desk.exchange import Exchange, Order, OrderRefusedError
from agentic_trading.desk.exchanges.paper import PaperExchange
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.order_router import OrderRouter, TradeJournal
from agentic_trading.desk.execution.risk import Rejection, RiskFacts, RiskLimits
from agentic_trading.desk.execution.strategy import strategy_id
from agentic_trading.desk.instrument import Instrument
from agentic_trading.desk.market.errors import NoBarsError
from tests.desk.execution.asked import RuleGateway
from tests.desk.trade import (
    BTC,
    CHEAP,
    FIVE_MINUTES,
    START,
    bar,
    exit_intent,
    intent,
    listed,
    order,
    paper,
    strategy,
)

CALM = "100 101 99 100"
AS_OF = START + FIVE_MINUTES


def router_on(exchange: Exchange, gateway: RuleGateway, **limits: int | Decimal) -> OrderRouter:
    """Return a router whose risk limits are the defaults but for `limits`."""
    risk = RiskLimits.model_validate({"max_order_notional": 5_000, **limits})
    return OrderRouter(
        exchange, TradeJournal(gateway, SimClock(AS_OF), tenant_id="default"), listed(BTC), FillLimits(), risk
    )


async def test_placed_orders_are_submitted_and_recorded() -> None:
    gateway, exchange = RuleGateway(), paper()
    router = router_on(exchange, gateway)
    await router.on_bar(bar(0, CALM))

    placed = await router.place(
        intent(), strategy(algo="twap", slices=2, interval_seconds=300), known_at=AS_OF
    )

    assert not isinstance(placed, Rejection)
    assert tuple(entry.order for entry in await exchange.open_orders()) == tuple(placed)
    assert [(event.kind, event.id, event.causation_id) for event in gateway.events] == [
        ("order.submitted", made.order_id, strategy_id("i1")) for made in placed
    ]


async def test_denied_slice_stops_all_slices() -> None:
    gateway, exchange = RuleGateway(), paper()
    router = router_on(exchange, gateway, max_open_orders=2)
    await router.on_bar(bar(0, CALM))

    outcome = await router.place(
        intent(), strategy(algo="twap", slices=3, interval_seconds=300), known_at=AS_OF
    )

    assert isinstance(outcome, Rejection)
    assert outcome.rule == "max_open_orders"
    assert await exchange.open_orders() == ()
    (event,) = gateway.events
    assert (event.kind, event.causation_id) == ("order.denied", strategy_id("i1"))
    assert event.body["rule"] == "max_open_orders"
    assert event.body["symbol"] == "BTCUSDT"


async def test_pending_orders_count_toward_position() -> None:
    exchange = paper()
    router = router_on(exchange, RuleGateway(), max_position_notional=Decimal(150))
    await router.on_bar(bar(0, CALM))
    await router.place(intent(), strategy(), known_at=AS_OF)

    outcome = await router.place(intent(intent_id="i2"), strategy(), known_at=AS_OF)

    assert isinstance(outcome, Rejection)
    assert outcome.rule == "max_position"


async def test_fills_and_cancellations_caused_by_order() -> None:
    gateway = RuleGateway()
    router = router_on(paper(), gateway)
    await router.on_bar(bar(0, CALM))
    await router.place(intent(), strategy(time_in_force="ioc", on_deadline="cancel"), known_at=AS_OF)

    fill, end = await router.on_bar(bar(1, CALM, volume="6"))

    submitted, *reported = gateway.events
    assert [event.kind for event in reported] == ["order.filled", "order.canceled"]
    assert {event.causation_id for event in reported} == {submitted.id}
    assert {event.trace_id for event in gateway.events} == {"t1"}
    assert [event.as_of for event in reported] == [fill.time, end.time] == [START + 2 * FIVE_MINUTES] * 2
    assert reported[0].body["quantity"] == "0.600"


async def test_risk_facts_match_account_and_orders() -> None:
    exchange = paper()
    router = router_on(exchange, RuleGateway())
    await router.on_bar(bar(0, CALM))
    await router.place(intent(quantity=Decimal(2)), strategy(), known_at=AS_OF)
    await router.on_bar(bar(1, CALM, volume="12"))
    await exchange.submit(order(order_id="x", intent_id="x", side="sell", reduce_only=True))

    facts = await router.facts("BTCUSDT", START + 2 * FIVE_MINUTES)

    held = await exchange.account()
    assert facts == RiskFacts(
        last_close=Decimal(100),
        equity=held.equity({"BTCUSDT": Decimal(100)}),
        position=Decimal("1.2"),
        pending=Decimal("0.8"),
        gross=Decimal(200),
        open_orders=2,
        orders_last_minute=0,
    )


async def test_orders_of_last_minute_are_limited() -> None:
    router = router_on(paper(), RuleGateway(), max_orders_per_minute=1)
    await router.on_bar(bar(0, CALM))
    await router.place(intent(), strategy(), known_at=AS_OF)

    at_once = await router.place(intent(intent_id="i2"), strategy(), known_at=AS_OF)
    later = await router.place(
        intent(intent_id="i3", as_of=START + 2 * FIVE_MINUTES), strategy(), known_at=AS_OF
    )

    assert isinstance(at_once, Rejection)
    assert at_once.rule == "max_orders_per_minute"
    assert not isinstance(later, Rejection)


async def test_withdraw_cancels_unfilled_before_exit() -> None:
    gateway, exchange = RuleGateway(), paper()
    router = router_on(exchange, gateway)
    await router.on_bar(bar(0, CALM))
    await router.place(intent(quantity=Decimal(2)), strategy(), known_at=AS_OF)
    await router.on_bar(bar(1, CALM, volume="12"))

    (cancelled,) = await router.withdraw("BTCUSDT")
    await router.place(
        exit_intent(quantity=Decimal("1.2"), as_of=START + 2 * FIVE_MINUTES),
        strategy(order_type="market"),
        known_at=AS_OF,
    )
    await router.on_bar(bar(2, CALM))

    assert cancelled.quantity == Decimal("0.8")
    assert (await exchange.account()).positions == ()
    assert await router.withdraw("BTCUSDT") == []
    assert "order.canceled" in [event.kind for event in gateway.events]


async def test_facts_before_first_bar_raise() -> None:
    with pytest.raises(NoBarsError):
        await router_on(paper(), RuleGateway()).facts("BTCUSDT", START)


async def test_gross_includes_other_symbols() -> None:
    ether = Instrument(symbol="ETHUSDT")
    exchange = paper(instruments=listed(BTC, ether))
    router = router_on(exchange, RuleGateway())
    await router.on_bar(bar(0, CALM))
    await router.on_bar(bar(0, "50 51 49 50", symbol="ETHUSDT"))
    await exchange.submit(order(side="sell", max_participation=Decimal("0.0004")))
    await router.on_bar(bar(1, CALM))
    await router.on_bar(bar(1, "50 51 49 50", symbol="ETHUSDT"))

    facts = await router.facts("ETHUSDT", START + 2 * FIVE_MINUTES)

    assert (facts.position, facts.pending, facts.gross) == (0, 0, 100)  # 0.4 held short, 0.6 still wanted


async def test_bar_without_volume_marks_halt() -> None:
    router = router_on(paper(), RuleGateway())
    halted = []

    for number, volume in enumerate(("10", "0", "10")):
        await router.on_bar(bar(number, CALM, volume))
        halted.append((await router.facts("BTCUSDT", AS_OF)).halted)

    assert halted == [False, True, False]


async def test_rejection_contains_order_and_sizing() -> None:
    gateway = RuleGateway()
    router = router_on(paper(), gateway, max_position_notional=Decimal(50))
    await router.on_bar(bar(0, CALM))
    sizing = (await router.facts("BTCUSDT", AS_OF)).sizing("risk", Decimal(1))

    outcome = await router.place(intent(sizing=sizing), strategy(), known_at=AS_OF)

    assert isinstance(outcome, Rejection)
    assert (outcome.side, outcome.quantity, outcome.sizing) == ("buy", 1, sizing)
    assert gateway.events[-1].body["sizing"]["equity"] == "10000"


async def test_late_strategy_skips_earlier_open() -> None:
    exchange = paper()
    router = router_on(exchange, RuleGateway())
    await router.on_bar(bar(0, CALM))
    await router.place(intent(), strategy(), known_at=AS_OF + timedelta(milliseconds=1))

    assert await router.on_bar(bar(1, CALM)) == []
    assert len(await router.on_bar(bar(2, CALM))) == 1


@pytest.mark.parametrize("price", ["stop_loss", "take_profit"])
async def test_off_tick_exit_price_is_denied(price: str) -> None:
    gateway, exchange = RuleGateway(), paper()
    router = router_on(exchange, gateway)
    await router.on_bar(bar(0, CALM))
    off_tick = {"stop_loss": Decimal("98.001"), "take_profit": Decimal("104.001")}[price]

    outcome = await router.place(intent(**{price: off_tick}), strategy(), known_at=AS_OF)

    assert isinstance(outcome, Rejection)
    assert (outcome.rule, outcome.was) == ("tick_size", f"{price} {off_tick}")
    assert outcome.allowed == "multiples of 0.01"
    assert [event.kind for event in gateway.events] == ["order.denied"]
    assert "order_id" not in gateway.events[0].body
    assert await exchange.open_orders() == ()


class Venue(PaperExchange):
    """An exchange that accepts `accepts` orders and refuses all later ones."""

    def __init__(self, accepts: int) -> None:
        super().__init__(listed(BTC), cash=Decimal(10_000), costs=CHEAP)
        self._accepts = accepts

    @override
    async def submit(self, order: Order) -> None:
        if self._accepts == 0:
            raise OrderRefusedError("balance", "2.50 USDT", "the value of the order")
        self._accepts -= 1
        await super().submit(order)


async def test_exchange_refusal_recorded_as_denied() -> None:
    gateway, exchange = RuleGateway(), Venue(accepts=0)
    router = router_on(exchange, gateway)
    await router.on_bar(bar(0, CALM))

    outcome = await router.place(intent(), strategy(), known_at=AS_OF)

    assert isinstance(outcome, Rejection)
    assert (outcome.rule, outcome.was, outcome.allowed) == ("balance", "2.50 USDT", "the value of the order")
    submitted, denied = gateway.events
    assert (submitted.kind, denied.kind) == ("order.submitted", "order.denied")
    assert (denied.causation_id, denied.body["order_id"]) == (submitted.id, submitted.id)
    assert denied.body["quantity"] == "1.000"
    assert await router.on_bar(bar(1, CALM)) == []


async def test_slices_after_refusal_are_not_sent() -> None:
    gateway, exchange = RuleGateway(), Venue(accepts=1)
    router = router_on(exchange, gateway)
    await router.on_bar(bar(0, CALM))

    placed = await router.place(
        intent(quantity=Decimal(3)),
        strategy(algo="twap", slices=3, interval_seconds=300),
        known_at=AS_OF,
    )

    assert not isinstance(placed, Rejection)
    assert [entry.order for entry in await exchange.open_orders()] == list(placed)
    assert len(placed) == 1
    assert [event.kind for event in gateway.events] == ["order.submitted"] * 2 + ["order.denied"]
