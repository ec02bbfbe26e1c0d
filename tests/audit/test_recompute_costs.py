"""A cost on record comes out again from usage, model, day and book, or the record is named."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.audit.spend import CostCheck, CostFinding, load_price_books, recompute_costs
from agentic_trading.governance.prices import PACKAGED_PRICES, PriceBook, short_id
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.store import LogEntry, Record
from tests.build import event
from tests.operate.models.tables import price_row, prices_file
from tests.operate.prices.books import SENT, call

BOOK = PriceBook.load()
CAPABILITIES = Capabilities.load()


async def checked(*records: Record, books: tuple[PriceBook, ...] = (BOOK,)) -> CostCheck:
    """Return what computing the costs of these records again found."""

    async def entries() -> AsyncIterator[LogEntry]:
        for line, record in enumerate(records, start=1):
            yield LogEntry(line, record, "")

    return await recompute_costs(entries(), books, CAPABILITIES)


async def finding(**changes: Any) -> tuple[CostFinding, int | None]:
    """Return the finding on one such call, and its recomputed cost."""
    found = await checked(call(**changes))
    [record] = found.records
    return record.finding, record.computed_nusd


async def test_cost_is_recomputed_by_recorded_book() -> None:
    assert await finding() == ("agrees", 100_000)
    assert await finding(price_book=short_id(BOOK.id)) == ("agrees", 100_000)


async def test_price_is_taken_from_call_day() -> None:
    assert await finding(dispatched_at=SENT.replace(day=20), cost_nusd=200_000) == ("agrees", 200_000)


async def test_backtest_call_agrees_on_another_day() -> None:
    simulated = datetime(2023, 3, 1, tzinfo=UTC)

    assert await finding(dispatched_at=simulated) == ("agrees on another day", 100_000)


async def test_wrong_cost_is_named() -> None:
    found = await checked(call(), call(cost_nusd=100_001))

    [wrong] = found.of("differs")
    assert (wrong.line, wrong.on_record_nusd, wrong.computed_nusd) == (2, 100_001, 100_000)
    assert wrong.model == "anthropic/claude-sonnet-5-5"
    assert not found.is_right


async def test_missing_book_is_named() -> None:
    found = await checked(call(price_book="list@" + "0" * 64))

    assert [record.price_book for record in found.of("no such book")] == ["list@" + "0" * 64]
    assert not found.is_right


@pytest.mark.parametrize(
    ("cost", "said"), [(5_000_000, ("in doubt", None)), (4_999_999, ("differs", 5_000_000))]
)
async def test_call_in_doubt_costs_reservation(cost: int, said: tuple[CostFinding, int | None]) -> None:
    doubt = {"in_doubt": True, "success": False, "model": "", "cache_read_tokens": 0}

    assert await finding(**doubt, reserved_nusd=5_000_000, cost_nusd=cost) == said
    assert (await checked(call(**doubt, reserved_nusd=5_000_000, cost_nusd=5_000_000))).is_right


async def test_unsent_call_costs_zero() -> None:
    reason = FailureReason(category=FailureKind.RATE_LIMIT, description="refused")
    failed = {"success": False, "failure": reason, "model": "", "cache_read_tokens": 0}

    assert await finding(**failed, cost_nusd=0, reserved_nusd=9) == ("agrees", 0)


async def test_dearer_of_two_models_counts() -> None:
    assert await finding(model="claude-opus-5-5", cost_nusd=200_000) == ("agrees", 200_000)
    assert await finding(model="claude-haiku-5-5", cost_nusd=100_000) == ("agrees", 100_000)


async def test_unpriced_call_costs_the_reservation() -> None:
    assert await finding(model="claude-next", reserved_nusd=7_000_000, cost_nusd=7_000_000) == (
        "agrees",
        7_000_000,
    )
    assert await finding(speed="ludicrous", reserved_nusd=7, cost_nusd=7) == ("agrees", 7)


@pytest.fixture
def house_book(tmp_path: Path) -> PriceBook:
    """Return the packaged book with a user's own over it."""
    return PriceBook.load(None, prices_file(tmp_path, price_row()))


async def test_unlisted_model_is_priced_by_book(house_book: PriceBook) -> None:
    house = call(
        provider="openai", model="house-8b", model_requested="", price_book=house_book.id, cost_nusd=150_000
    )

    assert [record.finding for record in (await checked(house, books=(house_book,))).records] == ["agrees"]


async def test_never_priced_calls_are_only_counted() -> None:
    refused = call(price_book="", cost_nusd=0, dispatched_at=None)
    again = call(served_from="recorded", cost_nusd=0)

    found = await checked(refused, again, event(), call())

    assert (len(found.records), found.not_priced) == (1, 2)
    assert found.is_right


def test_price_books_include_every_combination(tmp_path: Path) -> None:
    own = prices_file(tmp_path, price_row())
    earlier = tmp_path / "earlier.json"
    earlier.write_bytes(PACKAGED_PRICES.read_bytes() + b"\n")

    ids = {book.id for book in load_price_books(own, [earlier])}

    assert ids >= {
        PriceBook.load().id,
        PriceBook.load(None, own).id,
        PriceBook.load(earlier).id,
        PriceBook.load(earlier, own).id,
        PriceBook.load(None, earlier).id,
    }
    assert {book.id for book in load_price_books()} == {PriceBook.load().id}
