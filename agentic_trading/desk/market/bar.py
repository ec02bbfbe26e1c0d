"""One closed bar of one symbol on one timeframe."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, model_validator

from agentic_trading.desk.market.errors import BarError

# Every market keeps these bounds, and within them a price as a float is finite and not zero.
SMALLEST_PRICE = Decimal("1e-12")
LARGEST_NUMBER = Decimal("1e18")


class Timeframe(StrEnum):
    """How long a bar is; windows start at multiples of it since 1970-01-01T00:00Z."""

    M5 = "5m"
    M15 = "15m"
    H1 = "1h"
    H4 = "4h"
    D1 = "1d"

    @property
    def seconds(self) -> int:
        return SECONDS[self]

    @property
    def length(self) -> timedelta:
        return LENGTHS[self]

    @property
    def bars_per_year(self) -> float:
        """Bars in 365 days of a market that never closes."""
        return 365 * 86_400 / self.seconds

    def start_of(self, moment: datetime) -> datetime:
        """Return when the window that holds `moment` opens; a boundary belongs to the window it opens."""
        return EPOCH + (moment - EPOCH) // self.length * self.length


SECONDS = {
    Timeframe.M5: 300,
    Timeframe.M15: 900,
    Timeframe.H1: 3_600,
    Timeframe.H4: 14_400,
    Timeframe.D1: 86_400,
}
LENGTHS = {timeframe: timedelta(seconds=seconds) for timeframe, seconds in SECONDS.items()}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)


def in_utc(moment: datetime) -> datetime:
    """Return the same moment told in UTC."""
    return moment.astimezone(UTC)


class Bar(BaseModel, frozen=True):
    """What traded in one window, known only when the window has closed.

    Prices are in the quote currency and volumes in the base currency unless named otherwise; the digits
    are those of the source. What a source does not tell is None. Raises `BarError` when values contradict
    each other: the open time must lie on the timeframe's grid, `low` and `high` must enclose `open` and
    `close`, prices must be at least 1e-12, and no number may pass 1e18.
    """

    symbol: Annotated[str, Field(min_length=1, max_length=64)]
    timeframe: Timeframe
    open_time: Annotated[AwareDatetime, AfterValidator(in_utc)]
    open: Decimal
    high: Decimal
    low: Decimal
    close: Decimal
    volume: Decimal
    quote_volume: Decimal | None = None
    trades: int | None = None
    taker_buy_volume: Decimal | None = None

    @property
    def close_time(self) -> datetime:
        """When the window ends: the first moment that no longer belongs to it."""
        return self.open_time + self.timeframe.length

    @property
    def available_at(self) -> datetime:
        """When the bar can first be known: its close time."""
        return self.close_time

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        self._check_time()
        self._check_prices()
        self._check_amounts()
        return self

    def _check_time(self) -> None:
        if not EPOCH <= self.open_time < LATEST:
            raise BarError("open_time", self.open_time.isoformat(), "from the year 1970 to 9998")
        if self.timeframe.start_of(self.open_time) != self.open_time:
            raise BarError("open_time", self.open_time.isoformat(), f"a multiple of {self.timeframe}")

    def _check_prices(self) -> None:
        if self.low < SMALLEST_PRICE:
            raise BarError("low", self.low, f"at least {SMALLEST_PRICE}")
        if self.low > min(self.open, self.close):
            raise BarError("low", self.low, f"at most open {self.open} and close {self.close}")
        if self.high < max(self.open, self.close):
            raise BarError("high", self.high, f"at least open {self.open} and close {self.close}")
        if self.high > LARGEST_NUMBER:
            raise BarError("high", self.high, f"at most {LARGEST_NUMBER}")

    def _check_amounts(self) -> None:
        amounts = {
            "volume": (self.volume, LARGEST_NUMBER),
            "quote_volume": (self.quote_volume, LARGEST_NUMBER),
            "trades": (self.trades, LARGEST_NUMBER),
            "taker_buy_volume": (self.taker_buy_volume, self.volume),
        }
        for field, (value, most) in amounts.items():
            if value is not None and not 0 <= value <= most:
                raise BarError(field, value, f"0 to {most}")
