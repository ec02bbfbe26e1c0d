"""The kill matrix judges what it says, its provider bills before it kills, and a port dies at its step."""

import asyncio
import signal
import subprocess
import sys

import pytest

from benchmarks.kill_matrix import BILL_NUSD, Column, Outcome, cell
from benchmarks.kill_matrix_ours import STEPS, Mortal
from benchmarks.peers.billed import POINTS, Biller, post

BILLED_AND_BOOKED = Outcome(calls=1, booked_nusd=BILL_NUSD, answers=1, copies=0)


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (BILLED_AND_BOOKED, ""),
        (Outcome(1, 5 * BILL_NUSD, 1, 1, in_doubt=True), ""),
        (Outcome(1, BILL_NUSD, 0, 0), "0 answers"),
        (Outcome(1, BILL_NUSD, 2, 0), "2 answers"),
        (Outcome(1, BILL_NUSD - 1, 1, 0), "1 nUSD outside of the books"),
        (Outcome(2, 2 * BILL_NUSD, 1, 0), "2 calls"),
    ],
)
def test_only_own_faults_are_reported(outcome: Outcome, fault: str) -> None:
    outcomes = {"billed": [BILLED_AND_BOOKED, outcome]}
    ours = Column("ours", most_calls=1, is_judged=True, outcomes=outcomes)  # type: ignore[arg-type]
    other = Column("other", most_calls=1, outcomes=outcomes)  # type: ignore[arg-type]

    assert [each.rpartition(": ")[2] for each in ours.faults()] == ([fault] if fault else [])
    assert other.faults() == []


def test_cell_shows_the_worst_outcome() -> None:
    good, twice = BILLED_AND_BOOKED, Outcome(2, BILL_NUSD, 1, 0)

    assert cell([good, twice]) == "2 / 0.002 / 0.001 / answered"
    assert cell([good, Outcome(0, 0, 0, 0)]).endswith("lost")
    assert cell([Outcome(1, 4 * BILL_NUSD, 1, 1, in_doubt=True)]) == "1 / 0.001 / 0.004 / in doubt x2"


def test_kill_points_are_known_steps() -> None:
    assert {*STEPS.values(), "billed"} == set(POINTS)


async def test_provider_bills_before_killing_the_client() -> None:
    biller = Biller()
    biller.kills.add("killed")
    asks = f"from benchmarks.peers.billed import post; post({biller.server_port}, '/call', 'killed')"

    with biller.serving():
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", asks], check=False)
        answer = await asyncio.to_thread(post, biller.server_port, "/call", "spared")

    assert done.returncode == -signal.SIGKILL
    assert biller.billed == {"killed": 1, "spared": 1}
    assert answer["tokens"] == "50"


async def test_mortal_port_passes_other_calls() -> None:
    class Claims:
        async def finish(self, what: str) -> str:
            return what

    assert await Mortal("claims", Claims(), "taken").finish("done") == "done"
