"""The charts of a run: equity next to its baselines, drawdown, and decisions over the price."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from agentic_trading.desk.inference import InferenceRate
from agentic_trading.desk.instrument import Side
from agentic_trading.desk.report.chart import ROW, Chart, ChartSize, TimePlot
from agentic_trading.desk.report.figures import drawdowns, net_equity
from agentic_trading.desk.report.record import NO_DECISION, DecisionOnRecord, RunOnRecord
from agentic_trading.desk.session.round_trips import FillOnRecord, RoundTrip

WIDE, NARROW, SMALL = 900, 320, 290
"""The widths of charts: on a screen, on a phone, and next to others."""
MOST_LARGE: Final = 2
"""Symbols with a large chart each. More symbols have small charts next to each other."""

ROWS: Final = {"long": "long", "short": "short", "stand_aside": "aside", NO_DECISION: "none"}
"""The rows of decisions, by verdict, with their names."""


@dataclass(frozen=True, slots=True)
class PriceChart:
    """The price of one symbol, in sizes for wide and narrow screens. Small charts have one size."""

    symbol: str
    wide: Chart
    narrow: Chart | None
    note: str


def equity_charts(
    run: RunOnRecord, rate: InferenceRate | None
) -> tuple[tuple[Chart, ...], tuple[Chart, ...]]:
    """Return the charts of equity and of drawdown, each for wide and for narrow screens.

    The equity net of inference is a line of its own, if there is a `rate`.
    """
    points = run.points
    net = [] if rate is None else net_equity(run, rate)
    times = [point.at for point in points]
    lines = {
        "market": [] if run.is_portfolio else [float(point.market_now) for point in points],
        "held": [float(point.held) for point in points],
        "net": [float(each) for each in net],
        "session": [float(point.equity) for point in points],
    }
    values = [value for line in lines.values() for value in line]
    falls = drawdowns([run.report.equity_start, *(point.equity for point in points)])[1:]
    ends = points[-1]
    equity_name = (
        f"Equity in {run.currency}: ends at {ends.equity:,.2f}. Buy and hold ends at {ends.held:,.2f}."
        + ("" if run.is_portfolio else f" The same intents as market orders end at {ends.market_now:,.2f}.")
        + (f" Net of inference, it ends at {net[-1]:,.2f}." if net else "")
    )
    # Two sizes, because the labels of a wide chart would be too small on a phone.
    equity, drawdown = [], []
    for width, height in ((WIDE, 240), (NARROW, 200)):
        plot = TimePlot(times, min(values), max(values), ChartSize(width, height))
        for kind, line in lines.items():
            if line:
                plot.line(kind, zip(times, line, strict=True))
        equity.append(plot.chart(equity_name))
        below = TimePlot(times, min(falls), 0.0, ChartSize(width, 110), is_share=True)
        below.area("fall", zip(times, falls, strict=True))
        drawdown.append(below.chart(f"Drawdown: the largest is {min(falls):.2%}."))
    return tuple(equity), tuple(drawdown)


def price_charts(run: RunOnRecord, trips: Sequence[RoundTrip]) -> Iterator[PriceChart]:
    """Yield the chart of each symbol with a bar: price, positions, fills and decisions."""
    symbols = [source.symbol for source in run.manifest.data]
    is_large = len(symbols) <= MOST_LARGE
    for symbol in symbols:
        closes = [(point.at, float(point.closes[symbol])) for point in run.points if symbol in point.closes]
        if not closes:
            continue
        decisions = [each for each in run.decisions if each.symbol == symbol]
        fills = [each for each in run.fills if each.fill.symbol == symbol]
        rows = [each for each in decisions if each.workflow == "analysis" or each.verdict == NO_DECISION]
        drawn = _Drawn(
            symbol, run.currency, closes, [trip for trip in trips if trip.symbol == symbol], fills, rows
        )
        strip = ROW * len(ROWS) + 8 if rows and is_large else 0
        sizes = [ChartSize(WIDE, 260 + strip, strip=strip), ChartSize(NARROW, 200 + strip, strip=strip)]
        if not is_large:
            sizes = [ChartSize(SMALL, 130, left=46)]
        wide, *narrow = [drawn.chart(size) for size in sizes]
        note = f"{len(fills):,} fills" if len(fills) != 1 else "1 fill"
        yield PriceChart(symbol, wide, narrow[0] if narrow else None, note)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The content of a price chart."""

    symbol: str
    currency: str
    closes: Sequence[tuple[datetime, float]]
    trips: Sequence[RoundTrip]
    fills: Sequence[FillOnRecord]
    rows: Sequence[DecisionOnRecord]

    def chart(self, size: ChartSize) -> Chart:
        """Draw the chart in a size."""
        prices = [*(price for _, price in self.closes), *(float(each.fill.price) for each in self.fills)]
        plot = TimePlot([at for at, _ in self.closes], min(prices), max(prices), size)
        for trip in self.trips:
            side = "long" if trip.is_long else "short"
            title = f"{side} position, P&L {trip.pnl:+,.2f} {self.currency}"
            plot.band(f"held-{side}", trip.opened, trip.closed or self.closes[-1][0], title)
        plot.line("price", self.closes)
        for each in self.fills:
            fill = each.fill
            title = f"{fill.time:%d %b %H:%M} {fill.side} {fill.quantity} at {fill.price} {self.currency}, fee {fill.fee:.2f} {fill.fee_currency}, {fill.cause}"
            kind = "buy" if fill.side is Side.BUY else "sell"
            plot.arrow(kind, fill.time, float(fill.price), title, is_up=fill.side is Side.BUY)
        if size.strip:
            self._draw_rows(plot)
        return plot.chart(
            f"Price of {self.symbol} in {self.currency}, with {len(self.fills)} fills and {len(self.rows)} decisions."
        )

    def _draw_rows(self, plot: TimePlot) -> None:
        tops = {verdict: plot.row(number, name) for number, (verdict, name) in enumerate(ROWS.items())}
        for each in self.rows:
            verdict = each.verdict if each.verdict in tops else "stand_aside"
            if each.as_of is not None:
                title = f"{each.as_of:%d %b %H:%M} {each.workflow}: {each.verdict} {each.reason}".strip()
                plot.tick(f"tick-{ROWS[verdict]}", each.as_of, tops[verdict], title)
