"""Charges of answers from public bug reports: never below the server's bill."""

import json
from pathlib import Path

import pytest

from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm import LLMProvider
from agentic_trading.llm.result import Usage
from agentic_trading.platform import PriceConfig, load_config
from tests.build import NOW
from tests.cases.answering import PRICE, PUBLIC, asked


async def test_service_tier_of_a_row_is_charged_at_its_multiplier(tmp_path: Path) -> None:
    body = (PUBLIC / "o05_service_tier_on_demand.json").read_bytes()
    price = PriceConfig(**PRICE.model_dump() | {"service_tier": {"on_demand": (1, 1)}})

    answer = await asked(body, tmp_path, price=price)

    assert (answer.result.success, answer.result.cost_nusd) == (True, 400_000)


async def test_cache_writes_are_charged_by_every_name(tmp_path: Path) -> None:
    answer = await asked((PUBLIC / "o07_cache_writes_by_another_name.json").read_bytes(), tmp_path)

    expected = 100 * 1000 + 6000 * 100 + 2900 * 1250 + 50 * 4000
    assert (answer.result.success, answer.result.cost_nusd) == (True, expected)


def test_price_file_with_fractions_is_exact() -> None:
    path = PUBLIC / "o12_fractional_price.json"
    usage = Usage(cache_read_tokens=1_000_000)

    cost = PriceBook.load(path).cost_nusd(LLMProvider("deepseek"), "cheap-1", usage, at=NOW)

    assert cost == 2_800_000


@pytest.mark.parametrize(("cached", "nusd"), [(0.0028, 2_800), (3.625, 3_625_000)])
def test_toml_price_with_fractions_is_exact(tmp_path: Path, cached: float, nusd: int) -> None:
    file = tmp_path / "agentic-trading.toml"
    file.write_text(
        f"""
[providers.deepseek]
adapter = "openai"
[[providers.deepseek.models]]
model = "cheap-1"
context_tokens = 32768
max_output_tokens = 4096
price = {{ input = 140, output = 280, cache_read = {cached}, service_tier = {{ on_demand = [1, 1] }} }}
source = "own"
checked_on = 2026-11-22
""",
        encoding="utf-8",
    )
    row = load_config(file).providers["deepseek"].models[0]

    price = row.price_of("deepseek")

    assert price is not None
    assert price.cache_read * 1_000_000 == nusd
    assert price.multiplier("service_tier", "on_demand") == (1, 1)
    assert json.loads(row.model_dump_json())["price"]["cache_read"] == cached
