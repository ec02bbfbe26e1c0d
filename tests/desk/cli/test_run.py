"""`run` makes a session, says what it came to, and refuses what cannot be run."""

import asyncio
import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
import typer

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.options import usd_amount
from agentic_trading.desk.cli.run import folder_for
from agentic_trading.desk.market.samples import SAMPLES
from agentic_trading.desk.session.options import WARM_UP_BARS
from agentic_trading.desk.session.report import RunReport
from tests.cli.conftest import Command
from tests.flows.sessions import ran

HEADER = "open_time,open,high,low,close,volume"
ROWS = [
    "2023-03-20T00:00:00Z,100,102,99,101,5",
    "2023-03-20T00:05:00Z,101,103,100,102,6",
    "2023-03-20T00:10:00Z,102,104,101,103,7",
]


def bars_file(*rows: str) -> Path:
    """Write a file of bars into the present folder."""
    file = Path("abc-5m.csv")
    file.write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    return file


def test_run_prints_summary_and_writes_log(command: Command) -> None:
    ended = command("run", "--data", bars_file(*ROWS), "--out", "out")

    assert ended.code == ExitCode.DONE
    assert "3 bars, 2023-03-20 00:00 to 2023-03-20 00:15 UTC" in ended.out
    assert "agentic-trading replay run out --workers 8" in ended.out
    assert Path("out/decisions.jsonl").exists()


def test_json_run_prints_report_only(command: Command) -> None:
    ended = command("run", "--data", bars_file(*ROWS), "--out", "out", "--json")

    data = RunReport.model_validate_json(ended.out).data[0]
    assert (data.bars, data.companion) == (3, "")
    assert ended.err == ""


def test_default_folder_named_after_data(command: Command) -> None:
    command("run", "--data", bars_file(*ROWS))

    assert Path("runs/abc-5m/run.json").exists()


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        (("btcusdt-5m",), "btcusdt-5m"),
        (("btcusdt-5m", "ethusdt-5m"), "btcusdt-5m+ethusdt-5m"),
        (("ABC=/data/abc.csv.gz",), "abc"),
        (("ABC=-",), "stdin"),
        (("-",), "stdin"),
    ],
)
def test_folder_name_derives_from_data(names: tuple[str, ...], folder: str) -> None:
    assert folder_for(names) == folder


def test_second_run_gets_number_two(command: Command) -> None:
    command("run", "--data", bars_file(*ROWS), "--out", "out")

    ended = command("run", "--data", "abc-5m.csv", "--out", "out")

    assert "run 2" in ended.out.splitlines()[0]
    assert Path("out/decisions-2.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "btcusdt-1m"], "btcusdt-5m, ethusdt-5m"),
        (["--data", ","], "--data"),
        (["--data", "btcusdt-5m", "--provider", "oracle"], "rules, recorded, anthropic"),
        (["--data", "btcusdt-5m", "--mode", "live"], "'backtest', 'paper'"),
        (["--data", "btcusdt-5m", "--budget-usd", "0"], "an amount above 0"),
        (["--data", "btcusdt-5m", "--budget-usd", "much"], "'much' is not an amount"),
        (["--data", "btcusdt-5m", "--bars", "0"], "1 or more"),
        (["--data", "btcusdt-5m", "--workers", "0"], "1 to 256"),
        (["--data", "btcusdt-5m", "--inject", "fire=1%"], "malformed, timeout, refusal, truncated (or cut)"),
        (["--data", "btcusdt-5m", "--provider", "recorded"], "--from"),
        (["--data", "btcusdt-5m", "--provider", "recorded", "--from", "none"], "none"),
        (["--data", "btcusdt-5m", "--resume"], "--out"),
        (["--data", "btcusdt-5m", "--grace", "soon"], "a duration such as 90m"),
        (["--data", "-,ETHUSDT=-"], "a symbol for each"),
        ([], "--data"),
    ],
)
def test_invalid_options_show_allowed_values(words: list[str], told: str, command: Command) -> None:
    ended = command("run", *words, "--out", "out")

    assert ended.code == ExitCode.BAD_INPUT
    assert told in ended.err
    assert "Traceback" not in ended.err


def test_run_malformed_file_shows_position(command: Command) -> None:
    ended = command(
        "run", "--data", bars_file(ROWS[0], "2023-03-20T00:05:00Z,101,many,100,102,6"), "--out", "out"
    )

    assert ended.code == ExitCode.BAD_INPUT
    assert "line 3, column 'high'" in ended.err


def test_gaps_and_repeats_are_reported(command: Command) -> None:
    file = bars_file(ROWS[0], ROWS[0], ROWS[2])

    ended = command("run", "--data", file, "--timeframe", "5m", "--out", "out")

    assert "1 bar missing from 2023-03-20 00:05 to 2023-03-20 00:10" in ended.out
    assert "repeated bars: 1, left out" in ended.out


