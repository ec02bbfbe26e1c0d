"""A platform serves its tenants alone, and sends each call where it belongs."""

import asyncio
import json
import signal
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.llm import (
    EnvelopeBuilder,
    EnvelopeWorkflow,
    FailureKind,
    JsonFileInteractionStore,
    LLMInteraction,
    LLMProvider,
)
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.operate.log_check import check_file
from agentic_trading.platform import (
    ConfigError,
    FallbackConfig,
    Platform,
    PlatformConfig,
    Ports,
    ProviderConfig,
    TenantConfig,
    local_gateway,
)
from tests.platform.calls import BUDGET_USD, ROW, asked, envelope, scripted, spent_nusd


async def test_tenants_have_separate_limits_unlisted_is_refused() -> None:
    config = PlatformConfig(
        tenants={"acme": TenantConfig(budget_usd=BUDGET_USD), "beta": TenantConfig(budget_usd=Decimal(0))}
    )

    async with Platform(config, Ports(providers={"scripted": scripted()})) as platform:
        kinds = await asked(platform, *(envelope(tenant=tenant) for tenant in ("acme", "beta", "zenith")))

    assert kinds == [None, FailureKind.BUDGET_EXHAUSTED, FailureKind.NOT_ALLOWED]


async def test_providers_answer_at_configured_prices() -> None:
    house, other = scripted(), scripted()
    config = PlatformConfig(providers={"house": ProviderConfig(models=(ROW,))})

    async with Platform(config, Ports(providers={"house": house, "scripted": other})) as platform:
        answer = await platform.ask(envelope(provider="house", model="quant-7b"))
        kinds = await asked(platform, envelope(), envelope(provider="rules", model="rules-1"))

    assert isinstance(answer, LLMInteraction)
    usage = answer.result.usage
    assert answer.result.cost_nusd == 20 * usage.input_tokens + 150 * usage.output_tokens > 0
    assert kinds[0] is None
    assert (len(house.requests), len(other.requests)) == (1, 1)


async def test_configured_provider_is_made_by_adapter() -> None:
    config = PlatformConfig(
        providers={
            "desk-model": ProviderConfig(adapter="scripted", options={"answers": ["{}"]}, models=(ROW,))
        }
    )

    async with Platform(config) as platform:
        assert await asked(platform, envelope(provider="desk-model", model="quant-7b"), envelope()) == [
            None,
            FailureKind.NOT_SERVED,
        ]


async def test_own_tables_are_used(tmp_path: Path) -> None:
    models, prices = tmp_path / "models.json", tmp_path / "prices.json"
    capability = ROW.capability_of("scripted").model_dump(mode="json", exclude_none=True)
    price = ROW.price_of("scripted")
    assert price is not None
    models.write_text(_table([capability]), encoding="utf-8")
    prices.write_text(_table([price.model_dump(mode="json", exclude_none=True)]), encoding="utf-8")

    gateway = local_gateway(scripted(), budget_usd=BUDGET_USD, models_file=models, prices_file=prices)
    async with gateway as platform:
        assert await asked(platform, envelope(model="quant-7b")) == [None]


