"""The price book against another list: class by class, and what only one side has."""

import re
import sys
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from genai_prices.types import ModelInfo, ModelPrice, PriceVariant, StartDateConstraint, Tier, TieredPrices

from agentic_trading.governance.prices import PriceBook
from tests.operate.models.tables import prices_file
from tests.operate.prices.books import TODAY, book, listed, price, snapshot
from tools import prices
from tools.prices import WHOLE, PriceDifference, PriceVerdict, compare_prices

FAST = {
    "input_mtok": 4,
    "output_mtok": 20,
    "cache_read_mtok": "0.4",
    "cache_write_mtok": 5,
    "cache_write_1h_mtok": 8,
}


def lines(ours: Mapping[str, object], theirs: ModelInfo) -> dict[str, PriceDifference]:
    """Return the lines on a price with these changes against what is listed for it."""
    found = compare_prices(book(price(**ours)), at=TODAY, snapshot=snapshot(theirs))
    return {line.about: line for line in found.lines}


def verdicts(ours: Mapping[str, object], theirs: ModelInfo) -> dict[str, PriceVerdict]:
    """Return the verdict of each such line."""
    return {about: line.verdict for about, line in lines(ours, theirs).items()}


def variant(
    prices: dict[str, Any], when: dict[str, str] | None = None, since: date | None = None
) -> PriceVariant:
    """Return what is listed for requests with these words, by default the fast ones."""
    rates = {name: Decimal(usd) for name, usd in prices.items()}
    constraint = None if since is None else StartDateConstraint(since)
    return PriceVariant(when=when or {"speed": "fast"}, prices=ModelPrice(**rates), constraint=constraint)


def test_equal_classes_are_equal() -> None:
    found = compare_prices(book(price()), at=TODAY, snapshot=snapshot(listed()))

    assert found.counts() == {"equal": 5, "differs": 0, "missing there": 0, "missing here": 0}


def test_differing_class_shows_both_amounts() -> None:
    found = lines({"cache_read": 100, "output": 20_000}, listed())

    assert found["cache_read"] == PriceDifference("anthropic/claude-a", "cache_read", "0.1", "0.2", "differs")
    assert found["output"] == PriceDifference("anthropic/claude-a", "output", "20", "10", "differs")


def test_price_of_the_day_is_compared() -> None:
    ours = book(price(valid_from="2026-01-01", input=1), price(valid_from="2026-11-22"))

    today = compare_prices(ours, at=TODAY, snapshot=snapshot(listed()))
    yesterday = compare_prices(ours, at=TODAY.replace(day=21), snapshot=snapshot(listed()))

    assert (today.counts()["differs"], yesterday.counts()["differs"]) == (0, 1)


def test_tiers_are_compared_by_threshold() -> None:
    tier = {"over_input_tokens": 1000} | dict.fromkeys(("input", "output", "cache_read"), 5)
    dear = TieredPrices(base=Decimal(2), tiers=[Tier(start=1000, price=Decimal("0.005"))])
    tiered = listed(prices=ModelPrice(input_mtok=dear))

    ours = verdicts({"tiers": [tier | {"cache_write_5m": 5, "cache_write_1h": 5}]}, tiered)
    theirs = verdicts({}, tiered)

    assert ours["over 1,000 tokens in: input"] == "equal"
    assert ours["over 1,000 tokens in: output"] == "missing there"
    assert theirs["over 1,000 tokens in: input"] == "missing here"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([2, 1], FAST, "equal"),
        ([3, 1], FAST, "differs"),
        ([2, 1], {"input_mtok": 4}, "differs"),
        ([2, 1], None, "missing there"),
        (None, FAST, "missing here"),
    ],
)
def test_multiplier_is_compared_like_a_class(
    ours: list[int] | None, theirs: dict[str, Any] | None, verdict: PriceVerdict
) -> None:
    own = {} if ours is None else {"speed": {"fast": ours}}
    variants = [] if theirs is None else [variant(theirs)]

    assert verdicts(own, listed(price_variants=variants))["speed fast"] == verdict


