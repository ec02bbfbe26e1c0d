"""The price book: amounts as an invoice would have them, and nothing unknown for free."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.errors import UnknownPriceError
from agentic_trading.governance.prices import PACKAGED_PRICES, ModelPrice, PriceBook, short_id
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.models import Capabilities, DatedTable, TableError, sha256_of_rows
from agentic_trading.llm.providers.anthropic.messages import usage_of
from agentic_trading.llm.providers.hosted import HttpReply
from agentic_trading.llm.providers.openai.provider import model_response
from agentic_trading.llm.result import Usage

BOOK = PriceBook.load()
TODAY = datetime(2026, 11, 21, tzinfo=UTC)
ANTHROPIC = LLMProvider.ANTHROPIC

ROW: dict[str, Any] = {
    "provider": "scripted",
    "model": "mine-1",
    "valid_from": "2026-01-01",
    "input": 1,
    "output": 2,
    "cache_read": 0,
    "cache_write_5m": 3,
    "cache_write_1h": 4,
    "source": "a test",
    "checked_on": "2026-01-02",
}


def book(folder: Path, *rows: object, name: str = "prices.json", head: str | None = "mine") -> Path:
    path = folder / name
    path.write_bytes(orjson.dumps({"name": head, "rows": rows}))
    return path


GOLDEN_FOLDER = Path(__file__).parents[1] / "golden" / "prices"
GOLDEN = json.loads((GOLDEN_FOLDER / "usages.json").read_text(encoding="utf-8"))
WITH_HOUSE = PriceBook.load(None, GOLDEN_FOLDER / "house.json")


def reported(usage: dict[str, Any], provider: str) -> Usage:
    """Return what a provider's own words say was used."""
    if provider == LLMProvider.ANTHROPIC:
        return usage_of(usage)
    body = {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "usage": usage}
    return model_response(HttpReply(json.dumps(body).encode(), "")).usage


# Each amount is worked out by hand from the list prices, as its `working` says.
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_usage_costs_match_the_invoice(golden: dict[str, Any]) -> None:
    at = datetime.fromisoformat(f"{golden['on']}T12:00:00+00:00")
    usage = reported(golden["reported"], golden["provider"])

    cost = WITH_HOUSE.cost_nusd(LLMProvider(golden["provider"]), golden["model"], usage, at=at)

    assert Decimal(cost) / 10**9 == Decimal(golden["usd"])


def test_rules_are_free_scripts_are_not() -> None:
    usage = Usage(input_tokens=100, output_tokens=10)

    assert BOOK.cost_nusd(LLMProvider.RULES, "rules-1", usage, at=TODAY) == 0
    assert BOOK.cost_nusd(LLMProvider.SCRIPTED, "scripted-1", usage, at=TODAY) == 300_000
    assert BOOK.cost_nusd(LLMProvider.SCRIPTED, "scripted-prompted-1", usage, at=TODAY) == 300_000


def test_every_known_model_has_a_price() -> None:
    for row in Capabilities.load():
        assert BOOK.rates(row.provider, row.model, at=TODAY).input >= 0


def test_thinking_tokens_are_not_charged_twice() -> None:
    plain = Usage(output_tokens=500)
    thought = Usage(output_tokens=500, thinking_tokens=400)

    costs = {BOOK.cost_nusd(ANTHROPIC, "claude-opus-5-5", usage, at=TODAY) for usage in (plain, thought)}

    assert costs == {10_000_000}


def test_unpriced_model_is_refused() -> None:
    with pytest.raises(UnknownModelError) as e:
        BOOK.cost_nusd(ANTHROPIC, "claude-next", Usage(), at=TODAY)

    assert (e.value.model, e.value.table) == ("anthropic/claude-next", "price book")


@pytest.mark.parametrize(
    ("field", "value"), [("service_tier", "priority"), ("inference_geo", "eu"), ("speed", "ludicrous")]
)
def test_unpriced_service_term_is_refused(field: str, value: str) -> None:
    with pytest.raises(UnknownPriceError) as e:
        BOOK.cost_nusd(ANTHROPIC, "claude-sonnet-5-5", Usage.model_validate({field: value}), at=TODAY)

    assert (e.value.field, e.value.value) == (field, value)
    assert e.value.known[0] in str(e.value)


@pytest.mark.parametrize("word", ["default", "standard", ""])
def test_row_without_terms_accepts_plain_service(word: str) -> None:
    plain = {"input": 1, "output": 2, "cache_read": 1, "cache_write_5m": 1, "cache_write_1h": 1}
    row = ModelPrice.model_validate({
        **plain, "provider": "openai", "model": "own-1", "valid_from": "2026-01-01", "source": "me", "checked_on": "2026-01-01"
    })  # fmt: skip

    assert row.multiplier("service_tier", word) == (1, 1)
    with pytest.raises(UnknownPriceError):
        row.multiplier("service_tier", "priority")


