"""What asks no model loads no SDK, and what makes no strategy nothing of the extra for these."""

import json
import subprocess
import sys
from pathlib import Path

SDKS = {"aiohttp", "anthropic", "openai", "xllamacpp"}
FOR_STRATEGIES = {"numpy", "jinja2", "matplotlib"}
MEASURE = """
import json, sys
from agentic_trading.cli.main import main
try:
    for words in json.loads(sys.argv[1]):
        try:
            main(words)
        except SystemExit as e:
            if e.code:
                raise
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def loaded_by(*commands: list[str]) -> set[str]:
    """Return the modules that commands, called one after the other, have loaded when each has ended well."""
    command = [sys.executable, "-c", MEASURE, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_what_asks_no_model_loads_no_sdk(session: Path, tmp_path: Path) -> None:
    bars = ("--data", "btcusdt-5m", "--bars")

    loaded = loaded_by(
        ["--help"],
        ["run", "--help"],
        ["run", *bars, "100", "--provider", "rules", "--out", str(tmp_path / "rules")],
        ["trace", "list", "--store", str(session)],
        ["replay", "run", str(session)],
        ["run", *bars, "500", "--provider", "recorded", "--from", str(session), "--out", str(tmp_path / "out")],
    )  # fmt: skip

    assert loaded & (SDKS | FOR_STRATEGIES) == set()
    assert "agentic_trading" in loaded


def test_what_prints_a_table_alone_loads_no_wiring() -> None:
    loaded = loaded_by(["models", "list"], ["models", "check"])

    assert "rich" in loaded
    assert "agentic_trading.desk.session.trading" not in loaded
