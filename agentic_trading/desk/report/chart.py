"""Charts as shapes with their coordinates, which a template writes as SVG without script."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, floor, log10

DAY_S = 86_400
STEPS_S = (
    300,
    900,
    3_600,
    3 * 3_600,
    6 * 3_600,
    12 * 3_600,
    DAY_S,
    2 * DAY_S,
    3 * DAY_S,
    7 * DAY_S,
    14 * DAY_S,
)
"""Steps between the labels of times."""
FACTORS = (0.5, 1, 2, 5, 10)
"""Steps between the labels of values, in powers of ten. The first is the next smaller one of the second."""
MONTHS_FROM_S = 75 * DAY_S
"""Span from which labels are months."""
FLAT_SHARE = 0.01
"""The span of a chart of fractions that are all equal."""
LETTER = 6.4
"""The width of a letter of a label, for the space that labels need."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A path with its class in the style sheet, and its tooltip."""

    kind: str
    path: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class ChartLabel:
    """A text in a chart. `anchor` is the class of its alignment: start, middle or end."""

    anchor: str
    x: str
    y: str
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart. `name` describes it for screen readers."""

    name: str
    width: int
    height: int
    shapes: tuple[Shape, ...]
    labels: tuple[ChartLabel, ...]


@dataclass(frozen=True, slots=True)
class ChartSize:
    """The size of a chart. `left` is the space for the labels of values, and `strip` that for rows of marks."""

    width: int
    height: int
    left: int = 62
    strip: int = 0


RIGHT, TOP, BOTTOM, ROW = 8, 8, 22, 14


class TimePlot:
    """Draws a chart with time from left to right.

    Args:
        times: The times of all points, in order, at least one.
        low: The lowest value.
        high: The highest value.
        size: The size.
        is_share: Whether values are fractions, which labels show as percentages.

    """

    def __init__(
        self, times: Sequence[datetime], low: float, high: float, size: ChartSize, *, is_share: bool = False
    ) -> None:
        room = (high - low) * 0.06 or (FLAT_SHARE if is_share else abs(high) * 0.01) or 1.0
        self._begin, self._end = times[0], times[-1]
        # Marks reach beyond their value, and would be cut off without room.
        self._low, self._high = low - room, high if is_share else high + room
        self._size = size
        self._shapes: list[Shape] = []
        self._labels: list[ChartLabel] = []
        self._draw_values(is_share=is_share)
        self._draw_times()

    @property
    def bottom(self) -> float:
        """The lower edge of the area of values."""
        return self._size.height - BOTTOM - self._size.strip

    def x(self, at: datetime) -> float:
        """Return the place of a time."""
        span = (self._end - self._begin) / timedelta(seconds=1) or 1.0
        width = self._size.width - self._size.left - RIGHT
        return self._size.left + (at - self._begin) / timedelta(seconds=1) / span * width

    def y(self, value: float) -> float:
        """Return the place of a value."""
        return TOP + (self._high - value) / (self._high - self._low) * (self.bottom - TOP)

    def line(self, kind: str, points: Iterable[tuple[datetime, float]], title: str = "") -> None:
        """Draw a line through points."""
        steps = [f"{x:.1f} {y:.1f}" for x, y in self._thinned(points)]
        self._shapes.append(Shape(kind, f"M{'L'.join(steps)}", title))

    def area(self, kind: str, points: Iterable[tuple[datetime, float]]) -> None:
        """Fill the area between points and the value 0."""
        places, zero = list(self._thinned(points)), self.y(0)
        steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        path = f"M{places[0][0]:.1f} {zero:.1f}L{steps}L{places[-1][0]:.1f} {zero:.1f}Z"
        self._shapes.append(Shape(kind, path))

    def band(self, kind: str, begin: datetime, end: datetime, title: str = "") -> None:
        """Shade a time span."""
        self._box(kind, self.x(begin), TOP, max(0.6, self.x(end) - self.x(begin)), self.bottom - TOP, title)

    def arrow(self, kind: str, at: datetime, value: float, title: str, *, is_up: bool) -> None:
        """Draw a triangle whose tip is at a point."""
        side = "l-4.5 8h9z" if is_up else "l-4.5-8h9z"
        self._shapes.append(Shape(kind, f"M{self.x(at):.1f} {self.y(value):.1f}{side}", title))

    def row(self, number: int, name: str) -> float:
        """Name a row of marks below the values, and return its upper edge."""
        top = self.bottom + 6 + number * ROW
        self._labels.append(ChartLabel("end", f"{self._size.left - 6}", f"{top + 9:.1f}", name))
        return top

    def tick(self, kind: str, at: datetime, top: float, title: str) -> None:
        """Draw a mark in a row."""
        self._box(kind, self.x(at) - 1.5, top, 3, ROW - 4, title)

    def chart(self, name: str) -> Chart:
        """Return the chart."""
        return Chart(name, self._size.width, self._size.height, tuple(self._shapes), tuple(self._labels))

    def _box(self, kind: str, x: float, y: float, width: float, height: float, title: str) -> None:
        path = f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"
        self._shapes.append(Shape(kind, path, title))

    def _draw_values(self, *, is_share: bool) -> None:
        ticks = round_values(self._low, self._high, max(2, int((self.bottom - TOP) / 32)))
        step = (ticks[1] - ticks[0]) * (100 if is_share else 1)
        # A little more, because a rounding error would otherwise add a digit.
        digits = max(0, -floor(log10(step) + 0.001))
        for value in ticks:
            text = f"{value:.{digits}%}" if is_share else f"{value:,.{digits}f}"
            y = self.y(value)
            width = self._size.width - self._size.left - RIGHT
            self._shapes.append(Shape("grid", f"M{self._size.left} {y:.1f}h{width}"))
            self._labels.append(ChartLabel("end", f"{self._size.left - 6}", f"{y + 4:.1f}", text))

    def _draw_times(self) -> None:
        form, times = round_times(self._begin, self._end, (self._size.width - self._size.left) / (LETTER * 8))
        for at in times:
            x, text = self.x(at), f"{at:{form}}"
            half = len(text) * LETTER / 2
            if x - half >= self._size.left - 20 and x + half <= self._size.width:
                self._labels.append(ChartLabel("middle", f"{x:.1f}", f"{self._size.height - 5}", text))

    def _thinned(self, points: Iterable[tuple[datetime, float]]) -> Iterator[tuple[float, float]]:
        """Yield the places of points: of each column of pixels the lowest and the highest, in their order."""
        # A pixel shows no more than its extremes, so that the page of a year is not larger than that of a week.
        column = -1
        kept: list[tuple[float, float]] = []
        for at, value in points:
            x, y = self.x(at), self.y(value)
            if int(x) != column:
                yield from kept
                column, kept = int(x), [(x, y)]
            elif y < min(each[1] for each in kept):
                kept = [max(kept, key=lambda each: each[1]), (x, y)]
            elif y > max(each[1] for each in kept):
                kept = [min(kept, key=lambda each: each[1]), (x, y)]
        yield from kept


def round_values(low: float, high: float, most: int) -> list[float]:
    """Return round values between two numbers: multiples of 1, 2 or 5 times a power of ten.

    There are about `most`, and at least two, so that a reader sees the scale. `most` is at least 2.
    """
    raw = (high - low) / most
    power = 10.0 ** floor(log10(raw))
    # A little less is enough, because a rounding error would otherwise choose the next step.
    fit = next(n for n, factor in enumerate(FACTORS) if n and power * factor >= raw * 0.999)
    found = _multiples(power * FACTORS[fit], low, high)
    return found if len(found) > 1 else _multiples(power * FACTORS[fit - 1], low, high)


def _multiples(step: float, low: float, high: float) -> list[float]:
    return [number * step for number in range(ceil(low / step), floor(high / step) + 1)]


def round_times(begin: datetime, end: datetime, most: float) -> tuple[str, list[datetime]]:
    """Return up to about `most` round times in a span, and the format of their labels.

    Long spans have the first days of months, other spans days, hours or minutes.
    """
    span_s = (end - begin).total_seconds()
    if span_s > MONTHS_FROM_S:
        is_of_years = span_s > 370 * DAY_S
        form, fit = ("%b %Y", most) if is_of_years else ("%b", 2 * most)
        step = ceil(span_s / (30.4 * DAY_S) / fit)
        first = datetime(begin.year, begin.month, 1, tzinfo=begin.tzinfo)
        count = (end.year - begin.year) * 12 + end.month - begin.month
        return form, [_months_after(first, months) for months in range(0, count + 1, step) if months]
    form = "%d %b" if span_s > 2 * DAY_S else "%d %b %H:%M"
    most = most if span_s > 2 * DAY_S else most / 2
    step = next(step for step in STEPS_S if span_s / step <= most or step == STEPS_S[-1])
    step = max(step, DAY_S) if span_s > 2 * DAY_S else step
    first = datetime.fromtimestamp(ceil(begin.timestamp() / step) * step, begin.tzinfo)
    return form, [
        first + timedelta(seconds=step * n) for n in range(int((end - first).total_seconds() // step) + 1)
    ]


def _months_after(first: datetime, months: int) -> datetime:
    years, month = divmod(first.month - 1 + months, 12)
    return first.replace(year=first.year + years, month=month + 1)


def bar_shape(value: float, most: float) -> str:
    """Return the path of a horizontal bar in a box of 100 by 10."""
    return f"M0 1h{max(0.5, 100 * value / most) if most > 0 else 0:.1f}v8H0z"
