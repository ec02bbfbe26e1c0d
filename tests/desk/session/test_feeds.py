"""From words to feeds: what a word names, and how an interrupted feed goes on."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.market.bar import EPOCH, Bar
from agentic_trading.desk.market.bar_rows import BarRows
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import BarFeed, Duplicate, FeedItem, Gap
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.feeds import ResumedFeed, kept_bars, open_feed, sources, without_symbol
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, bar_row
from agentic_trading.operate.session_folder import DataSource
from agentic_trading.platform.errors import OptionError
from tests.desk.market.bars import bar, rows, series

BTC = DataSource(name="bars", symbol="BTCUSDT")


async def all_of(feed: BarFeed) -> list[FeedItem]:
    return [item async for item in feed]


def feed_of(bars: Sequence[Bar]) -> BarFeed:
    return trading.bars_feed(bars, symbol="BTCUSDT", name="bars")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ethusdt-5m.2023.csv"
    path.write_bytes(rows([bar(0, symbol="ETHUSDT"), bar(1, symbol="ETHUSDT")]))
    return path


def test_sample_has_symbol_and_rows() -> None:
    (found,) = sources(["btcusdt-5m"])

    assert (found.data, found.rows) == (DataSource(name="btcusdt-5m", symbol="BTCUSDT"), 2576)
    assert sources(["BTCUSDT=btcusdt-5m"]) == [found]


def test_file_symbol_from_prefix_or_name(file: Path) -> None:
    plain, named = f"{file}", f"SOL_USDT.P={file}"

    assert [each.data.symbol for each in sources([plain, named])] == ["ETHUSDT", "SOL_USDT.P"]
    assert [each.data.name for each in sources([plain, named])] == [plain, named]
    assert sources([plain])[0].rows is None


def test_stdin_symbol_defaults_to_bitcoin() -> None:
    assert [sources([name])[0].data.symbol for name in ("-", "ETH=-")] == ["BTCUSDT", "ETH"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (
            ["nothing"],
            r"--data is nothing. Allowed: one of btcusdt-5m, ethusdt-5m, sp500-sample, a CSV file, or -",
        ),
        (["btcusdt-5m", "BTCUSDT=-"], "BTCUSDT twice. Allowed: each symbol once"),
        (["-", "ETH=-"], "standard input twice. Allowed: a symbol for each, such as AAPL=-,MSFT=-"),
        (["n" * 300], "a CSV file, or -"),
        (["ETHUSDT=btcusdt-5m"], "btcusdt-5m or BTCUSDT=btcusdt-5m: a sample keeps its symbol"),
        (["../x=-"], "letters, digits, _ and ."),
        (["a/b=-"], "letters, digits, _ and ."),
        (["=-"], "letters, digits, _ and ."),
        ([f"{'x' * 65}=-"], "at most 64"),
    ],
)
def test_invalid_feed_words_show_allowed_values(names: list[str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as refused:
        sources(names)

    assert refused.value.option == "--data"


@pytest.mark.parametrize("name", ["-5m.csv", ".csv", "my data.csv", f"{'x' * 65}.csv"])
def test_file_without_symbol_needs_prefix(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(rows([bar()]))

    with pytest.raises(OptionError, match=r"does not begin with a symbol\. Allowed: SYMBOL="):
        sources([str(path)])

    assert sources([f"BTC={path}"])[0].data.symbol == "BTC"


def test_equals_sign_may_be_in_path(tmp_path: Path) -> None:
    path = tmp_path / "year=2023" / "btc.csv"
    path.parent.mkdir()
    path.write_bytes(rows([bar()]))

    assert sources([str(path)])[0].data.symbol == "BTC"
    assert sources([f"ETH={path}"])[0].data.symbol == "ETH"
    assert without_symbol(f"ETH={path}") == str(path)


async def test_sample_and_file_sources_open(file: Path) -> None:
    shipped = await open_feed(DataSource(name="ethusdt-5m", symbol="ETHUSDT"))
    given_file = await open_feed(DataSource(name=f"ETHUSDT={file}", symbol="ETHUSDT"))

    assert len([item for item in await all_of(shipped) if isinstance(item, Bar)]) == 2576
    assert len(await all_of(given_file)) == 2


async def test_kept_bars_omit_torn_last_row(tmp_path: Path) -> None:
    path = tmp_path / "bars-BTCUSDT.csv"
    kept = [bar(0), bar(1, "0.000000000001"), bar(2, "1e17")]
    lines = [",".join(BAR_COLUMNS), *map(bar_row, kept)]
    path.write_text("".join(f"{line}\n" for line in lines) + bar_row(bar(3))[:-4])

    held = await kept_bars(path, BTC)
    none = await kept_bars(tmp_path / "none.csv", BTC)

    assert (held.count, held.last_close) == (3, bar(2).close_time)
    assert await all_of(held.feed()) == kept
    assert (none.count, none.last_close) == (0, EPOCH)


async def test_damaged_kept_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bars-BTCUSDT.csv"
    path.write_bytes(rows([bar(0), bar(1)]).replace(b",100.5", b",many", 1))

    with pytest.raises(BarFormatError, match=r"bars-BTCUSDT\.csv, line 2, column 'open'"):
        await kept_bars(path, BTC)


@given(series(most=30))
def test_kept_bar_round_trips_exactly(bars: list[Bar]) -> None:
    reading = BarRows("bars", "BTCUSDT", trading.BASE)
    reading.read(1, ",".join(BAR_COLUMNS).encode())

    read = [reading.read(line, bar_row(each).encode()) for line, each in enumerate(bars, start=2)]

    assert read == bars
    assert [str(each.volume) for each in read if each] == [str(each.volume) for each in bars]


@given(series(most=40), st.integers(0, 40))
async def test_resumed_feed_equals_full_feed(bars: list[Bar], cut: int) -> None:
    whole = await all_of(feed_of(bars))

    assert await all_of(ResumedFeed(feed_of(bars[:cut]), feed_of(bars))) == whole
    assert await all_of(ResumedFeed(feed_of(bars[:cut]), feed_of(bars[cut:]))) == whole


async def test_gap_before_resumed_bars_is_reported() -> None:
    items = await all_of(ResumedFeed(feed_of([bar(0), bar(1)]), feed_of([bar(4), bar(5)])))

    gaps = [item for item in items if isinstance(item, Gap)]
    assert [(gap.missing, gap.after, gap.before) for gap in gaps] == [
        (2, bar(1).close_time, bar(4).open_time)
    ]


async def test_resumed_feed_drops_repeated_bars() -> None:
    items = await all_of(
        ResumedFeed(feed_of([bar(0), bar(1)]), feed_of([bar(0), bar(1), bar(1), bar(2), bar(2)]))
    )

    assert [item.open_time for item in items if isinstance(item, Bar)] == [
        bar(place).open_time for place in range(3)
    ]
    assert [item.open_time for item in items if isinstance(item, Duplicate)] == [bar(2).open_time]
