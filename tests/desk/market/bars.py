"""Bars for tests: only what matters is said."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache

from hypothesis import strategies as st

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.samples import load_sample

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
COLUMNS = ("symbol", "timeframe", "open_time", "open", "high", "low", "close", "volume", "trades")


def bar(
    place: int = 0,
    price: object = "100.5",
    *,
    high: object = None,
    low: object = None,
    close: object = None,
    volume: object = "2",
    symbol: str = "BTCUSDT",
    timeframe: Timeframe = Timeframe.M5,
) -> Bar:
    """Return the bar that opens `place` bars after Monday midnight, at `price` unless said otherwise."""
    prices = [Decimal(str(price if given is None else given)) for given in (price, close)]
    return Bar(
        symbol=symbol,
        timeframe=timeframe,
        open_time=MONDAY + place * timeframe.length,
        open=prices[0],
        high=max(prices) if high is None else Decimal(str(high)),
        low=min(prices) if low is None else Decimal(str(low)),
        close=prices[1],
        volume=Decimal(str(volume)),
        trades=7,
    )


@cache
def sample() -> tuple[Bar, ...]:
    """Return the shipped BTCUSDT bars; bars never change, so one reading serves all tests."""
    return load_sample("btcusdt-5m")


def rows(bars: Sequence[Bar]) -> bytes:
    """Return the bars as CSV with a header."""
    lines = [",".join(COLUMNS)]
    lines += [",".join(str(getattr(each, column)) for column in COLUMNS) for each in bars]
    return ("\n".join(lines) + "\n").encode()


@st.composite
def series(draw: st.DrawFn, *, most: int = 80, holes: bool = True) -> list[Bar]:
    """Draw consecutive five-minute bars that move by whole cents, now and then with a hole."""
    steps = st.tuples(
        st.integers(-300, 300),
        st.integers(0, 100),
        st.integers(0, 100),
        st.integers(0, 5_000),
        st.integers(1, 30) if holes else st.just(1),
    )
    cents, place, made = 50_000, draw(st.integers(0, 400)), []
    for move, above, below, volume, step in draw(st.lists(steps, min_size=1, max_size=most)):
        opened, cents = cents, max(cents + move, 1_000)
        made.append(
            bar(
                place,
                _in_units(opened),
                close=_in_units(cents),
                high=_in_units(max(opened, cents) + above),
                low=_in_units(min(opened, cents) - below),
                volume=_in_units(volume),
            )
        )
        place += step if step > 25 else 1
    return made


def wave(count: int, *, start: int = 0) -> list[Bar]:
    """Return bars whose price goes round in three unequal waves, so that every measure is defined."""
    made = []
    last = Decimal(1000)
    for place in range(start, start + count):
        close = Decimal(1000 + (place * 37) % 101 + (place * 13) % 29 - (place * 7) % 47)
        made.append(
            bar(
                place,
                last,
                close=close,
                high=max(last, close) + 1 + place % 3,
                low=min(last, close) - 1 - place % 5,
                volume=1 + place % 11,
            )
        )
        last = close
    return made


def _in_units(cents: int) -> Decimal:
    return Decimal(cents) / 100
