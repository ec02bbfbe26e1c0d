"""Any flipped byte, any cut and any bar that was changed is found, with the line that it is in."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_trading.llm import Event, JsonFileInteractionStore, LLMInteraction, LLMResult
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import PLATFORM, RunEnded, RunStarted
from agentic_trading.operate.log_check import LogCheck, LogFinding, audit_log, check_file
from agentic_trading.operate.session_folder import ROWS_A_MARK, SessionFolder
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
def test_any_flipped_byte_of_a_log_is_found_in_its_line(
    place: float, flip: int, small: Path, copied: Path
) -> None:
    whole = (small / "interactions.jsonl").read_bytes()
    at = int(place * len(whole))
    (copied / "interactions.jsonl").write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])

    found = first(checked(copied))

    assert found.file == copied / "interactions.jsonl"
    assert found.line == whole[:at].count(b"\n") + 1


@given(size=st.floats(0, 1, exclude_max=True))
@SAME_FOLDER
def test_a_log_that_is_cut_anywhere_is_found_where_it_ends(size: float, small: Path, copied: Path) -> None:
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
def test_any_flipped_byte_of_a_file_of_bars_is_found_between_two_lines(
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
def test_bars_that_were_cut_off_are_counted(rows: int, small: Path, copied: Path) -> None:
    lines = (small / "bars-BTCUSDT.csv").read_bytes().splitlines(keepends=True)
    (copied / "bars-BTCUSDT.csv").write_bytes(b"".join(lines[: rows + 1]))

    found = first(checked(copied))

    assert found.reason.startswith(f"it has {rows} rows, {ROWS_A_MARK + 40} were fed: ")
    assert found.line <= rows + 2 <= int(found.reason.rpartition(" ")[2])


def test_a_session_is_whole(small: Path) -> None:
    found = asyncio.run(audit_log(small))

    assert (found.verdict, found.findings, found.notes) == ("whole", (), ())


def test_bars_that_cannot_be_read_are_found(copied: Path) -> None:
    (copied / "bars-BTCUSDT.csv").unlink()
    (copied / "bars-BTCUSDT.csv").mkdir()

    assert "bars-BTCUSDT.csv: cannot be read (Is a directory), so it was not compared" in str(
        first(checked(copied))
    )


def test_a_decision_log_that_cannot_be_read_is_an_error_and_one_that_is_gone_is_found(copied: Path) -> None:
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


async def test_a_log_in_which_no_run_has_a_start_is_whole_as_far_as_can_be_known(tmp_path: Path) -> None:
    found = await kept(tmp_path / "log.jsonl", event())

    assert (found.verdict, found.lines) == ("whole", 1)
    assert found.notes == ("no run has recorded its start and its end: lines cut from the end do not show",)


async def test_the_audit_looks_into_the_records_of_an_unbroken_log(tmp_path: Path) -> None:
    lost = event("order.filled", id="fill", causation_id="nowhere", trace_id="t")
    honest = interaction()
    forged = LLMResult(**{**honest.result.model_dump(), "output_hash": "0" * 16})
    changed = LLMInteraction(envelope=honest.envelope, result=forged)

    found = await kept(tmp_path / "log.jsonl", lost, changed)

    assert [(one.line, one.record_id, one.reason) for one in found.findings] == [
        (2, changed.interaction_id, "it was written with a wrong output_hash"),
        (1, "fill", "it names a cause that is not in its trace: nowhere"),
    ]


async def test_a_start_that_no_release_has_written_is_found(tmp_path: Path) -> None:
    found = await kept(tmp_path / "log.jsonl", event("run.started", id="odd", body={"mode": 7}))

    assert [(one.verdict, one.record_id) for one in found.findings] == [("broken", "odd")]
    assert "event odd of kind run.started: body.session_id" in found.findings[0].reason


async def test_an_end_that_does_not_fit_the_lines_before_it_is_found_in_a_chain_that_does(
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
