"""Instruments: a symbol, and the steps of its prices and quantities."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, Field
from typing_extensions import override

EXACT = Context(prec=80, rounding=ROUND_HALF_EVEN)
"""A decimal context in which products of prices and quantities keep all digits, in any thread."""

ZERO = Decimal(0)
BPS = Decimal(10_000)

USDT: Final = "USDT"
"""The default quote currency."""

FINEST_EXPONENT = -12
LARGEST_LOT_WORTH = Decimal(10)
"""The maximum value of a lot in the quote currency, however coarse the volumes of a source are."""

Price = Annotated[Decimal, Field(gt=0, max_digits=30, decimal_places=12)]
"""The price of one unit of the base currency, in the quote currency: below 1e18, in steps of 1e-12."""

Quantity = Annotated[Decimal, Field(gt=0, max_digits=30, decimal_places=12)]
"""A quantity in units of the base currency. The direction is a separate `Side`."""


class Side(StrEnum):
    """The direction of an order or a fill."""

    BUY = "buy"
    SELL = "sell"

    @property
    def sign(self) -> int:
        """The change of a position by one unit: +1 or -1."""
        return 1 if self is Side.BUY else -1

    @property
    def opposite(self) -> "Side":
        return Side.SELL if self is Side.BUY else Side.BUY


class Instrument(BaseModel, frozen=True):
    """A symbol and its grid of prices and quantities.

    Prices are multiples of `tick_size`, and quantities of `lot_size`. `min_quantity` is the minimum quantity
    of an entry. Its slices, and exits, may be smaller.
    """

    symbol: Annotated[str, Field(min_length=1, max_length=64)]
    quote_currency: str = USDT
    tick_size: Price = Decimal("0.01")
    lot_size: Quantity = Decimal("0.00001")
    min_quantity: Quantity = Decimal("0.0001")

    def lots(self, quantity: Decimal) -> Decimal:
        """Return `quantity` rounded down to whole lots."""
        return round_down(quantity, self.lot_size)

    def adverse_price(self, price: Decimal, side: Side) -> Decimal:
        """Return `price` rounded to the grid against the trader: up to buy, down to sell."""
        return _on_grid(price, self.tick_size, upwards=side is Side.BUY)


class Instruments(Mapping[str, Instrument]):
    """The instruments of a session, each on the finest grid that its bars have shown.

    A grid begins at whole numbers and only becomes finer, by powers of ten, so that a value on the grid stays
    on it. It depends on the prices and volumes seen only: the same bars give the same grid from a file, a
    stream or a recording.
    """

    def __init__(self, symbols: Iterable[str], quote_currency: str = USDT) -> None:
        one = Decimal(1)
        self._known = {
            symbol: Instrument(
                symbol=symbol,
                tick_size=one,
                lot_size=one,
                min_quantity=one,
                quote_currency=quote_currency,
            )
            for symbol in symbols
        }

    def see(self, symbol: str, prices: Iterable[Decimal], volume: Decimal) -> None:
        """Refine the grid of a symbol by a closed bar.

        The prices of the bar refine the tick, and its volume refines the lot. The minimum entry is one lot.

        Raises:
            KeyError: If the symbol is not in the session.

        """
        known, seen = self._known[symbol], tuple(prices)
        # Checked first because a division takes a tenth of the time that counting the digits would take.
        if _is_on_grid(known, seen, volume):
            return
        tick = min(known.tick_size, *map(step_of, seen))
        lot = min(known.lot_size, step_of(volume), _largest_lot(max(seen)))
        finer = {"tick_size": tick, "lot_size": lot, "min_quantity": lot}
        self._known[symbol] = known.model_copy(update=finer)

    @override
    def __getitem__(self, symbol: str) -> Instrument:
        return self._known[symbol]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    @override
    def __len__(self) -> int:
        return len(self._known)


def _is_on_grid(known: Instrument, prices: Sequence[Decimal], volume: Decimal) -> bool:
    """Return whether a bar shows no finer grid."""
    if EXACT.remainder(volume, known.lot_size) or _largest_lot(max(prices)) < known.lot_size:
        return False
    return not any(EXACT.remainder(price, known.tick_size) for price in prices)


def step_of(value: Decimal) -> Decimal:
    """Return the power of ten of the last nonzero digit of `value`, from 1e-12 to 1."""
    exponent = value.normalize(EXACT).as_tuple().exponent
    return _power_of_ten(exponent if isinstance(exponent, int) else 0)


def _largest_lot(price: Decimal) -> Decimal:
    return _power_of_ten(EXACT.divide(LARGEST_LOT_WORTH, price).adjusted())


def _power_of_ten(exponent: int) -> Decimal:
    return Decimal(1).scaleb(min(0, max(FINEST_EXPONENT, exponent)), EXACT)


def round_down(value: Decimal, step: Decimal) -> Decimal:
    """Return the largest multiple of `step` that is at most `value`.

    `value` must not be negative.
    """
    return EXACT.multiply(EXACT.divide_int(value, step), step)


def round_up(value: Decimal, step: Decimal) -> Decimal:
    """Return the smallest multiple of `step` that is at least `value`.

    `value` must not be negative.
    """
    lower = round_down(value, step)
    return lower if lower == value else EXACT.add(lower, step)


def shifted(price: Decimal, bps: Decimal) -> Decimal:
    """Return `price` moved by `bps` basis points, exactly."""
    return EXACT.divide(EXACT.multiply(price, EXACT.add(BPS, bps)), BPS)


def limit_from(reference: Decimal, offset_bps: Decimal, side: Side, tick_size: Decimal) -> Decimal:
    """Return the limit price `offset_bps` away from `reference`, in ticks.

    A positive offset is passive: below the reference to buy, above it to sell. Rounding is passive too, so
    that a limit is never more aggressive than requested.
    """
    price = shifted(reference, EXACT.multiply(-side.sign, offset_bps))
    return _on_grid(price, tick_size, upwards=side is Side.SELL)


def _on_grid(price: Decimal, tick_size: Decimal, *, upwards: bool) -> Decimal:
    rounded = round_up(price, tick_size) if upwards else round_down(price, tick_size)
    return max(rounded, tick_size)
