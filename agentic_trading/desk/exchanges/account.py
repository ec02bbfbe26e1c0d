"""Cash and positions to the last digit, and what trading costs."""

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

    Bars carry no quotes, so the spread is an assumption, and the defaults are: half a basis point to either
    side of a traded price, fees of 2 for a maker and 5 for a taker, the order of a large perpetual market.
    """

    half_spread_bps: Bps = Decimal("0.5")
    maker_fee_bps: Bps = Decimal(2)
    taker_fee_bps: Bps = Decimal(5)

    def taken_at(self, price: Decimal, side: Side, instrument: Instrument) -> Decimal:
        """Return what is paid for taking when trades print at `price`: half a spread worse, then a tick up or down."""
        return instrument.adverse_price(shifted(price, EXACT.multiply(side.sign, self.half_spread_bps)), side)

    def fee_bps(self, liquidity: Liquidity) -> Decimal:
        """Return the rate for this side of a trade."""
        return self.maker_fee_bps if liquidity == "maker" else self.taker_fee_bps

    def fee(self, price: Decimal, quantity: Decimal, liquidity: Liquidity) -> Decimal:
        """Return the fee in the quote currency, rounded up to 1e-8."""
        notional = EXACT.multiply(price, quantity)
        exact = EXACT.divide(EXACT.multiply(notional, self.fee_bps(liquidity)), BPS)
        return exact.quantize(FEE_STEP, ROUND_UP, EXACT)


class PaperAccount:
    """What fills did to cash and positions, and what can be afforded.

    No margin: after a fill that opens or enlarges a position, the value of all positions is at most the equity,
    so that a long is paid from cash and a short never exceeds what the account is worth. A fill that only
    reduces is always afforded; a short that ran away may then leave a negative balance.
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
        """What is wanted elsewhere: money that is not enough for it too is shared with it in proportion."""

    def snapshot(self) -> Account:
        """Return cash and open positions."""
        if self._snapshot is None:  # it is the same until the next fill, and is looked at with every bar
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
        """Return how much is held in the direction of `side`; 0 if flat or the other way round."""
        return max(EXACT.multiply(side.sign, self._quantities.get(symbol, ZERO)), ZERO)

    def apply(self, fill: Fill) -> None:
        """Change cash and position by a fill."""
        held = self._quantities.get(fill.symbol, ZERO)
        after = EXACT.fma(fill.side.sign, fill.quantity, held)
        self._averages[fill.symbol] = self._average(fill, held, after)
        self._quantities[fill.symbol] = after
        self._cash = EXACT.add(self._cash, fill.cash_change)
        self._snapshot = None

    def affordable(
        self, instrument: Instrument, side: Side, wanted: Decimal, price: Decimal, liquidity: Liquidity
    ) -> tuple[Decimal, CancelReason | None]:
        """Return how much of `wanted` may be traded at `price`, in lots, and what stands against the rest."""
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
        """Return equity less the value of all positions, once `reducing` is closed and its fee is paid."""
        room = EXACT.subtract(self._cash, self._costs.fee(price, reducing, liquidity))
        for other, held in self._quantities.items():
            mark = price if other == symbol else self._marks[other]
            closed = reducing if other == symbol else ZERO
            kept = EXACT.subtract(held.copy_abs(), closed)
            room = EXACT.fma(EXACT.subtract(held, kept), mark, room)
        return room

    def _shared(self, room: Decimal, wanted: Decimal, liquidity: Liquidity) -> Decimal:
        """Return the part of `room` for what is `wanted` here; all of it unless what is wanted elsewhere lacks money then."""
        in_all = EXACT.add(wanted, self.claims)
        if self.claims == 0 or EXACT.multiply(in_all, self._rate(liquidity)) <= room:
            return room
        return EXACT.divide(EXACT.multiply(room, wanted), in_all)

    def _rate(self, liquidity: Liquidity) -> Decimal:
        return EXACT.add(1, EXACT.divide(self._costs.fee_bps(liquidity), BPS))

    def _largest_opening(
        self, instrument: Instrument, room: Decimal, price: Decimal, liquidity: Liquidity
    ) -> Decimal:
        """Return the most lots whose value and fee fit into `room`; one step is left for the fee's rounding."""
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
