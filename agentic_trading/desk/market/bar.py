"""Bars, timeframes, and the resampling of bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, model_validator

from agentic_trading.desk.market.errors import BarError

# Within these bounds, which every market keeps, a price as a float is finite and not zero, so that its
# logarithm and ratios are defined.
SMALLEST_PRICE = Decimal("1e-12")
LARGEST_NUMBER = Decimal("1e18")


class Timeframe(StrEnum):
    """The length of a bar. Windows start at multiples of it since 1970-01-01T00:00Z."""

    S1 = "1s"
    S5 = "5s"
    S15 = "15s"
    S30 = "30s"
    M1 = "1m"
    M3 = "3m"
    M5 = "5m"
    M15 = "15m"
    M30 = "30m"
    H1 = "1h"
    H2 = "2h"
    H4 = "4h"
    H8 = "8h"
    H12 = "12h"
    D1 = "1d"

    @property
    def seconds(self) -> int:
        return SECONDS[self]

    @property
    def length(self) -> timedelta:
        return LENGTHS[self]

    def start_of(self, moment: datetime) -> datetime:
        """Return the open time of the window that contains `moment`.

        A boundary belongs to the later window.
        """
        return EPOCH + (moment - EPOCH) // self.length * self.length


_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
SECONDS = {timeframe: int(timeframe[:-1]) * _UNITS[timeframe[-1]] for timeframe in Timeframe}
LADDER = (Timeframe.M5, Timeframe.M15, Timeframe.H1, Timeframe.H4, Timeframe.D1)
"""The timeframes of the shipped analyst, made of bars of five minutes."""
LENGTHS = {timeframe: timedelta(seconds=seconds) for timeframe, seconds in SECONDS.items()}
_WHOLE_GRIDS = frozenset(
    each for each in Timeframe if each.seconds <= SECONDS[Timeframe.M15] or each is Timeframe.D1
)
"""The timeframes with bars at multiples of their length. Longer ones open at a multiple of 15 minutes."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)


DAY_SECONDS = 86_400
SATURDAY = 5


class TradingYear:
    """The number of bars in a market's year, estimated from the bars so far.

    It is the number of bars per session times the number of sessions per year.

    A session is a day in UTC. In a market that trades round the clock, a session has a bar at every time of
    the day. In another market it has as many bars as the fullest day so far.

    A market with bars on a Saturday has 365 sessions a year. Without them it has 260 sessions if it trades
    round the clock, else 252. Before the first Saturday, a market that trades round the clock has 365. Every
    market counts as trading round the clock in its first 24 hours, because its closing time is not known yet.
    """

    __slots__ = ("_a_day", "_begin", "_count", "_day", "_end", "_first", "_most", "_saturdays", "_times")

    def __init__(self, timeframe: Timeframe) -> None:
        self._a_day = DAY_SECONDS // timeframe.seconds
        self._times: set[int] = set()
        self._first = self._day = self._begin = self._end = -1
        self._count = self._most = 0
        self._saturdays = False

    def add(self, open_time: datetime) -> None:
        """Add the open time of the next bar."""
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
        """The number of bars in a full session."""
        return self._a_day if self._is_round_the_clock else self._most

    @property
    def sessions_per_year(self) -> int:
        """The number of sessions in a year."""
        saw_saturday = self._day - self._first > (SATURDAY - _weekday(self._first)) % 7
        if self._saturdays or (self._is_round_the_clock and not saw_saturday):
            return 365
        return 260 if self._is_round_the_clock else 252

    @property
    def bars(self) -> int:
        """The number of bars in a year."""
        return self.bars_per_session * self.sessions_per_year

    @property
    def _is_round_the_clock(self) -> bool:
        is_all_day = len(self._times) == self._a_day or self._end - self._begin < DAY_SECONDS
        return is_all_day and self._a_day > 1


def _weekday(day: int) -> int:
    """Return the weekday of a day that is counted from 1970-01-01, a Thursday. Monday is 0."""
    return (day + 3) % 7


