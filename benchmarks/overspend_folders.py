"""Runs in a folder that are killed at every step of a call and resumed: their row, and what must hold of it."""

import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from benchmarks.overspend_table import usd
from tests.flows.killed_runs import LIMIT_NUSD, MODES, STEPS, STUB, KilledRun, kill_and_resume
from tests.stubs.running import serving

KILLS = 100
QUICK_KILLS = 5


def run_folders(kills: int) -> list[KilledRun]:
    """Kill runs in each mode until so many kills have hit; a new folder begins when a run has ended."""
    runs: list[KilledRun] = []
    with serving(STUB) as stub, tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            left = kills
            for number in count():
                if left <= 0:
                    break
                place = Path(folder) / f"{mode}-{number}"
                place.mkdir()
                steps = STEPS[number % len(STEPS) :] + STEPS[: number % len(STEPS)]
                runs.append(kill_and_resume(place, mode, stub, steps[:left], call=1 + number % 2))
                left -= runs[-1].kills or 1
    return runs


def problems_of(runs: Sequence[KilledRun]) -> list[str]:
    """Return which promises the runs break."""
    over = [run for run in runs if run.overspend]
    missing = [run for run in runs if run.missing]
    found = []
    if over:
        found.append(
            f"{len(over)} of {len(runs)} folders overspent, by up to {usd(max(run.overspend for run in over))}"
        )
    if missing:
        found.append(
            f"the books of {len(missing)} lack up to {usd(max(run.missing for run in missing))} of the invoice"
        )
    return found


def print_folders(runs: Sequence[KilledRun]) -> None:
    """Print a row for each mode."""
    print(
        f"\nfolder runs killed and resumed: a limit of {usd(LIMIT_NUSD)} each, kill -9 at {len(STEPS)} steps of a call"
    )
    print(
        f"{'':<12}{'folders':>8}{'kills':>7}{'paid':>6}{'bill':>10}{'books':>10}{'overspend':>11}{'not in books':>14}"
    )
    for mode in MODES:
        of = [run for run in runs if run.mode == mode]
        sums = [
            sum(nusd) / 10**9
            for nusd in zip(*((r.invoice, r.spent, r.overspend, r.missing) for r in of), strict=True)
        ]
        print(
            f"{mode:<12}{len(of):>8}{sum(run.kills for run in of):>7}{sum(run.calls for run in of):>6}"
            f"{sums[0]:>10.4f}{sums[1]:>10.4f}{sums[2]:>11.4f}{sums[3]:>14.4f}"
        )
