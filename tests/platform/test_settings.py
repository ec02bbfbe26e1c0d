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
        "AGENTIC_LOG_LEVEL is 'loud'; allowed: 'debug', 'info', 'warning' or 'error'",
        "AGENTIC_LOG_FORMAT is 'xml'; allowed: 'human' or 'json'",
    )


def test_weights_lie_in_the_users_cache_unless_it_is_said_where() -> None:
    assert load_settings().models_dir == Path("/home/trader/.cache/agentic-trading/models")


def test_a_home_folder_is_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_SECRETS_DIR", "~/secrets")
    monkeypatch.setenv("AGENTIC_PRICES_FILE", "~/prices.json")

    settings = load_settings()

    assert settings.secrets_dir == Path("/home/trader/secrets")
    assert settings.prices_file == Path("/home/trader/prices.json")


def test_the_providers_own_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-one")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-two")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")

    settings = load_settings()

    keys = [settings.of(name).api_key for name in ("anthropic", "openai")]
    assert [key and key.get_secret_value() for key in keys] == ["sk-one", "sk-two"]
    addresses = [settings.of(name).base_url for name in ("anthropic", "openai")]
    assert addresses == [None, "http://127.0.0.1:8000/v1"]


@pytest.mark.parametrize("value", ["x", '{"openai": {"api_key": "sk-three"}}'])
def test_providers_are_read_by_their_own_variables_alone(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AGENTIC_PROVIDERS", value)

    with pytest.raises(SettingsError, match=r"^AGENTIC_PROVIDERS is read by nothing; allowed: ") as refused:
        load_settings()
    assert "sk-three" not in str(refused.value)


def test_a_variable_that_is_not_read_is_named_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_LEGDER_URL", "redis://127.0.0.1")
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "loud")

    with pytest.raises(SettingsError) as refused:
        load_settings()

    wrong, unread = refused.value.problems
    assert wrong.startswith("AGENTIC_LOG_LEVEL is 'loud'")
    assert unread.startswith("AGENTIC_LEGDER_URL is read by nothing; allowed: AGENTIC_CONCURRENCY, ")
    assert unread.endswith("; did you mean AGENTIC_LEDGER_URL?")


def test_variables_of_the_configuration_are_no_mistake_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_PROVIDERS__HOUSE__BASE_URL", "http://127.0.0.1")
    monkeypatch.setenv("AGENTIC_TENANTS__ACME__BUDGET_USD", "5")
    monkeypatch.setenv("AGENTIC_CONFIG", "~/gateway.toml")

    assert load_settings().config == Path("/home/trader/gateway.toml")


def test_no_spelling_of_the_settings_shows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-one")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://name:sk-two@127.0.0.1")

    settings = load_settings()

    assert "sk-" not in f"{settings!r} {settings}"


def test_an_address_that_is_none_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "name:sk-one@example")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert caught.value.problems == (
        "ANTHROPIC_BASE_URL holds what it must not; allowed: an address that begins with http:// or https://",
    )


def test_days_begin_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().zone == "UTC"

    monkeypatch.setenv("AGENTIC_ZONE", "America/New_York")

    assert load_settings().zone == "America/New_York"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "Europe"])
def test_a_time_zone_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("AGENTIC_ZONE", zone)

    with pytest.raises(SettingsError, match=r"AGENTIC_ZONE is .*; allowed: the name of a time zone"):
        load_settings()
