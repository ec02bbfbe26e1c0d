"""`data convert` writes the bars of a file in order of time, and changes none of them."""

import asyncio
import gzip
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.market.bar import LENGTHS, Bar, Timeframe
from agentic_trading.desk.session.data_writer import convert_file
from agentic_trading.desk.session.feeds import open_feeds, sources
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, bar_row
from tests.cli.conftest import Command


class Chance(Protocol):
    """A source of random orders that hypothesis repeats."""

    def shuffle(self, x: list[str]) -> None: ...

    def choices(self, population: list[str], *, k: int) -> list[str]: ...


BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
HEADER = "date,open,high,low,close,volume"


def read(path: Path, symbol: str, timeframe: str = "") -> list[Bar]:
    """Return the bars of a file as a run reads them."""

    async def bars() -> list[Bar]:
        named = await asyncio.to_thread(sources, [f"{symbol}={path}"])
        (feed,) = await open_feeds(named, timeframe)
        return [item async for item in feed if isinstance(item, Bar)]

    return run_async(bars())


def written(text: str, name: str = "acme.csv") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


prices = st.decimals(Decimal("0.01"), Decimal(99_999), places=4)
amounts = st.decimals(0, Decimal(10**9), places=6)


@st.composite
def bars_of(draw: st.DrawFn, symbol: str = "ACME") -> list[Bar]:
    """Return bars of one symbol and length, of which some are missing."""
    timeframe = draw(st.sampled_from([Timeframe.M1, Timeframe.M5, Timeframe.H1, Timeframe.D1]))
    places = draw(st.sets(st.integers(2, 40), max_size=12))
    found = []
    for place in sorted({0, 1, *places}):
        low, opened, closed, high = sorted(draw(st.tuples(prices, prices, prices, prices)))
        volume = draw(amounts)
        bar = Bar(
            symbol=symbol,
            timeframe=timeframe,
            open_time=BEGIN + place * LENGTHS[timeframe],
            open=opened,
            high=high,
            low=low,
            close=closed,
            volume=volume,
            quote_volume=draw(st.none() | amounts),
            trades=draw(st.none() | st.integers(0, 10**12)),
            taker_buy_volume=draw(st.none() | st.just(volume)),
        )
        found.append(bar)
    return found


@given(bars=bars_of(), order=st.sampled_from(["newest first", "shuffled", "in order"]), chance=st.randoms())
def test_converted_file_has_the_same_bars(bars: list[Bar], order: str, chance: Chance) -> None:
    rows = [bar_row(bar) for bar in bars]
    rows += chance.choices(rows, k=3)
    rows.sort(reverse=order == "newest first")
    if order == "shuffled":
        chance.shuffle(rows)
    with TemporaryDirectory() as folder:
        source = Path(folder, "ACME.csv")
        source.write_text("\n".join((",".join(BAR_COLUMNS), *rows)), encoding="utf-8")
        for ending in (".csv", ".csv.gz", ".parquet"):
            out = Path(folder, f"new{ending}")

            conversion = run_async(convert_file(str(source), out))

            assert read(out, "ACME") == bars
            assert (conversion.symbols[0].bars, conversion.repeats) == (len(bars), 3)


@given(first=bars_of("ACME"), second=bars_of("GLOBEX"), chance=st.randoms())
def test_converted_file_keeps_symbols_apart(first: list[Bar], second: list[Bar], chance: Chance) -> None:
    rows = [f"{bar.symbol},{bar_row(bar)}" for bar in (*first, *second)]
    chance.shuffle(rows)
    with TemporaryDirectory() as folder:
        source = Path(folder, "long.csv")
        source.write_text("\n".join((f"symbol,{','.join(BAR_COLUMNS)}", *rows)), encoding="utf-8")
        whole, one = Path(folder, "whole.parquet"), Path(folder, "one.csv")

        run_async(convert_file(str(source), whole))
        conversion = run_async(convert_file(str(source), one, symbol="GLOBEX"))

        assert [read(whole, "ACME"), read(whole, "GLOBEX")] == [first, second]
        assert read(one, "GLOBEX") == second
        assert conversion.others == {"ACME": len(first)}


def test_csv_keeps_all_digits(command: Command) -> None:
    path = written(
        f"{HEADER}\n2026-01-06,10.50,12.00,9.10,11,300\n2026-01-05,10,12,9,10.123456789012345678,0\n"
    )

    command("data", "convert", path, "--out", "new.csv")

    assert Path("new.csv").read_text(encoding="utf-8").splitlines() == [
        "open_time,open,high,low,close,volume,quote_volume,trades,taker_buy_volume",
        "2026-01-05T00:00:00Z,10,12,9,10.123456789012345678,0,,,",
        "2026-01-06T00:00:00Z,10.50,12.00,9.10,11,300,,,",
    ]


def test_equal_bars_give_equal_packed_bytes(command: Command) -> None:
    path = written(f"{HEADER}\n2026-01-05,10,12,9,11,300\n")

    for name in ("a.csv.gz", "b.csv.gz"):
        command("data", "convert", path, "--out", name)

    assert Path("a.csv.gz").read_bytes() == Path("b.csv.gz").read_bytes()
    assert gzip.decompress(Path("a.csv.gz").read_bytes()).startswith(b"open_time,")


