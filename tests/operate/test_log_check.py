"""Any flipped byte, any cut and any bar that was changed is found, with the line that it is in."""

import asyncio
import shutil
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_trading.audit.trace import why
from agentic_trading.llm import Event, JsonFileInteractionStore, LLMInteraction, LLMResult
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import PLATFORM, RunEnded, RunStarted
from agentic_trading.llm.stores.jsonl.writer import Durability
from agentic_trading.operate.log_check import LogCheck, LogFinding, audit_log, check_end, check_file
from agentic_trading.operate.session_folder import ROWS_A_MARK, SessionFolder
from agentic_trading.platform.port_adapters import records_of
from tests.build import NOW, event, interaction
from tests.flows.sessions import ran
from tests.logging_kept import logging_kept

SAME_FOLDER = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small session of two symbols; tests change only copies of it."""
    folder = tmp_path_factory.mktemp("small") / "session"
    with logging_kept():
        asyncio.run(ran(folder, bars=ROWS_A_MARK + 40))
    return folder


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small, tmp_path / "copied")


def checked(folder: Path) -> LogCheck:
    return asyncio.run(check_file(folder / "interactions.jsonl"))


def first(found: LogCheck) -> LogFinding:
    assert found.verdict != "whole"
    return found.findings[0]


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@SAME_FOLDER
def test_flipped_log_byte_is_found_by_line(place: float, flip: int, small: Path, copied: Path) -> None:
    whole = (small / "interactions.jsonl").read_bytes()
    at = int(place * len(whole))
    (copied / "interactions.jsonl").write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])

    found = first(checked(copied))

    assert found.file == copied / "interactions.jsonl"
    assert found.line == whole[:at].count(b"\n") + 1


@given(size=st.floats(0, 1, exclude_max=True))
@SAME_FOLDER
def test_cut_log_is_found_at_end(size: float, small: Path, copied: Path) -> None:
    whole = (small / "interactions.jsonl").read_bytes()
    left = whole[: int(size * len(whole))]
    (copied / "interactions.jsonl").write_bytes(left)

    found = first(checked(copied))

    assert found.verdict == "cut off"
    assert found.line == left.count(b"\n") + (not left.endswith(b"\n") and left != b"")


@given(
    place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), symbol=st.sampled_from(["BTC", "ETH"])
)
@SAME_FOLDER
def test_flipped_bar_byte_is_found_between_lines(
    place: float, flip: int, symbol: str, small: Path, copied: Path
) -> None:
    name = f"bars-{symbol}USDT.csv"
    whole = (small / name).read_bytes()
    at = int(place * len(whole))
    line = whole[:at].count(b"\n") + 1
    (copied / name).write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])

    found = first(checked(copied))
    shutil.copy(small / name, copied / name)

    assert found.file == copied / name
    assert found.line <= line <= int(found.reason.rpartition(" ")[2])


@given(rows=st.integers(0, ROWS_A_MARK + 39))
@SAME_FOLDER
def test_cut_bars_are_counted(rows: int, small: Path, copied: Path) -> None:
    lines = (small / "bars-BTCUSDT.csv").read_bytes().splitlines(keepends=True)
    (copied / "bars-BTCUSDT.csv").write_bytes(b"".join(lines[: rows + 1]))

    found = first(checked(copied))

    assert found.reason.startswith(f"it has {rows} rows, {ROWS_A_MARK + 40} were fed: ")
    assert found.line <= rows + 2 <= int(found.reason.rpartition(" ")[2])


def test_intact_session_passes_the_audit(small: Path) -> None:
    found = asyncio.run(audit_log(small))

    assert (found.verdict, found.findings, found.notes) == ("whole", (), ())


def test_unreadable_bars_are_found(copied: Path) -> None:
    (copied / "bars-BTCUSDT.csv").unlink()
    (copied / "bars-BTCUSDT.csv").mkdir()

    assert "bars-BTCUSDT.csv: cannot be read (Is a directory), so it was not compared" in str(
        first(checked(copied))
    )


def test_missing_decisions_are_found_unreadable_decisions_raise(copied: Path) -> None:
    decisions = SessionFolder(copied).decisions(1)
    decisions.unlink()
    gone = first(asyncio.run(audit_log(copied)))
    decisions.mkdir()

    with pytest.raises(StoreError, match=r"decisions\.jsonl: cannot be read"):
        asyncio.run(audit_log(copied))

    assert gone.file == decisions
    assert gone.reason.endswith("on record, and here none")


async def kept(path: Path, *given: Event | LLMInteraction) -> LogCheck:
    """Check a log of these records."""
    store = JsonFileInteractionStore(path)
    for one in given:
        await (store.record(one) if isinstance(one, Event) else store.store(one))
    await store.aclose()
    return await audit_log(path)


async def test_log_without_run_start_passes_audit(tmp_path: Path) -> None:
    found = await kept(tmp_path / "log.jsonl", event())

    assert (found.verdict, found.lines) == ("whole", 1)
    assert found.notes == ("no run has recorded its start and its end: lines cut from the end do not show",)


async def test_audit_checks_records_of_intact_log(tmp_path: Path) -> None:
    lost = event("order.filled", id="fill", causation_id="nowhere", trace_id="t")
    honest = interaction()
    forged = LLMResult(**{**honest.result.model_dump(), "output_hash": "0" * 16})
    changed = LLMInteraction(envelope=honest.envelope, result=forged)

    found = await kept(tmp_path / "log.jsonl", lost, changed)

    assert [(one.line, one.record_id, one.reason) for one in found.findings] == [
        (2, changed.interaction_id, "it was written with a wrong output_hash"),
        (1, "fill", "it names a cause that is not in its trace: nowhere"),
    ]


async def test_invalid_run_start_is_found(tmp_path: Path) -> None:
    found = await kept(tmp_path / "log.jsonl", event("run.started", id="odd", body={"mode": 7}))

    assert [(one.verdict, one.record_id) for one in found.findings] == [("broken", "odd")]
    assert "event odd of kind run.started: body.session_id" in found.findings[0].reason


async def test_run_end_with_wrong_lines_is_found(
    tmp_path: Path,
) -> None:
    started = RunStarted(session_id="s", mode="paper", package="0")
    ended = RunEnded(session_id="s", lines=2, head="0" * 64)
    times: dict[str, Any] = {"trace_id": "t", "tenant_id": PLATFORM, "time": NOW}

    found = await kept(
        tmp_path / "log.jsonl",
        started.as_event(event_id="start", **times),
        ended.as_event(event_id="end", causation_id="start", **times),
    )

    assert [(one.verdict, one.line, one.record_id) for one in found.findings] == [
        ("broken", 2, "end"),
        ("cut off", 2, ""),
    ]
    assert found.verdict == "broken"


BYTES_READ = Path("/proc/self/io")
"""The bytes that this process has read so far, in its first line."""


def bytes_read_for_trace(path: Path, lines: int) -> int:
    """Write a log of `lines` events, index it, and return the bytes that the questions of a trace then read."""
    store = JsonFileInteractionStore(path, durability=Durability.RELAXED, segment_bytes=1 << 19)

    async def write() -> None:
        for number in range(lines):
            id_, cause = f"event-{number:06}", f"event-{number - 1:06}" if number % 4 else ""
            made = event(
                id=id_, trace_id=f"trace-{number // 4:06}", causation_id=cause, body={"text": "x" * 400}
            )
            await store.record(made)
        await store.aclose()
        async with aclosing(records_of(path)) as records:
            assert len(await records.trace("trace-000001")) == 4

    async def ask() -> None:
        async with aclosing(records_of(path)) as records:
            assert len((await why(records, "event-000007")).path) == 4
            assert len(await records.trace("trace-000001")) == 4
        assert (await check_end(path)).lines == lines

    asyncio.run(write())
    before = int(BYTES_READ.read_text(encoding="utf-8").split()[1])
    asyncio.run(ask())
    return int(BYTES_READ.read_text(encoding="utf-8").split()[1]) - before


@pytest.mark.skipif(not BYTES_READ.exists(), reason="the bytes that a process reads are known on Linux only")
def test_trace_reads_as_much_of_large_log(tmp_path: Path) -> None:
    small = bytes_read_for_trace(tmp_path / "small.jsonl", 400)
    large = bytes_read_for_trace(tmp_path / "large.jsonl", 8_000)

    assert 0 < large < small + 20_000, (small, large)  # the large log has 6 million bytes
