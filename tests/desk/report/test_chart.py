"""Charts keep extremes, and their labels are round and inside."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.report.chart import Chart, ChartSize, TimePlot, bar_shape, round_times, round_values

BEGIN = datetime(2023, 3, 20, tzinfo=UTC)
SIZE = ChartSize(320, 200)


def drawn(values: list[float], **size: int) -> tuple[TimePlot, Chart]:
    """Return a line of values, one each five minutes."""
    times = [BEGIN + timedelta(minutes=5 * n) for n in range(len(values))]
    plot = TimePlot(times, min(values), max(values), ChartSize(320, 200, **size))
    plot.line("session", zip(times, values, strict=True))
    return plot, plot.chart("Equity")


def places(chart: Chart, kind: str = "session") -> list[tuple[float, float]]:
    """Return the points of a path."""
    [path] = [shape.path for shape in chart.shapes if shape.kind == kind]
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000))
def test_line_keeps_lowest_and_highest_value(values: list[float]) -> None:
    plot, chart = drawn(values)

    points = places(chart)

    heights = [y for _, y in points]
    assert max(heights) == pytest.approx(plot.y(min(values)), abs=0.06)
    assert min(heights) == pytest.approx(plot.y(max(values)), abs=0.06)
    assert len(points) <= 2 * (SIZE.width + 1)
    assert all(before[0] <= after[0] for before, after in pairwise(points))


@given(st.floats(-1e7, 1e7), st.floats(1e-6, 1e7), st.integers(2, 8))
def test_round_values_are_within_bounds(low: float, span: float, most: int) -> None:
    values = list(round_values(low, low + span, most))

    step = span / most
    assert all(low - step * 1e-6 <= value <= low + span + step * 1e-6 for value in values)
    assert 2 <= len(values) <= max(most, 4) + 1


@pytest.mark.parametrize(
    ("span", "form", "first"),
    [
        (timedelta(minutes=50), "%d %b %H:%M", "20 Mar 00:00"),
        (timedelta(hours=30), "%d %b %H:%M", "20 Mar 00:00"),
        (timedelta(days=9), "%d %b", "20 Mar"),
        (timedelta(days=200), "%b", "Apr"),
        (timedelta(days=2000), "%b %Y", "Oct 2023"),
    ],
)
def test_times_fit_their_span(span: timedelta, form: str, first: str) -> None:
    found, times = round_times(BEGIN, BEGIN + span, 10)

    assert (found, f"{times[0]:{form}}") == (form, first)
    assert 2 <= len(times) <= 14
    assert all(BEGIN <= at <= BEGIN + span for at in times)


def test_single_point_has_a_chart() -> None:
    _, chart = drawn([5.0])

    assert len(places(chart)) == 1
    assert [label.text for label in chart.labels if label.anchor == "end"]


def test_labels_stay_inside_the_chart() -> None:
    _, chart = drawn([100_000.0 + n for n in range(2_000)])

    for label in chart.labels:
        half = len(label.text) * 6.4 / 2
        assert float(label.x) - (half if label.anchor == "middle" else 0) >= 0
        assert float(label.x) + (half if label.anchor == "middle" else 0) <= SIZE.width
        assert 0 < float(label.y) < SIZE.height


def test_marks_have_tooltips_and_places() -> None:
    plot, _ = drawn([1.0, 2.0, 3.0], strip=40)
    at = BEGIN + timedelta(minutes=5)

    plot.arrow("buy", at, 2.0, "bought", is_up=True)
    plot.arrow("sell", at, 2.0, "sold", is_up=False)
    plot.tick("tick-long", at, plot.row(0, "long"), "long")
    plot.band("held-long", BEGIN, at, "a position")
    chart = plot.chart("Price")

    assert [shape.title for shape in chart.shapes if shape.title] == ["bought", "sold", "long", "a position"]
    assert chart.labels[-1].text == "long"


def test_share_axis_has_percent_labels() -> None:
    times = [BEGIN, BEGIN + timedelta(days=1)]

    deep = TimePlot(times, -0.3, 0.0, SIZE, is_share=True).chart("Drawdown")
    flat = TimePlot(times, 0.0, 0.0, SIZE, is_share=True).chart("Drawdown")

    assert {label.text for label in deep.labels} >= {"0%", "-20%"}
    assert "0.0%" not in {label.text for label in deep.labels}
    percentages = [label.text for label in flat.labels if "%" in label.text]
    assert (percentages[0], percentages[-1]) == ("-1.0%", "0.0%")


@pytest.mark.parametrize(
    ("fall", "labels"),
    [
        (-0.0002, ["-0.02%", "0.00%"]),
        (-0.0005, ["-0.05%", "0.00%"]),
        (-0.012, ["-1%", "0%"]),
        (-0.03, ["-2%", "0%"]),
    ],
)
def test_percent_labels_have_digits_of_their_step(fall: float, labels: list[str]) -> None:
    chart = TimePlot([BEGIN, BEGIN + timedelta(days=1)], fall, 0.0, ChartSize(320, 110), is_share=True)

    assert [label.text for label in chart.chart("Drawdown").labels if "%" in label.text] == labels


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [(31.0, 47.0, ["35", "40", "45"]), (18.3, 24.0, ["18", "20", "22", "24"]), (0.9, 1.3, ["1.0", "1.2"])],
)
def test_small_charts_have_two_labels_or_more(low: float, high: float, labels: list[str]) -> None:
    chart = TimePlot([BEGIN, BEGIN + timedelta(minutes=1)], low, high, ChartSize(290, 130, left=46))

    assert [label.text for label in chart.chart("Price").labels if label.anchor == "end"] == labels


def test_bar_is_share_of_longest() -> None:
    assert bar_shape(1, 4) == "M0 1h25.0v8H0z"
    assert bar_shape(0, 0) == "M0 1h0.0v8H0z"
    assert bar_shape(1, 10_000) == "M0 1h0.5v8H0z"
