"""A configuration made in code: typed, frozen, and refused with every problem at once."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentic_trading.governance.limits import Window
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import close_name
from agentic_trading.llm.models import Capability
from agentic_trading.platform import (
    ConfigError,
    FallbackConfig,
    LedgerConfig,
    ModelConfig,
    PlatformConfig,
    ProviderConfig,
    TenantConfig,
)
from agentic_trading.platform.config import provider_and_model

ROW: dict[str, Any] = {
    "model": "quant-7b",
    "context_tokens": 32_768,
    "max_output_tokens": 4096,
    "price": {"input": 20, "output": 150},
    "source": "own cluster",
    "checked_on": "2026-11-22",
}


def problems_of(**fields: Any) -> list[str]:
    """Return what a configuration of these fields is refused for."""
    with pytest.raises(ConfigError) as refused:
        PlatformConfig(**fields)
    return list(map(str, refused.value.problems))


def test_default_configuration_is_single_tenant_in_memory() -> None:
    config = PlatformConfig()

    assert (config.name, config.folder, config.mode, config.ledger.url) == ("", None, "paper", None)
    assert config.tenant_ids == ("default",)


@pytest.mark.parametrize("changed", [{"price": {"input": True, "output": 150}}, {"context_tokens": True}])
def test_boolean_is_not_a_number(changed: dict[str, Any]) -> None:
    provider = {"adapter": "openai", "base_url": "http://127.0.0.1:1", "models": [ROW | changed]}

    assert any("not true or false" in problem for problem in problems_of(providers={"own": provider}))


def test_code_configuration_ignores_files_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("agentic-trading.toml").write_text('name = "stray"\n', encoding="utf-8")
    monkeypatch.setenv("AGENTIC_NAME", "stray")
    monkeypatch.setenv("AGENTIC_NOBODY", "reads it")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")

    config = PlatformConfig(providers={"openai": ProviderConfig()})

    assert config.name == ""
    assert config.secret_of("openai") is None
    assert config.origin_of("name") == "code"


def test_mappings_equal_configuration_models() -> None:
    plain: dict[str, Any] = {
        "providers": {"vllm-a": {"adapter": "openai", "base_url": "http://10.0.0.5:8000/v1"}},
        "fallback": {"analysis": {"to": ["vllm-a/qwen3-8b"]}},
        "tenants": {"acme": {"budget_usd": "25", "window": "day"}},
        "ledger": {"url": "redis://127.0.0.1"},
    }

    assert PlatformConfig(**plain) == PlatformConfig(
        providers={"vllm-a": ProviderConfig(adapter="openai", base_url="http://10.0.0.5:8000/v1")},
        fallback={EnvelopeWorkflow.ANALYSIS: FallbackConfig(to=("vllm-a/qwen3-8b",))},
        tenants={"acme": TenantConfig(budget_usd=Decimal(25), window=Window.DAY)},
        ledger=LedgerConfig(url="redis://127.0.0.1"),
    )


def test_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError):
        PlatformConfig().name = "other"  # type: ignore[misc]  # what must not be possible


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"ledger": {"urll": "redis://x"}},
            "PlatformConfig: ledger.urll is an unknown key. Allowed: url. Did you mean url?",
        ),
        (
            {"tenants": {"acme": {"budget_usd": 25.0}}},
            (
                'PlatformConfig: tenants.acme.budget_usd is 25.0. Allowed: dollars as text, such as "25", '
                'up to "9007199", with at most nine decimals'
            ),
        ),
        (
            {"providers": {"antropic": {}}},
            (
                "PlatformConfig: providers.antropic is 'antropic'. Allowed: a name that does not resemble a built-in one. "
                "Did you mean anthropic?"
            ),
        ),
        (
            {"providers": {"House": {}}},
            (
                "PlatformConfig: providers.House is 'House'. Allowed: 1 to 64 lowercase letters, digits, and ._-, "
                "starting with a letter"
            ),
        ),
        (
            {"fallback": {"execution": {"to": ["openai/x"]}}},
            (
                "PlatformConfig: fallback.execution is 'execution'. Allowed: analysis, planning, or general. Executions are "
                "bound to their model and never fall back"
            ),
        ),
        (
            {"fallback": {"analysis": {"to": []}}},
            "PlatformConfig: fallback.analysis.to is a list. Allowed: at least one item",
        ),
        (
            {"models": {"analysis": "claude"}},
            (
                "PlatformConfig: models.analysis is 'claude'. Allowed: PROVIDER/MODEL, such as "
                '"anthropic/claude-sonnet-5-5"'
            ),
        ),
        (
            {"models": {"analyses": "a/b"}},
            "PlatformConfig: models.analyses is 'analyses'. Allowed: 'analysis', 'planning', 'execution' or 'general'",
        ),
        (
            {"providers": {"house": {"models": [{**ROW, "price": None, "contxt": 1}]}}},
            None,
        ),
        (
            {"zone": "Mars"},
            "PlatformConfig: zone is 'Mars'. Allowed: the name of a time zone, such as UTC or America/New_York",
        ),
        (
            {"log": {"sealed_command": ""}},
            (
                "PlatformConfig: log.sealed_command is ''. Allowed: a program and its arguments, such as "
                '"rclone copy {path} remote:bucket/{log}/"'
            ),
        ),
        (
            {"log": {"sealed_command": "cp '{path} /mnt"}},
            (
                'PlatformConfig: log.sealed_command is "cp \'{path} /mnt". Allowed: a command that closes every quote '
                "and does not end with a backslash"
            ),
        ),
        (
            {"log": {"sealed_command": "cp {file} /mnt"}},
            (
                "PlatformConfig: log.sealed_command is 'cp {file} /mnt'. Allowed: {path} and {log} as placeholders, "
                "not {file}. Write other braces twice, as in {{ and }}"
            ),
        ),
        (
            {"mode": "live"},
            "PlatformConfig: mode is 'live'. Allowed: 'backtest' or 'paper'",
        ),
        (
            {"providers": {"house": {"models": [{"model": "q"}]}}},
            None,
        ),
        (
            {"tenants": {"acme": {"provider_keys": "own"}}},
            (
                'PlatformConfig: tenants.acme.provider_keys is "own", but secrets_folder is not set. Allowed: '
                '"shared", or "own" with a secrets_folder'
            ),
        ),
        (
            {"providers": {"house": {"models": [ROW, ROW]}}},
            "PlatformConfig: providers.house.models is a list with 2 rows for quant-7b. Allowed: one row per model",
        ),
        (
            {"providers": "anthropic"},
            "PlatformConfig: providers is 'anthropic'. Allowed: a table",
        ),
    ],
)
def test_invalid_field_is_refused_with_allowed_values(fields: dict[str, Any], problem: str | None) -> None:
    found = problems_of(**fields)

    if problem is not None:
        assert found == [problem]
    assert all(". Allowed: " in each for each in found)


def test_incomplete_model_row_names_missing_fields() -> None:
    found = problems_of(providers={"house": {"models": [{"model": "q"}]}})

    places = [f"providers.house.models.0.{name}" for name in ROW if name not in {"model", "price"}]
    assert found == [
        f"PlatformConfig: {place} is missing. Allowed: a value for {place.rpartition('.')[2]}"
        for place in places
    ]


def test_all_problems_are_reported_together() -> None:
    fields: dict[str, Any] = {"concurrency": 0, "buss": {}, "name": "."}

    with pytest.raises(
        ConfigError, match=r"^3 problems in the configuration:\n  PlatformConfig: "
    ) as refused:
        PlatformConfig(**fields)

    assert [problem.place for problem in refused.value.problems] == ["name", "concurrency", "buss"]


@pytest.mark.parametrize(
    "fields",
    [
        {"providers": {"openai": {"api_key": "sesame"}}},
        {"providers": {"openai": {"secret": "sesame with blanks"}}},
        {"providers": {"openai": {"base_url": "http://me:sesame@host"}}},
        {"ledger": {"url": "redis://me:sesame@host?x=1"}},
        {"ledger": {"url": "sesame@host"}},
    ],
)
def test_possible_secrets_are_not_shown(fields: dict[str, Any]) -> None:
    [problem] = problems_of(**fields)

    assert "sesame" not in problem


@pytest.mark.parametrize(
    ("given", "usd"), [("0.50", "0.50"), (25, "25"), (Decimal("1.5"), "1.5"), ("0", "0")]
)
def test_dollar_amounts_are_exact(given: Any, usd: str) -> None:
    assert TenantConfig(budget_usd=given).budget_usd == Decimal(usd)


@pytest.mark.parametrize("given", [0.1, "1e3", "-1", "1.0000000001", "9007200", True, float("nan")])
def test_invalid_dollar_amount_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="dollars as text, such as"):
        TenantConfig(budget_usd=given)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("antropic", "anthropic"), ("opneai", "openai"), ("rule", "rules"), ("locall", "local")],
)
def test_name_two_letters_off_is_close(name: str, meant: str) -> None:
    assert close_name(name) == meant


@pytest.mark.parametrize("name", ["anthropic", "openai-eu", "local-a", "house", "vllm", "groq", "local.b"])
def test_other_names_are_free(name: str) -> None:
    assert close_name(name) is None


def test_model_row_has_all_capability_fields() -> None:
    assert ModelConfig.model_fields.keys() - {"price"} == Capability.model_fields.keys() - {"provider"}


def test_model_row_gives_capability_and_price() -> None:
    row = ModelConfig(**ROW)

    capability, price = row.capability_of("openai"), row.price_of("openai")

    assert (capability.provider, capability.model, capability.overhead_tokens) == ("openai", "quant-7b", 1024)
    assert price is not None
    assert (price.input, price.output, price.cache_read, price.dearest_input) == (20, 150, 20, 20)
    assert ModelConfig(**{**ROW, "price": None}).price_of("openai") is None


def test_model_name_may_have_slashes() -> None:
    assert provider_and_model("vllm-a/Qwen/Qwen3-8B") == ("vllm-a", "Qwen/Qwen3-8B")


def test_config_hash_ignores_the_password() -> None:
    one, other = (PlatformConfig(ledger=LedgerConfig(url=f"redis://me:{key}@host")) for key in ("a", "b"))

    assert one.config_sha256 == other.config_sha256 != PlatformConfig().config_sha256
    assert one.public_values()["ledger"]["url"] == "redis://…@host"
    assert "me:a" not in repr(one)