def test_report_lists_everything_left_out(command: Command) -> None:
    path = written(
        f"symbol,{HEADER},RSI\n"
        "ACME,2026-01-06,10,12,9,11,300,1\n"
        "ACME,2026-01-05,10,12,9,11,300,2\n"
        "GLOBEX,2026-01-05,10,12,9,11,300,2\n"
        "ACME,2026-01-05,10,12,9,11,300,3\n"
    )

    told = command("data", "convert", path, "--symbol", "ACME", "--out", "new.csv").out
    report = json.loads(command("data", "convert", "GLOBEX=acme.csv", "--out", "b.csv", "--json").out)

    assert told.splitlines() == [
        "  written               new.csv",
        "  bars (UTC)            ACME, 2 bars of 1d, 2026-01-05 00:00 to 2026-01-07 00:00",
        "  rows put in order     1",
        "  repeats left out      1",
        "  other symbols         GLOBEX 1 left out",
        "  columns left out      RSI",
    ]
    assert (report["others"], report["symbols"][0]["symbol"]) == ({"ACME": 3}, "GLOBEX")


def test_columns_and_length_are_stated(command: Command) -> None:
    rows = "".join(f"{1_767_623_400 + 600 * place},2026-01-05,10,12,9,11,300\n" for place in (2, 1, 0))
    path = written(f"unix,date,open,high,low,last,volume\n{rows}")

    ended = command(
        *("data", "convert", path, "--out", "new.csv"),
        *("--columns", "open_time=unix,close=last", "--timeframe", "5m"),
    )

    assert "ACME, 3 bars of 5m" in ended.out
    assert [bar.open_time.minute for bar in read(Path("new.csv"), "ACME", "5m")] == [30, 40, 50]


def test_newest_first_file_names_convert(command: Command) -> None:
    path = written(f"{HEADER}\n2026-01-06,10,12,9,11,300\n2026-01-05,10,12,9,11,300\n")

    ended = command("run", "--data", path, "--provider", "rules", "--out", "run")

    assert ended.code == ExitCode.BAD_INPUT
    assert "agentic-trading data convert acme.csv --out FILE" in ended.err


@pytest.mark.parametrize(
    ("rows", "words", "shown"),
    [
        (["2026-01-05,10,12,9,11,5", "2026-01-05,10,12,9,12,5"], [], "line 3: close is 12; allowed: 11"),
        (["2026-01-05,10,12,13,11,5"], [], "line 2, column 'low': '13'"),
        (["05/01/2026,10,12,9,11,5"], [], "line 2, column 'date'"),
        ([], [], "FILE is acme.csv, which holds no bar"),
        (
            ["2026-01-05T00:00,10,12,9,11,5", "2026-01-05T01:30,10,12,9,11,5"],
            [],
            "FILE is acme.csv, which looks like bars of 90m. Allowed: bars of 1s",
        ),
        (["2026-01-05,10,12,9,11,5"], ["--timeframe", "7m"], "--timeframe is 7m. Allowed: 1s"),
        (
            ["2026-01-05,10,12,9,11,5"],
            ["--out", "new.xls"],
            "Allowed: a file that ends in .csv, .csv.gz, .parquet",
        ),
        (["2026-01-05,10,12,9,11,5"], ["--out", "acme.csv"], "--out is acme.csv, which exists"),
        (["2026-01-05,10,12,9,11,5"], ["--out", "no/new.csv"], "a file in a folder that can be written"),
        (["2026-01-05,10,12,9,10.12345678901234567,5"], ["--out", "new.parquet"], "a float has fewer digits"),
    ],
)
def test_unsafe_conversion_is_rejected(
    rows: list[str], words: list[str], shown: str, command: Command
) -> None:
    path = written("\n".join((HEADER, *rows)))
    before = sorted(Path().iterdir())

    ended = command("data", "convert", path, "--out", "new.csv", *words)

    assert ended.code == ExitCode.BAD_INPUT
    assert shown in ended.err
    assert sorted(Path().iterdir()) == before


def test_symbol_without_rows_lists_those_of_the_file(command: Command) -> None:
    path = written(f"symbol,{HEADER}\nACME,2026-01-05,10,12,9,11,5\n")

    ended = command("data", "convert", path, "--symbol", "ACM", "--out", "new.csv")

    assert "FILE is acme.csv, with rows of ACME. Allowed: a file with bars of the symbol" in ended.err


def test_single_bar_has_the_length_of_other_symbols(command: Command) -> None:
    rows = "ACME,2026-01-05,10,12,9,11,5\nACME,2026-01-06,10,12,9,11,5\nGLOBEX,2026-01-05,10,12,9,11,5\n"

    told = command("data", "convert", written(f"symbol,{HEADER}\n{rows}"), "--out", "new.csv").out

    assert "GLOBEX, 1 bar of 1d" in told
