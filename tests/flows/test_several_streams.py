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

from agentic_trading.canonical import utc_text
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, bar_row
from agentic_trading.desk.session.replay import replay
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.errors import OptionError
from tests.flows.sessions import LOADED, csv_of, decided, events_in, kept_in, on_standard_input, ran, rows_in
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
    # ETHUSDT was silent from its third missing bar until it came back, over the restart.
    assert [each.silences for each in resumed.data] == [0, 1]
    records = await kept_in(resumed.log)
    silence = {
        each.kind: (each.body["symbol"], each.as_of)
        for each in events_in(records, "feed.silent", "feed.resumed")
    }
    assert silence == {
        "feed.silent": ("ETHUSDT", BTC[332].close_time),
        "feed.resumed": ("ETHUSDT", LOADED["ethusdt-5m"][360].close_time),
    }
    late = {each.body["open_time"] for each in events_in(records, "feed.bar_left_out")}
    assert late == {utc_text(each.open_time) for each in LOADED["ethusdt-5m"][330:360]}
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
    assert [each.silences for each in report.data] == [0, 1]
    assert (await replay(tmp_path, workers=8)).identical


async def test_limit_of_silence_is_kept_and_cannot_change(tmp_path: Path) -> None:
    with on_standard_input(tmp_path / "in", lines_of(by_time(BTC[:12], ETH[:6]))):
        report = await ran(tmp_path / "out", **STREAMS, silent_after=5)
    manifest = await asyncio.to_thread(SessionFolder(tmp_path / "out").read_manifest)

    assert [each.silences for each in report.data] == [0, 1]
    # Release 0.1.0 must not replay the run, because it would not deny the entries.
    assert (manifest.silent_after, manifest.version) == (5, 3)
    with (
        on_standard_input(tmp_path / "in", lines_of(by_time(BTC[:24], ETH[:24]))),
        pytest.raises(OptionError, match=r"--silent-after is 4\. Allowed: 5"),
    ):
        await ran(tmp_path / "out", **STREAMS, silent_after=4, resume=True)
    with on_standard_input(tmp_path / "in", lines_of(by_time(BTC[:24], ETH[:24]))):
        resumed = await ran(tmp_path / "out", **STREAMS, resume=True)
    assert [each.silences for each in resumed.data] == [0, 1]
    assert (await replay(tmp_path / "out", workers=8)).identical


@pytest.mark.parametrize(
    ("mode", "given", "limit", "version"),
    [("backtest", None, 0, 2), ("paper", None, 3, 3), ("paper", 0, 0, 2), ("backtest", 2, 2, 3)],
)
async def test_only_paper_has_silent_feeds_by_default(
    mode: str, given: int | None, limit: int, version: int, tmp_path: Path
) -> None:
    with on_standard_input(tmp_path / "in", lines_of(by_time(BTC[:6], ETH[:6]))):
        await ran(tmp_path / "out", **(STREAMS | {"mode": mode}), silent_after=given)

    manifest = await asyncio.to_thread(SessionFolder(tmp_path / "out").read_manifest)
    assert (manifest.silent_after, manifest.version) == (limit, version)


async def test_broken_row_names_line_and_symbol(tmp_path: Path) -> None:
    rows = lines_of(by_time(BTC[:3], ETH[:3]))
    symbol, time, _, *others = rows[4].split(",")
    rows[4] = ",".join((symbol, time, "x", *others))

    with on_standard_input(tmp_path / "in", rows), pytest.raises(BarFormatError) as refused:
        await ran(tmp_path / "out", **STREAMS)

    assert f"stdin, symbol {symbol}" in str(refused.value)
    assert "line 5" in str(refused.value)
