"""What is on record as a call's cost, computed again from its usage, its model and the price book that it names."""

from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Literal

from agentic_trading.governance.prices import PACKAGED_PRICES, PriceBook, charged_models, cost_of
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import LogEntry

Finding = Literal["agrees", "agrees on another day", "differs", "in doubt", "no such book"]

FINDINGS: tuple[Finding, ...] = ("agrees", "agrees on another day", "differs", "in doubt", "no such book")


@dataclass(frozen=True, slots=True)
class RecomputedCost:
    """The cost of one record in nano-dollars: as it stands in line `line` of the log, and as it comes out again.

    `computed_nusd` is None where it cannot be computed: the call is in doubt, or its book is not at hand.
    """

    line: int
    interaction_id: str
    model: str
    price_book: str
    on_record_nusd: int
    computed_nusd: int | None
    finding: Finding


@dataclass(frozen=True, slots=True)
class CostCheck:
    """Every priced record of a log, in its order; `not_priced` others were refused, not sent, or served again."""

    records: tuple[RecomputedCost, ...]
    not_priced: int

    @property
    def is_right(self) -> bool:
        """Whether every cost that is not in doubt came out again."""
        return not self.of("differs") and not self.of("no such book")

    def of(self, finding: Finding) -> list[RecomputedCost]:
        """Return the records with this finding."""
        return [record for record in self.records if record.finding == finding]


def books_at_hand(prices_file: Path | None = None, earlier: Sequence[Path] = ()) -> tuple[PriceBook, ...]:
    """Return every book that calls may have been charged by: the packaged one, `earlier` ones, each with each one's own.

    `prices_file` is the user's own one, that is laid over another. Raises `TableError`.
    """
    own = [path for path in (prices_file, *earlier) if path is not None]
    return tuple(
        PriceBook.load(below, *above)
        for below in (PACKAGED_PRICES, *earlier)
        for above in ((), *((path,) for path in own if path != below))
    )


def cost_of_record(result: LLMResult, book: PriceBook, capabilities: Capabilities, *, at: datetime) -> int:
    """Return what the gate charges for `result` by the prices of the day of `at`, in nano-dollars.

    Another model than the one asked for counts if it is the dearer of the two and not in its `served_as`; what has no
    price in `book` costs what was reserved, at least.
    """
    asked = result.model_requested or result.model
    models = charged_models(asked, result.model, _served_as(result, asked, capabilities))
    cost, _ = cost_of(result.usage, book, result.provider, models, at=at, reserved_nusd=result.reserved_nusd)
    return cost


async def recomputed(
    entries: AsyncIterable[LogEntry], books: Iterable[PriceBook], capabilities: Capabilities
) -> CostCheck:
    """Compute the cost of every priced record again."""
    at_hand = tuple(books)
    records, not_priced = [], 0
    async for entry in entries:
        if not isinstance(entry.record, LLMInteraction):
            continue
        result = entry.record.result
        if not result.price_book or result.served_from == "recorded":
            not_priced += 1
            continue
        computed, finding = _found(result, at_hand, capabilities)
        records.append(
            RecomputedCost(
                line=entry.seq,
                interaction_id=entry.record.interaction_id,
                model=f"{result.provider}/{result.model or result.model_requested}",
                price_book=result.price_book,
                on_record_nusd=result.cost_nusd,
                computed_nusd=computed,
                finding=finding,
            )
        )
    return CostCheck(tuple(records), not_priced)


def _found(
    result: LLMResult, books: Sequence[PriceBook], capabilities: Capabilities
) -> tuple[int | None, Finding]:
    if result.in_doubt:
        is_whole = result.cost_nusd == result.reserved_nusd
        return (None, "in doubt") if is_whole else (result.reserved_nusd, "differs")
    book = next((book for book in books if book.is_named(result.price_book)), None)
    if book is None:
        return None, "no such book"
    first = cost_of_record(result, book, capabilities, at=_day_of(result))
    if first == result.cost_nusd:
        return first, "agrees"
    others = (cost_of_record(result, book, capabilities, at=day) for day in _other_days(result, book))
    if result.cost_nusd in others:
        return result.cost_nusd, "agrees on another day"
    return first, "differs"


def _day_of(result: LLMResult) -> datetime:
    if result.priced_on is not None:
        return datetime.combine(result.priced_on, time(), UTC)
    return result.dispatched_at or result.timestamp


def _other_days(result: LLMResult, book: PriceBook) -> Iterator[datetime]:
    """Give the first moment of every price: what was recorded before records had `priced_on` may tell a simulated day."""
    names = {result.model, result.model_requested}
    for price in book:
        if price.provider == result.provider and price.model in names:
            yield datetime.combine(price.valid_from, time(), UTC)


def _served_as(result: LLMResult, asked: str, capabilities: Capabilities) -> tuple[str, ...]:
    try:
        return (asked, *capabilities.of(result.provider, asked).served_as)
    except UnknownModelError:
        return (asked,)
