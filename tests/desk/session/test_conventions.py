"""Files as vendors write them are read as they come, and ambiguous ones are rejected."""

import asyncio
import gzip
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pandas
import polars
import pytest

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import BarFormatError, FeedUnavailableError
from agentic_trading.desk.market.feed import UnreadColumns
from agentic_trading.desk.session.columns import named_columns
from agentic_trading.desk.session.feeds import open_feeds, sources
from agentic_trading.platform.errors import OptionError


@dataclass(frozen=True)
class Contents:
    """The result of reading a file: the length of its bars, the bars, and the columns that are not read."""

    timeframe: str
    bars: tuple[Bar, ...]
    unread: tuple[str, ...]

    @property
    def opens(self) -> list[str]:
        """The open times, in UTC, without seconds."""
        return [f"{bar.open_time:%Y-%m-%d %H:%M}" for bar in self.bars]


async def contents(path: Path, *, symbol: str = "AAPL", columns: str = "", timeframe: str = "") -> Contents:
    """Read a file like a run does."""
    named = await asyncio.to_thread(sources, [f"{symbol}={path}"])
    (feed,) = await open_feeds(named, timeframe, columns=named_columns(columns))
    items = [item async for item in feed]
    unread = tuple(name for item in items if isinstance(item, UnreadColumns) for name in item.columns)
    return Contents(feed.timeframe, tuple(item for item in items if isinstance(item, Bar)), unread)


def written(folder: Path, text: str, name: str = "bars.csv") -> Path:
    """Write a file of these lines, which may be indented."""
    path = folder / name
    path.write_text("\n".join(line.strip() for line in text.strip().splitlines()) + "\n", encoding="utf-8")
    return path


FIVE = ["2026-01-05 14:30", "2026-01-05 14:35"]
DAYS = ["2026-01-05 00:00", "2026-01-06 00:00"]

CONVENTIONS = {
    "Yahoo daily": (
        """Date,Open,High,Low,Close,Adj Close,Volume
        2026-01-05,10,12,9,11,5.5,300
        2026-01-06,11,13,10,12,6,200""",
        ("1d", DAYS, ("Adj Close",)),
    ),
    "yfinance 5 m": (
        """Datetime,Open,High,Low,Close,Adj Close,Volume,Dividends
        2026-01-05 09:30:00-05:00,10,12,9,11,11,300,0
        2026-01-05 09:35:00-05:00,11,13,10,12,12,200,0""",
        ("5m", FIVE, ("Adj Close", "Dividends")),
    ),
    "Binance with header": (
        """Open time,Open,High,Low,Close,Volume,Close time,Quote asset volume,Number of trades,Taker buy base asset volume,Taker buy quote asset volume,Ignore
        1767623400000,10,12,9,11,300,1767623699999,3300,42,100,1100,0
        1767623700000,11,13,10,12,200,1767623999999,2400,42,100,1200,0""",
        ("5m", FIVE, ("Close time", "Taker buy quote asset volume", "Ignore")),
    ),
    "Binance without header": (
        """1767623400000000,10,12,9,11,300,1767623699999999,3300,42,100,1100,0
        1767623700000000,11,13,10,12,200,1767623999999999,2400,42,100,1200,0""",
        ("5m", FIVE, ("close_time", "taker_buy_quote_asset_volume", "ignore")),
    ),
    "Alpaca": (
        """symbol,timestamp,open,high,low,close,volume,trade_count,vwap
        AAPL,2026-01-05 14:30:00+00:00,10.0,12.0,9.0,11.0,300.0,42.0,10.5
        AAPL,2026-01-05 14:35:00+00:00,11.0,13.0,10.0,12.0,200.0,42.0,11.5""",
        ("5m", FIVE, ("vwap",)),
    ),
    "Alpaca daily": (
        """symbol,timestamp,open,high,low,close,volume,trade_count,vwap
        AAPL,2026-03-06 05:00:00+00:00,10,12,9,11,300,42,10.5
        AAPL,2026-03-09 04:00:00+00:00,11,13,10,12,200,42,11.5
        AAPL,2026-03-10 04:00:00+00:00,11,13,10,12,200,42,11.5""",
        ("1d", ["2026-03-06 00:00", "2026-03-09 00:00", "2026-03-10 00:00"], ("vwap",)),
    ),
    "ccxt": (
        """timestamp,open,high,low,close,volume
        1767623400000,10.0,12.0,9.0,11.0,300.0
        1767623700000,11.0,13.0,10.0,12.0,200.0""",
        ("5m", FIVE, ()),
    ),
    "Stooq daily": (
        """Date,Open,High,Low,Close,Volume
        2026-01-05,10,12,9,11,300
        2026-01-06,11,13,10,12,200""",
        ("1d", DAYS, ()),
    ),
    "Stooq ASCII": (
        """<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>
        AAPL,5,20260105,143000,10,12,9,11,300,0
        AAPL,5,20260105,143500,11,13,10,12,200,0""",
        ("5m", FIVE, ("<PER>", "<OPENINT>")),
    ),
    "pandas to_csv": (
        """,Open,High,Low,Close,Volume
        2026-01-05 14:30:00,10.0,12.0,9.0,11.0,300
        2026-01-05 14:35:00,11.0,13.0,10.0,12.0,200""",
        ("5m", FIVE, ()),
    ),
    "pandas to_csv with numbered rows": (
        """,date,open,high,low,close,volume
        0,2026-01-05 14:30:00,10.0,12.0,9.0,11.0,300
        1,2026-01-05 14:35:00,11.0,13.0,10.0,12.0,200""",
        ("5m", FIVE, ("(no name)",)),
    ),
    "TradingView": (
        """time,open,high,low,close,Volume,Volume MA
        1767623400,10,12,9,11,300,250
        1767623700,11,13,10,12,200,250""",
        ("5m", FIVE, ("Volume MA",)),
    ),
    "Kraken": (
        """1767623400,10,12,9,11,300,42
        1767623700,11,13,10,12,200,42""",
        ("5m", FIVE, ()),
    ),
    "one minute": (
        """date,open,high,low,close,volume
        2026-01-05 14:30,10,12,9,11,300
        2026-01-05 14:31,11,13,10,12,200""",
        ("1m", ["2026-01-05 14:30", "2026-01-05 14:31"], ()),
    ),
    "hours of a stock": (
        """date,open,high,low,close,volume
        2026-01-05 14:30,10,12,9,11,300
        2026-01-05 15:30,11,13,10,12,200""",
        ("1h", ["2026-01-05 14:30", "2026-01-05 15:30"], ()),
    ),
    "extra columns": (
        """date,open,high,low,close,volume,RSI,signal
        2026-01-05 14:30,10,12,9,11,300,55,buy
        2026-01-05 14:35,11,13,10,12,200,58,""",
        ("5m", FIVE, ("RSI", "signal")),
    ),
    "MetaTrader": (
        """<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<VOL>\t<SPREAD>
        2026.01.05\t14:30:00\t10\t12\t9\t11\t300\t1
        2026.01.05\t14:35:00\t11\t13\t10\t12\t200\t1""",
        ("5m", FIVE, ("<SPREAD>",)),
    ),
    "semicolons and digits": (
        """date;open;high;low;close;volume
        20260105143000;10;12;9;11;300
        20260105143500;11;13;10;12;200""",
        ("5m", FIVE, ()),
    ),
}


