"""Daily frames whose index is midnight at an exchange trade as their dates, also where clocks change."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas
import polars
import pytest

from agentic_trading.desk import Agent, Bar, Desk, run_backtest

FIRST = date(2026, 2, 20)
DAYS = 60
"""Clocks change within these days: on 8 March in New York, on 5 April in Sydney."""
PRICES = [100.01 + day % 7 for day in range(DAYS)]
MIDNIGHT = datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC)


class Days(Agent):
    """Buys on one date, which is a Monday."""

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        if bar.open_time == MIDNIGHT + timedelta(days=24):
            desk.buy(quantity=1, stop=bar.close - 20)


def of_pandas(zone: str) -> object:
    index = pandas.date_range(str(FIRST), periods=DAYS, freq="D", tz=zone, name="time")
    columns = dict.fromkeys(("open", "high", "low", "close"), PRICES)
    return pandas.DataFrame({**columns, "volume": 1}, index=index)


def of_polars(zone: str) -> object:
    days = polars.date_range(FIRST, FIRST + timedelta(days=DAYS - 1), eager=True)
    columns = dict.fromkeys(("open", "high", "low", "close"), PRICES)
    times = days.cast(polars.Datetime("us")).dt.replace_time_zone(zone)
    return polars.DataFrame({"time": times, **columns, "volume": 1})


@pytest.mark.parametrize(
    "zone", ["America/New_York", "Europe/London", "Asia/Tokyo", "Australia/Sydney", "UTC"]
)
@pytest.mark.parametrize("frame", [of_pandas, of_polars])
def test_frame_at_midnight_of_an_exchange_has_its_dates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: Callable[[str], object], zone: str
) -> None:
    monkeypatch.chdir(tmp_path)

    report = run_backtest(Days, {"SPY": frame(zone)}, out="run")
    dates = [line[:10] for line in Path("run/bars-SPY.csv").read_text("utf-8").splitlines()[1:]]

    assert dates == [str(FIRST + timedelta(days=day)) for day in range(DAYS)]
    assert report.data[0].bars == DAYS
    assert report.fills > 0
