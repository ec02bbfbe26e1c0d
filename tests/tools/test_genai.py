"""The packaged price book and the installed genai-prices come to the same amounts."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from genai_prices import Usage, calc_price

from agentic_trading.governance.prices import PriceBook
from tools.prices import SOURCE, compare_prices

GOLDEN = Path(__file__).parents[1] / "golden" / "prices" / "usages.json"


def test_packaged_book_agrees_with_genai_prices() -> None:
    found = compare_prices(PriceBook.load(), at=datetime(2026, 11, 22, tzinfo=UTC))

    assert found.source == SOURCE
    assert [line for line in found.lines if line.verdict == "differs"] == []
    assert found.counts()["equal"] >= 69


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
def test_golden_usages_cost_the_same(golden: dict[str, Any]) -> None:
    reported = golden["reported"]
    written = reported.get("cache_creation_input_tokens", 0)
    hour = (
        reported["cache_creation"]["ephemeral_1h_input_tokens"] if "cache_creation" in reported else written
    )
    read = reported.get("cache_read_input_tokens", 0)
    usage = Usage(
        input_tokens=reported["input_tokens"] + written + read,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=hour,
        output_tokens=reported["output_tokens"],
    )
    context = {
        "speed": reported.get("speed", "standard"),
        "processing": reported.get("service_tier", "standard"),
    }

    priced = calc_price(
        usage, golden["model"], provider_id="anthropic", price_context=context,
        genai_request_timestamp=datetime.fromisoformat(f"{golden['on']}T12:00:00+00:00"),
    )  # fmt: skip

    assert priced.total_price == Decimal(golden["usd"])
