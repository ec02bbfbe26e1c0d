"""A book held against another source: class by class, and what only one side knows."""

from dataclasses import replace
from fractions import Fraction

import pytest

from agentic_trading.app.prices.comparison import WHOLE, PriceDifference, PriceVerdict, compared
from agentic_trading.app.prices.listing import Listing
from tests.app.prices.books import TODAY, Listings, book, listed, price


def lines(ours: dict[str, object], theirs: Listing) -> dict[str, PriceVerdict]:
    """Return the verdicts on a price with these changes against what is listed for it."""
    found = compared(book(price(**ours)), Listings({"claude-a": theirs}), at=TODAY)
    return {line.about: line.verdict for line in found.lines}


def test_equal_classes_are_equal() -> None:
    found = compared(book(price()), Listings({"claude-a": listed()}), at=TODAY)

    assert found.counts() == {"equal": 5, "differs": 0, "missing there": 0, "missing here": 0}
    assert not found.differs


def test_a_class_that_differs_is_told_as_both_sides_spell_it() -> None:
    found = compared(book(price()), Listings({"claude-a": listed(cache_read=100)}), at=TODAY)

    assert PriceDifference("anthropic/claude-a", "cache_read", "0.2", "0.1", "differs") in found.lines
    assert found.differs


def test_the_price_of_the_day_is_compared() -> None:
    older, newer = price(valid_from="2026-01-01", input=1), price(valid_from="2026-11-22")
    source = Listings({"claude-a": listed()})

    assert not compared(book(older, newer), source, at=TODAY).differs
    assert compared(book(older, newer), source, at=TODAY.replace(day=21)).differs


def test_a_tier_that_only_one_side_has_is_missing_at_the_other() -> None:
    tier = {"over_input_tokens": 1000} | dict.fromkeys(("input", "output", "cache_read"), 5)
    ours = lines({"tiers": [tier | {"cache_write_5m": 5, "cache_write_1h": 5}]}, listed())
    theirs = lines({}, replace(listed(), rates={**listed().rates, (1000, "input"): Fraction(5)}))

    assert ours["over 1,000 tokens in: output"] == "missing there"
    assert theirs["over 1,000 tokens in: input"] == "missing here"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([2, 1], Fraction(2), "equal"),
        ([2, 1], Fraction(3), "differs"),
        ([2, 1], None, "differs"),
        ([2, 1], "missing", "missing there"),
        ("missing", Fraction(2), "missing here"),
    ],
)
def test_a_multiplier_is_compared_like_a_class(ours: object, theirs: object, verdict: PriceVerdict) -> None:
    own = {} if ours == "missing" else {"speed": {"fast": ours}}
    times = {} if theirs == "missing" else {("speed", "fast"): theirs}

    assert lines(own, replace(listed(), times=times))["speed fast"] == verdict  # type: ignore[arg-type]


def test_a_word_that_changes_nothing_is_missing_nowhere() -> None:
    told = replace(listed(), times={("service_tier", "default"): Fraction(1)})

    assert set(lines({"speed": {"standard": [1, 1]}}, told).values()) == {"equal"}


def test_a_model_that_only_one_side_has_is_one_line() -> None:
    found = compared(book(price()), Listings({"claude-b": listed()}), at=TODAY)

    assert found.lines == (
        PriceDifference("anthropic/claude-a", WHOLE, "priced", "", "missing there"),
        PriceDifference("anthropic/claude-b", WHOLE, "", "listed", "missing here"),
    )
    assert not found.differs


def test_a_dated_name_is_the_model_and_a_longer_number_is_another() -> None:
    ours = book(price(model="claude-a-20260101"), price(model="claude-b-5"))

    found = compared(ours, Listings({"claude-a": listed(), "claude-b": listed()}), at=TODAY)

    assert [line.model for line in found.lines if line.verdict == "missing here"] == ["anthropic/claude-b"]


def test_a_provider_that_the_source_does_not_list_is_left_out() -> None:
    assert compared(book(price(provider="local")), Listings({"claude-a": listed()}), at=TODAY).lines == ()
