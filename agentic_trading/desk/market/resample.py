"""Short bars to longer ones, given only when their window has closed."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from agentic_trading.desk.market.bar import Bar, Timeframe


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
        self._target = target
        self._expected = target.seconds // source.seconds
        self._parts: list[Bar] = []

    def push(self, bar: Bar) -> tuple[ClosedBar, ...]:
        """Return the windows that this bar shows to be closed, oldest first: none, one or two.

        The bar must be of the source timeframe and later than the one before; feeds see to it.
        """
        closed: list[ClosedBar] = []
        window = self._target.start_of(bar.open_time)
        if self._parts and self._target.start_of(self._parts[0].open_time) != window:
            closed.append(self._close())
        self._parts.append(bar)
        if bar.close_time == window + self._target.length:
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
