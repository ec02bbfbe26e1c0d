"""The account of a paper exchange: exact cash and positions, and trading costs."""

from decimal import ROUND_HALF_EVEN, ROUND_UP, Decimal
from typing import Annotated

from pydantic import BaseModel, Field

from agentic_trading.desk.exchange import Account, CancelReason, Fill, Liquidity, Position
from agentic_trading.desk.instrument import BPS, EXACT, ZERO, Instrument, Side, shifted

FEE_STEP = Decimal("1e-8")
AVERAGE_STEP = Decimal("1e-12")

Bps = Annotated[Decimal, Field(ge=0, lt=1_000)]


class TradingCosts(BaseModel, frozen=True):
    """Spread and fees in basis points of the price, always against the trader.

    Bars have no quotes, so the spread is an assumption. The defaults are half a basis point to either side of
    a traded price, and fees of 2 for a maker and 5 for a taker, the order of a large perpetual market.
    """

    half_spread_bps: Bps = Decimal("0.5")
    maker_fee_bps: Bps = Decimal(2)
    taker_fee_bps: Bps = Decimal(5)

    def taken_at(self, price: Decimal, side: Side, instrument: Instrument) -> Decimal:
        """Return the price of an order that takes when trades print at `price`.

        It is half a spread worse, and then rounded to the tick against the trader.
        """
        return instrument.adverse_price(shifted(price, EXACT.multiply(side.sign, self.half_spread_bps)), side)

    def fee_bps(self, liquidity: Liquidity) -> Decimal:
        """Return the fee rate of this side of a trade, in basis points."""
        return self.maker_fee_bps if liquidity == "maker" else self.taker_fee_bps

    def fee(self, price: Decimal, quantity: Decimal, liquidity: Liquidity) -> Decimal:
        """Return the fee in the quote currency, rounded up to 1e-8."""
        notional = EXACT.multiply(price, quantity)
        exact = EXACT.divide(EXACT.multiply(notional, self.fee_bps(liquidity)), BPS)
        return exact.quantize(FEE_STEP, ROUND_UP, EXACT)


class PaperAccount:
    """Cash and positions after all fills, and a check of affordable quantities.

    There is no margin. After a fill that opens or increases a position, the value of all positions is at most
    the equity: a long is paid from cash, and a short is never larger than the equity. A fill that only
    reduces is always affordable. A short with large losses may then leave a negative balance.
    """

    def __init__(self, cash: Decimal, currency: str, costs: TradingCosts, *, allow_short: bool) -> None:
        self._cash = cash
        self._currency = currency
        self._costs = costs
        self._allow_short = allow_short
        self._quantities: dict[str, Decimal] = {}
        self._averages: dict[str, Decimal] = {}
        self._marks: dict[str, Decimal] = {}
        self._snapshot: Account | None = None
        self.claims = ZERO
        """The value of other entries. If the money is too low for all, it is shared in proportion."""

    def snapshot(self) -> Account:
        """Return cash and open positions."""
        if self._snapshot is None:  # cached until the next fill, because it is read with every bar
            held = sorted((symbol, quantity) for symbol, quantity in self._quantities.items() if quantity)
            positions = tuple(
                Position(symbol=symbol, quantity=quantity, average_price=self._averages[symbol])
                for symbol, quantity in held
            )
            self._snapshot = Account(currency=self._currency, cash=self._cash, positions=positions)
        return self._snapshot

    def mark(self, symbol: str, price: Decimal) -> None:
        """Value positions in `symbol` at `price` from now on."""
        self._marks[symbol] = price

    def on_side(self, symbol: str, side: Side) -> Decimal:
        """Return the quantity held in the direction of `side`, 0 otherwise."""
        return max(EXACT.multiply(side.sign, self._quantities.get(symbol, ZERO)), ZERO)

    def apply(self, fill: Fill) -> None:
        """Apply a fill to cash and position."""
        held = self._quantities.get(fill.symbol, ZERO)
        after = EXACT.fma(fill.side.sign, fill.quantity, held)
        self._averages[fill.symbol] = self._average(fill, held, after)
        self._quantities[fill.symbol] = after
        self._cash = EXACT.add(self._cash, fill.cash_change)
        self._snapshot = None

    def affordable(
        self, instrument: Instrument, side: Side, wanted: Decimal, price: Decimal, liquidity: Liquidity
    ) -> tuple[Decimal, CancelReason | None]:
        """Return how much of `wanted` may be traded at `price`, in lots.

        The second value is the reason why the rest may not be traded. It is None without a rest.
        """
        reducing = min(wanted, self.on_side(instrument.symbol, side.opposite))
        opening = EXACT.subtract(wanted, reducing)
        if opening == 0:
            return wanted, None
        if side is Side.SELL and not self._allow_short:
            return reducing, CancelReason.SHORT_NOT_ALLOWED
        room = self._shared(
            self._room(instrument.symbol, reducing, price, liquidity),
            EXACT.multiply(opening, price),
            liquidity,
        )
        part = min(opening, self._largest_opening(instrument, room, price, liquidity))
        return EXACT.add(reducing, part), None if part == opening else CancelReason.NO_FUNDS

    def _room(self, symbol: str, reducing: Decimal, price: Decimal, liquidity: Liquidity) -> Decimal:
        """Return equity less all positions, once `reducing` is closed and its fee is paid."""
        room = EXACT.subtract(self._cash, self._costs.fee(price, reducing, liquidity))
        for other, held in self._quantities.items():
            mark = price if other == symbol else self._marks[other]
            closed = reducing if other == symbol else ZERO
            kept = EXACT.subtract(held.copy_abs(), closed)
            room = EXACT.fma(EXACT.subtract(held, kept), mark, room)
        return room

    def _shared(self, room: Decimal, wanted: Decimal, liquidity: Liquidity) -> Decimal:
        """Return the part of `room` for an entry worth `wanted`, shared with `claims`."""
        in_all = EXACT.add(wanted, self.claims)
        if self.claims == 0 or EXACT.multiply(in_all, self._rate(liquidity)) <= room:
            return room
        return EXACT.divide(EXACT.multiply(room, wanted), in_all)

    def _rate(self, liquidity: Liquidity) -> Decimal:
        return EXACT.add(1, EXACT.divide(self._costs.fee_bps(liquidity), BPS))

    def _largest_opening(
        self, instrument: Instrument, room: Decimal, price: Decimal, liquidity: Liquidity
    ) -> Decimal:
        """Return the most lots whose value and fee fit into `room`."""
        # One step is left free, because the fee is rounded up.
        free = EXACT.subtract(room, FEE_STEP)
        return instrument.lots(EXACT.divide(max(free, ZERO), EXACT.multiply(price, self._rate(liquidity))))

    def _average(self, fill: Fill, held: Decimal, after: Decimal) -> Decimal:
        if after == 0:
            return ZERO
        if held == 0 or (held > 0) != (after > 0):
            return fill.price
        if after.copy_abs() < held.copy_abs():
            return self._averages[fill.symbol]
        worth = EXACT.fma(held.copy_abs(), self._averages[fill.symbol], fill.notional)
        return EXACT.divide(worth, after.copy_abs()).quantize(AVERAGE_STEP, ROUND_HALF_EVEN, EXACT)