def in_utc(moment: datetime) -> datetime:
    """Return a time in UTC."""
    return moment.astimezone(UTC)


class Bar(BaseModel, frozen=True):
    """The trades of one symbol in one window, known only after the window has closed.

    Prices are in the quote currency, and volumes in the base currency unless their name says otherwise. All
    digits of the source are kept. A value that the source does not have is None.

    Raises:
        BarError: If the open time is not on the grid, `low` and `high` do not enclose `open` and
            `close`, a price is below 1e-12, a number is above 1e18, an amount is negative, or
            `taker_buy_volume` is above `volume`.

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
        """The end of the window: the first moment after it."""
        return self.open_time + LENGTHS[self.timeframe]

    @property
    def available_at(self) -> datetime:
        """The first time at which the bar can be known, which is its close time."""
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
        # Markets open at the half or the quarter of an hour, so that their longer bars do too.
        grid = self.timeframe if self.timeframe in _WHOLE_GRIDS else Timeframe.M15
        if grid.start_of(self.open_time) != self.open_time:
            # Without an offset here, the date of a daily bar is not known.
            is_daily = self.timeframe is Timeframe.D1
            midnight = f"{grid.start_of(self.open_time).isoformat()} for {self.open_time:%Y-%m-%d}"
            day = f"00:00 in UTC of the bar's date at its exchange, such as {midnight}"
            allowed = day if is_daily else f"a multiple of {grid}"
            raise BarError("open_time", self.open_time.isoformat(), allowed)

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
    """A closed bar that was made of `parts` shorter bars.

    `expected` is the number of bars that fit in its window.
    """

    bar: Bar
    parts: int = 1
    expected: int = 1

    @property
    def complete(self) -> bool:
        return self.parts == self.expected


class Resampler:
    """Merges bars of `source` into bars of `target`, whose windows are aligned with UTC midnight.

    A merged bar is returned as soon as its window is known to have closed: with the last bar of the window
    or, if that bar is missing, with the first bar after the window. It never depends on later bars. A window
    with missing bars is merged from the bars that it has, and its `ClosedBar` counts them. A window without
    bars is skipped.

    Raises:
        ValueError: If `target` is not a multiple of `source`, or a bar is in two windows.

    """

    def __init__(self, source: Timeframe, target: Timeframe) -> None:
        if target.seconds % source.seconds:
            raise ValueError(f"{target} cannot be made of {source}. Allowed: a multiple of it")
        self._step = source.length
        self._target = target
        self._expected = target.seconds // source.seconds
        self._parts: list[Bar] = []
        self._ends = EPOCH

    def push(self, bar: Bar) -> tuple[ClosedBar, ...]:
        """Add the next bar, and return the windows that it shows to be closed, oldest first: at most two.

        The bar must be of the source timeframe and later than the bar before. Feeds ensure both.
        """
        closed: list[ClosedBar] = []
        if self._parts and bar.open_time >= self._ends:
            closed.append(self._close())
        if not self._parts:
            self._ends = self._target.start_of(bar.open_time) + self._target.length
        closes = bar.open_time + self._step
        if closes > self._ends:
            raise ValueError(
                f"the bar from {bar.open_time.isoformat()} to {closes.isoformat()} is in two windows of {self._target}. "
                f"Allowed: bars that end at {self._ends.isoformat()} or before"
            )
        self._parts.append(bar)
        if closes == self._ends:
            closed.append(self._close())
        return tuple(closed)

    def _close(self) -> ClosedBar:
        parts, self._parts = self._parts, []
        merged = merge(parts, self._target)
        return ClosedBar(bar=merged, parts=len(parts), expected=self._expected)


def merge(parts: Sequence[Bar], timeframe: Timeframe) -> Bar:
    """Return one bar made of `parts`: at least one bar, all in the same window, oldest first.

    Sums are exact up to 28 digits. A sum is None if a part of it is unknown.
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
