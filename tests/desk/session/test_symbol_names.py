"""Symbols with characters that no option has, such as BTC/USDT, are found by their letters and digits."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feeds import SharedStream, StdinFeed
from agentic_trading.desk.session.data_check import check_files
from agentic_trading.desk.session.data_writer import convert_file
from agentic_trading.desk.session.feeds import open_feeds, sources
from agentic_trading.platform.errors import OptionError
from tests.desk.market.bars import bar, rows

UNNAMEABLE = ["BTC/USDT", "BTC-USDT", "BTC USDT", "BTC:USDT"]


def long_file(path: Path, *symbols: str) -> Path:
    path.write_bytes(rows([bar(place, symbol=symbol) for place in range(3) for symbol in symbols]))
    return path


async def bars_in(name: str) -> Sequence[Bar]:
    (feed,) = await open_feeds(await asyncio.to_thread(sources, [name]))
    return [item async for item in feed if isinstance(item, Bar)]


@pytest.mark.parametrize("symbol", [*UNNAMEABLE, "BTCUSDT"])
async def test_symbol_of_a_column_is_found_by_its_letters(tmp_path: Path, symbol: str) -> None:
    path = long_file(tmp_path / "long.csv", "ETH/USDT", symbol)

    assert await bars_in(f"BTCUSDT={path}") == [bar(place, symbol="BTCUSDT") for place in range(3)]


@pytest.mark.parametrize("symbol", ["BTC_USDT", "BRK.B"])
async def test_symbol_that_can_be_named_is_found_by_its_name_only(tmp_path: Path, symbol: str) -> None:
    path = long_file(tmp_path / "long.csv", "ETH/USDT", symbol)

    assert await bars_in(f"{symbol}={path}") == [bar(place, symbol=symbol) for place in range(3)]
    with pytest.raises(OptionError, match="no row of"):
        await bars_in(f"{symbol.replace('_', '').replace('.', '')}={path}")


async def test_names_with_a_dot_or_underscore_find_other_marks(tmp_path: Path) -> None:
    path = long_file(tmp_path / "long.csv", "ETH/USDT", "BRK-B")

    assert await bars_in(f"BRK.B={path}") == [bar(place, symbol="BRK.B") for place in range(3)]


@pytest.mark.parametrize(
    "forms", [("BTC/USDT", "BTC-USDT"), ("BTC/USDT", "BTCUSDT"), ("BTCUSDT", "BTC/USDT")]
)
async def test_two_forms_of_one_symbol_are_refused(tmp_path: Path, forms: tuple[str, str]) -> None:
    path = long_file(tmp_path / "long.csv", *forms)

    with pytest.raises(BarFormatError, match="because both are BTCUSDT") as refused:
        await bars_in(f"BTCUSDT={path}")
    assert (refused.value.line, refused.value.value) == (3, forms[1])
    assert refused.value.allowed.startswith(forms[0])


async def test_missing_symbol_names_one_that_finds_rows(tmp_path: Path) -> None:
    path = long_file(tmp_path / "prices.csv", "BTC/USDT", "ETH/USDT")

    with pytest.raises(OptionError, match=f"such as BTCUSDT={path}, which finds BTC/USDT"):
        await bars_in(str(path))


def test_option_with_a_slash_names_the_form_that_works(tmp_path: Path) -> None:
    path = long_file(tmp_path / "long.csv", "BTC/USDT")

    with pytest.raises(OptionError, match=f"BTCUSDT={path} finds the rows of BTC/USDT too"):
        sources([f"BTC/USDT={path}"])
    with pytest.raises(OptionError) as refused:
        sources(["missing.csv"])
    assert "finds the rows" not in str(refused.value)


async def test_check_and_convert_find_the_symbol(tmp_path: Path) -> None:
    name = f"BTCUSDT={long_file(tmp_path / 'long.csv', 'ETH/USDT', 'BTC/USDT')}"
    out = tmp_path / "out.csv"

    (checked,) = (await check_files([name])).files
    converted = await convert_file(name, out)

    assert [(each.symbol, each.bars, each.findings) for each in checked.symbols] == [("BTCUSDT", 3, ())]
    assert [(each.symbol, each.bars) for each in converted.symbols] == [("BTCUSDT", 3)]
    assert await bars_in(f"BTCUSDT={out}") == await bars_in(name)


async def test_check_with_a_slash_names_the_form_that_works(tmp_path: Path) -> None:
    path = long_file(tmp_path / "long.csv", "BTC/USDT")

    with pytest.raises(OptionError, match=f"BTCUSDT={path} finds the rows of BTC/USDT too"):
        await check_files([f"BTC/USDT={path}"])


@pytest.mark.parametrize("shared", [False, True], ids=["one", "several"])
async def test_stream_finds_the_symbol(tmp_path: Path, *, shared: bool) -> None:
    fd = os.open(long_file(tmp_path / "long.csv", "BTC/USDT"), os.O_RDONLY)
    stream = SharedStream(fd).feed if shared else partial(StdinFeed, fd)
    try:
        items = [item async for item in stream(symbol="BTCUSDT", timeframe=Timeframe.M5)]
    finally:
        os.close(fd)

    assert items == [bar(place, symbol="BTCUSDT") for place in range(3)]


async def test_row_after_another_form_is_refused_in_a_source_of_one_symbol(tmp_path: Path) -> None:
    fd = os.open(long_file(tmp_path / "long.csv", "BTCUSDT", "BTC/USDT"), os.O_RDONLY)
    try:
        with pytest.raises(BarFormatError, match="because both are BTCUSDT"):
            [item async for item in StdinFeed(fd, symbol="BTCUSDT", timeframe=Timeframe.M5)]
    finally:
        os.close(fd)
