"""What the installed genai-prices says, in our terms."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import DataSnapshot
from genai_prices.types import (
    ClauseEquals,
    ModelInfo,
    ModelPrice,
    PriceVariant,
    Provider,
    StartDateConstraint,
    Tier,
    TieredPrices,
)

from agentic_trading.app.prices.comparison import compared
from agentic_trading.app.prices.genai import SOURCE, GenaiPrices
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.envelope import LLMProvider
from tests.app.prices.books import TODAY

ANTHROPIC = LLMProvider.ANTHROPIC
GOLDEN = Path(__file__).parents[2] / "golden" / "prices" / "usages.json"


def source(**fields: Any) -> GenaiPrices:
    """Return a source that lists the one model `claude-a` with these fields."""
    model = ModelInfo(id="claude-a", match=ClauseEquals(equals="claude-a"), **fields)
    provider = Provider(id="anthropic", name="A", api_pattern="https://a", models=[model])
    return GenaiPrices(DataSnapshot([provider], from_auto_update=False))


def test_the_packaged_book_and_the_package_agree_on_every_class_that_both_know() -> None:
    found = compared(PriceBook.load(), GenaiPrices(), at=datetime(2026, 11, 22, tzinfo=UTC))

    assert found.source == SOURCE
    assert [line for line in found.lines if line.verdict == "differs"] == []
    assert found.counts()["equal"] >= 69


def test_dollars_per_million_become_nano_dollars_per_token() -> None:
    dear = TieredPrices(base=Decimal("0.1"), tiers=[Tier(start=1000, price=Decimal("0.5"))])

    listing = source(prices=ModelPrice(input_mtok=dear, output_mtok=Decimal(3))).listing(
        ANTHROPIC, "claude-a", at=TODAY
    )

    assert listing is not None
    assert listing.rates == {(0, "input"): 100, (0, "output"): 3000, (1000, "input"): 500}


@pytest.mark.parametrize(
    ("when", "prices", "times"),
    [
        ({"speed": "fast"}, {"input_mtok": 4, "output_mtok": 6}, {("speed", "fast"): Fraction(2)}),
        ({"processing": "batch"}, {"input_mtok": 1, "output_mtok": "1.5"}, {("service_tier", "batch"): Fraction(1, 2)}),
        ({"service_tier": "priority"}, {"input_mtok": 4}, {("service_tier", "priority"): None}),
        ({"weather": "fine"}, {"input_mtok": 4, "output_mtok": 6}, {}),
        ({"speed": "fast", "processing": "batch"}, {"input_mtok": 4}, {}),
    ],
)  # fmt: skip
def test_a_variant_is_a_multiplier_where_it_is_one_number(
    when: dict[str, str], prices: dict[str, Any], times: dict[tuple[str, str], Fraction | None]
) -> None:
    variant = PriceVariant(
        when=when, prices=ModelPrice(**{name: Decimal(usd) for name, usd in prices.items()})
    )
    plain = ModelPrice(input_mtok=Decimal(2), output_mtok=Decimal(3))

    listing = source(prices=plain, price_variants=[variant]).listing(ANTHROPIC, "claude-a", at=TODAY)

    assert listing is not None
    assert listing.times == times


def test_a_variant_that_adds_a_class_is_no_one_multiplier() -> None:
    variant = PriceVariant(when={"speed": "fast"}, prices=ModelPrice(output_mtok=Decimal(3)))

    listing = source(prices=ModelPrice(input_mtok=Decimal(2)), price_variants=[variant]).listing(
        ANTHROPIC, "claude-a", at=TODAY
    )

    assert listing is not None
    assert listing.times == {("speed", "fast"): None}


def test_a_variant_of_a_day_to_come_is_not_listed_yet() -> None:
    variant = PriceVariant(
        when={"speed": "fast"},
        prices=ModelPrice(input_mtok=Decimal(4)),
        constraint=StartDateConstraint(date(2026, 11, 23)),
    )
    of = source(prices=ModelPrice(input_mtok=Decimal(2)), price_variants=[variant])

    before = of.listing(ANTHROPIC, "claude-a", at=TODAY)
    after = of.listing(ANTHROPIC, "claude-a", at=TODAY.replace(day=23))

    assert before is not None
    assert after is not None
    assert (before.times, after.times) == ({}, {("speed", "fast"): Fraction(2)})


def test_what_is_not_listed_has_no_price() -> None:
    assert GenaiPrices().listing(ANTHROPIC, "claude-unheard-of", at=TODAY) is None
    assert GenaiPrices().listing(LLMProvider.SCRIPTED, "scripted-1", at=TODAY) is None
    assert GenaiPrices().models(LLMProvider.RULES) == ()
    assert source(prices=ModelPrice(), deprecated=True).models(ANTHROPIC) == ()


def shared_goldens() -> list[dict[str, Any]]:
    """Return the golden usages that genai-prices can price: it knows no region, and nothing of a house's own."""
    goldens = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return [
        golden
        for golden in goldens
        if golden["provider"] == "anthropic"
        and golden["reported"].get("inference_geo") != "us"
        and golden["on"] >= "2026-11-21"
    ]


@pytest.mark.parametrize("golden", shared_goldens(), ids=lambda golden: golden["name"])
def test_both_come_to_the_same_amount_for_the_golden_usages(golden: dict[str, Any]) -> None:
    told = golden["reported"]
    written = told.get("cache_creation_input_tokens", 0)
    hour = told["cache_creation"]["ephemeral_1h_input_tokens"] if "cache_creation" in told else written
    read = told.get("cache_read_input_tokens", 0)
    usage = Usage(
        input_tokens=told["input_tokens"] + written + read,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=hour,
        output_tokens=told["output_tokens"],
    )
    context = {"speed": told.get("speed", "standard"), "processing": told.get("service_tier", "standard")}

    priced = calc_price(
        usage, golden["model"], provider_id="anthropic", price_context=context,
        genai_request_timestamp=datetime.fromisoformat(f"{golden['on']}T12:00:00+00:00"),
    )  # fmt: skip

    assert priced.total_price == Decimal(golden["usd"])
