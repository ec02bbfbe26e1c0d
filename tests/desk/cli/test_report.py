"""`report` writes the page of a session, and `run --report` too."""

import shutil
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.session.report import RunReport
from agentic_trading.operate.session_folder import SessionFolder
from tests.cli.conftest import Command
from tests.desk.cli.test_run import ROWS, bars_file


@pytest.fixture
def copied(session: Path, tmp_path: Path) -> Path:
    """Return a copy of a session with a fill."""
    return Path(shutil.copytree(session, tmp_path / "copied"))


def test_report_writes_page_into_session(copied: Path, command: Command) -> None:
    ended = command("report", copied)

    assert (ended.code, ended.err) == (ExitCode.DONE, "")
    assert ended.out.splitlines()[-1] == f"Page: {copied / 'report.html'}"
    assert "P&L net of inference: " in ended.out
    assert (copied / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_report_writes_csv_and_trials(copied: Path, command: Command) -> None:
    ended = command("report", copied, "--out", "page.html", "--csv", "figures", "--trials", 40)

    assert ended.code == ExitCode.DONE
    assert "deflated Sharpe ratio after 40 trials: 0." in ended.out
    names = {"equity.csv", "fills.csv", "decisions.csv", "calls.csv"}
    assert {path.name for path in Path("figures").iterdir()} == names
    assert Path("page.html").exists()
    assert not (copied / "report.html").exists()


def test_run_without_trades_has_no_deflated_sharpe(command: Command) -> None:
    command("run", "--data", bars_file(*ROWS), "--out", "out")

    ended = command("report", "out", "--trials", 3)

    assert "deflated Sharpe ratio after 3 trials: -\n" in ended.out


def test_run_writes_page_on_request(command: Command) -> None:
    ended = command("run", "--data", bars_file(*ROWS), "--out", "out", "--report")
    second = command("run", "--data", "abc-5m.csv", "--out", "out", "--report", "--json")

    assert "Page: out/report.html\n" in ended.err
    assert "agentic-trading report" not in ended.out
    assert RunReport.model_validate_json(second.out).run_number == 2
    assert "Page: out/report-2.html\n" in second.err
    assert Path("out/report-2.html").exists()


def test_run_prints_report_command(command: Command) -> None:
    ended = command("run", "--data", bars_file(*ROWS), "--out", "out")
    second = command("run", "--data", "abc-5m.csv", "--out", "out")

    assert "agentic-trading report out\n" in ended.out
    assert "agentic-trading report out --run 2\n" in second.out


def test_cut_log_gives_warnings_and_page(copied: Path, command: Command) -> None:
    log = SessionFolder(copied).log
    log.write_bytes(log.read_bytes()[:-700])

    ended = command("report", copied)

    assert ended.code == ExitCode.DONE
    assert "Warning: The record is cut off. interactions.jsonl, line " in ended.err
    assert "Warning: The page shows the run up to 2023-03-2" in ended.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere"], ExitCode.BAD_INPUT, "nowhere, which is not a folder"),
        (["copied", "--run", "2"], ExitCode.BAD_INPUT, "a run from 1 to 1"),
        (["copied", "--trials", "0"], ExitCode.BAD_INPUT, "--trials"),
        (["copied", "--inference-rate", "0.9"], ExitCode.BAD_INPUT, "Use a rate such as USDEUR=0.91."),
        (
            ["copied", "--inference-rate", "USDEUR=0.9"],
            ExitCode.BAD_INPUT,
            "and the P&L is in USDT. Allowed: a rate such as USDUSDT=0.9995, or no rate",
        ),
        (["copied", "--out", "copied"], ExitCode.LOG_UNUSABLE, "cannot be written"),
        (["copied", "--out", "none/page.html"], ExitCode.LOG_UNUSABLE, "Choose another --out"),
        (["copied", "--csv", "copied/run.json"], ExitCode.LOG_UNUSABLE, "Choose another --csv"),
        ([], ExitCode.BAD_INPUT, "DIR"),
    ],
)
def test_unusable_input_is_explained(
    words: list[str], code: ExitCode, message: str, copied: Path, command: Command
) -> None:
    ended = command("report", *words)

    assert copied.exists()
    assert ended.code == code
    assert message in " ".join(ended.err.split())
    assert "Traceback" not in ended.err


def test_missing_bars_are_explained(copied: Path, command: Command) -> None:
    SessionFolder(copied).bars(1, "BTCUSDT").unlink()

    ended = command("report", copied)

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert "bars-BTCUSDT.csv" in ended.err
    assert "Replays and reports need the bars of their run" in ended.err
