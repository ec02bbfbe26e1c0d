"""Which models a run asks, and what keeps them from being asked: told by name, before anything is written."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session.options import load_run_config
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.models import WEIGHTS, WeightsError
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.operate.choices import WORKFLOWS
from agentic_trading.operate.providers import (
    ProviderSelection,
    host_free,
    ready,
    select_provider,
)
from agentic_trading.platform.errors import ConfigError, OptionError
from agentic_trading.platform.tables import Tables, load_tables
from tests.desk.session.asking import OWN_MODEL, options, own_rows, own_tables

NOW = datetime(2026, 11, 22, tzinfo=UTC)
TABLES = load_tables()
ANTHROPIC: dict[str, Any] = {"provider": "anthropic"}
OPENAI: dict[str, Any] = {"provider": "openai", "model": OWN_MODEL}
LOCAL: dict[str, Any] = {"provider": "local"}


@pytest.fixture
def own(tmp_path: Path) -> Tables:
    """Return the shipped tables with a row for a model of one's own."""
    return own_tables(tmp_path)


def names(who: ProviderSelection) -> list[str]:
    return [who.models[workflow].model for workflow in WORKFLOWS]


def test_default_models_differ_by_workflow() -> None:
    who = select_provider(options(**ANTHROPIC), TABLES, now=NOW)

    assert (who.llm, who.model) == (LLMProvider.ANTHROPIC, "")
    assert names(who) == ["claude-sonnet-5-5", "claude-haiku-5-5"]


def test_named_model_answers_every_workflow() -> None:
    who = select_provider(options(**ANTHROPIC, model="claude-opus-5-5"), TABLES, now=NOW)

    assert names(who) == ["claude-opus-5-5", "claude-opus-5-5"]


def test_resumed_run_keeps_the_model() -> None:
    assert (
        select_provider(options(**ANTHROPIC), TABLES, now=NOW, model="claude-opus-5-5").model
        == "claude-opus-5-5"
    )


def test_single_own_model_is_the_default(tmp_path: Path) -> None:
    one, two = own_tables(tmp_path), own_tables(tmp_path, ["first", "second"])

    assert select_provider(options(provider="openai"), one, now=NOW).model == OWN_MODEL
    with pytest.raises(OptionError, match=r"^--model is left out. Allowed: first, second, a row of your own"):
        select_provider(options(provider="openai"), two, now=NOW)


def test_local_model_has_a_default_name() -> None:
    assert select_provider(options(**LOCAL), TABLES, now=NOW).model in WEIGHTS


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"model": "claude-none"},
            "not in the table of models. Allowed: claude-sonnet-5-5, .*AGENTIC_MODELS_FILE",
        ),
        ({"model": "rules-1"}, "not in the table of models"),
        ({"provider": "openai"}, "left out. Allowed: a row of your own in AGENTIC_MODELS_FILE"),
        ({"provider": "local", "model": "smollm3"}, "not in the table of models. Allowed: smollm2-135m"),
    ],
)
def test_unknown_model_error_lists_known_models(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told) as refused:
        select_provider(options(**{**ANTHROPIC, **changes}), TABLES, now=NOW)

    assert refused.value.option == "--model"


def test_retired_model_is_refused_after_last_day() -> None:
    old = options(**ANTHROPIC, model="claude-sonnet-4-5-20250929")

    assert select_provider(old, TABLES, now=datetime(2026, 11, 30, 23, tzinfo=UTC)).model == old.model
    with pytest.raises(
        OptionError, match=r"retired on 2026-11-30 .*\. Allowed: claude-sonnet-5-5"
    ) as refused:
        select_provider(old, TABLES, now=datetime(2026, 12, 1, tzinfo=UTC))
    assert old.model not in refused.value.allowed


def test_unpriced_model_is_refused(tmp_path: Path) -> None:
    tables = load_tables(own_rows(tmp_path)[0])

    with pytest.raises(
        OptionError, match=rf"^--model is {OWN_MODEL}, which has no price. .*AGENTIC_PRICES_FILE"
    ):
        select_provider(options(**OPENAI), tables, now=NOW)