async def test_client_signs_as_the_named_principal(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    for name in ("desk-a", "desk-b"):
        (keys / name).write_text(name * 8, encoding="utf-8")
    (tmp_path / "policy.toml").write_text(
        '[principals.desk-a]\ntenants = ["acme"]\nmodels = ["scripted/*"]\n'
        '[principals.desk-b]\ntenants = ["beta"]\nmodels = ["scripted/*"]\n',
        encoding="utf-8",
    )
    config = PlatformConfig(
        tenants={"acme": TenantConfig(), "beta": TenantConfig()},
        policy=tmp_path / "policy.toml",
        principals_folder=keys,
        sign_as="desk-a",
    )

    async with (
        Platform(config, Ports(providers={"scripted": scripted()})) as platform,
        platform.client("beta-desk", sign_as="desk-b") as beta,
    ):
        own = await platform.ask(envelope(tenant="acme"))
        theirs = await beta.ask(envelope(tenant="beta"))
        forged = await beta.ask(envelope(tenant="acme"))
        with pytest.raises(ConfigError, match=r"sign_as is 'mallory'\. Allowed: desk-a, desk-b"):
            async with platform.client("evil", sign_as="mallory"):
                pass

    assert [answer.actionable for answer in (own, theirs, forged)] == [True, True, False]


async def test_other_principal_requires_signing_keys() -> None:
    async with Platform(PlatformConfig()) as platform:
        with pytest.raises(ConfigError, match="but messages are not signed"):
            async with platform.client("desk", sign_as="desk-a"):
                pass


async def test_platform_serves_until_stopped() -> None:
    async with Platform(PlatformConfig()) as platform, asyncio.TaskGroup() as group:
        serving = group.create_task(platform.serve())
        await asyncio.sleep(0)
        assert not serving.done()
        platform.stop()
        platform.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_drains_calls_in_flight(tmp_path: Path, number: signal.Signals) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            is_asked.set()
            await may_answer.wait()
            return await super().complete(request)

    config = PlatformConfig(folder=tmp_path, tenants={"default": TenantConfig(budget_usd=BUDGET_USD)})
    async with (
        asyncio.timeout(5),
        asyncio.TaskGroup() as group,
        Platform(config, Ports(providers={"scripted": Slow(["{}"])})) as platform,
    ):
        await platform.submit(envelope())
        serving = group.create_task(platform.serve())
        await is_asked.wait()
        signal.raise_signal(number)
        await serving
        group.create_task(set_soon(may_answer))

    assert await spent_nusd(tmp_path / "interactions.jsonl") == 212_000
    assert (await check_file(tmp_path / "interactions.jsonl")).verdict == "whole"


async def set_soon(event: asyncio.Event) -> None:
    event.set()


async def test_unopened_platform_refuses_calls() -> None:
    with pytest.raises(RuntimeError, match="the platform is not open"):
        await Platform(PlatformConfig()).ask(envelope())


async def test_caller_error_is_raised_alone() -> None:
    with pytest.raises(LookupError, match="own mistake"):
        async with Platform(PlatformConfig()):
            raise LookupError("the caller's own mistake")


async def test_folder_and_store_are_mutually_exclusive(tmp_path: Path) -> None:
    store = JsonFileInteractionStore(tmp_path / "log.jsonl")

    with pytest.raises(ValueError, match="both folder and store are given"):
        async with local_gateway(scripted(), folder=tmp_path, store=store, budget_usd=BUDGET_USD):
            pass
    await store.aclose()


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"name": "of my own", "rows": list(rows)})


async def test_fallback_is_used_only_for_configured_workflow() -> None:
    house = scripted()
    config = PlatformConfig(
        providers={"house": ProviderConfig(models=(ROW,))},
        fallback={EnvelopeWorkflow.GENERAL: FallbackConfig(to=("house/quant-7b",))},
    )

    async with Platform(config, Ports(providers={"house": house})) as platform:
        general = await platform.ask(envelope(1, provider="rules", model="rules-1"))
        analysis = (
            EnvelopeBuilder()
            .for_analysis()
            .with_instructions("Advise.")
            .with_provider(LLMProvider.RULES, "rules-1")
        )
        stays = await platform.ask(analysis.build())
        outcome = await platform.ask_structured(envelope(2, provider="rules", model="rules-1"))

    assert isinstance(general, LLMInteraction)
    assert (general.result.provider, general.actionable) == ("house", True)
    assert stays.failure is not None
    assert stays.failure.category == FailureKind.NOT_SERVED
    assert [(one.provider, one.cost_nusd > 0) for one in outcome.attempts] == [
        ("rules", False),
        ("house", True),
    ]
    assert len(house.requests) == 2
