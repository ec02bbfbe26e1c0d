"""A run asks the models of its configuration, by workflow, falls back as it says, and is replayed without it."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from typing_extensions import override

from agentic_trading.desk.session.options import RunOptions, load_run_config
from agentic_trading.desk.session.preflight import preflight
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.run import run_session
from agentic_trading.governance.commands import SetLimit, execute_command
from agentic_trading.governance.control_stores.file import FileControlStore
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm.errors import FailureKind, ProviderError, StoreLockedError
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.platform.adapters import ProviderContext
from agentic_trading.platform.errors import ConfigError, OptionError
from tests.build import NOW
from tests.flows.sessions import Priced, calls_in, decided, kept_in

ROW = 'context_tokens = 200000\nmax_output_tokens = 16000\nsource = "a test"\nchecked_on = 2026-11-22\n'
FILE = f"""
concurrency = 3

[models]
analysis = "desk-a/large"
execution = "desk-b/small"

[providers.desk-a]
adapter = "tests.flows.test_configured_run:priced"
base_url = "http://10.0.0.5:8000/v1"
[[providers.desk-a.models]]
model = "large"
price = {{ input = 100, output = 1000 }}
{ROW}
[providers.desk-b]
adapter = "tests.flows.test_configured_run:priced"
[[providers.desk-b.models]]
model = "small"
price = {{ input = 10, output = 100 }}
{ROW}
"""
FALLING_BACK = FILE.replace(":priced", ":choosy", 1) + '[fallback.analysis]\nto = ["desk-b/small"]\n'
WITH_TENANT = FILE + '[tenants.acme]\nbudget_usd = "0.75"\nwindow = "day"\n'


def priced(_context: ProviderContext) -> Provider:
    """Make a provider that answers by the rules under its models' names."""
    return Priced()


class Counted(Priced):
    """Says how many of its kind are open."""

    opened = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.opened += 1

    @override
    async def aclose(self) -> None:
        Counted.opened -= 1


def counted(_context: ProviderContext) -> Provider:
    """Make a provider that is counted for as long as it is open."""
    return Counted()


class Choosy(Priced):
    """Refuses every other request unread; which ones, their hash says."""

    @override
    async def complete(self, request: ModelRequest) -> ModelResponse:
        if int(request.envelope.request_hash[-1], 16) % 2:
            raise ProviderError(FailureKind.SCHEMA_REFUSED, "not this one", sent=False)
        return await super().complete(request)


def choosy(_context: ProviderContext) -> Provider:
    """Make a provider that refuses every other request."""
    return Choosy()


def asked(folder: Path, text: str = FILE, **changes: Any) -> RunOptions:
    """Return the options of a short run of a configuration file with this text."""
    file = folder / "desk.toml"
    file.write_text(text)
    fields = {"data": ("btcusdt-5m",), "out": folder / "out", "bars": 500, "record": True}
    return RunOptions(**{**fields, "config": load_run_config(file), "provider": "config", **changes})


async def ran(options: RunOptions) -> Any:
    return await run_session(options, on_progress=lambda _progress: None)


def manifest_of(options: RunOptions) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = orjson.loads((options.out / "run.json").read_bytes())
    return fields


async def test_each_workflow_asks_its_model_and_is_charged_its_price(tmp_path: Path) -> None:
    options = await asyncio.to_thread(asked, tmp_path)

    report = await ran(options)
    again = await replay(options.out, workers=8)

    calls = calls_in(await kept_in(report.log))
    routes = {(call.envelope.workflow, call.result.provider, call.result.model) for call in calls}
    assert routes == {("analysis", "desk-a", "large"), ("execution", "desk-b", "small")}
    for call in calls:
        price = 10 if call.result.provider == "desk-b" else 100
        usage = call.result
        assert usage.cost_nusd == price * (usage.input_tokens + 10 * usage.output_tokens)
    assert again.identical
    assert (report.provider, report.model) == ("config", "desk-a/large, desk-b/small")


