"""The account as an analyst is told it: what each position is worth, and what its stop would cost."""

from collections.abc import Iterable, Mapping
from decimal import Decimal

from agentic_trading.desk.analysis.portfolio_context import Holding
from agentic_trading.desk.exchange import Account, OpenOrder
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.desk.market.correlation import ReferenceMarket


def holdings(
    account: Account,
    orders: Iterable[OpenOrder],
    marks: Mapping[str, Decimal],
    markets: Mapping[str, ReferenceMarket],
) -> tuple[Holding, ...]:
    """Return the open positions in order of symbol, at their marks.

    `orders` are those that can still trade or guard what they filled; `markets` hold the closes of each symbol.
    Raises `KeyError` for a position without a mark or a market.
    """
    guards = list(orders)
    return tuple(
        Holding(
            symbol=held.symbol,
            value=EXACT.multiply(held.quantity, marks[held.symbol]),
            to_stop=loss_to_stops(held.symbol, held.quantity.copy_abs(), guards, marks[held.symbol]),
            market=markets[held.symbol],
        )
        for held in account.positions
    )


def loss_to_stops(
    symbol: str, quantity: Decimal, orders: Iterable[OpenOrder], mark: Decimal
) -> Decimal | None:
    """Return what `quantity` of a symbol loses between its mark and its stops, in the quote currency.

    None where less than all of it has a stop. A stop that the mark has passed costs nothing more.
    """
    guarded, loss = ZERO, ZERO
    for each in orders:
        order = each.order
        if order.symbol == symbol and order.stop_loss is not None and each.guarded > 0:
            distance = EXACT.multiply(order.side.sign, EXACT.subtract(mark, order.stop_loss))
            guarded = EXACT.add(guarded, each.guarded)
            loss = EXACT.fma(each.guarded, max(distance, ZERO), loss)
    return loss if guarded >= quantity else None
