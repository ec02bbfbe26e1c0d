"""Several symbols on standard input: they trade like files, also after a stop, and a replay is identical."""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.run import BAR_COLUMNS, bar_row
from tests.flows.sessions import LOADED, csv_of, decided, on_standard_input, ran, rows_in
from tests.flows.test_interrupted import interrupted

BTC, ETH = (LOADED[name][:360] for name in ("btcusdt-5m", "ethusdt-5m"))
STREAMS: dict[str, Any] = {"data": ("BTCUSDT=-", "ETHUSDT=-"), "mode": "paper", "bars": None}


def lines_of(bars: Sequence[Bar]) -> list[str]:
    """Return bars as rows with the column `symbol`."""
    header = ",".join(("symbol", *BAR_COLUMNS))
    return [header, *(f"{each.symbol},{bar_row(each)}" for each in bars)]


def by_time(*markets: Sequence[Bar]) -> list[Bar]:
    return sorted(chain(*markets), key=lambda each: each.close_time)


@pytest.mark.parametrize("mode", ["paper", "backtest"])
async def test_streamed_symbols_trade_like_files(mode: str, tmp_path: Path) -> None:
    asked = STREAMS | {"mode": mode}
    with on_standard_input(tmp_path / "in", lines_of(by_time(BTC, ETH))):
        report = await ran(tmp_path / "stream", **asked)
    for name, bars in (("BTCUSDT", BTC), ("ETHUSDT", ETH)):
        (tmp_path / f"{name}.csv").write_text("\n".join(csv_of(bars)), encoding="utf-8")
    files = tuple(str(tmp_path / f"{name}.csv") for name in ("BTCUSDT", "ETHUSDT"))
    whole = await ran(tmp_path / "files", **(asked | {"data": files}))

    assert report.digest == whole.digest
    assert [(each.symbol, each.bars, each.late) for each in report.data] == [
        ("BTCUSDT", 360, 0),
        ("ETHUSDT", 360, 0),
    ]
    assert report.attempts > 2
    assert (await replay(tmp_path / "stream", workers=8)).identical


async def test_resumed_run_repeats_its_time_slices(tmp_path: Path) -> None:
    """ETHUSDT had no bars after the first 330. After a restart its source sends them."""
    with on_standard_input(tmp_path / "in", lines_of(by_time(BTC, ETH[:330]))):
        await ran(tmp_path / "out", **STREAMS)
    left = decided(tmp_path / "out")
    more = LOADED["btcusdt-5m"][:372], LOADED["ethusdt-5m"][:372]
    with on_standard_input(tmp_path / "in", lines_of(by_time(*more))):
        resumed = await ran(tmp_path / "out", **STREAMS, resume=True)

    assert [(each.bars, each.late) for each in resumed.data] == [(372, 0), (342, 30)]
    assert len(resumed.data[1].gaps) == 1
    assert resumed.data[1].gaps[0].startswith("30 bars missing")
    assert decided(tmp_path / "out").startswith(left)
    assert len(rows_in(tmp_path / "out" / "bars-ETHUSDT.csv")) == 343
    assert (await replay(tmp_path / "out", workers=8)).identical


async def test_silent_symbol_does_not_stop_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "w") as sender:
        monkeypatch.setattr(sys, "stdin", stdin)
        sender.write("\n".join(lines_of(BTC[:30])) + "\n")
        sender.flush()

        async with asyncio.timeout(20):
            report = await interrupted(tmp_path, at=30, **STREAMS, grace=timedelta())
        monkeypatch.undo()

    assert [each.bars for each in report.data] == [30, 0]
    assert (await replay(tmp_path, workers=8)).identical


async def test_broken_row_names_line_and_symbol(tmp_path: Path) -> None:
    rows = lines_of(by_time(BTC[:3], ETH[:3]))
    symbol, time, _, *others = rows[4].split(",")
    rows[4] = ",".join((symbol, time, "x", *others))

    with on_standard_input(tmp_path / "in", rows), pytest.raises(BarFormatError) as refused:
        await ran(tmp_path / "out", **STREAMS)

    assert f"stdin, symbol {symbol}" in str(refused.value)
    assert "line 5" in str(refused.value)