def test_speed_is_priced_per_model() -> None:
    with pytest.raises(UnknownPriceError, match=r"Known: standard$"):
        BOOK.cost_nusd(ANTHROPIC, "claude-sonnet-5-5", Usage(speed="fast"), at=TODAY)


def test_new_price_holds_from_first_moment() -> None:
    read = Usage(cache_read_tokens=1000)
    change = datetime(2026, 11, 21, tzinfo=UTC)

    before = BOOK.cost_nusd(
        ANTHROPIC, "claude-sonnet-5-5", read, at=change.replace(day=20, hour=23, minute=59)
    )
    after = BOOK.cost_nusd(ANTHROPIC, "claude-sonnet-5-5", read, at=change)

    assert (before, after) == (200_000, 100_000)


def test_earlier_dates_use_the_first_price() -> None:
    rates = BOOK.rates(ANTHROPIC, "claude-sonnet-5-5", at=datetime(2020, 1, 1, tzinfo=UTC))

    assert (rates.input, rates.cache_read) == (2000, 200)


def test_long_request_uses_tier_rates() -> None:
    assert BOOK.rates(ANTHROPIC, "claude-haiku-5-5", at=TODAY, input_tokens=100_000).output == 500
    assert BOOK.rates(ANTHROPIC, "claude-haiku-5-5", at=TODAY, input_tokens=100_001).output == 2500


def test_book_id_contains_name_and_hash(tmp_path: Path) -> None:
    copy = tmp_path / "prices.json"
    copy.write_bytes(PACKAGED_PRICES.read_bytes())
    changed = tmp_path / "changed.json"
    changed.write_bytes(PACKAGED_PRICES.read_bytes() + b"\n")

    assert PriceBook.load(copy).id == BOOK.id
    assert PriceBook.load(changed).id != BOOK.id
    assert f"{BOOK.name}@{sha256(PACKAGED_PRICES.read_bytes()).hexdigest()}" == BOOK.id


def test_short_id_shows_twelve_hash_digits() -> None:
    assert short_id(BOOK.id) == f"{BOOK.name}@{BOOK.sha256[:12]}"
    assert short_id("list@1") == "list@1"
    assert short_id("2026-01-01") == "2026-01-01"


@pytest.mark.parametrize(
    ("book_id", "is_it"),
    [
        (BOOK.id, True),
        (short_id(BOOK.id), True),
        (BOOK.id[:-1] + "x", False),
        (f"{BOOK.name}@{BOOK.sha256[:11]}", False),
        (f"other@{BOOK.sha256}", False),
        (BOOK.name, False),
        ("", False),
    ],
)
def test_book_accepts_long_and_short_ids(book_id: str, *, is_it: bool) -> None:
    assert BOOK.is_named(book_id) is is_it


def test_book_lists_every_dated_price() -> None:
    days = [price.valid_from for price in BOOK if price.model == "claude-sonnet-5-5"]

    assert days == [date(2026, 9, 28), date(2026, 11, 21)]
    assert len(list(BOOK)) == len(orjson.loads(PACKAGED_PRICES.read_bytes())["rows"])


def test_book_may_declare_row_hash(tmp_path: Path) -> None:
    path = book(tmp_path, ROW)
    fields = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({**fields, "sha256": sha256_of_rows([ROW])}, option=orjson.OPT_INDENT_2))

    assert [price.model for price in PriceBook.load(path)] == ["mine-1"]


@pytest.mark.parametrize("named", ["0" * 64, "", None, 1])
def test_wrong_row_hash_is_rejected(tmp_path: Path, named: object) -> None:
    path = book(tmp_path, ROW)
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "sha256": named}))

    with pytest.raises(TableError) as e:
        PriceBook.load(path)

    assert (e.value.path, e.value.row, e.value.field) == (path, 0, "sha256")
    assert repr(named) in str(e.value)
    assert sha256_of_rows([ROW]) in str(e.value)


def test_changed_packaged_price_is_detected(tmp_path: Path) -> None:
    changed = PACKAGED_PRICES.read_text(encoding="utf-8").replace('"output": 20000', '"output": 2000', 1)
    path = tmp_path / "prices.json"
    path.write_text(changed, encoding="utf-8")

    with pytest.raises(TableError, match="sha256: is"):
        PriceBook.load(path)


