"""What a run with a model will come to: counted on the bars themselves, priced by the gate's bound."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.preflight import HOSTED_CALL_S, Preflight, preflight
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.models import WeightsError
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import PlatformConfig, ProviderConfig
from agentic_trading.platform.errors import ConfigError, OptionError
from agentic_trading.platform.tables import load_tables
from tests.build import interaction
from tests.desk.session.asking import OWN_MODEL, options, own_rows
from tests.flows.sessions import contents, ran
from tests.operate.test_session_folder import manifest


def claude(**changes: Any) -> RunOptions:
    return options(**{"provider": "anthropic", "keys": {"anthropic": "sk-of-a-test"}, **changes})


async def test_preflight_counts_rule_calls(tmp_path: Path) -> None:
    expected = await preflight(claude())
    by_rules = await ran(tmp_path, data=("btcusdt-5m",), bars=450)

    assert expected.calls == by_rules.attempts > 3
    assert expected.models == ("claude-sonnet-5-5", "claude-haiku-5-5")
    assert expected.seconds == expected.calls * HOSTED_CALL_S


async def test_preflight_bound_never_exceeds_budget() -> None:
    all_of_them, three = await preflight(claude()), await preflight(claude(max_calls=3))
    poor = await preflight(claude(budget_usd=Decimal("0.01")))

    assert all_of_them.bound_nusd is not None
    assert three.bound_nusd is not None
    assert (three.calls, three.max_calls) == (3, 3)
    assert 0 < three.bound_nusd < all_of_them.bound_nusd < all_of_them.budget_nusd
    assert poor.bound_nusd == poor.budget_nusd == 10_000_000


async def test_two_symbols_halve_expected_time() -> None:
    both = await preflight(claude(data=("btcusdt-5m", "ethusdt-5m")))

    assert both.calls is not None
    assert both.seconds == both.calls * HOSTED_CALL_S / 2


async def test_stream_cannot_be_counted() -> None:
    expected = await preflight(claude(data=("BTCUSDT=-",), max_calls=9))

    assert expected == Preflight(
        provider="anthropic",
        models=("claude-sonnet-5-5", "claude-haiku-5-5"),
        calls=None,
        max_calls=9,
        bound_nusd=None,
        budget_nusd=5_000_000_000,
        seconds=None,
        seconds_a_call=None,
    )


async def test_custom_model_uses_own_price_row(tmp_path: Path) -> None:
    models, prices = own_rows(tmp_path)
    own = options(provider="openai", base_url="http://127.0.0.1:9/v1", models_file=models, prices_file=prices)

    expected = await preflight(own)

    assert expected.models == (OWN_MODEL,)
    assert expected.bound_nusd


async def test_free_model_bound_is_zero(tmp_path: Path) -> None:
    tables = dict(zip(("models_file", "prices_file"), own_rows(tmp_path), strict=True))
    rates = dict.fromkeys(("input", "output", "cache_read", "cache_write_5m", "cache_write_1h"), 0)
    book = json.loads(tables["prices_file"].read_text())
    tables["prices_file"].write_text(json.dumps({**book, "rows": [row | rates for row in book["rows"]]}))
    own: dict[str, Any] = {"provider": "openai", "base_url": "http://127.0.0.1:9/v1", **tables}

    counted, streamed = await preflight(options(**own)), await preflight(options(data=("BTCUSDT=-",), **own))

    assert (counted.bound_nusd, counted.is_free) == (0, True)
    assert (streamed.calls, streamed.bound_nusd) == (None, 0)


async def test_bound_unknown_if_unrehearsed_calls_priced(tmp_path: Path) -> None:
    """The rules make no execution call over these bars; the model may, and it has a price."""
    models, prices = own_rows(tmp_path, ("free", "dear"))
    book = json.loads(prices.read_text())
    free = dict.fromkeys(("input", "output", "cache_read", "cache_write_5m", "cache_write_1h"), 0)
    rows = [row | (free if row["model"] == "free" else {}) for row in book["rows"]]
    prices.write_text(json.dumps({**book, "rows": rows}))
    loaded = PlatformConfig(
        mode="backtest",
        providers={"openai": ProviderConfig(base_url="http://127.0.0.1:9/v1")},
        models={EnvelopeWorkflow.ANALYSIS: "openai/free", EnvelopeWorkflow.EXECUTION: "openai/dear"},
        models_file=models,
        prices_file=prices,
    )
    asked = RunOptions(
        data=("btcusdt-5m",), out=tmp_path / "out", bars=370, record=True, config=loaded, provider="config"
    )

    expected = await preflight(asked)

    assert expected.calls
    assert (expected.bound_nusd, expected.is_free) == (None, False)


async def test_preflight_checks_access_without_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    await preflight(claude())
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        await preflight(options(provider="anthropic"))
    with pytest.raises(WeightsError, match="models fetch"):
        await preflight(options(provider="local", weights_folder=tmp_path))

    assert contents(tmp_path) == {}


async def test_resumed_run_counts_remaining_calls(tmp_path: Path) -> None:
    before = await ran(tmp_path, data=("btcusdt-5m",), bars=400)
    as_if_claude_had_answered(tmp_path)

    whole = await preflight(claude())
    rest = await preflight(claude(out=tmp_path, resume=True))
    limited = await preflight(claude(out=tmp_path, resume=True, max_calls=before.sent + 1))
    used_up = await preflight(claude(out=tmp_path, resume=True, max_calls=before.sent))

    assert whole.calls is not None
    assert rest.calls is not None
    assert 1 < rest.calls < whole.calls
    assert (whole.goes_on, rest.goes_on) == (False, True)
    assert (limited.calls, limited.max_calls) == (1, 1)
    assert (used_up.calls, used_up.max_calls, used_up.bound_nusd) == (0, 0, 0)


async def test_resumed_run_has_remaining_budget(tmp_path: Path) -> None:
    store = port_adapters.log_for("backtest", tmp_path / "interactions.jsonl")
    await store.store(interaction(cost_nusd=4_999_000_000))
    await store.aclose()
    begun = manifest(answers="anthropic", provider="anthropic", model="")
    await asyncio.to_thread(SessionFolder(tmp_path).write_manifest, begun)

    rest = await preflight(claude(out=tmp_path, resume=True))

    assert rest.budget_nusd == rest.bound_nusd == 1_000_000
    assert rest.first_nusd > rest.budget_nusd


async def test_resume_with_other_inputs_is_rejected(
    tmp_path: Path,
) -> None:
    await ran(tmp_path, data=("btcusdt-5m",), bars=5)

    with pytest.raises(OptionError, match=r"--provider is 'anthropic'\. Allowed: 'rules', because run 1"):
        await preflight(claude(out=tmp_path, resume=True))


def as_if_claude_had_answered(session: Path) -> None:
    """Let the run of a session be one whose answers came from the models of the presets."""
    path = session / "run.json"
    fields = json.loads(path.read_bytes())
    path.write_text(json.dumps({**fields, "answers": "anthropic", "provider": "anthropic", "model": ""}))


def test_shipped_price_table_has_name() -> None:
    assert load_tables().prices.name