async def test_the_manifest_says_whom_the_run_asked_and_of_a_server_only_the_path(tmp_path: Path) -> None:
    options = await asyncio.to_thread(asked, tmp_path, FALLING_BACK, bars=420)

    await ran(options)

    kept = await asyncio.to_thread(manifest_of, options)
    assert (kept["version"], kept["answers"], kept["workers"]) == (2, "config", 3)
    assert kept["models"] == {"analysis": "desk-a/large", "execution": "desk-b/small"}
    assert kept["fallback"]["analysis"]["to"] == ["desk-b/small"]
    assert kept["providers"]["desk-a"] == {
        "adapter": "tests.flows.test_configured_run:choosy",
        "base_url": "http://…/v1",
    }
    assert [row["model"] for row in kept["capabilities"]] == ["large", "small"]
    assert kept["config_sha256"] == options.config.config_sha256


async def test_a_call_that_fails_falls_back_with_every_attempt_on_record_and_replays(tmp_path: Path) -> None:
    options = await asyncio.to_thread(asked, tmp_path, FALLING_BACK)

    report = await ran(options)
    again = await replay(options.out, workers=1)

    analyses = [call for call in calls_in(await kept_in(report.log)) if call.envelope.workflow == "analysis"]
    by_provider = Counter((str(call.result.provider), call.result.success) for call in analyses)
    failed = {call.interaction_id for call in analyses if not call.result.success}
    answered = [call for call in analyses if call.result.provider == "desk-b"]
    assert by_provider["desk-a", True] > 0
    assert by_provider["desk-a", False] > 0
    assert answered
    assert all(call.envelope.causation_id in failed for call in answered)
    assert report.no_decisions.get("analysis", {}) == {}
    assert again.identical
    assert (again.misses, again.unused) == (0, 0)


async def test_a_run_that_goes_on_asks_the_models_that_it_was_started_with(tmp_path: Path) -> None:
    await ran(await asyncio.to_thread(asked, tmp_path, bars=420))
    other = FILE.replace('execution = "desk-b/small"', 'execution = "desk-a/large"')

    with pytest.raises(OptionError, match=r"^\[models\] is .*Allowed: .*desk-b/small"):
        await ran(await asyncio.to_thread(asked, tmp_path, other, bars=430, resume=True))
    report = await ran(await asyncio.to_thread(asked, tmp_path, bars=430, resume=True))

    assert report.data[0].bars == 430
    assert (await replay(tmp_path / "out")).identical


async def test_the_providers_of_a_run_that_cannot_begin_are_closed(tmp_path: Path) -> None:
    text = FILE.replace(":priced", ":counted")
    first = await asyncio.to_thread(asked, tmp_path, text, bars=420)
    await ran(first)
    assert Counted.opened == 0

    lock = JsonFileInteractionStore(first.out / "interactions.jsonl")
    await lock.open()
    for options in (first, replace(first, resume=True, bars=430)):
        with pytest.raises(StoreLockedError):
            await ran(options)
    await lock.aclose()

    assert Counted.opened == 0


async def test_a_run_in_two_parts_with_a_fallback_decides_as_one_in_one(tmp_path: Path) -> None:
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    for folder in (parts, whole):
        await asyncio.to_thread(folder.mkdir)
    await ran(await asyncio.to_thread(asked, parts, FALLING_BACK, bars=430))
    await ran(await asyncio.to_thread(asked, parts, FALLING_BACK, resume=True))
    await ran(await asyncio.to_thread(asked, whole, FALLING_BACK))

    assert decided(parts / "out") == decided(whole / "out")


