"""Checks and rules of installed packages: the configuration names them, and nothing else is loaded."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session.trading import CHECKS, RULES
from agentic_trading.llm import EnvelopeBuilder, FailureKind, LLMEnvelope, LLMInteraction, LLMProvider
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.operate.question_rules import ASK_RULES
from agentic_trading.platform import ConfigError, Platform, PlatformConfig, Ports, ProviderConfig
from agentic_trading.platform.adapters import functions_in, functions_of
from tests.own_package import install_package

SCHEMA = {
    "$id": "acme_order.v1",
    "type": "object",
    "properties": {"size": {"type": "integer"}},
    "required": ["size"],
}
NAMED = {"acme_order.v1": "acme-desk"}


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package of Acme for this test."""
    monkeypatch.syspath_prepend(str(install_package(tmp_path / "site")))
    yield
    sys.modules.pop("acme_desk", None)


def envelope(schema: dict[str, Any] = SCHEMA, provider: LLMProvider = LLMProvider.SCRIPTED) -> LLMEnvelope:
    model = "rules-1" if provider is LLMProvider.RULES else "scripted-1"
    builder = EnvelopeBuilder().for_general().with_agent("sizer").with_instructions("Choose a size.")
    return builder.with_output_schema(schema).with_provider(provider, model).build()


async def answered(config: PlatformConfig, *answers: str, **given: Any) -> LLMInteraction:
    """Return the last attempt at an envelope of Acme that a script answers."""
    ports = Ports(providers={"scripted": ScriptedProvider(answers)})
    async with Platform(config, ports, **given) as platform:
        answer = await platform.ask(envelope())
    assert isinstance(answer, LLMInteraction)
    return answer


@pytest.mark.usefixtures("acme")
async def test_a_check_that_is_named_reads_the_answers_of_its_schema() -> None:
    answer = await answered(PlatformConfig(checks=NAMED), '{"size": 500}', '{"size": 50}')

    assert answer.result.parsed_output == {"size": 50}
    assert answer.result.attempt_number == 2


@pytest.mark.usefixtures("acme")
async def test_an_envelope_whose_installed_check_is_not_named_is_refused_with_the_missing_line() -> None:
    answer = await answered(PlatformConfig(), '{"size": 500}')

    assert answer.result.failure is not None
    assert answer.result.failure.category == FailureKind.INVALID_REQUEST
    assert answer.result.failure.description == (
        "the installed check of schema 'acme_order.v1' is not loaded; "
        'add "acme_order.v1" = "acme-desk" below [checks] to the configuration of the workers'
    )
    assert (answer.result.dispatched_at, answer.result.cost_nusd) == (None, 0)
    assert "acme_desk" not in sys.modules


@pytest.mark.usefixtures("acme")
async def test_a_check_that_code_hands_in_needs_no_name() -> None:
    answer = await answered(PlatformConfig(), '{"size": 500}', checks={"acme_order.v1": lambda *_: []})

    assert answer.result.parsed_output == {"size": 500}
    assert "acme_desk" not in sys.modules


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("rules", "failure"),
    [
        (NAMED, None),
        (
            {},
            'to load the installed one, add "acme_order.v1" = "acme-desk" below [rules] to the configuration',
        ),
    ],
)
async def test_a_rule_answers_if_it_is_named(rules: dict[str, str], failure: str | None) -> None:
    config = PlatformConfig(checks=NAMED, rules=rules, providers={"rules": ProviderConfig()})

    async with Platform(config) as platform:
        answer = await platform.ask(envelope(provider=LLMProvider.RULES))

    assert isinstance(answer, LLMInteraction)
    if failure is None:
        assert answer.result.parsed_output == {"size": 7}
    else:
        assert failure in str(answer.result.failure)


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("checks", "says"),
    [
        (
            {"acme_order.v1": "acme"},
            "checks.acme_order.v1 is 'acme', which offers none for this schema or is not installed; allowed: acme-desk",
        ),
        (
            {"other.v1": "acme-desk"},
            "allowed: a package with an entry point other.v1 in the group agentic_trading.checks",
        ),
    ],
)
def test_a_name_that_no_package_offers_is_refused_with_those_that_do(
    checks: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        functions_of(PlatformConfig(checks=checks), "checks")

    assert says in str(error.value)


def test_a_package_whose_code_fails_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = install_package(
        tmp_path, "broken-desk", "raise RuntimeError('no licence')", {"checks": "b.v1 = broken_desk:x"}
    )
    monkeypatch.syspath_prepend(str(broken))

    with pytest.raises(ConfigError) as error:
        functions_of(PlatformConfig(checks={"b.v1": "broken_desk"}), "checks")

    assert "checks.b.v1 is broken_desk, which cannot be loaded (RuntimeError: no licence)" in str(error.value)


def test_the_desk_offers_the_checks_and_rules_of_its_own_sessions() -> None:
    named = functions_in(["agentic_trading"])
    config = PlatformConfig(checks=named["checks"], rules=named["rules"])

    assert functions_of(config, "checks") == CHECKS
    assert functions_of(config, "rules") == {**RULES, **ASK_RULES}


def test_a_package_that_offers_nothing_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="allowed: agentic-trading"):
        functions_in(["typer"])


def test_names_of_packages_change_the_checksum_of_a_configuration_and_none_do_not() -> None:
    values = PlatformConfig().public_values()

    assert (values["checks"], values["rules"]) == ({}, {})
    assert PlatformConfig(checks=NAMED).config_sha256 != PlatformConfig().config_sha256