@pytest.mark.parametrize("name", CONVENTIONS)
async def test_convention_is_read(name: str, tmp_path: Path) -> None:
    text, (timeframe, opens, unread) = CONVENTIONS[name]

    found = await contents(written(tmp_path, text))

    assert (found.timeframe, found.opens, found.unread) == (timeframe, opens, unread)
    first = found.bars[0]
    assert (first.open, first.high, first.low, first.close, first.volume) == (10, 12, 9, 11, 300)
    assert first.trades in {None, 42}


REFUSED = {
    "newest first": (
        """date,open,high,low,close,volume
        2026-01-05 14:35,11,13,10,12,200
        2026-01-05 14:30,10,12,9,11,300""",
        r"whose rows are newest first\. Allowed: rows in order of time",
    ),
    "two times": (
        """unix,date,open,high,low,close,volume
        1767623400,2026-01-05 14:30,10,12,9,11,300""",
        r"one column for open_time\. Choose it with --columns open_time=NAME",
    ),
    "month or day first": (
        """date,open,high,low,close,volume
        01/05/2026 14:30,10,12,9,11,300""",
        r"'01/05/2026 14:30'; allowed: epoch seconds",
    ),
    "adjusted close only": (
        """Date,Open,High,Low,Adj Close,Volume
        2026-01-05,10,12,9,5.5,300""",
        r"column 'close': None",
    ),
    "another name": (
        """Date,Open,High,Low,Last,Volume
        2026-01-05,10,12,9,11,300""",
        r"Name another one with --columns close=NAME",
    ),
    "decimal comma": (
        """date;open;high;low;close;volume
        2026-01-05;10,5;12;9;11;300""",
        r"column 'open': '10,5'",
    ),
    "time within the date": (
        """date,time,open,high,low,close,volume
        2026-01-05 14:30,14:30,10,12,9,11,300""",
        r"column 'date': '2026-01-05 14:30 14:30'",
    ),
    "another symbol": (
        """symbol,date,open,high,low,close,volume
        MSFT,2026-01-05 14:30,10,12,9,11,300""",
        r"with rows of MSFT and no row of AAPL\. Allowed: one of its symbols, such as MSFT=",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_ambiguous_file_is_rejected(name: str, tmp_path: Path) -> None:
    text, shown = REFUSED[name]
    path = written(tmp_path, text)

    with pytest.raises((OptionError, BarFormatError), match=shown):
        await contents(path)


async def test_columns_option_names_columns(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """unix,date,symbol,open,high,low,last,Volume BTC,Volume USDT
        1767623400,2026-01-05 14:30,BTC,10,12,9,11,300,3300
        1767623700,2026-01-05 14:35,BTC,11,13,10,12,200,2400""",
    )

    found = await contents(
        path,
        symbol="BTC",
        columns="open_time=unix, close=Last, volume=Volume BTC, quote_volume=Volume USDT",
    )

    assert (found.opens, found.unread) == (FIVE, ("date",))
    assert (found.bars[0].close, found.bars[0].quote_volume) == (Decimal(11), Decimal(3300))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("close", "Allowed: FIELD=NAME"),
        ("price=Last", "with the fields open_time, open"),
        ("close=Adj Close", r"An adjusted price has later splits and dividends"),
        ("close=a,close=b", "each field and each column once"),
        ("close=a,open=A", "each field and each column once"),
    ],
)
def test_wrong_columns_option_is_rejected(text: str, shown: str) -> None:
    with pytest.raises(OptionError, match=shown):
        named_columns(text)