async def test_a_run_belongs_to_the_tenant_of_its_configuration_and_keeps_its_limit(tmp_path: Path) -> None:
    options = await asyncio.to_thread(asked, tmp_path, WITH_TENANT, bars=420)
    limit = Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=3 * NANO // 4)

    report = await ran(options)

    assert {record.envelope.tenant_id for record in calls_in(await kept_in(report.log))} == {"acme"}
    assert (await asyncio.to_thread(manifest_of, options))["tenant"] == "acme"
    controls = FileControlStore(options.out)
    assert limit in (await controls.read("acme")).limits
    assert (await replay(options.out)).identical


async def test_an_operators_limit_stands_before_that_of_the_configuration(tmp_path: Path) -> None:
    options = await asyncio.to_thread(asked, tmp_path, WITH_TENANT, bars=420)
    await asyncio.to_thread(options.out.mkdir)
    lower = Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=1)
    await execute_command(
        FileControlStore(options.out), "acme", SetLimit(lower), by="operator", why="a test", at=NOW
    )

    report = await ran(options)

    assert report.cost_nusd == 0
    results = [call.result for call in calls_in(await kept_in(report.log))]
    assert {result.failure.category for result in results if result.failure} == {FailureKind.BUDGET_EXHAUSTED}


async def test_an_option_goes_before_the_file(tmp_path: Path) -> None:
    options = await asyncio.to_thread(asked, tmp_path, bars=420)
    by_rules = replace(options, provider="rules", out=tmp_path / "rules", budget_usd=Decimal("0.5"))
    by_one = replace(options, provider="desk-b", model="small", out=tmp_path / "one")

    rules, one = await ran(by_rules), await ran(by_one)

    assert (rules.provider, rules.budget_nusd, rules.cost_nusd) == ("rules", NANO // 2, 0)
    asked_of = {call.result.provider for call in calls_in(await kept_in(one.log))}
    assert asked_of == {"desk-b"}


async def test_the_rules_may_answer_under_a_name_and_a_price_of_ones_own(tmp_path: Path) -> None:
    dry = FILE.replace("desk-b/small", "desk-b/rules-1").replace('model = "small"', 'model = "rules-1"')
    dry = dry.replace(
        '[providers.desk-b]\nadapter = "tests.flows.test_configured_run:priced"',
        '[providers.desk-b]\nadapter = "rules"',
    )
    options = await asyncio.to_thread(asked, tmp_path, dry)

    report = await ran(options)

    executions = [call for call in calls_in(await kept_in(report.log)) if call.result.provider == "desk-b"]
    assert executions
    assert all(call.result.success and call.result.cost_nusd for call in executions)


async def test_an_estimate_bounds_each_call_with_all_that_it_falls_back_on(tmp_path: Path) -> None:
    plain = await preflight(await asyncio.to_thread(asked, tmp_path, bars=420))
    falling = await preflight(await asyncio.to_thread(asked, tmp_path, FALLING_BACK, bars=420))

    assert falling.calls == plain.calls
    assert falling.bound_nusd is not None
    assert plain.bound_nusd is not None
    assert plain.bound_nusd < falling.bound_nusd < 2 * plain.bound_nusd
    assert falling.models == ("desk-a/large", "desk-b/small")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('execution = "desk-b/small"', ""), "models.execution is left out"),
        (
            ("desk-b/small", "desk-c/small"),
            "models.execution is desk-c/small, whose provider is not configured",
        ),
        (
            ("desk-b/small", "desk-b/none"),
            "models.execution is desk-b/none, which is not in the table of models",
        ),
        (
            ("price = { input = 10, output = 100 }", ""),
            "models.execution is desk-b/small, which has no price",
        ),
    ],
)
async def test_what_the_configuration_cannot_ask_is_told_before_anything_is_written(
    change: tuple[str, str], told: str, tmp_path: Path
) -> None:
    options = await asyncio.to_thread(asked, tmp_path, FILE.replace(*change))

    with pytest.raises(ConfigError) as refused:
        await ran(options)

    assert told in str(refused.value)
    assert not options.out.exists()
