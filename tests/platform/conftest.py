"""An environment and a working directory of a test's own."""

from pathlib import Path

import pytest

from agentic_trading.platform import settings

VENDORS = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*settings._variables(), *VENDORS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/trader")
    monkeypatch.chdir(tmp_path)