LONG = """date,ticker,open,high,low,close,volume
2026-01-05,AAPL,10,12,9,11,300
2026-01-05,MSFT,20,22,19,21,300
2026-01-06,AAPL,11,13,10,12,200
2026-01-06,MSFT,21,23,20,22,200"""


async def test_file_of_several_symbols_is_read_by_symbol(tmp_path: Path) -> None:
    path = written(tmp_path, LONG)

    apple, microsoft = [await contents(path, symbol=symbol) for symbol in ("AAPL", "MSFT")]

    assert (apple.timeframe, apple.opens) == ("1d", DAYS)
    assert [bar.open for bar in microsoft.bars] == [20, 21]


@pytest.mark.parametrize(
    ("times", "opens"),
    [
        # New York, in its own offset: 23 hours on 8 March.
        (["2026-03-07T00:00-05:00", "2026-03-08T00:00-05:00", "2026-03-09T00:00-04:00"], [7, 8, 9]),
        # London, in UTC: 23 hours on 29 March.
        (["2026-03-28T00:00", "2026-03-29T00:00", "2026-03-29T23:00", "2026-03-30T23:00"], [28, 29, 30, 31]),
        # Berlin, in UTC: 25 hours on 25 October.
        (["2026-10-23T22:00", "2026-10-24T22:00", "2026-10-25T23:00"], [24, 25, 26]),
        # The open of a session in New York.
        (["2026-03-06T14:30", "2026-03-09T13:30", "2026-03-10T13:30"], [6, 9, 10]),
        (["2026-01-05T00:00+09:00", "2026-01-06T00:00+09:00"], [5, 6]),
    ],
)
async def test_daily_bars_are_counted_by_date(times: list[str], opens: list[int], tmp_path: Path) -> None:
    rows = "\n".join(f"{time},10,12,9,11,300" for time in times)

    found = await contents(written(tmp_path, f"date,open,high,low,close,volume\n{rows}"))

    assert found.timeframe == "1d"
    assert [bar.open_time.day for bar in found.bars] == opens
    assert {bar.open_time.hour for bar in found.bars} == {0}


def packed(path: Path, ending: str) -> Path:
    """Pack a file, and return the packed one."""
    target = path.with_name(f"packed{ending}")
    if ending == ".gz":
        target.write_bytes(gzip.compress(path.read_bytes()))
    elif ending == ".zip":
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("__MACOSX/._bars.csv", b"x")
            archive.write(path, "bars.csv")
    else:
        polars.read_csv(path, try_parse_dates=True).write_parquet(target)
    return target


@pytest.mark.parametrize("ending", [".gz", ".zip", ".parquet"])
async def test_packed_file_equals_plain_file(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path, CONVENTIONS["one minute"][0])

    assert await contents(await asyncio.to_thread(packed, path, ending)) == await contents(path)


@pytest.mark.parametrize("ending", [".gz", ".zip", ".parquet"])
async def test_damaged_packed_file_is_rejected(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path, "date,open", f"bars{ending}")

    with pytest.raises(FeedUnavailableError, match="cannot be read"):
        await contents(path)


async def test_archive_of_several_files_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "bars.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", b"")
        archive.writestr("b.csv", b"")

    with pytest.raises(FeedUnavailableError, match=r"it has a\.csv, b\.csv, and must have exactly one file"):
        await contents(path)


async def test_data_frames_equal_their_file(tmp_path: Path) -> None:
    path = written(tmp_path, CONVENTIONS["one minute"][0])
    text = await asyncio.to_thread(path.read_text)
    of_pandas = pandas.read_csv(StringIO(text), index_col="date", parse_dates=True)
    of_polars = polars.read_csv(StringIO(text), try_parse_dates=True)

    of_pandas.to_csv(tmp_path / "pandas.csv")
    of_polars.write_csv(tmp_path / "polars.csv")
    of_polars.write_parquet(tmp_path / "polars.parquet")
    plain = await contents(path)

    assert [await contents(tmp_path / name) for name in ("pandas.csv", "polars.csv", "polars.parquet")] == [
        plain
    ] * 3


def test_times_are_those_of_the_constants() -> None:
    assert datetime.fromtimestamp(1_767_623_400, UTC).strftime("%Y-%m-%d %H:%M") == FIVE[0]
