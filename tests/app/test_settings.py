"""The environment is read once, and a wrong variable is named with what it may hold."""

from pathlib import Path

import pytest

from agentic_trading.app.settings import SettingsError, load_settings


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STORE", "RUNS", "MODELS_FILE", "LOG_LEVEL", "LOG_FORMAT"):
        monkeypatch.delenv(f"AGENTIC_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load_settings()

    assert (settings.store, settings.runs, settings.log_level) == (None, Path("runs"), "warning")


def test_a_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_STORE", "/data/session")
    monkeypatch.setenv("AGENTIC_LOG_FORMAT", "json")

    settings = load_settings()

    assert settings.store == Path("/data/session")
    assert settings.log_format == "json"


def test_an_empty_variable_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "")

    assert load_settings().log_level == "warning"


def test_every_wrong_variable_is_named_with_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "loud")
    monkeypatch.setenv("AGENTIC_LOG_FORMAT", "xml")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert caught.value.problems == (
        "AGENTIC_LOG_LEVEL is 'loud'; allowed: 'debug', 'info', 'warning' or 'error'",
        "AGENTIC_LOG_FORMAT is 'xml'; allowed: 'human' or 'json'",
    )
