"""`run_backtest` trades data frames as it trades their file, and leaves a folder that replays."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.cancellation import run_async
from agentic_trading.desk import Agent, Bar, BarFormatError, Desk, run_backtest
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.session.agents import load_agent
from agentic_trading.desk.session.backtest import frame_sources
from agentic_trading.desk.session.feeds import open_feeds
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, bar_row
from agentic_trading.desk.session.replay import replay
from agentic_trading.platform.errors import OptionError


class Swing(Agent):
    """Holds one unit from a higher close to its stop or its target."""

    lookback = 3

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        bars = desk.history(n=self.lookback)
        if len(bars) == self.lookback and bar.close > bars[0].close and not desk.position():
            desk.buy(quantity=1, stop=bar.close * 98 / 100, target=bar.close * 101 / 100)


SWING = "tests.desk.session.test_backtest:Swing"
BARS = load_sample("btcusdt-5m")[:240]
TEXT = "\n".join((",".join(BAR_COLUMNS), *map(bar_row, BARS)))


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def of_pandas() -> pandas.DataFrame:
    return pandas.read_csv(BytesIO(TEXT.encode()), index_col="open_time", parse_dates=True)


def of_polars() -> polars.DataFrame:
    return polars.read_csv(TEXT.encode(), try_parse_dates=True)


FRAMES: dict[str, Callable[[], object]] = {
    "pandas": of_pandas,
    "pandas, numbered rows": lambda: of_pandas().reset_index(),
    "pandas, New York": lambda: of_pandas().tz_convert("America/New_York"),
    "pandas, without an offset": lambda: of_pandas().tz_localize(None),
    "pandas, other names": lambda: of_pandas().rename_axis("Date").rename(columns=str.title),
    "polars": of_polars,
    "polars, New York": lambda: of_polars().with_columns(
        polars.col("open_time").dt.convert_time_zone("America/New_York")
    ),
    "polars, seconds": lambda: of_polars().with_columns(polars.col("open_time").dt.epoch("s")),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frame_trades_like_its_file(name: str) -> None:
    Path("btc.csv").write_text(TEXT, encoding="utf-8")

    of_file = run_backtest(Swing, "BTC=btc.csv", out="file")
    of_frame = run_backtest(Swing, {"BTC": FRAMES[name]()}, out="frame")

    assert (of_frame.pnl, of_frame.fills, of_frame.digest) == (of_file.pnl, of_file.fills, of_file.digest)
    assert of_file.fills > 0
    assert Path("frame/bars-BTC.csv").read_bytes() == Path("file/bars-BTC.csv").read_bytes()


def test_folder_of_frames_replays_without_them() -> None:
    report = run_backtest(SWING, {"BTC": of_pandas()}, out="run")

    again = run_async(replay(Path("run"), workers=8, agent=load_agent(SWING)))

    assert (again.identical, report.agent) == (True, SWING)


def test_settings_are_values_or_a_file() -> None:
    Path("swing.toml").write_text("lookback = 9\n", encoding="utf-8")

    of_file = run_backtest(SWING, {"BTC": of_polars()}, out="file", agent_config=Path("swing.toml"))
    of_values = run_backtest(Swing, {"BTC": of_polars()}, out="values", agent_config={"lookback": 9})
    usual = run_backtest(Swing, {"BTC": of_polars()}, out="usual")

    assert of_values.digest == of_file.digest
    assert of_values.pnl != usual.pnl


def test_samples_and_files_are_data_too() -> None:
    report = run_backtest(SWING, ["btcusdt-5m", "ethusdt-5m"], out="run", bars=300)

    assert [each.bars for each in report.data] == [300, 300]


def test_shipped_agent_has_its_warm_up_bars() -> None:
    report = run_backtest("cmt", "btcusdt-5m", out="run", bars=50)

    assert (report.agent, report.data[0].bars) == ("", 311 + 50)


NOTEBOOK = """
import asyncio, sys
from agentic_trading.desk import run_backtest

async def cell():
    return run_backtest("cmt", "btcusdt-5m", out="cell", bars=50)

print(asyncio.run(cell()).digest == run_backtest("cmt", "btcusdt-5m", out="program", bars=50).digest)
print({"pandas", "polars"} & set(sys.modules))
"""


@pytest.mark.timeout(120)
def test_notebook_needs_no_data_frame_package() -> None:
    ended = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=True)

    assert ended.stdout.splitlines() == ["True", "set()"]


INTERRUPTED = """
import asyncio, os, signal
from agentic_trading.desk import Agent, run_backtest

class Stopping(Agent):
    async def on_bar(self, desk, bar):
        if self.bars == 3:
            os.kill(os.getpid(), signal.SIGINT)
        self.bars += 1

    def __init__(self):
        super().__init__()
        self.bars = 0

async def cell():
    run_backtest(Stopping, "btcusdt-5m", out="run")

if __name__ == "__main__":
    asyncio.new_event_loop().run_until_complete(cell())