def test_unusable_folder_has_own_exit_code(command: Command) -> None:
    Path("out").write_text("a file", encoding="utf-8")

    ended = command("run", "--data", "btcusdt-5m", "--out", "out")

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert "out" in ended.err


def test_locked_log_has_own_exit_code(command: Command) -> None:
    Path("out").mkdir()
    with Path("out/interactions.jsonl").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        ended = command("run", "--data", "btcusdt-5m", "--bars", 100, "--out", "out")

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert "interactions.jsonl" in ended.err


START = "from agentic_trading.cli.main import main; main()"


def test_ctrl_c_writes_summary_and_manifest(tmp_path: Path) -> None:
    """The bar on the terminal says when bars have been lived through; the sender never ends the stream."""
    screen, terminal = pty.openpty()
    rows = "\n".join([HEADER, *ROWS, ""]).encode()
    words = ["run", "--data", "ABC=-", "--mode", "paper", "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [sys.executable, "-c", START, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal
    ) as running:
        assert running.stdin
        assert running.stdout
        running.stdin.write(rows)
        running.stdin.flush()
        drawn = b""
        while b"3/?" not in drawn:
            drawn += os.read(screen, 4096)
        running.send_signal(signal.SIGINT)
        summary = running.stdout.read().decode()
    os.close(terminal)
    os.close(screen)

    assert running.returncode == ExitCode.INTERRUPTED
    assert "interrupted after" in summary
    assert "3 bars" in summary
    assert json.loads((tmp_path / "out" / "run.json").read_bytes())["interrupted"] is True


def test_amount_parses_exactly_or_is_rejected() -> None:
    assert usd_amount("0.10") == Decimal("0.10")
    with pytest.raises(typer.BadParameter):
        usd_amount("ten")


def test_session_manifest_names_sample_and_digest(session: Path) -> None:
    manifest = json.loads((session / "run.json").read_bytes())

    assert manifest["data"][0]["name"] in SAMPLES
    assert len(manifest["digest"]) == 64


