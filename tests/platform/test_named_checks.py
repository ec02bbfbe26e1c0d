"""Checks and rules of installed packages, which the configuration names."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session.trading import CHECKS, RULES
from agentic_trading.llm import EnvelopeBuilder, FailureKind, LLMEnvelope, LLMInteraction, LLMProvider
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.operate.question_rules import ASK_RULES
from agentic_trading.platform import ConfigError, Platform, PlatformConfig, Ports, ProviderConfig, load_config
from agentic_trading.platform.adapters import functions_in, functions_of
from agentic_trading.platform.check import check_platform
from tests.own_package import FILES, forget, install_acme, install_package, loaded_modules

ROOT = Path(__file__).parents[2]
SCHEMA = {
    "$id": "acme_order.v1",
    "type": "object",
    "properties": {"size": {"type": "integer"}},
    "required": ["size"],
}
NAMED = {"acme_order.v1": "acme-desk"}
OTHER = "def check(envelope, text):\n    return []\nNUMBER = 7\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on `sys.path` with the package of Acme."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(str(install_acme(folder)))
    yield folder
    forget("acme_desk", "other_desk")


def envelope(provider: LLMProvider = LLMProvider.SCRIPTED) -> LLMEnvelope:
    model = "rules-1" if provider is LLMProvider.RULES else "scripted-1"
    builder = EnvelopeBuilder().for_general().with_agent("sizer").with_instructions("Choose a size.")
    return builder.with_output_schema(SCHEMA).with_provider(provider, model).build()


async def answered(config: PlatformConfig, *answers: str, **given: Any) -> LLMInteraction:
    """Return the last attempt at an order of Acme with scripted answers."""
    ports = Ports(providers={"scripted": ScriptedProvider(answers)})
    async with Platform(config, ports, **given) as platform:
        answer = await platform.ask(envelope())
    assert isinstance(answer, LLMInteraction)
    return answer


@pytest.mark.usefixtures("site")
async def test_named_check_rejects_an_answer() -> None:
    answer = await answered(PlatformConfig(checks=NAMED), '{"size": 500}', '{"size": 50}')

    assert answer.result.parsed_output == {"size": 50}
    assert answer.result.attempt_number == 2


@pytest.mark.usefixtures("site")
async def test_unnamed_check_is_refused_with_missing_line() -> None:
    answer = await answered(PlatformConfig(), '{"size": 500}')

    assert answer.result.failure is not None
    assert answer.result.failure.category == FailureKind.INVALID_REQUEST
    assert answer.result.failure.description == (
        "the installed check of schema 'acme_order.v1' is not loaded. "
        'Add "acme_order.v1" = "acme-desk" to [checks] of the workers\' configuration'
    )
    assert (answer.result.dispatched_at, answer.result.cost_nusd) == (None, 0)
    assert loaded_modules() == set()


async def test_check_in_two_packages_must_be_named(site: Path) -> None:
    install_package(site, "other-desk", OTHER, checks="acme_order.v1 = other_desk:check")

    refused = await answered(PlatformConfig(), '{"size": 500}')
    accepted = await answered(PlatformConfig(checks={"acme_order.v1": "other-desk"}), '{"size": 500}')

    assert 'Add "acme_order.v1" = "acme-desk" or "acme_order.v1" = "other-desk" to [checks] of' in str(
        refused.result.failure
    )
    assert accepted.result.parsed_output == {"size": 500}
    assert loaded_modules() == set()


@pytest.mark.usefixtures("site")
async def test_check_from_code_needs_no_name() -> None:
    answer = await answered(PlatformConfig(), '{"size": 500}', checks={"acme_order.v1": lambda *_: []})

    assert answer.result.parsed_output == {"size": 500}
    assert loaded_modules() == set()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("rules", "failure"),
    [
        (NAMED, None),
        ({}, 'to load the installed rule, add "acme_order.v1" = "acme-desk" to [rules] of the configuration'),
    ],
)
async def test_rule_answers_only_if_named(rules: dict[str, str], failure: str | None) -> None:
    config = PlatformConfig(checks=NAMED, rules=rules, providers={"rules": ProviderConfig()})

    async with Platform(config) as platform:
        answer = await platform.ask(envelope(LLMProvider.RULES))

    assert isinstance(answer, LLMInteraction)
    if failure is None:
        assert answer.result.parsed_output == {"size": 7}
    else:
        assert failure in str(answer.result.failure)


async def test_page_configuration_loads_the_package_functions(site: Path) -> None:
    file = site / "fleet.toml"
    file.write_text(FILES["fleet.toml"], encoding="utf-8")
    config = load_config(file)

    assert (dict(config.checks), dict(config.rules)) == (NAMED, NAMED)
    assert await check_platform(config) == []
    assert loaded_modules() == {"acme_desk", "acme_desk.orders"}


@pytest.mark.parametrize(
    ("checks", "problem"),
    [
        (
            {"acme_order.v1": "acme"},
            "checks.acme_order.v1 is 'acme', which is not installed or has no function for this schema. Allowed: acme-desk",
        ),
        (
            {"other.v1": "acme-desk"},
            "Allowed: a package with an entry point other.v1 in the group agentic_trading.checks",
        ),
        (
            {"failing.v1": "failing_desk"},
            "'failing_desk', but failing.v1 (agentic_trading.checks) of the package failing-desk cannot be loaded",
        ),
        (
            {"number.v1": "other-desk"},
            "but number.v1 (agentic_trading.checks) of the package other-desk is not a function",
        ),
    ],
)
def test_unusable_check_is_a_configuration_problem(site: Path, checks: dict[str, str], problem: str) -> None:
    install_package(
        site, "failing-desk", "raise RuntimeError('no licence')", checks="failing.v1 = failing_desk:check"
    )
    install_package(site, "other-desk", OTHER, checks="number.v1 = other_desk:NUMBER")
    config = PlatformConfig(checks=checks)

    with pytest.raises(ConfigError) as error:
        functions_of(config, "checks")

    assert problem in str(error.value)
    assert [str(one) for one in asyncio.run(check_platform(config))] == [str(error.value)]


def test_desk_registers_session_checks_and_rules() -> None:
    named = functions_in(["agentic_trading"])
    config = PlatformConfig(checks=named["checks"], rules=named["rules"])

    assert functions_of(config, "checks") == CHECKS
    assert functions_of(config, "rules") == {**RULES, **ASK_RULES}


def test_package_without_functions_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'typer', which is not installed or has no check and no rule\. Allowed: agentic-"
    ):
        functions_in(["typer"])


def test_packages_with_same_check_are_refused_together(site: Path) -> None:
    install_package(site, "other-desk", OTHER, checks="acme_order.v1 = other_desk:check")

    assert functions_in(["acme_desk"])["checks"] == NAMED
    with pytest.raises(ConfigError) as error:
        functions_in(["acme-desk", "other-desk"])
    assert str(error.value) == (
        "--package is other-desk, which has acme_order.v1 of [checks] like acme-desk. "
        "Allowed: one of the two, or a line for acme_order.v1 in [checks] of the configuration"
    )


def test_config_checksum_changes_only_with_named_packages() -> None:
    without = PlatformConfig(weights_folder=Path("weights")).config_sha256

    assert without == "ca1499538c9048d5ff0360fd635a8ddb775959a2cbca9bc605f3b63fe735a6a5"  # as in older logs
    assert PlatformConfig(weights_folder=Path("weights"), checks=NAMED).config_sha256 != without
    assert PlatformConfig(weights_folder=Path("weights"), rules=NAMED).config_sha256 != without


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/run-workers.md", "docs/reference/cli.md"])
def test_documented_worker_commands_load_the_desk(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if re.search(r"^\S*agentic-trading worker --", line)]

    assert commands
    assert [line for line in commands if "--package agentic-trading" not in line] == []