@pytest.mark.parametrize(
    ("when", "prices", "theirs"),
    [
        ({"speed": "fast"}, {"input_mtok": 4, "output_mtok": 6}, {"speed fast": "x2"}),
        ({"processing": "batch"}, {"input_mtok": 1, "output_mtok": "1.5"}, {"service_tier batch": "x0.5"}),
        ({"service_tier": "priority"}, {"input_mtok": 4}, {"service_tier priority": "no one multiplier"}),
        ({"speed": "fast"}, {"cache_read_mtok": 1}, {"speed fast": "no one multiplier"}),
        ({"weather": "fine"}, {"input_mtok": 4, "output_mtok": 6}, {}),
        ({"speed": "fast", "processing": "batch"}, {"input_mtok": 4}, {}),
    ],
)
def test_uniform_variant_becomes_a_multiplier(
    when: dict[str, str], prices: dict[str, Any], theirs: dict[str, str]
) -> None:
    plain = ModelPrice(input_mtok=Decimal(2), output_mtok=Decimal(3))

    found = lines({}, listed(prices=plain, price_variants=[variant(prices, when)]))

    assert {about: line.theirs for about, line in found.items() if " " in about} == theirs


def test_future_variant_is_not_listed() -> None:
    theirs = snapshot(listed(price_variants=[variant(FAST, since=date(2026, 11, 23))]))

    before = compare_prices(book(price()), at=TODAY, snapshot=theirs)
    after = compare_prices(book(price()), at=TODAY.replace(day=23), snapshot=theirs)

    assert (len(before.lines), len(after.lines)) == (5, 6)


def test_neutral_multiplier_is_never_missing() -> None:
    plain = {"input_mtok": 2}

    found = verdicts(
        {"speed": {"standard": [1, 1]}}, listed(price_variants=[variant(plain, {"service_tier": "default"})])
    )

    assert set(found.values()) == {"equal"}


def test_unmatched_model_is_listed_once() -> None:
    theirs = snapshot(listed("claude-b"), listed("claude-c", deprecated=True))

    found = compare_prices(book(price()), at=TODAY, snapshot=theirs)

    assert found.lines == (
        PriceDifference("anthropic/claude-a", WHOLE, "priced", "", "missing there"),
        PriceDifference("anthropic/claude-b", WHOLE, "", "listed", "missing here"),
    )


def test_dated_model_name_is_matched() -> None:
    ours = book(price(model="claude-a-20260101"), price(model="claude-b-5"))

    found = compare_prices(ours, at=TODAY, snapshot=snapshot(listed(), listed("claude-b")))

    assert [line.model for line in found.lines if line.verdict == "missing here"] == ["anthropic/claude-b"]


@pytest.mark.parametrize("provider", ["local", "openai"])
def test_unlisted_provider_is_omitted(provider: str) -> None:
    assert compare_prices(book(price(provider=provider)), at=TODAY, snapshot=snapshot(listed())).lines == ()


def test_packaged_book_equals_the_public_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["prices"])

    with pytest.raises(SystemExit) as ended:
        prices.main()

    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert " 0 differs" in printed
    assert "missing there  inference_geo us" in printed
    assert "listed there and not here: anthropic/claude-2" in printed


def test_differing_price_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    packaged = next(price for price in PriceBook.load() if price.model == "claude-opus-5-5")
    row = packaged.model_dump(mode="json", exclude_defaults=True) | {"output": 19_000}
    monkeypatch.setattr(sys, "argv", ["prices", str(prices_file(tmp_path, row))])

    with pytest.raises(SystemExit) as ended:
        prices.main()

    assert ended.value.code == 1
    assert re.search(r"anthropic/claude-opus-5-5 +differs +output +19 +20", capsys.readouterr().out)
