"""Panels hold what their files say, gaps are never prices, and rebalances are known on their day."""

import re
from datetime import date

import numpy as np
import pytest

from agentic_trading.desk.market.errors import EmptyUniverseError, PanelValueError, SampleDamagedError
from agentic_trading.desk.market.samples import SP500, packed_bytes, unpacked
from agentic_trading.desk.planning.panel import (
    FILLED_BARS,
    Panel,
    fill_gaps,
    load_panel,
    read_panel,
    rebalance_mask,
)

HEAD = "date,symbol,open,high,low,close,volume"
ROWS = ("2020-01-06,A,10,11,9,10.5,100", "2020-01-06,B,20,21,19,20,5", "2020-01-07,A,10,11,9,10,0")
NONE = float("nan")


def test_panel_sample_matches_registry() -> None:
    panel = load_panel()

    assert panel.close.shape == (SP500.days, SP500.symbols)
    assert np.count_nonzero(~np.isnan(panel.close)) == SP500.rows
    assert (panel.days[0], panel.days[-1]) == (SP500.first_day, SP500.last_day)
    assert panel.days[39] == SP500.chosen_on
    assert not np.isnan(panel.close[:40]).any()
    assert (panel.low <= np.minimum(panel.open, panel.close))[~np.isnan(panel.low)].all()
    assert (panel.high >= np.maximum(panel.open, panel.close))[~np.isnan(panel.high)].all()


def test_sample_has_known_gaps() -> None:
    panel = load_panel()
    lacking = dict(zip(panel.symbols, np.isnan(panel.close).sum(axis=0).tolist(), strict=True))
    vanished = np.isnan(panel.filled).sum(axis=0)

    assert lacking.pop("SGP") == 198
    assert sum(2 <= missing <= 6 for missing in lacking.values()) == 12
    assert vanished.sum() == vanished[panel.symbols.index("SGP")] == 193
    assert panel.days[~np.isnan(panel.close[:, panel.symbols.index("SGP")])][-1] == date(2009, 10, 28)


def test_changed_sample_byte_is_detected() -> None:
    raw = bytearray(packed_bytes(SP500))
    raw[5_000] ^= 1

    with pytest.raises(SampleDamagedError, match="sp500-sample"):
        unpacked(SP500, bytes(raw))


def test_missing_row_is_gap() -> None:
    panel = read_panel("made", [HEAD, *ROWS])

    assert panel.symbols == ("A", "B")
    assert panel.close.tolist()[0] == [10.5, 20.0]
    assert np.isnan(panel.close[1, 1])
    assert panel.volume.tolist() == [[100.0, 5.0], [0.0, 0.0]]
    assert panel.filled.tolist() == [[10.5, 20.0], [10.0, 20.0]]
    with pytest.raises(ValueError, match="read-only"):
        panel.filled[0, 0] = 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2020-01-07,B,nan,21,19,20,5", "made, B on 2020-01-07: open is nan; allowed: a number above 0"),
        ("2020-01-07,B,20,21,19,0,5", "made, B on 2020-01-07: close is 0; allowed: a number above 0"),
        ("2020-01-07,B,20,-21,19,20,5", "made, B on 2020-01-07: high is -21; allowed: a number above 0"),
        ("2020-01-07,B,20,21,inf,20,5", "made, B on 2020-01-07: low is inf; allowed: a number above 0"),
        ("2020-01-07,B,20,21,,20,5", "made, B on 2020-01-07: low is ; allowed: a number above 0"),
        ("2020-01-07,B,20,21,19,20,-5", "made, B on 2020-01-07: volume is -5; allowed: a number, 0 or more"),
        ("2020-01-07,B,20,21,19,20", "made, B on 2020-01-07: volume is None; allowed: a number, 0 or more"),
        ("7.1.2020,B,20,21,19,20,5", "made, B on 7.1.2020: date is 7.1.2020; allowed: YYYY-MM-DD"),
        (
            "2020-01-06,B,20,21,19,20,5",
            "made, B on 2020-01-06: date is there twice; allowed: one row a stock and day",
        ),
    ],
)
def test_invalid_value_error_has_symbol_date(row: str, said: str) -> None:
    with pytest.raises(PanelValueError, match=f"^{re.escape(said)}$"):
        read_panel("made", [HEAD, *ROWS, row])


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), NONE])
def test_invalid_arrays_are_rejected_like_rows(wrong: float) -> None:
    close = np.full((3, 2), 10.0)
    opens = close.copy()
    opens[1, 1] = wrong

    with pytest.raises(PanelValueError, match="made, B on 2020-01-07: open is"):
        Panel.of("made", days("2020-01-06", 3), ("A", "B"), {"close": close, "open": opens})


