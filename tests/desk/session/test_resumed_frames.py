"""An interrupted run of data frames is continued in code, and the command line names this way."""

import signal
from pathlib import Path

import pandas
import pytest

from agentic_trading.desk import Agent, Bar, Desk, run_backtest
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, bar_row
from agentic_trading.platform.errors import OptionError

BARS = load_sample("btcusdt-5m")[:240]


class Steady(Agent):
    """Buys after each fall, and interrupts the run at a bar, as Ctrl-C does."""

    lookback = 3
    ends_at = 0
    seen = 0

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        Steady.seen += 1
        if Steady.seen == Steady.ends_at:
            signal.raise_signal(signal.SIGINT)
        bars = desk.history(n=self.lookback)
        if len(bars) == self.lookback and bar.close < bars[0].close and not desk.position():
            desk.buy(quantity=1, stop=bar.close * 98 / 100, target=bar.close * 101 / 100)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Steady, "seen", 0)


@pytest.fixture
def frame(tmp_path: Path) -> pandas.DataFrame:
    path = tmp_path / "btc.csv"
    path.write_text("\n".join((",".join(BAR_COLUMNS), *map(bar_row, BARS))), encoding="utf-8")
    return pandas.read_csv(path, index_col="open_time", parse_dates=True)


def test_interrupted_run_is_continued_to_the_same_result(
    frame: pandas.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_backtest(Steady, {"BTC": frame}, out="whole")
    monkeypatch.setattr(Steady, "seen", 0)
    monkeypatch.setattr(Steady, "ends_at", 100)
    cut = run_backtest(Steady, {"BTC": frame}, out="cut")
    monkeypatch.setattr(Steady, "ends_at", 0)

    continued = run_backtest(Steady, {"BTC": frame}, out="cut", resume=True)

    assert cut.interrupted
    assert cut.data[0].bars < whole.data[0].bars
    assert whole.fills > 0
    assert (continued.data[0].bars, continued.pnl, continued.digest) == (
        whole.data[0].bars,
        whole.pnl,
        whole.digest,
    )


@pytest.mark.parametrize("data", ["BTC=btc.csv", "BTC=frame"])
def test_files_in_place_of_frames_name_the_way_in_code(frame: pandas.DataFrame, data: str) -> None:
    run_backtest(Steady, {"BTC": frame}, out="run", bars=100)

    with pytest.raises(OptionError, match="in code: run_backtest with the same arguments and resume=True"):
        run_backtest(Steady, data, out="run", resume=True)


def test_more_bars_of_a_frame_continue_an_ended_run(frame: pandas.DataFrame) -> None:
    run_backtest(Steady, {"BTC": frame}, out="run", bars=100)

    continued = run_backtest(Steady, {"BTC": frame}, out="run", bars=200, resume=True)

    assert continued.data[0].bars == 200
