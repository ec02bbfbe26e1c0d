"""A command that needs an extra: its first error names it, before a call is paid."""

import sys
from pathlib import Path

import pytest

from agentic_trading.errors import EXTRAS
from tests.app.cli.conftest import Command

KAFKA = ("--bus", "kafka://127.0.0.1:9")
LEDGER = ("--ledger", "redis://127.0.0.1:9")
PROPOSE = ("strategy", "propose", "--provider", "rules", "--rounds", "1")
PORTFOLIO = ("run", "--data", "sp500-sample", "--provider", "rules", "--bars", "5")
CONFIGURATION = """
[providers.bedrock]
adapter = "anthropic-sdk"
options = { client = "AsyncAnthropicBedrock" }
"""


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("numpy", PROPOSE),
        ("jinja2", PROPOSE),
        ("matplotlib", (*PROPOSE, "--plot", "equity.png")),
        ("numpy", ("strategy", "show", "params.json")),
        ("jinja2", ("strategy", "code", "params.json")),
        ("matplotlib", ("strategy", "backtest", "params.json", "--plot", "equity.png")),
        ("numpy", PORTFOLIO),
        ("jinja2", PORTFOLIO),
        ("genai_prices", ("prices", "check")),
        ("aiokafka", ("topics", "check", *KAFKA)),
        ("aiokafka", ("worker", *KAFKA, *LEDGER, "--provider", "rules", "--http", "127.0.0.1:0")),
        ("aiokafka", ("dlq", "list", *KAFKA)),
        ("xllamacpp", ("run", "--data", "btcusdt-5m", "--provider", "local", "--yes", "--bars", "5")),
        ("anthropic", ("config", "check", "--config", "sdk.toml")),
    ],
)
def test_first_error_names_the_missing_extra(
    missing: str, words: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sdk.toml").write_text(CONFIGURATION, encoding="utf-8")
    users = ("agentic_trading.bus.brokers.kafka", "agentic_trading.app.price_comparison")
    for name in [name for name in sys.modules if name.startswith(users)]:
        monkeypatch.delitem(sys.modules, name)  # as in a process that has not imported it
    monkeypatch.setitem(sys.modules, missing, None)

    ended = command(*words)

    assert (ended.code, ended.out) == (2, "")
    assert f"{missing.replace('_', '-')} is not installed" in ended.err
    assert f"pip install 'agentic-trading[{EXTRAS[missing]}]'" in ended.err
