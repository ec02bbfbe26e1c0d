"""One closed bar of one symbol on one timeframe."""

from collections.abc import Sequence
from dataclasses import dataclass
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


DAY_SECONDS = 86_400
SATURDAY = 5


class TradingYear:
    """How many bars a year of a market has, by the bars that were seen so far: bars per session, times sessions per year.

    A session is a day in UTC. Round the clock, it has a bar at every time of the day; otherwise as many as the fullest day
    so far. A market with bars on a Saturday has 365 sessions a year. Without them it has 260 if it trades round the
    clock, else 252. While no Saturday was seen, a market that trades round the clock counts as one that never closes.
    So does every market in its first 24 hours, as its closing time is not known yet.
    """

    __slots__ = ("_a_day", "_begin", "_count", "_day", "_end", "_first", "_most", "_saturdays", "_times")

    def __init__(self, timeframe: Timeframe) -> None:
        self._a_day = DAY_SECONDS // timeframe.seconds
        self._times: set[int] = set()
        self._first = self._day = self._begin = self._end = -1
        self._count = self._most = 0
        self._saturdays = False

    def add(self, open_time: datetime) -> None:
        """Take the open time of the next bar."""
        self._end = int(open_time.timestamp())
        day, second = divmod(self._end, DAY_SECONDS)
        if day != self._day:
            if self._first < 0:
                self._first, self._begin = day, self._end
            self._day, self._count = day, 0
            self._saturdays = self._saturdays or _weekday(day) == SATURDAY
        self._times.add(second)
        self._count += 1
        self._most = max(self._most, self._count)

    @property
    def bars_per_session(self) -> int:
        """How many bars a whole session has."""
        return self._a_day if self._is_round_the_clock else self._most

    @property
    def sessions_per_year(self) -> int:
        """How many sessions a year has."""
        saw_saturday = self._day - self._first > (SATURDAY - _weekday(self._first)) % 7
        if self._saturdays or (self._is_round_the_clock and not saw_saturday):
            return 365
        return 260 if self._is_round_the_clock else 252

    @property
    def bars(self) -> int:
        """How many bars a year has."""
        return self.bars_per_session * self.sessions_per_year

    @property
    def _is_round_the_clock(self) -> bool:
        is_all_day = len(self._times) == self._a_day or self._end - self._begin < DAY_SECONDS
        return is_all_day and self._a_day > 1


def _weekday(day: int) -> int:
    """Return the weekday of a day since 1970-01-01, a Thursday; Monday is 0."""
    return (day + 3) % 7


def in_utc(moment: datetime) -> datetime:
    """Return the same moment in UTC."""
    return moment.astimezone(UTC)


class Bar(BaseModel, frozen=True):
    """What traded in one window, known only when the window has closed.

    Prices are in the quote currency and volumes in the base currency unless named otherwise; the digits
    are those of the source. What a source does not give is None. Raises `BarError` when values contradict
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
        return self.open_time + LENGTHS[self.timeframe]

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
        for field, most in (
            ("volume", LARGEST_NUMBER),
            ("quote_volume", LARGEST_NUMBER),
            ("trades", LARGEST_NUMBER),
            ("taker_buy_volume", self.volume),
        ):
            value = getattr(self, field)
            if value is not None and not 0 <= value <= most:
                raise BarError(field, value, f"0 to {most}")


@dataclass(frozen=True, slots=True)
class ClosedBar:
    """A bar and how many of the bars it is made of had traded; `expected` is how many fit in its window."""

    bar: Bar
    parts: int = 1
    expected: int = 1

    @property
    def complete(self) -> bool:
        return self.parts == self.expected


class Resampler:
    """Merge bars of `source` into bars of `target`, whose windows are aligned with UTC midnight.

    A merged bar comes out as soon as its close is known to have passed: with the bar that closes with it,
    or, when that one is missing, with the first bar after it. What is given never depends on later bars.
    A window with holes gives what traded and says so; one without any bar gives nothing.
    """

    def __init__(self, source: Timeframe, target: Timeframe) -> None:
        if target.seconds % source.seconds:
            raise ValueError(f"{target} cannot be made of {source}; allowed: a multiple of it")
        self._step = source.length
        self._target = target
        self._expected = target.seconds // source.seconds
        self._parts: list[Bar] = []
        self._ends = EPOCH

    def push(self, bar: Bar) -> tuple[ClosedBar, ...]:
        """Return the windows that this bar shows to be closed, oldest first: none, one or two.

        The bar must be of the source timeframe and later than the one before; feeds see to it.
        """
        closed: list[ClosedBar] = []
        if self._parts and bar.open_time >= self._ends:
            closed.append(self._close())
        if not self._parts:
            self._ends = self._target.start_of(bar.open_time) + self._target.length
        self._parts.append(bar)
        if bar.open_time + self._step == self._ends:
            closed.append(self._close())
        return tuple(closed)

    def _close(self) -> ClosedBar:
        parts, self._parts = self._parts, []
        merged = merge(parts, self._target)
        return ClosedBar(bar=merged, parts=len(parts), expected=self._expected)


def merge(parts: Sequence[Bar], timeframe: Timeframe) -> Bar:
    """Return one bar made of `parts`, at least one and all in the same window, oldest first.

    Sums are exact up to 28 digits; a sum of which one part is unknown is unknown.
    """
    first, last = parts[0], parts[-1]
    counts = [part.trades for part in parts if part.trades is not None]
    return Bar(
        symbol=first.symbol,
        timeframe=timeframe,
        open_time=timeframe.start_of(first.open_time),
        open=first.open,
        high=max(part.high for part in parts),
        low=min(part.low for part in parts),
        close=last.close,
        volume=sum((part.volume for part in parts), Decimal(0)),
        quote_volume=_total([part.quote_volume for part in parts]),
        trades=sum(counts) if len(counts) == len(parts) else None,
        taker_buy_volume=_total([part.taker_buy_volume for part in parts]),
    )


def _total(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None
