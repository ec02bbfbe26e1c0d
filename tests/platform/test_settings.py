"""The environment is read once, and a wrong variable is named with what it may hold."""

from pathlib import Path

import pytest

from agentic_trading.platform.settings import SettingsError, load_settings


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
        "AGENTIC_LOG_LEVEL is 'loud'. Allowed: 'debug', 'info', 'warning' or 'error'",
        "AGENTIC_LOG_FORMAT is 'xml'. Allowed: 'human' or 'json'",
    )


@pytest.mark.parametrize("value", ["x", '{"openai": {"api_key": "sk-three"}}'])
def test_providers_are_read_by_their_own_variables_alone(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AGENTIC_PROVIDERS", value)

    with pytest.raises(
        SettingsError, match=r"^AGENTIC_PROVIDERS is not a known variable. Allowed: "
    ) as refused:
        load_settings()
    assert "sk-three" not in str(refused.value)


def test_a_variable_that_is_not_read_is_named_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_LEGDER_URL", "redis://127.0.0.1")
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "loud")

    with pytest.raises(SettingsError) as refused:
        load_settings()

    wrong, unread = refused.value.problems
    assert wrong.startswith("AGENTIC_LOG_LEVEL is 'loud'")
    assert unread.startswith(
        "AGENTIC_LEGDER_URL is not a known variable. Allowed: AGENTIC_ACK_AFTER, AGENTIC_CONCURRENCY, "
    )
    assert unread.endswith(". Did you mean AGENTIC_LEDGER_URL?")


def test_variables_of_the_configuration_are_no_mistake_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_PROVIDERS__HOUSE__BASE_URL", "http://127.0.0.1")
    monkeypatch.setenv("AGENTIC_TENANTS__ACME__BUDGET_USD", "5")
    monkeypatch.setenv("AGENTIC_CONFIG", "~/gateway.toml")

    assert load_settings().config == Path("~/gateway.toml")