"""


@pytest.mark.timeout(120)
def test_interrupt_ends_the_run_of_a_notebook() -> None:
    Path("stopping.py").write_text(INTERRUPTED, encoding="utf-8")

    ended = subprocess.run([sys.executable, "stopping.py"], capture_output=True, text=True, check=False)

    assert "KeyboardInterrupt" in ended.stderr
    assert len(Path("run/bars-BTCUSDT.csv").read_text(encoding="utf-8").splitlines()) < 2000


def test_models_are_asked_only_if_allowed() -> None:
    with pytest.raises(OptionError, match="--record is left out"):
        run_backtest(SWING, {"BTC": of_pandas()}, out="run", provider="anthropic")

    assert not Path("run").exists()


PROGRAM = """
from agentic_trading.desk import Agent, run_backtest

class Idle(Agent):
    async def on_bar(self, desk, bar):
        pass

if __name__ == "__main__":
    print(run_backtest(Idle, "btcusdt-5m", out="run", bars=10).agent)
"""


@pytest.mark.parametrize("is_module", [False, True])
def test_class_of_a_program_has_the_name_of_its_file(
    *, is_module: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("idle.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.syspath_prepend(".")

    if is_module:
        runpy.run_module("idle", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path("idle.py", run_name="__main__")

    assert capsys.readouterr().out == "idle:Idle\n"


def test_class_without_a_file_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", cell)

    with pytest.raises(OptionError, match=r"agent is Idle\. Allowed: a class at the top of a file"):
        exec(PROGRAM, vars(cell))  # noqa: S102 - as a notebook runs a cell


def test_class_inside_a_function_is_rejected() -> None:
    class Hidden(Swing):
        pass

    with pytest.raises(OptionError, match="a class at the top of a file, because a replay imports it"):
        run_backtest(Hidden, {"BTC": of_pandas()}, out="run")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({}, "data is empty"),
        ({"BTC/USDT": of_pandas()}, "data is a frame of 'BTC/USDT'. Allowed: letters, digits, _ and ."),
        ({"BTC": [1, 2]}, "data is a builtins.list for BTC. Allowed: a DataFrame of pandas or polars"),
        ({"BTC": of_pandas()["close"]}, "Series for BTC. Allowed: a DataFrame"),
        ({"BTC": of_polars().lazy()}, "LazyFrame for BTC. Allowed: a DataFrame"),
        ({"BTC": pandas.concat({"BTC": of_pandas()}, axis=1)}, "frame for BTC with 2 levels of columns"),
        (
            {"BTC": of_pandas()[::-1]},
            "BTC=frame, whose rows are newest first. Allowed: rows in order of time. Sort",
        ),
        ({"BTC": of_pandas()[::18]}, "BTC=frame, which looks like bars of 90m"),
        ({"BTC": of_pandas()[:0]}, "BTC=frame, which holds no bar"),
        ({"BTC": of_pandas().assign(symbol="ETH")}, "such as ETH=frame"),
        ({"BTC": of_pandas(), "ETH": of_pandas()[::3]}, "bars of one length in a session"),
    ],
)
def test_unusable_data_is_rejected(data: dict[str, object], shown: str) -> None:
    with pytest.raises(OptionError) as caught:
        run_backtest(SWING, data, out="run")

    assert shown in str(caught.value)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"close": None}, "BTC=frame, line 4, column 'close': ''"),
        ({"low": 99_999.0}, "BTC=frame, line 4, column 'low': '99999.0'"),
    ],
)
def test_bad_row_is_named_by_its_line(change: dict[str, float | None], shown: str) -> None:
    frame = of_pandas()
    for column, value in change.items():
        frame.loc[frame.index[2], column] = value

    with pytest.raises(BarFormatError) as caught:
        run_backtest(SWING, {"BTC": frame}, out="run")

    assert shown in str(caught.value)


def test_adjusted_and_unknown_columns_are_not_read() -> None:
    frame = of_pandas().assign(**{"Adj Close": 1.0, "signal": "buy"})

    report = run_backtest(SWING, {"BTC": frame}, out="run")

    assert report.data[0].unread == ["Adj Close", "signal"]


def test_long_frame_gives_the_rows_of_its_symbol() -> None:
    frame = polars.concat([
        of_polars().with_columns(polars.lit(symbol).alias("symbol")) for symbol in ("BTC", "ETH")
    ]).sort("open_time")

    report = run_backtest(SWING, {"ETH": frame}, out="run")

    assert report.data[0].bars == len(BARS)


def bars_in(frame: object) -> list[Bar]:
    async def read() -> list[Bar]:
        (feed,) = await open_feeds(frame_sources({"BTC": frame}))
        return [item async for item in feed if isinstance(item, Bar)]

    return run_async(read())


@given(st.lists(st.floats(1e-10, 1e17), min_size=2, max_size=8))
def test_floats_are_read_as_their_shortest_text(prices: list[float]) -> None:
    rows: dict[str, Any] = dict.fromkeys(("open", "high", "low", "close", "volume"), prices)
    times = pandas.date_range("2026-01-05", periods=len(prices), freq="5min")

    of_pandas = bars_in(pandas.DataFrame(rows, index=times))
    of_polars = bars_in(polars.DataFrame({"time": times.to_pydatetime().tolist(), **rows}))

    assert [bar.close for bar in of_pandas] == [Decimal(repr(price)) for price in prices]
    assert of_polars == of_pandas
