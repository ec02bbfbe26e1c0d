"""A platform remembers by its folder, obeys operators, serves its tenants alone, and sends each call where it belongs."""

import asyncio
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.governance.commands import AddHalt, SetLimit, execute_command
from agentic_trading.governance.control_stores.file import FileControlStore
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.events import AttemptDispatched
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm import (
    EnvelopeBuilder,
    EnvelopeWorkflow,
    FailureKind,
    JsonFileInteractionStore,
    LLMEnvelope,
    LLMInteraction,
    LLMProvider,
    StoreError,
    StoreLockedError,
)
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import (
    ConfigError,
    FallbackConfig,
    ModelConfig,
    Platform,
    PlatformConfig,
    Ports,
    PriceConfig,
    ProviderConfig,
    TenantConfig,
    local_gateway,
)
from tests.gateway import START

ROW = ModelConfig(
    model="quant-7b", context_tokens=32_768, max_output_tokens=4096, price=PriceConfig(input=20, output=150),
    source="own cluster", checked_on=START.date(),
)  # fmt: skip
BUDGET_USD = Decimal("0.1")
SMALL_USD = Decimal("0.0475")
"""For three calls of the scripted model: each costs 0.000212, and 0.046904 is reserved for it."""


def envelope(
    n: int = 0, *, tenant: str = "default", provider: str = "scripted", model: str = "scripted-1"
) -> LLMEnvelope:
    builder = EnvelopeBuilder().for_general().with_instructions("Advise.").with_context({"n": n})
    return builder.with_tenant(tenant).with_provider(LLMProvider(provider), model).build()


def scripted() -> ScriptedProvider:
    return ScriptedProvider(lambda _request: "{}")


async def asked(platform: Platform, *envelopes: LLMEnvelope) -> list[FailureKind | None]:
    """Return how each call failed, None for one that was answered."""
    answers = [await platform.ask(each) for each in envelopes]
    return [answer.failure.category if answer.failure is not None else None for answer in answers]


async def spent_nusd(log: Path) -> int:
    records = JsonlRecords(log)
    spent = sum(row.cost_nusd for row in await records.spend("tenant"))
    await records.aclose()
    return spent


async def test_what_earlier_starts_in_the_folder_spent_is_spent(tmp_path: Path) -> None:
    outcomes = []
    for start in range(3):
        async with local_gateway(scripted(), folder=tmp_path, budget_usd=SMALL_USD) as platform:
            outcomes.append(await asked(platform, *(envelope(100 * start + n) for n in range(10))))

    assert [outcome.count(None) for outcome in outcomes] == [3, 0, 0]
    assert outcomes[2] == [FailureKind.BUDGET_EXHAUSTED] * 10
    assert await spent_nusd(tmp_path / "interactions.jsonl") == 3 * 212_000


async def test_a_store_in_a_file_that_is_handed_in_is_a_memory_too(tmp_path: Path) -> None:
    answered = []
    for start in range(3):
        store = JsonFileInteractionStore(tmp_path / "log.jsonl")
        async with local_gateway(scripted(), store=store, budget_usd=SMALL_USD) as platform:
            answered.append(
                (await asked(platform, *(envelope(100 * start + n) for n in range(10)))).count(None)
            )
        await store.aclose()

    assert answered == [3, 0, 0]


async def test_a_halt_reaches_an_embedded_platform_within_a_second(tmp_path: Path) -> None:
    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope(1)) == [None]
        await execute_command(
            FileControlStore(tmp_path),
            "default",
            AddHalt(HaltScope.TENANT, "default"),
            by="ann",
            why="",
            at=START,
        )
        async with asyncio.timeout(1):
            n = 2
            while await asked(platform, envelope(n)) == [None]:
                n += 1
        assert await asked(platform, envelope(1000)) == [FailureKind.HALTED]


async def test_a_halt_holds_for_the_next_start_from_its_first_call(tmp_path: Path) -> None:
    halt = AddHalt(HaltScope.TENANT, "default")
    await execute_command(FileControlStore(tmp_path), "default", halt, by="ann", why="", at=START)

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope()) == [FailureKind.HALTED]


async def test_a_limit_of_an_operator_goes_before_that_of_the_configuration(tmp_path: Path) -> None:
    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope(1)) == [None]
    nothing = Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=0)
    await execute_command(
        FileControlStore(tmp_path), "default", SetLimit(nothing), by="ann", why="", at=START
    )

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope(2)) == [FailureKind.BUDGET_EXHAUSTED]


async def test_a_limit_of_the_configuration_follows_it(tmp_path: Path) -> None:
    for budget_usd, kind in (("0", FailureKind.BUDGET_EXHAUSTED), ("0.1", None)):
        async with local_gateway(scripted(), folder=tmp_path, budget_usd=Decimal(budget_usd)) as platform:
            assert await asked(platform, envelope()) == [kind]


async def test_each_tenant_has_its_own_limit_and_an_unlisted_one_is_refused() -> None:
    config = PlatformConfig(
        tenants={"acme": TenantConfig(budget_usd=BUDGET_USD), "beta": TenantConfig(budget_usd=Decimal(0))}
    )

    async with Platform(config, Ports(providers={"scripted": scripted()})) as platform:
        kinds = await asked(platform, *(envelope(tenant=tenant) for tenant in ("acme", "beta", "zenith")))

    assert kinds == [None, FailureKind.BUDGET_EXHAUSTED, FailureKind.NOT_ALLOWED]


