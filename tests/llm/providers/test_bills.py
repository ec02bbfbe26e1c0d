"""The server's own bill is read where its unit is known, and only amounts are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.providers.hosted import NO_BILL, Bill, BillUnit, bill_of, unit_at

UPSTREAM = {"upstream_inference_cost": 0.002}


@pytest.mark.parametrize(
    ("usage", "nusd"),
    [
        ({"cost": 0.0031, "is_byok": False}, 3_100_000),
        ({"cost": 0.0031, "cost_details": {"upstream_inference_cost": None}}, 3_100_000),
        ({"cost": 0.0031, "is_byok": False, "cost_details": UPSTREAM}, 3_100_000),
        ({"cost": 0.0001, "is_byok": False, "cost_details": UPSTREAM}, 2_000_000),
        ({"cost": 0.0001, "is_byok": True, "cost_details": UPSTREAM}, 2_100_000),
        ({"cost": 0, "is_byok": True, "cost_details": UPSTREAM}, 2_000_000),
        ({"cost": None, "is_byok": True, "cost_details": UPSTREAM}, 2_000_000),
        ({"cost": 0.0001, "is_byok": "yes", "cost_details": UPSTREAM}, 2_100_000),
        ({"cost_details": {"upstream_inference_prompt_cost": 0.001, "upstream_inference_completions_cost": 0.002}}, 3_000_000),
        ({"cost_details": {**UPSTREAM, "upstream_inference_prompt_cost": 0.0005}}, 2_000_000),
        ({"cost": {"input_tokens_cost": 0.001, "output_tokens_cost": 0.002, "request_cost": 0.005, "total_cost": 0.008}}, 8_000_000),
        ({"cost": {"input_tokens_cost": 0.001, "request_cost": 0.009, "total_cost": 0.008}}, 10_000_000),
        ({"cost_in_usd_ticks": 37_756_000}, 3_775_600),
        ({"cost_in_usd_ticks": 1}, 1),
        ({"cost": 1e-10, "is_byok": False}, 1),
        ({"cost": 0, "is_byok": False}, 0),
        ({"cost": 1_000_000, "is_byok": False}, 10**15),
    ],
)  # fmt: skip
def test_bill_with_known_unit_is_read(usage: dict[str, Any], nusd: int) -> None:
    assert bill_of(usage) == Bill(nusd)


@pytest.mark.parametrize("usage", [None, 7, [], {}, {"prompt_tokens": 7}, {"cost": 0}, {"cost_details": 7}])
def test_usage_without_cost_has_no_bill(usage: Any) -> None:
    assert bill_of(usage) == NO_BILL


@pytest.mark.parametrize("cost", [0.5, 3100, "text", {"input_cost": 1}])
def test_cost_without_unit_is_only_reported(cost: Any) -> None:
    found = bill_of({"cost": cost})

    assert found.nusd is None
    assert 'the option bill = "usd" reads it' in found.problem


@pytest.mark.parametrize(
    "value", [-0.5, -1, float("nan"), float("inf"), "text", True, [1], 1e300, 1_000_000.5, 10**30]
)
def test_non_amount_is_ignored_and_reported(value: Any) -> None:
    found = bill_of({"cost": value, "is_byok": False, "cost_details": UPSTREAM})

    assert found.nusd == 2_000_000
    assert found.problem.startswith("usage.cost is ")
    assert found.problem.endswith("allowed are numbers from 0 to 1,000,000 dollars")


def test_option_reads_or_ignores_a_cost() -> None:
    usage = {"cost": 0.5}

    assert bill_of(usage, "usd") == Bill(500_000_000)
    assert bill_of({"cost": {"input_cost": 0.1, "output_cost": 0.2}}, "usd") == Bill(300_000_000)
    assert bill_of({**usage, "is_byok": False}, "none") == NO_BILL


@pytest.mark.parametrize(
    ("host", "unit"),
    [("openrouter.ai", "usd"), ("eu.openrouter.ai", "usd"), ("notopenrouter.ai", "known"), ("", "known")],
)
def test_bill_unit_follows_host_domain(host: str, unit: BillUnit) -> None:
    assert unit_at(host) == unit


@given(st.dictionaries(
    st.sampled_from(["cost", "is_byok", "cost_details", "cost_in_usd_ticks"]),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                 lambda inner: st.dictionaries(st.sampled_from(["total_cost", "a_cost", "upstream_inference_cost"]), inner), max_leaves=4),
))  # fmt: skip
def test_bill_of_any_usage_stays_bounded(usage: dict[str, Any]) -> None:
    found = bill_of(usage)

    assert found.nusd is None or 0 <= found.nusd <= 3 * 10**15
