"""On paper: bars as they come on standard input, everything durable before anybody is told, calls noted before they leave."""

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import BarFormatError, BarSequenceError
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunProgress, RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.llm.event import Event
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import RunMode
from tests.build import event
from tests.flows.sessions import LOADED, calls_in, csv_of, decided, events_in, kept_in, options, ran

BTC = LOADED["btcusdt-5m"]
FROM_STDIN = {"data": ("-",), "mode": "paper", "bars": None}


def json_of(bars: tuple[Bar, ...]) -> list[str]:
    """Return bars as lines of JSON, as a program would send them."""
    return [json.dumps(bar.model_dump(mode="json", exclude_none=True)) for bar in bars]


@contextmanager
def stdin_is_a_pipe() -> Iterator[int]:
    """Put a pipe on standard input and give the end to write to."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        yield writer


async def streamed(out: Path, rows: list[str]) -> RunReport:
    """Run on rows that come through a pipe, in pieces that end anywhere."""
    with stdin_is_a_pipe() as writer:
        sending = Thread(target=send, args=(writer, "".join(f"{row}\n" for row in rows).encode()))
        sending.start()
        try:
            return await ran(out, **FROM_STDIN)
        finally:
            sys.stdin.close()
            sending.join()


def send(writer: int, content: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(writer, "wb", buffering=0) as pipe:
        for start in range(0, len(content), 7_777):
            pipe.write(content[start : start + 7_777])


@pytest.fixture
async def from_a_file(tmp_path: Path) -> RunReport:
    """Return the report of 400 bars on paper, read from a file."""
    path = tmp_path / "btcusdt.csv"
    path.write_text("\n".join(csv_of(BTC[:400])), encoding="utf-8")
    return await ran(tmp_path / "file", data=(str(path),), mode="paper", bars=None)


@pytest.mark.parametrize("spelled", [csv_of, json_of], ids=["csv", "json"])
async def test_stdin_bars_trade_like_file_bars(spelled: Any, from_a_file: RunReport, tmp_path: Path) -> None:
    report = await streamed(tmp_path / "stream", spelled(BTC[:400]))

    assert report.digest == from_a_file.digest
    assert report.data[0].bars == 400
    assert report.attempts > 2
    assert (await replay(tmp_path / "stream", workers=8)).identical


async def test_gaps_and_duplicates_are_reported(tmp_path: Path) -> None:
    bars = [*BTC[:10], BTC[9], *BTC[13:20], BTC[19]]

    report = await streamed(tmp_path, csv_of(bars))

    (data,) = report.data
    assert data.gaps == ["3 bars missing from 2023-03-20 00:50 to 2023-03-20 01:05"]
    assert (data.bars, data.duplicates) == (17, 2)
    kept = (tmp_path / "bars-BTCUSDT.csv").read_text(encoding="utf-8").splitlines()
    assert kept == csv_of([*BTC[:10], *BTC[13:20]])


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ("2023-03-21T05:00:00Z,1,2,0.5,one,7", BarFormatError, "stdin, line 342, .*9 cells"),
        ('{"open_time":"2023-03-21T04:20:00Z","open":1}', BarFormatError, "stdin, line 342, column 'high'"),
        ("what is this", BarFormatError, "stdin, line 342, column"),
        (csv_of(BTC[:1])[1], BarSequenceError, "stdin, line 342: open_time is 2023-03-20T00:00:00"),
    ],
)
async def test_malformed_line_is_named_and_decisions_kept(
    bad: str, error: type[Exception], says: str, tmp_path: Path
) -> None:
    rows = csv_of(BTC[:400])

    with pytest.raises(error, match=says):
        await streamed(tmp_path / "broken", [*rows[:341], bad, *rows[341:]])
    await streamed(tmp_path / "whole", rows[:341])

    broken, whole = [await kept_in(tmp_path / name / "interactions.jsonl") for name in ("broken", "whole")]
    assert decided(tmp_path / "broken") == decided(tmp_path / "whole") != b""
    ids = [
        {event.id for event in events_in(kept) if event.kind != "attempt.dispatched"}
        for kept in (broken, whole)
    ]
    assert ids[0] == ids[1]
    assert calls_in(broken)
    assert (tmp_path / "broken" / "bars-BTCUSDT.csv").read_text(encoding="utf-8").splitlines() == rows[:341]


async def test_calls_are_recorded_before_sending(tmp_path: Path) -> None:
    report = await ran(tmp_path, mode="paper", bars=450)

    noted: set[str] = set()
    answered = 0
    for record in await kept_in(report.log):
        if isinstance(record, Event):
            noted |= {record.body["reservation_id"]} if record.kind == "attempt.dispatched" else set()
        else:
            assert record.result.reservation_id in noted
            answered += 1
    assert answered == len(noted) > 0


async def test_bar_is_decided_before_next_arrives(tmp_path: Path) -> None:
    async with sender() as (rows, send_next):
        done: list[int] = []

        def on_progress(progress: RunProgress) -> None:
            done.append(progress.bars_done)
            send_next()

        report = await run_session(options(tmp_path, **FROM_STDIN), on_progress=on_progress)

    assert done == list(range(1, rows))
    assert report.data[0].bars == rows - 1


@asynccontextmanager
async def sender() -> AsyncIterator[tuple[int, Any]]:
    """Give a function that sends one more bar, each only when the one before it has been lived through."""
    rows = csv_of(BTC[:330])
    with stdin_is_a_pipe() as writer, os.fdopen(writer, "wb", buffering=0) as pipe:
        left = iter(rows)

        def send_next() -> None:
            row = next(left, None)
            if row is None:
                pipe.close()
            else:
                pipe.write(f"{row}\n".encode())

        send_next()
        send_next()
        yield len(rows), send_next


@pytest.mark.parametrize(
    ("mode", "can_be_repeated", "on_disk"),
    [("paper", True, True), ("backtest", False, True), ("backtest", True, False)],
)
async def test_unrepeatable_records_are_written_immediately(
    mode: RunMode, *, can_be_repeated: bool, on_disk: bool, tmp_path: Path
) -> None:
    log = port_adapters.log_for(mode, tmp_path / "log.jsonl", can_be_repeated=can_be_repeated)
    await log.open()

    await log.record(event())

    assert bool(log.path.read_bytes()) is on_disk
    await log.aclose()
    assert log.path.read_bytes()