def test_own_book_replaces_packaged_book(tmp_path: Path) -> None:
    own = PriceBook.load(book(tmp_path, ROW))

    assert own.id.startswith("mine@")
    assert own.cost_nusd(LLMProvider.SCRIPTED, "mine-1", Usage(input_tokens=5), at=TODAY) == 5
    with pytest.raises(UnknownModelError):
        own.rates(LLMProvider.RULES, "rules-1", at=TODAY)


def test_extra_book_adds_and_replaces_prices(tmp_path: Path) -> None:
    repriced = {**ROW, "model": "scripted-1", "input": 7, "valid_from": "1999-01-01"}
    extra = book(tmp_path, ROW, repriced)

    both = PriceBook.load(None, extra)

    assert both.rates(LLMProvider.SCRIPTED, "mine-1", at=TODAY).input == 1
    assert both.rates(LLMProvider.SCRIPTED, "scripted-1", at=TODAY).input == 7
    assert both.rates(LLMProvider.RULES, "rules-1", at=TODAY).input == 0
    assert both.name == f"{BOOK.name}+mine"
    assert both.sha256 not in {BOOK.sha256, PriceBook.load(extra).sha256}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input": -1}, "input"),
        ({"input": -0.5}, "input"),
        ({"input": 1.0000000000001}, "input"),
        ({"output": "free"}, "output"),
        ({"tiers": [{"over_input_tokens": 0}]}, "tiers.0.input"),
        ({"cost": 1}, "cost"),
        ({"speed": {"fast": [2, 0]}}, "speed.fast.1"),
        ({"speed": {"fast": [0, 1]}}, "speed.fast.0"),
        ({"valid_from": None}, "valid_from"),
    ],
)
def test_invalid_price_names_row_and_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = book(tmp_path, {**ROW, **change})

    with pytest.raises(TableError) as e:
        PriceBook.load(path)

    assert (e.value.path, e.value.row, e.value.field) == (path, 1, field)


@pytest.mark.parametrize(
    ("before", "after", "row", "field"),
    [
        ('"input":', '"input":true,"unused":', 1, "input"),
        ('"input":', '"input":"5","unused":', 1, "input"),
        ('"input":', '"input":1,"input":', 1, "input"),
        ('"rows":', '"name":"other","rows":', 0, "name"),
        ('"input":', '"input":1.00000000000000000001,"unused":', 0, ""),
        ('"input":', '"input":Infinity,"unused":', 0, ""),
        ('"input":', '"input":1e999,"unused":', 0, ""),
        ('"input":', '"input":NaN,"unused":', 0, ""),
    ],
)
def test_malformed_or_duplicate_number_is_rejected(
    tmp_path: Path, before: str, after: str, row: int, field: str
) -> None:
    path = book(tmp_path, ROW)
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")

    with pytest.raises(TableError) as e:
        PriceBook.load(path)

    assert (e.value.row, e.value.field) == (row, field)


FRACTIONS = {"input": 0.14, "output": 0.28, "cache_read": 0.0028, "cache_write_5m": 0.14, "cache_write_1h": 7}


def test_fractional_price_is_exact(tmp_path: Path) -> None:
    own = PriceBook.load(book(tmp_path, {**ROW, **FRACTIONS}))

    def cost(**counts: int) -> int:
        return own.cost_nusd(LLMProvider.SCRIPTED, "mine-1", Usage.model_validate(counts), at=TODAY)

    assert cost(cache_read_tokens=1_000_000) == 2800
    assert cost(input_tokens=50, cache_read_tokens=1, output_tokens=25) == 15  # 14.0028, rounded up once
    assert cost(cache_write_1h_tokens=3) == 21


def test_fractional_price_bounds_every_tier(tmp_path: Path) -> None:
    dearer = {name: ROW[name] for name in FRACTIONS} | {"output": 2.5, "over_input_tokens": 100}
    row = {**ROW, **FRACTIONS, "tiers": [dearer], "service_tier": {"flex": [1, 2], "priority": [5, 2]}}
    own = PriceBook.load(book(tmp_path, row))

    short = own.worst(LLMProvider.SCRIPTED, "mine-1", at=TODAY, input_tokens=100).cost_nusd(100, 10)
    long = own.worst(LLMProvider.SCRIPTED, "mine-1", at=TODAY, input_tokens=101).cost_nusd(101, 10)

    assert (short, long) == (1757, 1830)  # (100 x 7 + 10 x 0.28) x 2.5, (101 x 7 + 10 x 2.5) x 2.5


