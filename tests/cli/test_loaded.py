"""What asks no model loads no SDK, and what makes no strategy nothing of the extra for these."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SDKS = {"aiohttp", "anthropic", "openai", "xllamacpp"}
FOR_STRATEGIES = {"numpy", "jinja2", "matplotlib"}
MEASURE = """
import json, sys
from agentic_trading.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def loaded_by(*words: str) -> set[str]:
    """Return the modules that a command has loaded when it ends well."""
    command = [sys.executable, "-c", MEASURE, *words]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["run", "--data", "btcusdt-5m", "--bars", "100", "--provider", "rules", "--out", "out"],
        ["trace", "list", "--store", "SESSION"],
        ["replay", "run", "SESSION"],
        [
            "run",
            "--data",
            "btcusdt-5m",
            "--bars",
            "500",
            "--provider",
            "recorded",
            "--from",
            "SESSION",
            "--out",
            "out",
        ],
    ],
    ids=lambda words: " ".join(words[:7]),
)
def test_what_asks_no_model_loads_no_sdk(words: list[str], session: Path) -> None:
    loaded = loaded_by(*(str(session) if word == "SESSION" else word for word in words))

    assert loaded & (SDKS | FOR_STRATEGIES) == set()
    assert "agentic_trading" in loaded


@pytest.mark.parametrize("words", [["models", "list"], ["models", "check"]], ids=" ".join)
def test_what_prints_a_table_alone_loads_no_wiring(words: list[str]) -> None:
    loaded = loaded_by(*words)

    assert "rich" in loaded
    assert "agentic_trading.desk.session.trading" not in loaded
