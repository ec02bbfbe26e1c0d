"""`replay run` says whether a run came out again, and where it first did not."""

import json
import shutil
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.session.options import WARM_UP_BARS
from tests.cli.conftest import Command


@pytest.fixture
def copied(session: Path, tmp_path: Path) -> Path:
    """Return a copy of the session that a test may change."""
    return shutil.copytree(session, tmp_path / "copied")


def test_a_session_comes_out_again_with_any_number_of_workers(session: Path, command: Command) -> None:
    ended = command("replay", "run", session, "--workers", 8)

    assert ended.code == ExitCode.DONE
    assert ended.out.startswith("identical, byte for byte")
    assert f"{WARM_UP_BARS + 500} · 8 workers · network blocked" in ended.out


def test_as_json_the_digests_can_be_compared(session: Path, command: Command) -> None:
    report = json.loads(command("replay", "run", session, "--run", 1, "--json").out)

    assert report["identical"] is True
    assert report["digest"] == report["recorded_digest"]


def test_a_run_that_comes_out_otherwise_names_the_first_difference(copied: Path, command: Command) -> None:
    log = copied / "decisions.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(
        b"".join([lines[0].replace(b'"kind":"analysis.triggered"', b'"kind":"whim"', 1), *lines[1:]])
    )

    ended = command("replay", "run", copied)

    assert ended.code == ExitCode.FOUND_WRONG
    assert ended.out.startswith("different")
    assert "first difference" in ended.out
    assert "line 1 (whim of BTCUSDT" in ended.out


def test_a_folder_without_a_session_is_bad_input(command: Command, tmp_path: Path) -> None:
    ended = command("replay", "run", tmp_path)

    assert ended.code == ExitCode.BAD_INPUT
    assert "Traceback" not in ended.err


def test_a_run_that_there_is_not_is_bad_input(session: Path, command: Command) -> None:
    ended = command("replay", "run", session, "--run", 7)

    assert ended.code == ExitCode.BAD_INPUT
    assert "run 7" in ended.err


def test_a_broken_log_has_its_own_code(copied: Path, command: Command) -> None:
    log = copied / "interactions.jsonl"
    raw = log.read_bytes()
    log.write_bytes(raw[:200] + bytes([raw[200] ^ 1]) + raw[201:])

    ended = command("replay", "run", copied)

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert "interactions.jsonl:1" in ended.err


def test_bars_that_are_gone_are_named(copied: Path, command: Command) -> None:
    (copied / "bars-BTCUSDT.csv").unlink()

    ended = command("replay", "run", copied)

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert "bars-BTCUSDT.csv: is missing" in ended.err


def test_a_replay_reads_the_rows_of_its_models_from_the_session(
    session: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTIC_MODELS_FILE", "nowhere.json")

    ended = command("replay", "run", session)

    assert ended.code == ExitCode.DONE
    assert ended.out.startswith("identical, byte for byte")


@pytest.mark.parametrize(
    ("name", "lacks"), [("none", "which is not a folder"), ("n" * 300, "File name too long")]
)
def test_a_session_that_is_not_there_is_bad_input(name: str, lacks: str, command: Command) -> None:
    ended = command("replay", "run", name)

    assert ended.code == ExitCode.BAD_INPUT
    assert lacks in ended.err
