"""Options that no run can have are refused by name, with what is allowed."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.app.options import OptionError, RunOptions

FROM = {"provider": "recorded", "recorded_from": Path("earlier")}

HOSTED = {"provider": "openai", "record": True}


def options(**changes: Any) -> RunOptions:
    return RunOptions(**{"data": ("btcusdt-5m",), "out": Path("out"), **changes})


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
        ({"workers": 0}, "--workers"),
        ({"workers": 257}, "--workers"),
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
        ({"base_url": "http://host"}, "--base-url"),
        ({"provider": "local", "base_url": "http://host"}, "--base-url"),
        ({**HOSTED, "base_url": "host/v1"}, "--base-url"),
        ({**HOSTED, "base_url": "ftp://host"}, "--base-url"),
        ({**HOSTED, "base_url": "http://"}, "--base-url"),
        ({**HOSTED, "base_url": "http://host:port"}, "--base-url"),
        ({**HOSTED, "base_url": "http://[host"}, "--base-url"),
        ({**HOSTED, "base_url": "http://host?key=1"}, "--base-url"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused(changes: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError, match=f"^{option} is .*; allowed: ") as refused:
        options(**changes)

    assert refused.value.option == option


def test_the_widest_values_are_taken() -> None:
    assert options(bars=1, workers=256, budget_usd=Decimal("1e-9")).budget_nusd == 1
    assert options(workers=1, budget_usd=Decimal(9_000_000)).budget_nusd == 9 * 10**15
    assert options(**FROM).recorded_from == Path("earlier")


def test_a_budget_is_counted_in_whole_nano_dollars() -> None:
    assert options(budget_usd=Decimal("0.1234567891999")).budget_nusd == 123_456_789


def test_a_folder_of_answers_that_was_not_named_is_told_as_left_out() -> None:
    with pytest.raises(OptionError, match=r"^--from is left out; allowed: a session's folder"):
        options(provider="recorded")


def test_an_address_with_a_password_is_not_shown() -> None:
    with pytest.raises(OptionError, match=r"^--base-url is an address with a password in it") as refused:
        options(**HOSTED, base_url="https://user:sesame@host/v1")

    assert "sesame" not in str(refused.value)


def test_a_backtest_asks_over_a_network_only_if_it_is_told_to() -> None:
    assert options(provider="anthropic", record=True).record
    assert options(provider="anthropic", mode="paper").mode == "paper"
    assert options(provider="local", max_calls=1).max_calls == 1
    assert options(record=True).provider == "rules"