@pytest.mark.parametrize("close", [[[10.0]], [[NONE, NONE]], [[10.0, NONE]]])
def test_universe_needs_two_stocks(close: list[list[float]]) -> None:
    with pytest.raises(EmptyUniverseError, match="allowed: 2 and more"):
        Panel.of("made", days("2020-01-06", 1), ("A", "B")[: len(close[0])], {"close": np.array(close)})


def test_file_without_rows_is_rejected() -> None:
    with pytest.raises(EmptyUniverseError):
        read_panel("made", [HEAD])


def test_gap_fill_is_limited() -> None:
    close = np.array([[NONE, 1.0, *[NONE] * 7, 2.0, NONE]]).T

    filled = fill_gaps(close, FILLED_BARS)[:, 0]

    assert np.isnan(filled).nonzero()[0].tolist() == [0, 7, 8]
    assert filled[[1, 6, 9, 10]].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_gap_fill_ignores_later_bars() -> None:
    close = np.where(np.random.default_rng(1).random((60, 8)) < 0.4, 1.0, NONE)

    whole = fill_gaps(close, FILLED_BARS)

    for cut in range(1, 60):
        assert np.array_equal(fill_gaps(close[:cut], FILLED_BARS), whole[:cut], equal_nan=True)


def test_weekly_rebalance_follows_offset_and_gaps() -> None:
    monday = days("2020-01-06", 10)  # two weeks
    friday_is_missing = np.delete(monday, 4)
    monday_is_missing = np.delete(monday, 5)

    assert rebalance_mask(monday, "W").nonzero()[0].tolist() == [0, 5]
    assert rebalance_mask(monday, "W", 3).nonzero()[0].tolist() == [3, 8]
    assert rebalance_mask(friday_is_missing, "W", 4).nonzero()[0].tolist() == [8]
    assert rebalance_mask(monday_is_missing, "W").nonzero()[0].tolist() == [0, 5]


def test_rebalance_weeks_span_year_end() -> None:
    turn = days("2019-12-30", 5)

    assert rebalance_mask(turn, "W").nonzero()[0].tolist() == [0]
    assert rebalance_mask(turn, "M").nonzero()[0].tolist() == [0, 2]
    assert rebalance_mask(turn, "D").all()


@pytest.mark.parametrize("offset", range(5))
def test_weekly_rebalance_matches_calendar(offset: int) -> None:
    panel = load_panel()
    plain, seen = [], set()
    for day in panel.days.tolist():
        week = day.isocalendar()[:2]
        plain.append(day.weekday() >= offset and week not in seen)
        seen |= {week} if plain[-1] else set()

    assert rebalance_mask(panel.days, "W", offset).tolist() == plain


def test_rebalance_is_known_same_day() -> None:
    panel = load_panel()

    for resample in ("D", "W", "M"):
        whole = rebalance_mask(panel.days, resample, 2)
        assert all(
            rebalance_mask(panel.days[:cut], resample, 2)[-1] == whole[cut - 1] for cut in range(1, 245)
        )


def days(first: str, count: int) -> np.ndarray:
    return np.busday_offset(np.datetime64(first), np.arange(count))
