"""A candidate is the book with what another source says differently, and a book itself."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from agentic_trading.app.options import OptionError
from agentic_trading.app.prices.comparison import PriceSource, compared
from agentic_trading.app.prices.draft import PriceBookDraft, candidate, refuse_target
from agentic_trading.app.prices.listing import Listing
from agentic_trading.governance.prices import PACKAGED_PRICES, ModelPrice, PriceBook
from agentic_trading.llm.envelope import LLMProvider
from tests.app.prices.books import RATES, TODAY, Listings, book, listed, price

CHEAPER = Listings({"claude-a": listed(cache_read=100)})


def made(source: PriceSource, *prices: ModelPrice) -> PriceBookDraft:
    """Return the candidate of a book of `prices`."""
    found = candidate(book(*prices), source, at=TODAY)
    assert found is not None
    return found


def revised(source: Listing, **ours: object) -> ModelPrice:
    """Return the new price of a model that is listed like this."""
    return made(Listings({"claude-a": source}), price(**ours)).rows[-1]


def test_what_is_listed_differently_is_a_new_price_from_today_on() -> None:
    found = made(CHEAPER, price(), price(model="claude-b"))

    assert found.rows == (
        price(),
        price(cache_read=100, valid_from="2026-11-22", checked_on="2026-11-22", source="another list 1.0"),
        price(model="claude-b"),
    )


def test_the_diff_names_model_and_class() -> None:
    assert made(CHEAPER, price()).diff == (
        "--- own@000000000000",
        "+++ another list 1.0",
        "@@ -3 +3 @@",
        "-anthropic/claude-a cache_read 0.2",
        "+anthropic/claude-a cache_read 0.1",
    )


def test_nothing_different_is_no_candidate() -> None:
    assert candidate(book(price()), Listings({"claude-a": listed()}), at=TODAY) is None
    assert candidate(book(price()), Listings({"claude-b": listed(input=1)}), at=TODAY) is None


def test_a_price_of_today_is_replaced_as_a_model_has_one_price_a_day() -> None:
    older, todays, later = (price(valid_from=day) for day in ("2026-01-01", "2026-11-22", "2026-12-01"))

    rows = made(CHEAPER, older, todays, later).rows

    assert [row.valid_from.isoformat() for row in rows] == ["2026-01-01", "2026-12-01", "2026-11-22"]
    assert rows[-1].cache_read == 100


def test_a_tier_a_word_and_a_class_are_taken_over_and_the_rest_is_kept() -> None:
    rates = {**listed().rates, (1000, "input"): Fraction(5000), (1000, "output"): Fraction(25_000)}
    theirs = Listing(rates, {("speed", "fast"): Fraction(5, 2), ("service_tier", "flex"): None})

    new = revised(theirs, inference_geo={"us": [11, 10]}, speed={"standard": [1, 1]})

    assert new.inference_geo == {"us": (11, 10)}
    assert new.speed == {"standard": (1, 1), "fast": (5, 2)}
    assert new.service_tier == {}
    [tier] = new.tiers
    assert (tier.over_input_tokens, tier.input, tier.output) == (1000, 5000, 25_000)
    assert (tier.cache_read, tier.cache_write_1h) == (RATES["cache_read"], RATES["cache_write_1h"])


def test_part_of_a_nano_dollar_is_rounded_up() -> None:
    assert revised(replace(listed(), rates={(0, "input"): Fraction(1, 3)})).input == 1


def test_its_file_is_a_book_over_the_packaged_one(tmp_path: Path) -> None:
    path = tmp_path / "candidate.json"
    dearer = Listings({"claude-opus-5-5": listed(input=5000)})
    found = candidate(PriceBook.load(), dearer, at=TODAY)
    assert found is not None

    found.write(path)

    own = PriceBook.load(None, path)
    assert tuple(PriceBook.load(path)) == found.rows
    assert own.rates(LLMProvider.ANTHROPIC, "claude-opus-5-5", at=TODAY).input == 5000
    assert own.rates(LLMProvider.ANTHROPIC, "claude-opus-5-5", at=TODAY.replace(day=21)).input == 4000
    assert not compared(own, dearer, at=TODAY).differs
    assert candidate(own, dearer, at=TODAY) is None
    assert json.loads(path.read_text(encoding="utf-8"))["sha256"]


def test_a_file_that_is_there_is_written_over_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "candidate.json"
    refuse_target(path, force=False)
    path.write_text("mine", encoding="utf-8")

    with pytest.raises(OptionError, match="there already"):
        refuse_target(path, force=False)
    refuse_target(path, force=True)


def test_the_packaged_book_is_never_written_over_by_whatever_name(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(PACKAGED_PRICES)

    for path in (PACKAGED_PRICES, link):
        with pytest.raises(OptionError, match="the packaged price book"):
            refuse_target(path, force=True)