@pytest.mark.parametrize(
    ("changes", "is_free"),
    [({}, True), ({"output": 1}, False), ({"cache_write_1h": 1}, False), ({"tiers": [{"input": 1}]}, False)],
)
def test_free_price_has_only_zero_rates(
    changes: dict[str, Any],
    is_free: bool,  # noqa: FBT001 - a row of the table
) -> None:
    nothing = dict.fromkeys(FRACTIONS, 0) | {"output": 0}
    tiers = [{**nothing, "over_input_tokens": 100, **tier} for tier in changes.get("tiers", ())]

    price = ModelPrice.model_validate({**ROW, **nothing, **changes, "tiers": tiers})

    assert price.is_free is is_free


def test_price_round_trips_through_json(tmp_path: Path) -> None:
    price = next(iter(PriceBook.load(book(tmp_path, {**ROW, **FRACTIONS}))))

    dumped = price.model_dump(mode="json")

    assert {name: dumped[name] for name in FRACTIONS} == FRACTIONS
    assert ModelPrice.model_validate_json(orjson.dumps(dumped)) == price
    assert price.cache_read == Decimal("0.0028")


@given(
    st.lists(st.decimals(0, 10**6, places=6), min_size=5, max_size=5),
    st.lists(st.integers(0, 10**7), min_size=5, max_size=5),
)
def test_decimal_sum_is_rounded_up_once(prices: list[Decimal], counts: list[int]) -> None:
    classes = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
    row = ModelPrice.model_validate({**ROW, **dict(zip(classes, prices, strict=True))}, strict=False)
    own = PriceBook(DatedTable(Path("own"), (row,), {"name": "own"}, "0" * 64))
    usage = Usage.model_validate({
        f"{name}_tokens": count for name, count in zip(classes, counts, strict=True)
    })

    exact = sum(Fraction(price) * count for price, count in zip(prices, counts, strict=True))

    assert own.cost_nusd(LLMProvider.SCRIPTED, "mine-1", usage, at=TODAY) == ceil(exact)


def test_missing_token_class_is_named(tmp_path: Path) -> None:
    path = book(tmp_path, {name: value for name, value in ROW.items() if name != "cache_write_1h"})

    with pytest.raises(TableError, match="row 1, cache_write_1h"):
        PriceBook.load(path)


def test_non_rising_tiers_are_rejected(tmp_path: Path) -> None:
    rates = {
        name: ROW[name] for name in ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
    }
    tiers = [{"over_input_tokens": over, **rates} for over in (200, 100)]

    with pytest.raises(TableError, match="row 1, tiers: are not in rising order"):
        PriceBook.load(book(tmp_path, {**ROW, "tiers": tiers}))


def test_worst_price_ignores_unrequested_speeds(
    tmp_path: Path,
) -> None:
    speeds = {"standard": [3, 2], "fast": [9, 1]}
    own = PriceBook.load(book(tmp_path, {**ROW, "speed": speeds, "inference_geo": {"us": [2, 1]}}))

    assert own.worst(LLMProvider.SCRIPTED, "mine-1", at=TODAY, input_tokens=1).multiplier == (6, 2)


def test_duplicate_price_per_day_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="row 2, valid_from: is used twice"):
        PriceBook.load(book(tmp_path, ROW, ROW))


def test_book_without_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="name: is missing"):
        PriceBook.load(book(tmp_path, ROW, head=None))


def test_worst_price_uses_dearest_provider_choices() -> None:
    short = BOOK.worst(ANTHROPIC, "claude-haiku-5-5", at=TODAY, input_tokens=100_000)
    long = BOOK.worst(ANTHROPIC, "claude-haiku-5-5", at=TODAY, input_tokens=100_001)

    assert (short.input, short.output, short.multiplier) == (200, 500, (11, 10))
    assert (long.input, long.output, long.multiplier) == (1000, 2500, (11, 10))


@given(
    st.integers(0, 10**7), st.integers(0, 10**6), st.sampled_from(["", "us"]), st.sampled_from(["", "batch"])
)
def test_cost_is_integer_rounded_up_once(inward: int, out: int, geo: str, tier: str) -> None:
    usage = Usage(input_tokens=inward, output_tokens=out, inference_geo=geo, service_tier=tier)

    cost = BOOK.cost_nusd(ANTHROPIC, "claude-sonnet-5-5", usage, at=TODAY)

    exact_twentieths = (inward * 2000 + out * 10_000) * (11 if geo else 10) * (1 if tier else 2)
    assert isinstance(cost, int)
    assert 0 <= cost * 20 - exact_twentieths < 20


def test_packaged_valid_from_precedes_checked_on() -> None:
    rows = orjson.loads(PACKAGED_PRICES.read_bytes())["rows"]

    assert all(date.fromisoformat(row["valid_from"]) <= date.fromisoformat(row["checked_on"]) for row in rows)
