"""What is traded: a symbol, and the steps in which its prices and quantities move."""

from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field

EXACT = Context(prec=80, rounding=ROUND_HALF_EVEN)
"""Wide enough that a product of a price and a quantity loses no digit, whatever the thread's own context is."""

ZERO = Decimal(0)
BPS = Decimal(10_000)

Price = Annotated[Decimal, Field(gt=0, max_digits=30, decimal_places=12)]
"""In the quote currency for one unit of the base currency; at most 1e18, in steps of 1e-12."""

Quantity = Annotated[Decimal, Field(gt=0, max_digits=30, decimal_places=12)]
"""In units of the base currency; the direction stands in a `Side`."""


class Side(StrEnum):
    """The direction of an order or a fill."""

    BUY = "buy"
    SELL = "sell"

    @property
    def sign(self) -> int:
        """What one unit does to a position: +1 or -1."""
        return 1 if self is Side.BUY else -1

    @property
    def opposite(self) -> "Side":
        return Side.SELL if self is Side.BUY else Side.BUY


class Instrument(BaseModel, frozen=True):
    """One symbol and its grid: prices are multiples of `tick_size`, quantities of `lot_size`.

    `min_quantity` is the least that an entry may ask for; its slices, and exits, may be smaller.
    """

    symbol: Annotated[str, Field(min_length=1, max_length=64)]
    quote_currency: str = "USDT"
    tick_size: Price = Decimal("0.01")
    lot_size: Quantity = Decimal("0.00001")
    min_quantity: Quantity = Decimal("0.0001")

    def lots(self, quantity: Decimal) -> Decimal:
        """Return `quantity` rounded down to whole lots; never more than was asked for."""
        return round_down(quantity, self.lot_size)

    def adverse_price(self, price: Decimal, side: Side) -> Decimal:
        """Return `price` on the grid, rounded against the trader: up to buy, down to sell."""
        return _on_grid(price, self.tick_size, upwards=side is Side.BUY)


def round_down(value: Decimal, step: Decimal) -> Decimal:
    """Return the largest multiple of `step` that is at most `value`, which must not be negative."""
    return EXACT.multiply(EXACT.divide_int(value, step), step)


def round_up(value: Decimal, step: Decimal) -> Decimal:
    """Return the smallest multiple of `step` that is at least `value`, which must not be negative."""
    lower = round_down(value, step)
    return lower if lower == value else EXACT.add(lower, step)


def shifted(price: Decimal, bps: Decimal) -> Decimal:
    """Return `price` moved by `bps` hundredths of a percent, exactly."""
    return EXACT.divide(EXACT.multiply(price, EXACT.add(BPS, bps)), BPS)


def limit_from(reference: Decimal, offset_bps: Decimal, side: Side, tick_size: Decimal) -> Decimal:
    """Return the limit price `offset_bps` away from `reference`, in ticks.

    A positive offset is passive: below the reference to buy, above it to sell. Ticks round to the passive
    side too, so that a limit is never more aggressive than was asked for.
    """
    price = shifted(reference, EXACT.multiply(-side.sign, offset_bps))
    return _on_grid(price, tick_size, upwards=side is Side.SELL)


def _on_grid(price: Decimal, tick_size: Decimal, *, upwards: bool) -> Decimal:
    rounded = round_up(price, tick_size) if upwards else round_down(price, tick_size)
    return max(rounded, tick_size)
