"""The shipped data is what the registry and DATA_LICENSES.md say it is."""

import asyncio
import csv
import gzip
import hashlib
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.calendar import OpenTimes
from agentic_trading.desk.market.errors import SampleDamagedError, UnknownSampleError
from agentic_trading.desk.market.feed import Gap
from agentic_trading.desk.market.feeds import MemoryFeed
from agentic_trading.desk.market.samples import (
    SAMPLES,
    SP500,
    PanelSample,
    Sample,
    find_sample,
    load_panel_bars,
    load_sample,
    packed_bytes,
    panel_calendar,
    read_packed,
)

ROOT = Path(__file__).parents[3]
PUBLISHED = {
    "btcusdt-5m": "bb3c063bace93900899fb94b25295d953e470162aa44ddd7ab4ff6bb2d05db4c",
    "ethusdt-5m": "e65b93e72c26bcc65a9de72b0e4005c6248b333c4648e8af4a3cf58bf7ef9474",
}
"""SHA-256 of eight columns of the source, taken when the data was first examined."""


def packed(name: str) -> bytes:
    return packed_bytes(SAMPLES[name])


@pytest.mark.parametrize("name", list(SAMPLES))
async def test_sample_matches_registry(name: str) -> None:
    sample = SAMPLES[name]
    bars = await asyncio.to_thread(load_sample, name)

    feed = MemoryFeed(bars, symbol=sample.symbol, timeframe=sample.timeframe)
    gaps = [item async for item in feed if isinstance(item, Gap)]

    assert len(bars) == sample.rows
    assert (bars[0].open_time, bars[-1].close_time) == (sample.first_open, sample.last_close)
    assert tuple((gap.after, gap.before) for gap in gaps) == sample.halts
    assert [gap.missing for gap in gaps] == [16]


@pytest.mark.parametrize("name", list(SAMPLES))
def test_sample_matches_published_hash(name: str) -> None:
    table = csv.DictReader(gzip.decompress(packed(name)).decode().splitlines())
    lines = ["date,open,high,low,close,volume,number_of_trades,taker_buy_base_asset_volume"]
    for row in table:
        date = row["open_time"].replace("T", " ").replace("Z", "+00:00")
        numbers = (row[column] for column in ("open", "high", "low", "close", "volume", "trades"))
        lines.append(",".join([date, *numbers, row["taker_buy_volume"]]))

    assert hashlib.sha256(("\n".join(lines) + "\n").encode()).hexdigest() == PUBLISHED[name]


@pytest.mark.parametrize("sample", [*SAMPLES.values(), SP500], ids=lambda sample: sample.name)
def test_sample_origin_is_documented(sample: Sample | PanelSample) -> None:
    page = (ROOT / "DATA_LICENSES.md").read_text(encoding="utf-8")

    for fact in (sample.file, sample.sha256, PUBLISHED.get(sample.name, ""), sample.licence):
        assert fact in page


def test_changed_byte_is_detected() -> None:
    raw = bytearray(packed("btcusdt-5m"))
    raw[5_000] ^= 1

    with pytest.raises(SampleDamagedError) as refused:
        read_packed(SAMPLES["btcusdt-5m"], bytes(raw))

    assert refused.value.expected == SAMPLES["btcusdt-5m"].sha256
    assert refused.value.actual == hashlib.sha256(raw).hexdigest()


def test_unknown_sample_lists_available_names() -> None:
    with pytest.raises(UnknownSampleError) as refused:
        load_sample("dogeusdt-5m")

    assert refused.value.allowed == ("btcusdt-5m", "ethusdt-5m")
    assert "btcusdt-5m, ethusdt-5m" in str(refused.value)


def test_sample_is_found_by_name() -> None:
    assert find_sample("ethusdt-5m").symbol == "ETHUSDT"


def test_panel_bars_are_daily_on_weekdays() -> None:
    bars = load_panel_bars("sp500-sample")
    calendar = panel_calendar(bars)

    assert (len(bars), sum(map(len, bars.values())), len(calendar)) == (50, 12_012, 245)
    assert {bar.timeframe for bar in bars["AAPL"]} == {Timeframe.D1}
    assert calendar[0].date() == SP500.first_day
    assert all(day.weekday() < 5 for day in calendar)


async def test_only_trading_days_can_be_missing() -> None:
    bars = await asyncio.to_thread(load_panel_bars, "sp500-sample")
    calendar = panel_calendar(bars)

    def feed(symbol: str) -> MemoryFeed:
        return MemoryFeed(bars[symbol], symbol=symbol, timeframe=Timeframe.D1, calendar=OpenTimes(calendar))

    gaps = {symbol: [item async for item in feed(symbol) if isinstance(item, Gap)] for symbol in bars}

    assert {symbol for symbol, found in gaps.items() if found} >= {"AAPL", "MSFT"}
    for symbol, found in gaps.items():
        missing = sum(gap.missing for gap in found)
        spanned = [day for day in calendar if bars[symbol][0].open_time <= day <= bars[symbol][-1].open_time]
        assert len(bars[symbol]) + missing == len(spanned)


def test_unknown_panel_lists_available_names() -> None:
    with pytest.raises(UnknownSampleError, match="sp500-sample"):
        load_panel_bars("nasdaq")
