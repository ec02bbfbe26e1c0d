"""Charges of answers from public bug reports: never below the server's bill."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm import LLMInteraction, LLMProvider
from agentic_trading.llm.result import Usage
from agentic_trading.platform import Platform, PriceConfig, load_config
from tests.build import NOW
from tests.cases.answering import MODEL, PRICE, PUBLIC, answering, asked, config, order


async def test_row_service_tier_multiplier_is_charged(tmp_path: Path) -> None:
    body = (PUBLIC / "o05_service_tier_on_demand.json").read_bytes()
    price = PriceConfig(**PRICE.model_dump() | {"service_tier": {"on_demand": (1, 1)}})

    answer = await asked(body, tmp_path, price=price)

    assert (answer.result.success, answer.result.cost_nusd) == (True, 400_000)


async def test_cache_writes_charged_under_every_name(tmp_path: Path) -> None:
    answer = await asked((PUBLIC / "o07_cache_writes_by_another_name.json").read_bytes(), tmp_path)

    expected = 100 * 1000 + 6000 * 100 + 2900 * 1250 + 50 * 4000
    assert (answer.result.success, answer.result.cost_nusd) == (True, expected)


async def test_bill_of_a_router_is_charged(tmp_path: Path) -> None:
    answer = await asked((PUBLIC / "o06_cost_of_the_router.json").read_bytes(), tmp_path)

    assert (answer.result.success, answer.result.in_doubt) == (True, False)
    assert answer.result.cost_nusd == answer.result.bill_nusd == 3_100_000
    assert LLMInteraction.from_wire(answer.wire).result.usage.bill_nusd == 3_100_000


@pytest.mark.parametrize(
    ("file", "word", "advice"),
    [
        ("o05_service_tier_on_demand.json", "service_tier=on_demand", 'service_tier = { "on_demand" = [1, 1] }'),
        ("o16_served_under_a_longer_name.json", "served_as=vendor/quant-7b-20260101", "to served_as of stub/quant-7b"),
    ],
)  # fmt: skip
async def test_reservation_charge_names_unpriced_word(
    tmp_path: Path, file: str, word: str, advice: str
) -> None:
    with capture_logs() as logs, answering((PUBLIC / file).read_bytes()) as url:
        async with Platform(config(url, tmp_path)) as platform:
            answers = [await platform.ask(order(number)) for number in range(3)]

    results = [answer.result for answer in answers if isinstance(answer, LLMInteraction)]
    assert [result.unpriced for result in results] == [word] * 3
    assert all(result.cost_nusd == result.reserved_nusd > 0 for result in results)
    warned = [line for line in logs if line["event"] == "charged_at_reservation"]
    assert [(line["word"], line["model"]) for line in warned] == [(word, MODEL)]
    assert advice in warned[0]["add"]


async def test_unitless_cost_reported_unless_option_set(tmp_path: Path) -> None:
    page = json.loads((PUBLIC / "o06_cost_of_the_router.json").read_bytes())
    del page["usage"]["is_byok"], page["usage"]["cost_details"]
    body = json.dumps(page).encode()

    with capture_logs() as logs, answering(body) as url:
        async with Platform(config(url, tmp_path / "a")) as platform:
            answers = [await platform.ask(order(number)) for number in range(2)]
    results = [answer.result for answer in answers if isinstance(answer, LLMInteraction)]
    read = await asked(body, tmp_path / "b", options={"bill": "usd"})

    assert [(one.cost_nusd, one.bill_nusd) for one in results] == [(400_000, None)] * 2
    assert all("no known unit" in one.bill_problem for one in results)
    assert [line["model"] for line in logs if line["event"] == "bill_not_read"] == [MODEL]
    assert (read.result.cost_nusd, read.result.bill_problem) == (3_100_000, "")


async def test_served_name_uses_row_price(tmp_path: Path) -> None:
    body = (PUBLIC / "o16_served_under_a_longer_name.json").read_bytes()

    answer = await asked(body, tmp_path, served_as=("vendor/quant-7b-20260101",))

    assert (answer.result.cost_nusd, answer.result.unpriced) == (400_000, "")


def test_price_file_with_fractions_is_exact() -> None:
    path = PUBLIC / "o12_fractional_price.json"
    usage = Usage(cache_read_tokens=1_000_000)

    cost = PriceBook.load(path).cost_nusd(LLMProvider("deepseek"), "cheap-1", usage, at=NOW)

    assert cost == 2_800_000


@pytest.mark.parametrize(("cached", "nusd"), [("0.0028", 2_800), ("3.625", 3_625_000), ('"0.0028"', 2_800)])
def test_toml_price_with_fractions_is_exact(tmp_path: Path, cached: str, nusd: int) -> None:
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
    assert json.loads(row.model_dump_json())["price"]["cache_read"] == nusd / 1_000_000
