"""Options that no run can have are refused by name, with what is allowed."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.cli.run import FLAGS
from agentic_trading.desk.planning.params import PlanTerms
from agentic_trading.desk.session.options import RunOptions, load_run_config
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm.limits import NANO
from agentic_trading.platform.errors import ConfigError, OptionError
from tests.desk.session.asking import run_options

FROM = {"provider": "recorded", "recorded_from": Path("earlier")}

HOSTED = {"provider": "openai", "record": True}

PANEL = {"data": ("sp500-sample",)}


def options(**changes: Any) -> RunOptions:
    return run_options(**{"data": ("btcusdt-5m",), "out": Path("out"), **changes})


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"data": ()}, "--data"),
        ({"bars": 0}, "--bars"),
        ({"bars": -5}, "--bars"),
        ({"budget_usd": Decimal(0)}, "--budget-usd"),
        ({"budget_usd": Decimal("-0.01")}, "--budget-usd"),
        ({"budget_usd": Decimal("NaN")}, "--budget-usd"),
        ({"budget_usd": Decimal("sNaN")}, "--budget-usd"),
        ({"budget_usd": Decimal("Infinity")}, "--budget-usd"),
        ({"budget_usd": Decimal("1e-10")}, "--budget-usd"),
        ({"budget_usd": Decimal("1e999999")}, "--budget-usd"),
        ({"tenants": {"acme": {}, "beta": {}}}, r"\[tenants\]"),
        ({"provider": "acme"}, "--provider"),
        ({"provider": "recorded"}, "--from"),
        ({"recorded_from": Path("earlier")}, "--from"),
        ({**FROM, "inject": "timeout=1%"}, "--inject"),
        ({**FROM, "max_calls": 3}, "--max-calls"),
        ({"max_calls": 0}, "--max-calls"),
        ({"provider": "anthropic"}, "--record"),
        ({"provider": "openai"}, "--record"),
        ({"model": "some-model"}, "--model"),
        ({**FROM, "model": "some-model"}, "--model"),
        ({"family": "momentum"}, "--family"),
        ({"rounds": 5}, "--rounds"),
        ({**PANEL, "family": "trend"}, "--family"),
        ({**PANEL, "rounds": 0}, "--rounds"),
    ],
)
def test_impossible_option_value_is_rejected(changes: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError, match=f"^{option} is .*. Allowed: ") as refused:
        options(**changes)

    assert refused.value.option == option.replace("\\", "")


def test_extreme_option_values_are_accepted() -> None:
    assert options(bars=1, workers=256, budget_usd=Decimal("1e-9")).budget_nusd == 1
    assert options(workers=1, budget_usd=Decimal(9_000_000)).budget_nusd == 9 * 10**15
    assert options(**FROM).recorded_from == Path("earlier")


def test_budget_rounds_down_to_nano_dollars() -> None:
    assert options(budget_usd=Decimal("0.1234567891999")).budget_nusd == 123_456_789


def test_missing_from_option_is_named() -> None:
    with pytest.raises(OptionError, match=r"^--from is left out. Allowed: a session's folder"):
        options(provider="recorded")


@pytest.mark.parametrize("provider", ["", "rules", "recorded", "local", "config"])
def test_base_url_requires_network_provider(provider: str) -> None:
    with pytest.raises(OptionError, match=r"^--base-url is given. Allowed: the URL of a server with"):
        load_run_config(provider=provider, base_url="http://host")


@pytest.mark.parametrize(
    "address", ["host/v1", "ftp://host", "http://", "http://host:port", "http://[host", "http://host?key=1",
                "https://user:sesame@host/v1"],
)  # fmt: skip
def test_invalid_base_url_hides_password(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^--base-url: providers\.openai\.base_url is ") as refused:
        load_run_config(provider="openai", base_url=address)

    assert "sesame" not in str(refused.value)


def test_config_error_names_option(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("concurrency = 8\n")

    assert load_run_config(file, flags=FLAGS).concurrency == 8
    assert load_run_config(file, flags=FLAGS, concurrency=1).concurrency == 1
    with pytest.raises(ConfigError, match=r"^--workers: concurrency is 257. Allowed: "):
        load_run_config(file, flags=FLAGS, concurrency=257)


def test_tenant_calls_counted_in_window() -> None:
    rows = {"acme": {"calls": 5, "window": "day"}}

    assert options(tenants=rows).limit == Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=5 * NANO, calls=5)
    assert options(tenants=rows, max_calls=3).limit.calls == 3
    assert options(tenants=rows, budget_usd=Decimal(1)).limit.window is Window.NONE


def test_run_mode_defaults_to_backtest(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('mode = "paper"\n')

    assert load_run_config().mode == "backtest"
    assert load_run_config(file).mode == "paper"
    assert load_run_config(file, mode="backtest").mode == "backtest"


def test_record_option_allows_network_provider() -> None:
    assert options(provider="anthropic", record=True).record
    assert options(provider="anthropic", mode="paper").mode == "paper"
    assert options(provider="local", max_calls=1).max_calls == 1
    assert options(record=True).provider == "rules"


def test_plan_terms_require_panel_data() -> None:
    five = PlanTerms(family="momentum", rounds=5)

    assert options().plan_terms() is None
    assert options(**PANEL).plan_terms() == five
    assert options(**PANEL, rounds=9).plan_terms() == PlanTerms(family="momentum", rounds=9)
    assert options(**PANEL, rounds=9).plan_terms(PlanTerms(family="volatility", rounds=2)) == PlanTerms(
        family="volatility", rounds=9
    )
