"""Costs of calls: sums of a log, and a check of each recorded cost against its price book."""

from collections import defaultdict
from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, time
from functools import reduce
from pathlib import Path
from typing import Literal, Protocol, get_args

from msgspec.structs import replace

from agentic_trading.governance.admission import reservation_id_of
from agentic_trading.governance.events import (
    KINDS,
    AttemptAnsweredLate,
    AttemptDispatched,
    AttemptUnsent,
    ReservationExpired,
)
from agentic_trading.governance.ledger import ReservationState, tenant_of
from agentic_trading.governance.limits import UNNAMED, ScopeKind
from agentic_trading.governance.prices import PACKAGED_PRICES, PriceBook, charged_models, cost_of
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.facts import EVERYTHING, NAME_FIELDS, RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.log_line import IndexRow, index_row_of
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import LogEntry, Record, Spend, SpendKey


@dataclass(frozen=True, slots=True)
class SpendReport:
    """Sums of costs.

    Attributes:
        by: The keys of the groups.
        rows: One sum per group, in the order of the keys. Empty without keys.
        total: The sum of all groups. Its key is empty.

    """

    by: tuple[SpendKey, ...]
    rows: tuple[Spend, ...]
    total: Spend


class SpendRecords(Protocol):
    """The queries that sums of costs need, in one log or in several. See `Records`."""

    async def spend(
        self, *by: SpendKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[Spend]:
        """Return the sums of the selected attempts on record. A key may have several rows."""
        ...

    async def unmatched(self, *, tenant: str | None = None) -> list[Record]:
        """Return the records of reservations without exactly one dispatch and one attempt."""
        ...


async def spend_report(
    records: SpendRecords, *by: SpendKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
) -> SpendReport:
    """Return sums of costs by the given keys, in the order of their values. Without keys, only the total.

    The sums equal those of a ledger that is rebuilt from the log. An attempt that was sent and has no
    recorded end is in doubt, and costs its reservation. It has no subject and no failure.

    Args:
        records: The records of a log, or of several.
        *by: The keys of the groups, such as `tenant` or `model`.
        query: The selection of attempts.
        tenant: The only tenant whose attempts count. None means all.

    Raises:
        ValueError: If the query has a `kind`, a `verdict`, an `after` or a `where`, which cannot select an attempt
            without a recorded end.

    """
    if given := [name for name in _NOT_OF_SPEND if getattr(query, name)]:
        names = [name for name in NAME_FIELDS if name not in _NOT_OF_SPEND]
        raise ValueError(
            f"costs cannot be selected by {', '.join(given)}."
            f" Allowed fields: {', '.join((*names, 'since', 'until', 'trace_id'))}"
        )
    sums: dict[tuple[str, ...], Spend] = {}
    found = await records.spend(*by, query=query, tenant=tenant)
    for row in (*found, *_corrections(await records.unmatched(tenant=tenant), by, query)):
        known = sums.get(row.key)
        sums[row.key] = row if known is None else _added(known, row)
    rows = tuple(sums[key] for key in sorted(sums))
    total = reduce(_added, rows, Spend((), 0, 0, 0, 0, 0))
    return SpendReport(by, rows if by else (), total)


def _added(one: Spend, other: Spend) -> Spend:
    """Return the sum of both, with the key of `one`."""
    figures = (part.name for part in fields(Spend) if part.name != "key")
    return Spend(one.key, **{name: getattr(one, name) + getattr(other, name) for name in figures})


def _corrections(unmatched: Iterable[Record], by: Sequence[SpendKey], query: RecordQuery) -> Iterator[Spend]:
    """Yield, per reservation, its charge in a rebuilt ledger minus the recorded costs.

    A reservation counts if one of its attempts is selected, or its dispatch if the log has no attempt.
    """
    books: dict[str, LedgerRebuild] = {}
    rows: defaultdict[str, list[IndexRow]] = defaultdict(list)
    for record in unmatched:
        if (reservation := reservation_of(record)) is not None:
            tenant = tenant_of(reservation)
            books.setdefault(tenant, LedgerRebuild(tenant, "live")).read(record)
            rows[reservation].append(_row_of(record, tenant))
    for book in books.values():
        for reservation, attempts in book.attempts().items():
            of_reservation = rows[reservation]
            is_recorded = any(row.attempt for row in of_reservation)
            selected = [
                row
                for row in of_reservation
                if query.selects(row, datetime.fromisoformat(row.time), row.trace_id)
                and row.attempt >= is_recorded
            ]
            if not selected:
                continue
            known = [row for row in selected if row.attempt]
            in_doubt = [one for one in attempts if one.state is ReservationState.IN_DOUBT]
            missing = len(attempts) - len(known)
            named = max(selected, key=lambda row: (row.attempt > 0, bool(row.model), bool(row.workflow)))
            yield Spend(
                key=tuple(getattr(named, key) for key in by),
                attempts=missing,
                failed=missing,
                input_tokens=0,
                output_tokens=0,
                cost_nusd=sum(one.charged.nusd for one in attempts) - sum(row.cost_nusd for row in known),
                in_doubt=len(in_doubt) - sum(row.in_doubt for row in known),
                in_doubt_nusd=sum(one.charged.nusd for one in in_doubt)
                - sum(row.cost_nusd for row in known if row.in_doubt),
            )


_NOT_OF_SPEND = ("kind", "verdict", "after", "where")


def reservation_of(record: Record) -> str | None:
    """Return the id of the reservation that a record is about, or None."""
    if isinstance(record, LLMInteraction):
        return record.result.reservation_id or reservation_id_of(
            record.envelope, record.result.attempt_number
        )
    match KINDS.must(record):
        case AttemptDispatched() | AttemptUnsent() | AttemptAnsweredLate() | ReservationExpired() as step:
            return step.reservation_id
        case _:
            return None


def _row_of(record: Record, tenant: str) -> IndexRow:
    """Return the index row of a record. The row of an event contains the known fields of its attempt."""
    row = index_row_of(record.wire)
    if isinstance(record, LLMInteraction):
        return row
    match KINDS.must(record):
        case AttemptDispatched(scopes=scopes, provider=provider, model=model):
            row = replace(row, provider=provider, model=model)
        case ReservationExpired(scopes=scopes):
            pass
        case _:
            scopes = {}
    agent = scopes.get(ScopeKind.AGENT, "")
    agent = "" if agent == UNNAMED else agent
    return replace(row, tenant=tenant, agent=agent, workflow=scopes.get(ScopeKind.WORKFLOW, ""))


CostFinding = Literal["agrees", "agrees on another day", "differs", "in doubt", "no such book"]

COST_FINDINGS: tuple[CostFinding, ...] = get_args(CostFinding)


@dataclass(frozen=True, slots=True)
class RecomputedCost:
    """The recorded and the recomputed cost of one record.

    Attributes:
        line: The line of the log.
        interaction_id: The id of the record.
        model: `PROVIDER/MODEL`.
        price_book: The name of the price book.
        on_record_nusd: The recorded cost in nano-dollars.
        computed_nusd: The recomputed cost in nano-dollars. None if the call is in doubt or its price book was
            not given.
        finding: The result of the comparison.

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
    """The check of all costs in a log.

    Attributes:
        records: Every priced record, in the order of the log.
        not_priced: Other records: refused, not sent, or replayed.

    """

    records: tuple[RecomputedCost, ...]
    not_priced: int

    @property
    def is_right(self) -> bool:
        """Whether every cost that is not in doubt equals the recomputed one."""
        return not self.of("differs") and not self.of("no such book")

    def of(self, finding: CostFinding) -> list[RecomputedCost]:
        """Return the records with this finding."""
        return [record for record in self.records if record.finding == finding]


def load_price_books(prices_file: Path | None = None, earlier: Sequence[Path] = ()) -> tuple[PriceBook, ...]:
    """Return every price book by which calls may have been charged.

    A call was charged by the shipped prices or an `earlier` file, alone or with a user's file on top:
    `prices_file` or an `earlier` one.

    Raises:
        TableError: If a file is invalid.

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
    """Recompute the cost of every priced record with the price book that it names."""
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
    """Return the charge of the gate for `result`, by the prices on the day of `at`.

    The model that answered is charged in place of the requested one if it costs more and is not in its
    `served_as`. A usage without a price costs at least its reservation.
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
    """Yield the first day of every price of the model."""
    # Records older than the field `priced_on` may contain only the simulated day, so other days are tried.
    names = {result.model, result.model_requested}
    for price in book:
        if price.provider == result.provider and price.model in names:
            yield datetime.combine(price.valid_from, time(), UTC)
