"""One cell of text to one exact value; what cannot be read is None, never a guess."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from agentic_trading.desk.market.bar import EPOCH

NUMBER: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
EPOCH_DIGITS: Final = re.compile(r"[0-9]+")
MICROSECONDS_PER_TICK: Final = {13: 1_000, 16: 1}  # by number of digits; 16 since 2025 in kline files


def number(text: str) -> Decimal | None:
    """Return a decimal number digit for digit; separators, infinities and NaN are no numbers."""
    return Decimal(text) if NUMBER.fullmatch(text) else None


def whole(text: str) -> int | None:
    """Return a whole number of at most 18 digits."""
    return int(text) if WHOLE.fullmatch(text) else None


def parse_time(text: str) -> datetime | None:
    """Return a time told in epoch milliseconds, epoch microseconds or ISO 8601 (UTC without an offset)."""
    try:
        if EPOCH_DIGITS.fullmatch(text):
            tick = MICROSECONDS_PER_TICK.get(len(text))
            return None if tick is None else EPOCH + timedelta(microseconds=int(text) * tick)
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Cell:
    """How one field is read, what its text may be, and whether it may be empty."""

    read: Callable[[str], object | None]
    allowed: str
    required: bool = True


_NUMBER = Cell(number, "a decimal number such as 27953.83")

CELLS: Final[Mapping[str, Cell]] = MappingProxyType({
    "open_time": Cell(parse_time, "epoch milliseconds (13 digits), microseconds (16) or an ISO 8601 time"),
    "open": _NUMBER,
    "high": _NUMBER,
    "low": _NUMBER,
    "close": _NUMBER,
    "volume": _NUMBER,
    "quote_volume": Cell(number, "a decimal number, or nothing", required=False),
    "trades": Cell(whole, "a whole number, or nothing", required=False),
    "taker_buy_volume": Cell(number, "a decimal number, or nothing", required=False),
})