def lines_of(folder: str) -> dict[str, bytes]:
    """Return what every file of a folder holds, by its name."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_refused_second_writer_changes_no_files(command: Command) -> None:
    command("run", "--data", bars_file(*ROWS), "--out", "out")
    before = lines_of("out")
    with Path("out/interactions.jsonl").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        second = command("run", "--data", "abc-5m.csv", "--out", "out")

    assert second.code == ExitCode.LOG_UNUSABLE
    assert second.err.count("interactions.jsonl") == 1
    assert lines_of("out") == before


@pytest.mark.parametrize(
    "words",
    [
        ["--inject", "fire=1%"],
        ["--provider", "recorded", "--from", "none"],
        ["--data", "empty-5m.csv"],
        ["--data", "hourly-5m.csv"],
        ["--data", "n" * 300],
        ["--budget-usd", "1e999999"],
    ],
)
def test_invalid_run_creates_no_folder(words: list[str], command: Command) -> None:
    Path("empty-5m.csv").write_text(HEADER, encoding="utf-8")
    hours = [f"2023-03-20T0{hour}:00:00Z,100,102,99,101,5" for hour in range(9)]
    Path("hourly-5m.csv").write_text("\n".join([HEADER, *hours]), encoding="utf-8")

    ended = command("run", "--data", bars_file(*ROWS), *words, "--out", "out")

    assert ended.code == ExitCode.BAD_INPUT
    assert not Path("out").exists()


def test_stream_without_bars_is_bad_input(tmp_path: Path) -> None:
    words = ["run", "--data", "ABC=-", "--out", str(tmp_path / "out")]

    ended = subprocess.run(
        [sys.executable, "-c", START, *words], input=HEADER, capture_output=True, text=True, check=False
    )

    assert ended.returncode == ExitCode.BAD_INPUT
    assert "ABC=-, which holds no bar" in ended.stderr


@pytest.mark.parametrize("more", [[], ["--bars", "3"], ["--bars", "9"]])
def test_ended_run_is_not_resumed(more: list[str], command: Command) -> None:
    command("run", "--data", bars_file(*ROWS), "--out", "out")
    before = lines_of("out")

    ended = command("run", "--data", "abc-5m.csv", "--out", "out", "--resume", *more)

    assert ended.code == ExitCode.BAD_INPUT
    assert "run 1, which has ended after 3 bars" in ended.err
    assert lines_of("out") == before


def test_ended_run_without_bars_not_resumed(command: Command) -> None:
    command("run", "--data", bars_file(*ROWS), "--out", "out")
    Path("out/bars-ABC.csv").unlink()
    before = lines_of("out")

    ended = command("run", "--data", "abc-5m.csv", "--out", "out", "--resume")

    assert ended.code == ExitCode.BAD_INPUT
    assert "whose 3 bars are not all in its files" in ended.err
    assert lines_of("out") == before


@pytest.mark.parametrize("more", [[], ["--bars", "4"]])
def test_ended_run_resumes_with_more_bars(more: list[str], command: Command) -> None:
    command("run", "--data", bars_file(*ROWS), "--out", "out")
    bars_file(*ROWS, "2023-03-20T00:15:00Z,103,105,102,104,7")

    ended = command("run", "--data", "abc-5m.csv", "--out", "out", "--resume", *more)

    assert ended.code == ExitCode.DONE
    assert "4 bars" in ended.out


def test_auto_resume_begins_a_run_and_continues_it(command: Command) -> None:
    words = ("run", "--data", bars_file(*ROWS), "--out", "out", "--auto-resume")
    begun = command(*words)
    bars_file(*ROWS, "2023-03-20T00:15:00Z,103,105,102,104,7")
    continued = command(*words)

    assert (begun.code, continued.code) == (ExitCode.DONE, ExitCode.DONE)
    assert ("3 bars" in begun.out, "4 bars" in continued.out) == (True, True)
    assert not Path("out/run-2.json").exists()


def test_run_resumes_beyond_bar_limit(command: Command) -> None:
    words = ["run", "--data", "btcusdt-5m", "--out", "out"]
    command(*words, "--bars", 2)

    fewer, more = (command(*words, "--resume", "--bars", bars) for bars in (1, 3))

    assert (fewer.code, "--bars is 1. Allowed: 2 or more" in fewer.err) == (ExitCode.BAD_INPUT, True)
    assert f"{WARM_UP_BARS + 3} bars" in more.out


def test_first_counted_bar_follows_warm_up(command: Command) -> None:
    report = json.loads(command("run", "--data", "btcusdt-5m", "--bars", 1, "--out", "out", "--json").out)
    earlier = asyncio.run(ran(Path("earlier"), data=("btcusdt-5m",), bars=WARM_UP_BARS))

    assert (report["data"][0]["bars"], report["attempts"] > 0) == (WARM_UP_BARS + 1, True)
    assert earlier.attempts == 0


def cut(file: Path, size: int) -> None:
    """Leave the first bytes of a file."""
    file.write_bytes(file.read_bytes()[:size])


KILLED: dict[str, Callable[[Path], None]] = {
    "before the bars had a file": lambda folder: (folder / "bars-BTCUSDT.csv").unlink(),
    "between bars and decisions": lambda folder: (folder / "decisions.jsonl").unlink(),
    "in the middle of a bar": lambda folder: cut(folder / "bars-BTCUSDT.csv", 20_000),
    "in the middle of a decision": lambda folder: cut(folder / "decisions.jsonl", 3_000),
}


@pytest.mark.parametrize("when", KILLED)
def test_killed_run_resumes_to_same_digest(
    when: str, session: Path, command: Command, tmp_path: Path
) -> None:
    folder = shutil.copytree(session, tmp_path / "killed")
    manifest = json.loads((folder / "run.json").read_bytes())
    (folder / "run.json").write_text(json.dumps({**manifest, "digest": None}), encoding="utf-8")
    KILLED[when](folder)

    ended = command("run", "--data", "btcusdt-5m", "--bars", 500, "--out", folder, "--resume")

    assert ended.code == ExitCode.DONE
    assert manifest["digest"] in ended.out


def unread(pipe: int) -> int:
    """Return how many bytes of a pipe nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"    "), sys.byteorder)


def test_interrupted_resume_changes_no_files(tmp_path: Path) -> None:
    """A run that has ended waits for a bar beyond those that it was fed, before it writes."""
    rows = "\n".join([HEADER, *ROWS, ""]).encode()
    words = [sys.executable, "-c", START, "run", "--data", "ABC=-", "--out", str(tmp_path / "out")]
    subprocess.run(words, input=rows, capture_output=True, check=True)
    before = lines_of(str(tmp_path / "out"))

    pause = threading.Event()
    with subprocess.Popen(
        [*words, "--resume"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdin
        assert running.stderr
        running.stdin.write(rows)
        running.stdin.flush()
        while unread(running.stdin.fileno()):
            assert running.poll() is None
            pause.wait(0.01)
        running.send_signal(signal.SIGINT)
        said = running.stderr.read().decode()

    assert running.returncode == ExitCode.INTERRUPTED
    assert said == "Error: stopped immediately. All answers so far are on disk\n"
    assert lines_of(str(tmp_path / "out")) == before


def test_stock_sample_has_no_warm_up(command: Command) -> None:
    report = json.loads(command("run", "--data", "sp500-sample", "--bars", 2, "--out", "out", "--json").out)

    assert {fed["bars"] for fed in report["data"]} == {2}


@pytest.mark.parametrize("words", [["--family", "momentum"], ["--rounds", 3]])
def test_plan_options_require_planner_data(words: list[str], command: Command) -> None:
    ended = command("run", "--data", "btcusdt-5m", *words, "--out", "out")

    assert ended.code == 2
    assert "Allowed: data that a planner trades as one portfolio: sp500-sample" in ended.err
