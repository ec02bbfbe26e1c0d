"""What trading costs on paper: half the spread for who takes, and fees for both sides."""

from decimal import ROUND_UP, Decimal
from typing import Annotated

from pydantic import BaseModel, Field

from agentic_trading.desk.exchange import Liquidity
from agentic_trading.desk.instrument import BPS, EXACT, Instrument, Side, shifted

FEE_STEP = Decimal("1e-8")

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
