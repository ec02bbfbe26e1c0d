"""What calls cost: sums of a log, and whether each cost on record is what its price book gives."""

from collections.abc import AsyncIterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Literal, get_args

from agentic_trading.governance.prices import PACKAGED_PRICES, PriceBook, charged_models, cost_of
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import LogEntry, Records, Spend, SpendKey


@dataclass(frozen=True, slots=True)
class SpendReport:
    """Sums by the keys `by`, one row per group of attempts, and their total, whose key is empty."""

    by: tuple[SpendKey, ...]
    rows: tuple[Spend, ...]
    total: Spend


async def spend_report(records: Records, *by: SpendKey, tenant: str | None = None) -> SpendReport:
    """Return sums by the given keys, in the order of their values; without keys only the total.

    With a `tenant`, only its attempts count.
    """
    rows = tuple(await records.spend(*by, tenant=tenant))
    total = Spend(
        key=(),
        attempts=sum(row.attempts for row in rows),
        failed=sum(row.failed for row in rows),
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        cost_nusd=sum(row.cost_nusd for row in rows),
    )
    return SpendReport(by, rows if by else (), total)


CostFinding = Literal["agrees", "agrees on another day", "differs", "in doubt", "no such book"]

COST_FINDINGS: tuple[CostFinding, ...] = get_args(CostFinding)


@dataclass(frozen=True, slots=True)
class RecomputedCost:
    """The cost of the record in line `line` of the log, in nano-dollars: as recorded and as recomputed.

    `computed_nusd` is None where nothing can be computed: the call is in doubt, or its price book was not given.
    """

    line: int
    interaction_id: str
    model: str
    price_book: str
    on_record_nusd: int
    computed_nusd: int | None
    finding: CostFinding


@dataclass(frozen=True, slots=True)
class CostCheck:
    """Every priced record of a log, in its order; `not_priced` others were refused, not sent, or replayed."""

    records: tuple[RecomputedCost, ...]
    not_priced: int

    @property
    def is_right(self) -> bool:
        """Whether every cost that is not in doubt is the recomputed one."""
        return not self.of("differs") and not self.of("no such book")

    def of(self, finding: CostFinding) -> list[RecomputedCost]:
        """Return the records with this finding."""
        return [record for record in self.records if record.finding == finding]


def load_price_books(prices_file: Path | None = None, earlier: Sequence[Path] = ()) -> tuple[PriceBook, ...]:
    """Return every price book that calls may have been charged by.

    A call was charged by the packaged prices or an `earlier` file, alone or with a file of the user above them; the
    user's file was `prices_file` or an `earlier` one. Raises `TableError`.
    """
    own = [path for path in (prices_file, *earlier) if path is not None]
    return tuple(
        PriceBook.load(below, *above)
        for below in (PACKAGED_PRICES, *earlier)
        for above in ((), *((path,) for path in own if path != below))
    )


async def recompute_costs(
    entries: AsyncIterable[LogEntry], books: Sequence[PriceBook], capabilities: Capabilities
) -> CostCheck:
    """Compute the cost of every priced record of a log by the one of `books` that it names."""
    records, not_priced = [], 0
    async for entry in entries:
        if not isinstance(entry.record, LLMInteraction):
            continue
        result = entry.record.result
        if not result.price_book or result.served_from == "recorded":
            not_priced += 1
            continue
        computed, finding = _recompute(result, books, capabilities)
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


def _recompute(
    result: LLMResult, books: Sequence[PriceBook], capabilities: Capabilities
) -> tuple[int | None, CostFinding]:
    if result.in_doubt:
        is_as_reserved = result.cost_nusd == result.reserved_nusd
        return (None, "in doubt") if is_as_reserved else (result.reserved_nusd, "differs")
    book = next((book for book in books if book.is_named(result.price_book)), None)
    if book is None:
        return None, "no such book"
    computed = _cost_nusd(result, book, capabilities, at=_priced_at(result))
    if computed == result.cost_nusd:
        return computed, "agrees"
    others = (_cost_nusd(result, book, capabilities, at=day) for day in _other_days(result, book))
    if result.cost_nusd in others:
        return result.cost_nusd, "agrees on another day"
    return computed, "differs"


def _cost_nusd(result: LLMResult, book: PriceBook, capabilities: Capabilities, *, at: datetime) -> int:
    """Return what the gate charges for `result` by the prices of the day of `at`.

    The model that answered counts instead of the requested one if it is dearer and not in that one's `served_as`. What
    has no price in `book` costs at least what was reserved.
    """
    requested = result.model_requested or result.model
    try:
        served_as = (requested, *capabilities.of(result.provider, requested).served_as)
    except UnknownModelError:
        served_as = (requested,)
    models = charged_models(requested, result.model, served_as)
    cost, _ = cost_of(result.usage, book, result.provider, models, at=at, reserved_nusd=result.reserved_nusd)
    return cost


def _priced_at(result: LLMResult) -> datetime:
    if result.priced_on is not None:
        return datetime.combine(result.priced_on, time(), UTC)
    return result.dispatched_at or result.timestamp


def _other_days(result: LLMResult, book: PriceBook) -> Iterator[datetime]:
    """Yield the first day of every price: a record older than the field `priced_on` may hold the simulated day only."""
    names = {result.model, result.model_requested}
    for price in book:
        if price.provider == result.provider and price.model in names:
            yield datetime.combine(price.valid_from, time(), UTC)
