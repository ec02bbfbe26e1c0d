"""A worker is killed with calls under way; its log and the other side's invoice are compared."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples.kill_a_worker import run as example
from examples.kill_a_worker.run import KILLED_AT_REQUEST, WORKERS, CrashReport, kill_in_mid_call


@pytest.mark.timeout(60)  # a program of its own takes a second to start
async def test_billed_calls_are_settled_or_in_doubt(tmp_path: Path) -> None:
    proof = await kill_in_mid_call(tmp_path)

    assert proof.holds
    assert len(proof.invoice) >= KILLED_AT_REQUEST
    assert 0 < len(proof.in_doubt) <= WORKERS
    assert proof.settled.keys() | proof.in_doubt.keys() >= proof.invoice.keys()
    assert proof.settled.keys() & proof.in_doubt.keys() == set()


@pytest.mark.timeout(60)
def test_crash_proof_example_runs_as_documented() -> None:
    done = subprocess.run([sys.executable, example.__file__], capture_output=True, text=True, check=True)

    assert done.stderr == ""
    assert "Every call that was billed is in the log" in done.stdout


@pytest.mark.parametrize(
    "broken",
    [
        CrashReport({"a": 1, "b": 2}, {"a": 1}, {}),  # billed, and not known
        CrashReport({"a": 1, "b": 2}, {"a": 2}, {"b": 5}),  # settled at another amount
        CrashReport({"a": 1, "b": 9}, {"a": 1}, {"b": 5}),  # more than was set aside
        CrashReport({"a": 1}, {"a": 1, "b": 1}, {}),  # charged, and not billed
        CrashReport({"a": 1}, {"a": 1}, {}),  # no call was killed
    ],
)
def test_inconsistent_crash_report_does_not_hold(broken: CrashReport) -> None:
    assert not broken.holds
