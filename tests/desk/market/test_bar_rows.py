"""Lines of CSV or JSON become bars, or an error that points at the cell."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_rows import COLUMNS, MOST_NAMES, BarRows
from agentic_trading.desk.market.errors import BarFormatError
from tests.desk.market.bars import MONDAY, rows, series

HEADER = "open_time,open,high,low,close,volume"
ROW = "2026-01-05T00:00:00Z,10,12,9,11,3"


def read(*lines: str | bytes) -> list[Bar | None]:
    reader = BarRows("bars.csv", "BTCUSDT", Timeframe.M5)
    raw = (line if isinstance(line, bytes) else line.encode() for line in lines)
    return [reader.read(number, line) for number, line in enumerate(raw, 1)]


def refusal(*lines: str | bytes) -> BarFormatError:
    with pytest.raises(BarFormatError) as refused:
        read(*lines)
    return refused.value


def test_minimal_header_is_enough() -> None:
    _, made = read(HEADER, ROW)

    assert made is not None
    assert (made.open_time, made.close, made.quote_volume) == (MONDAY, Decimal(11), None)


def test_columns_accept_any_order_and_case() -> None:
    _, made = read("Close,Volume,Open,High,Low,Date", "11,3,10,12,9,2026-01-05 00:00:00")

    assert made is not None
    assert (made.open, made.close, made.open_time) == (Decimal(10), Decimal(11), MONDAY)


def test_twelve_column_kline_needs_no_header() -> None:
    [made] = read("1767571200000,10,12,9,11,3,1767571499999,33.5,42,1.25,13.75,0")

    assert made is not None
    assert made.open_time == MONDAY
    assert (made.quote_volume, made.trades, made.taker_buy_volume) == (Decimal("33.5"), 42, Decimal("1.25"))


def test_kline_column_names_are_aliases() -> None:
    header = f"{HEADER},quote_asset_volume,number_of_trades,taker_buy_base_asset_volume"

    _, made = read(header, f"{ROW},33.5,42,1.25")

    assert made is not None
    assert (made.quote_volume, made.trades, made.taker_buy_volume) == (Decimal("33.5"), 42, Decimal("1.25"))


@pytest.mark.parametrize("name", ["timestamp", "time", "datetime", "date", "Date", "Open time", "OPEN_TIME"])
def test_open_time_accepts_usual_names(name: str) -> None:
    _, made = read(HEADER.replace("open_time", name), ROW)

    assert made is not None
    assert made.open_time == MONDAY


@pytest.mark.parametrize("name", ["count", "trade_count", "Number of trades"])
def test_trades_accept_usual_names(name: str) -> None:
    _, made = read(f"{HEADER},{name}", f"{ROW},42")

    assert made is not None
    assert made.trades == 42


def test_unknown_columns_are_listed_once() -> None:
    reader = BarRows("bars.csv", "BTCUSDT", Timeframe.M5)

    reader.read(1, f"{HEADER},vwap,Adj Close,Dividends,close_time".encode())
    made = reader.read(2, f"{ROW},11.2,5.5,0,x".encode())
    reader.read(
        3, b'{"date":"2026-01-05","open":1,"high":1,"low":1,"close":1,"volume":1,"Dividends":0,"rsi":{}}'
    )

    assert made is not None
    assert made.close == 11
    assert reader.unknown == ["vwap", "Adj Close", "Dividends", "close_time", "rsi"]


def test_missing_column_lists_accepted_names() -> None:
    error = refusal("close,open,high,low,volume")

    assert error.allowed.startswith(
        "a column for each of open_time (or timestamp, time, datetime, date, unix), open"
    )


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"PK\x03\x04\x14\x00\x00\x00", "a ZIP archive without the ending .zip"),
        (b"PAR1\x15\x04\x15\x00", "a Parquet file without the ending .parquet"),
        (b"\x1f\x8b\x08\x00", "gzip data without the ending .gz"),
        ("open_time".encode("utf-16"), "UTF-16 text"),
        (b"\xe9\xff", "bytes that are not UTF-8 text"),
        (b"1,\x00,2", "bytes that are not UTF-8 text"),
    ],
)
def test_binary_data_error_names_format(raw: bytes, value: str) -> None:
    error = refusal(raw)

    assert error.value == value
    assert str(error) == f"bars.csv, line 1, column '(row)': {value!r}; allowed: {error.allowed}"


def test_docs_page_lists_every_column() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "bars.md").read_text(encoding="utf-8")

    listed = set(re.findall(r"`(\w+)`", page.partition("## Columns")[2].partition("\n## ")[0]))

    assert set(COLUMNS) <= listed


def test_remembered_json_names_are_limited() -> None:
    reader = BarRows("bars.csv", "BTCUSDT", Timeframe.M5)
    line = '{"date":"2026-01-05","open":1,"high":1,"low":1,"close":1,"volume":1,"n%d":0}'

    for number in range(1, 1000):
        assert reader.read(number, (line % number).encode()) is not None

    assert len(reader.unknown) == MOST_NAMES - 6


def test_known_column_counts_need_no_header() -> None:
    [six] = read(ROW)
    [nine] = read(f"{ROW},33.5,42,1.25")

    assert six is not None
    assert nine is not None
    assert nine.trades == 42


@pytest.mark.parametrize(
    "time",
    [
        "1767571200000",
        "1767571200000000",
        "2026-01-05",
        "2026-01-05 00:00:00",
        "2026-01-05T00:00:00Z",
        "2026-01-05T01:00:00+01:00",
    ],
)
def test_timestamps_accept_epoch_and_iso(time: str) -> None:
    [made] = read(f"{time},10,12,9,11,3")

    assert made is not None
    assert made.open_time == datetime(2026, 1, 5, tzinfo=UTC)


def test_json_object_needs_no_header() -> None:
    line = '{"open_time": 1767571200000, "open": 10.10, "high": "12", "low": 9, "close": 11, "volume": 3, "trades": null}'

    [made] = read(line)

    assert made is not None
    assert str(made.open) == "10.10"
    assert made.trades is None


@given(series(most=6))
def test_bar_json_is_read_back(bars: list[Bar]) -> None:
    assert read(*(made.model_dump_json() for made in bars)) == bars


@given(series(most=6))
def test_bar_csv_is_read_back(bars: list[Bar]) -> None:
    assert read(*rows(bars).splitlines())[1:] == bars


def test_blank_and_comment_lines_are_skipped() -> None:
    assert read("\ufeff# made by hand", "", "  ", HEADER, "# more")[-1] is None


def test_empty_optional_cells_are_unset() -> None:
    _, made = read(f"{HEADER},trades,quote_volume", f"{ROW},,")

    assert made is not None
    assert (made.trades, made.quote_volume) == (None, None)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("yesterday,10,12,9,11,3", "open_time", "yesterday"),
        ("17675712,10,12,9,11,3", "open_time", "17675712"),
        ("0001-01-01T00:00:00+05:00,10,12,9,11,3", "open_time", "0001-01-01T00:00:00+05:00"),
        ("2026-01-05T00:02:00Z,10,12,9,11,3", "open_time", "2026-01-05T00:02:00+00:00"),
        ("2026-01-05T00:00:00Z,ten,12,9,11,3", "open", "ten"),
        ("2026-01-05T00:00:00Z,10,NaN,9,11,3", "high", "NaN"),
        ("2026-01-05T00:00:00Z,10,Infinity,9,11,3", "high", "Infinity"),
        ("2026-01-05T00:00:00Z,10,1_2,9,11,3", "high", "1_2"),
        ("2026-01-05T00:00:00Z,10,١٢,9,11,3", "high", "١٢"),
        ("2026-01-05T00:00:00Z,10,12,9.5.1,11,3", "low", "9.5.1"),
        ("2026-01-05T00:00:00Z,10,12,11.5,11,3", "low", "11.5"),
        ("2026-01-05T00:00:00Z,10,12,9,,3", "close", ""),
        ("2026-01-05T00:00:00Z,10,12,9,11,-3", "volume", "-3"),
        ("2026-01-05T00:00:00Z,10,12,9,11", "(row)", "5 cells"),
        ("2026-01-05T00:00:00Z,10,12,9,11,3,4", "(row)", "7 cells"),
    ],
)
def test_bad_cell_error_has_line_column(row: str, column: str, value: str) -> None:
    error = refusal("# comment", HEADER, ROW, row)

    assert (error.source, error.line, error.column, error.value) == ("bars.csv", 4, column, value)
    assert "bars.csv, line 4, column" in str(error)
    assert str(error).endswith(f"allowed: {error.allowed}")


def test_error_uses_file_column_name() -> None:
    header = HEADER.replace("open_time", "date") + ",number_of_trades"

    assert refusal(header, f"{ROW},1.5").column == "number_of_trades"
    assert refusal(header, f"{ROW.replace('2026', 'year')},1").column == "date"


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("open_time,open,high,low,close", "volume"),
        (f"{HEADER},count,trade_count", "trade_count"),
        (f"{HEADER},volume", "volume"),
        (f"{HEADER},date", "date"),
        ("symbol", "open_time"),
    ],
)
def test_header_needs_each_column_once(header: str, column: str) -> None:
    error = refusal(header)

    assert (error.line, error.column) == (1, column)


def test_unknown_column_count_asks_for_header() -> None:
    assert "header" in refusal("1767571200000,10,12,9").allowed


@pytest.mark.parametrize(
    ("name", "value", "allowed"), [("symbol", "ETHUSDT", "BTCUSDT"), ("timeframe", "1h", "5m")]
)
def test_row_of_other_series_is_rejected(name: str, value: str, allowed: str) -> None:
    error = refusal(f"{HEADER},{name}", f"{ROW},{value}")

    assert (error.column, error.value, error.allowed) == (name, value, allowed)


@pytest.mark.parametrize(
    "line",
    [
        '{"open_time": 1767571200000',
        '{"open_time": 1767571200000} {}',
        "{" * 100_000,
        '{"a":' * 100_000,
        b"\xff\xfe1767571200000",
        "1767571200000,10\r12,9",
    ],
)
def test_malformed_line_is_rejected_entirely(line: str | bytes) -> None:
    assert refusal(line).column == "(row)"


@pytest.mark.parametrize("value", ["true", "[1]", '{"a": 1}', "NaN", "null", '""'])
def test_non_numeric_json_value_is_rejected(value: str) -> None:
    line = f'{{"open_time": 1767571200000, "open": {value}, "high": 12, "low": 9, "close": 11, "volume": 3}}'

    assert refusal(line).column == "open"


@given(st.binary(max_size=60))
def test_arbitrary_bytes_give_bar_or_error(raw: bytes) -> None:
    reader = BarRows("bars.csv", "BTCUSDT", Timeframe.M5)

    try:
        made = reader.read(1, raw)
    except BarFormatError:
        return

    assert made is None or isinstance(made, Bar)


@given(st.dictionaries(st.integers(0, 5), st.text(alphabet="0123456789.eE-+,:TZ \"'", max_size=30)))
@example({})
def test_arbitrary_cells_give_bar_or_error(changed: dict[int, str]) -> None:
    cells = [changed.get(place, cell) for place, cell in enumerate(ROW.split(","))]

    try:
        _, made = read(HEADER, ",".join(cells))
    except BarFormatError:
        assert changed
        return

    assert isinstance(made, Bar)
