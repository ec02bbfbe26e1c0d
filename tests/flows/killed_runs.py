"""Folder runs on a priced stub that are killed at every step of a call, resumed to their end, and compared with its invoice."""

import json
import os
import signal
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentic_trading.llm.limits import NANO
from tests.flows.dying_call import run_program
from tests.forked import ended
from tests.operate.models.tables import model_row, models_file, price_row, prices_file
from tests.stubs.chat_api import MODEL
from tests.stubs.running import page_of

STEPS = ("before_dispatch", "dispatched", "on_its_way", "answered", "on_record")
"""Where in a call a run is killed: before its dispatch is on record, after it, and so on."""
MODES = {"backtest": ("--mode", "backtest", "--record"), "paper": ("--mode", "paper")}
LIMIT_NUSD = 300_000_000
"""It pays for six calls of the stub; a session would make more."""
STUB = "tests.stubs.priced_api"


class HarnessError(Exception):
    """A run neither was killed nor ended; `said` is the last that it said."""

    def __init__(self, code: int, said: str) -> None:
        self.said = said
        super().__init__(f"a run ended with {code}: {said.strip()[-400:]}")


@dataclass(frozen=True, slots=True)
class KilledRun:
    """What a folder and the stub say at the end, in nano-dollars. `calls` were billed; `spend` sums answers alone."""

    mode: str
    kills: int
    calls: int
    invoice: int
    spent: int
    spend: int
    limit: int = LIMIT_NUSD

    @property
    def overspend(self) -> int:
        """By how much the stub's invoice passes the limit."""
        return max(0, self.invoice - self.limit)

    @property
    def missing(self) -> int:
        """What the invoice has and the budget of the folder does not show."""
        return max(0, self.invoice - self.spent)


def write_tables(folder: Path) -> None:
    """Write the tables of the stub's model: what it takes, and the prices that its invoice has."""
    rates = {"input": 1_250, "output": 10_000, "cache_read": 125, "cache_write_5m": 1_500}
    models_file(folder, model_row(model=MODEL))
    prices_file(folder, price_row(model=MODEL, **rates, cache_write_1h=1_500))


def kill_and_resume(
    folder: Path, mode: str, stub: str, steps: tuple[str, ...] = STEPS, call: int = 1
) -> KilledRun:
    """Kill one run again and again, each time at the next of `steps` of its `call`-th call, and resume it to its end.

    Raises `HarnessError` for a run that breaks.
    """
    write_tables(folder)
    before = _invoice(stub)
    kills, code = 0, -signal.SIGKILL
    for step in steps:
        code = _run(folder, mode, stub, resume=(folder / "out").exists(), dying=(step, call, stub))
        if code == 0:  # the budget was used up before that step
            break
        kills += 1
    page_of(stub, "/kill/0/0")
    if code != 0:
        _run(folder, mode, stub, resume=True)
    after = _invoice(stub)
    return KilledRun(
        mode, kills, len(after["lines"]) - len(before["lines"]), after["total_nusd"] - before["total_nusd"],
        _spent(folder), _asked(folder, "spend")["total"]["cost_nusd"],
    )  # fmt: skip


def _invoice(stub: str) -> dict[str, Any]:
    return page_of(stub, "/invoice")


def _spent(folder: Path) -> int:
    """Return what the folder's budget shows as spent; that has what is in doubt in it."""
    counters = _asked(folder, "budget", "show")["counters"]
    return sum(one["spent"][0] for one in counters if one["scope"] == "tenant")


def _asked(folder: Path, *words: str) -> dict[str, Any]:
    page: dict[str, Any] = json.loads(_said(folder, *words, "--store", str(folder / "out"), "--json")[1])
    return page


def _run(
    folder: Path, mode: str, stub: str, *, resume: bool, dying: tuple[str, int, str] | None = None
) -> int:
    return _said(
        folder, "run", "--data", "btcusdt-5m", "--bars", "372", *MODES[mode], "--provider", "openai",
        "--model", MODEL, "--base-url", f"{stub}/v1", "--budget-usd", str(Decimal(LIMIT_NUSD) / NANO),
        "--out", str(folder / "out"), "--yes", "--json", *(["--resume"] if resume else []), dying=dying,
    )[0]  # fmt: skip


def _said(folder: Path, *words: str, dying: tuple[str, int, str] | None = None) -> tuple[int, str]:
    """Return with what the program ended, and what it said."""
    tables = {"AGENTIC_MODELS_FILE": folder / "models.json", "AGENTIC_PRICES_FILE": folder / "prices.json"}
    env = {"OPENAI_API_KEY": "sk-stub-1", "PATH": os.defpath}
    env |= {name: str(path) for name, path in tables.items()}
    run = ended(run_program, words, dying, folder=folder, env=env)
    if run.code not in ({0} if dying is None else {0, -signal.SIGKILL}):
        raise HarnessError(run.code, run.err)
    return run.code, run.out
