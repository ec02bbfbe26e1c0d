"""A command that needs an extra: its first error names it, before a call is paid."""

import sys

import pytest

from agentic_trading.errors import EXTRAS
from tests.cli.conftest import Command

PROPOSE = ("strategy", "propose", "--provider", "rules", "--rounds", "1")
PORTFOLIO = ("run", "--data", "sp500-sample", "--provider", "rules", "--bars", "5")


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("numpy", PROPOSE),
        ("matplotlib", (*PROPOSE, "--plot", "equity.png")),
        ("numpy", ("strategy", "show", "params.json")),
        ("matplotlib", ("strategy", "backtest", "params.json", "--plot", "equity.png")),
        ("duckdb", ("audit", "export", "log.jsonl", "--to", "out")),
        ("duckdb", ("audit", "verify", "--export", "out")),
        ("numpy", PORTFOLIO),
        ("xllamacpp", ("run", "--data", "btcusdt-5m", "--provider", "local", "--yes", "--bars", "5")),
    ],
)
def test_first_error_names_the_missing_extra(
    missing: str, words: tuple[str, ...], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    ended = command(*words)

    assert (ended.code, ended.out) == (2, "")
    assert f"{missing.replace('_', '-')} is not installed" in ended.err
    assert f"pip install 'agentic-trading[{EXTRAS[missing]}]'" in ended.err