async def test_each_provider_answers_under_its_name_at_the_price_of_its_row() -> None:
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


async def test_a_configured_provider_is_made_by_its_adapter() -> None:
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


async def test_tables_of_ones_own_are_honoured(tmp_path: Path) -> None:
    models, prices = tmp_path / "models.json", tmp_path / "prices.json"
    capability = ROW.capability_of("scripted").model_dump(mode="json", exclude_none=True)
    price = ROW.price_of("scripted")
    assert price is not None
    models.write_text(_table([capability]), encoding="utf-8")
    prices.write_text(_table([price.model_dump(mode="json", exclude_none=True)]), encoding="utf-8")

    gateway = local_gateway(scripted(), budget_usd=BUDGET_USD, models_file=models, prices_file=prices)
    async with gateway as platform:
        assert await asked(platform, envelope(model="quant-7b")) == [None]


async def test_a_folder_is_taken_by_one_platform(tmp_path: Path) -> None:
    first = PlatformConfig(folder=tmp_path, name="desk-a")

    async with Platform(first):
        with pytest.raises(StoreError, match="another platform is open in it"):
            async with Platform(PlatformConfig(folder=tmp_path, name="desk-b")):
                pass
    async with Platform(PlatformConfig(folder=tmp_path, name="desk-b")):
        pass


async def test_a_log_is_written_by_one_platform(tmp_path: Path) -> None:
    store = JsonFileInteractionStore(tmp_path / "interactions.jsonl")
    await store.open()

    with pytest.raises(StoreLockedError):
        async with Platform(PlatformConfig(folder=tmp_path)):
            pass
    await store.aclose()
    async with Platform(PlatformConfig(folder=tmp_path)):
        pass


async def test_clients_of_their_own_sign_as_their_principals(tmp_path: Path) -> None:
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
        with pytest.raises(ConfigError, match="sign_as is 'mallory'; allowed: desk-a, desk-b"):
            async with platform.client("evil", sign_as="mallory"):
                pass

    assert [answer.actionable for answer in (own, theirs, forged)] == [True, True, False]


async def test_a_client_needs_keys_to_be_another_principal() -> None:
    async with Platform(PlatformConfig()) as platform:
        with pytest.raises(ConfigError, match="and nothing is signed"):
            async with platform.client("desk", sign_as="desk-a"):
                pass


async def test_it_serves_until_it_is_stopped() -> None:
    async with Platform(PlatformConfig()) as platform, asyncio.TaskGroup() as group:
        serving = group.create_task(platform.serve())
        await asyncio.sleep(0)
        assert not serving.done()
        platform.stop()
        platform.stop()


async def test_it_is_used_within_its_block() -> None:
    with pytest.raises(RuntimeError, match="the platform is not open"):
        await Platform(PlatformConfig()).ask(envelope())


async def test_an_error_of_a_caller_comes_out_alone() -> None:
    with pytest.raises(LookupError, match="own mistake"):
        async with Platform(PlatformConfig()):
            raise LookupError("the caller's own mistake")


async def test_a_folder_and_a_store_are_not_given_together(tmp_path: Path) -> None:
    store = JsonFileInteractionStore(tmp_path / "log.jsonl")

    with pytest.raises(ValueError, match="both folder and store are given"):
        async with local_gateway(scripted(), folder=tmp_path, store=store, budget_usd=BUDGET_USD):
            pass
    await store.aclose()


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"name": "of my own", "rows": list(rows)})


async def test_a_call_falls_back_by_its_workflow_and_an_execution_never() -> None:
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


async def test_a_call_that_an_earlier_start_has_lost_is_in_doubt_and_goes_on_under_a_new_attempt(
    tmp_path: Path,
) -> None:
    asked = envelope(7)
    dispatched = AttemptDispatched(
        attempt=1,
        request_hash=asked.request_hash,
        provider="scripted",
        model="scripted-1",
        reservation_id=f"default:{asked.idempotency_key}:1",
        scopes={ScopeKind.CALL: asked.idempotency_key, ScopeKind.TENANT: "default"},
        reserved_nusd=46_904_000,
        reserved_tokens=5_000,
    )
    store = JsonFileInteractionStore(tmp_path / "interactions.jsonl")
    await store.record(
        dispatched.as_event(
            event_id="d-1",
            trace_id=asked.trace_id,
            tenant_id="default",
            time=START,
            causation_id=asked.envelope_id,
        )
    )
    await store.aclose()

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        outcome = await platform.ask_structured(asked)
        refused = await asked_until_refused(platform)

    assert [(one.number, one.in_doubt, one.cost_nusd) for one in outcome.attempts] == [
        (1, True, 46_904_000),
        (2, False, 212_000),
    ]
    assert outcome.ok
    assert refused == FailureKind.BUDGET_EXHAUSTED
    assert await spent_nusd(tmp_path / "interactions.jsonl") <= int(BUDGET_USD * NANO)


async def asked_until_refused(platform: Platform) -> FailureKind | None:
    """Ask until nothing more is answered, and return why."""
    for n in range(1000, 1100):
        (kind,) = await asked(platform, envelope(n))
        if kind is not None:
            return kind
    return None