@pytest.mark.parametrize(("provider", "variable"), [("anthropic", "ANTHROPIC"), ("openai", "OPENAI")])
async def test_missing_key_error_names_variable_and_file(provider: str, variable: str, own: Tables) -> None:
    model = "" if provider == "anthropic" else OWN_MODEL
    asked = options(provider=provider, model=model)
    who = select_provider(asked, own, now=NOW)

    with pytest.raises(
        ConfigError,
        match=rf"^{variable}_API_KEY: .* no key .*. Allowed: a key in this variable, or in a file {provider}_api_key",
    ):
        await ready(asked, who)


async def test_invalid_key_is_refused_and_hidden() -> None:
    asked = options(**ANTHROPIC, keys={"anthropic": "sesame with blanks"})

    with pytest.raises(ConfigError, match=r"providers\.anthropic\.secret is without a usable key") as refused:
        await ready(asked, select_provider(asked, TABLES, now=NOW))

    assert "sesame" not in str(refused.value)


async def test_key_is_read_from_file(tmp_path: Path) -> None:
    asked = options(**ANTHROPIC, secrets_folder=tmp_path)
    who = select_provider(asked, TABLES, now=NOW)

    with pytest.raises(ConfigError, match="anthropic_api_key"):
        await ready(asked, who)
    (tmp_path / "anthropic_api_key").write_text("sk-in-a-file\n")
    providers = await ready(asked, who)

    await providers.aclose()


async def test_own_server_needs_no_key(own: Tables) -> None:
    asked = options(**OPENAI, base_url="http://127.0.0.1:9/v1")

    providers = await ready(asked, select_provider(asked, own, now=NOW))

    assert isinstance(providers.of("openai"), OpenAIProvider)
    await providers.aclose()


async def test_unusable_weights_error_names_remedy(tmp_path: Path) -> None:
    asked = options(**LOCAL, weights_folder=tmp_path)
    who = select_provider(asked, TABLES, now=NOW)

    with pytest.raises(WeightsError, match=r"no such file\. Run `agentic-trading models fetch smollm2-135m`"):
        await ready(asked, who)
    weights = WEIGHTS[who.model]
    with (tmp_path / weights.file).open("wb") as file:
        file.truncate(weights.size_bytes)
    with pytest.raises(WeightsError, match="SHA-256"):
        await ready(asked, who)


@pytest.mark.parametrize(("changes", "extra"), [(LOCAL, "local")])
async def test_missing_extra_is_named(
    changes: dict[str, Any], extra: str, own: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options(**changes)
    who = select_provider(asked, own, now=NOW)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # what cannot be imported

    with pytest.raises(ConfigError, match=rf"pip install 'agentic-trading\[{extra}\]'"):
        await ready(asked, who)


def test_base_url_option_precedes_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(provider: str, base_url: str | None = None) -> str | None:
        return load_run_config(provider=provider, base_url=base_url).providers[provider].base_url

    monkeypatch.setenv("OPENAI_BASE_URL", "http://of.the/environment")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://other")

    assert address("openai", "http://given") == "http://given"
    assert address("openai") == "http://of.the/environment"
    assert address("anthropic") == "http://other"
    assert not load_run_config(provider="rules").providers
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:sesame@host")
    with pytest.raises(ConfigError, match=r"^OPENAI_BASE_URL: providers\.openai\.base_url") as refused:
        address("openai")
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        (None, ""),
        ("http://10.0.0.7:8080/v1/", "http://…/v1"),
        ("https://secret.example", "https://…"),
    ],
)
def test_recorded_url_has_no_host(address: str | None, kept: str) -> None:
    assert host_free(address) == kept


def test_session_workflows_are_analysis_and_execution() -> None:
    assert set(WORKFLOWS) == {EnvelopeWorkflow.ANALYSIS, EnvelopeWorkflow.EXECUTION}
