"""Budgets from logs: a list of budget events, and a ledger rebuilt from records."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Literal, assert_never

from agentic_trading.governance import events as ledger_events
from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.controls_document import AppliedCommand, ControlStore
from agentic_trading.governance.controls_merge import CommandHistory, RestoredControls, restore_controls
from agentic_trading.governance.ledger import (
    Balance,
    Ledger,
    LedgerEntry,
    RebuildableLedger,
    ReservationState,
)
from agentic_trading.governance.rebuild import KeptCharge, LedgerRebuild, join
from agentic_trading.governance.rules import ClockMode
from agentic_trading.llm.errors import EventError, FailureKind, StoreError
from agentic_trading.llm.event import PLATFORM, Event
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.log_line import INTERACTION
from agentic_trading.llm.store import Record
from agentic_trading.operate.choices import check_ledger_url
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.ledger_snapshots import LedgerRebuilds
from agentic_trading.platform.port_adapters import boards_of, ledger_of

BudgetEventKind = Literal["command", "warning", "expired", "denied", "in doubt", "overrun"]

GOVERNED = frozenset({
    FailureKind.BUDGET_EXHAUSTED,
    FailureKind.BUDGET_BUSY,
    FailureKind.LEDGER_UNAVAILABLE,
    FailureKind.CIRCUIT_OPEN,
    FailureKind.RETRY_BUDGET,
    FailureKind.HALTED,
    FailureKind.NOT_ALLOWED,
})  # fmt: skip
"""Reasons for which the platform, and not a provider, denied a call."""


@dataclass(frozen=True, slots=True)
class BudgetEvent:
    """A budget event, or several equal ones together.

    Attributes:
        what: The kind.
        subject: The command, limit, reservation or call.
        why: The reason.
        first: The time of the first event.
        last: The time of the last event.
        nusd: The charge of all events together, in nano-dollars.
        times: The number of events.

    """

    what: BudgetEventKind
    subject: str
    why: str
    first: datetime
    last: datetime
    nusd: int = 0
    times: int = 1


def budget_events(records: Iterable[Record], tenant: str) -> Iterator[BudgetEvent]:
    """Yield the budget events of a tenant, in the order of the log."""
    for record in records:
        if isinstance(record, LLMInteraction):
            if record.envelope.tenant_id == tenant:
                yield from _of_call(record)
        elif record.tenant_id == tenant:
            yield from _of_event(record)


async def read_budget_events(log: Path, tenant: str, *, together: bool) -> list[BudgetEvent]:
    """Return the budget events of a tenant in a log. With `together`, equal events are merged.

    Raises:
        StoreError: If the log or an event cannot be read.

    """
    found: list[BudgetEvent] = []
    async with aclosing(port_adapters.records_of(log)) as records:
        kinds = (INTERACTION, *await ledger_events.kinds_to_read(records))
        async with aclosing(records.entries(RecordQuery(kind=kinds), tenant=tenant)) as entries:
            async for entry in entries:
                with _placed(log, entry.seq):
                    found += budget_events([entry.record], tenant)
    return _merge_repeated(found) if together else found


@contextmanager
def _placed(log: Path, line: int) -> Generator[None]:
    """Raise `StoreError` with the line for an event that cannot be read."""
    try:
        yield
    except EventError as e:
        raise StoreError(log, str(e), line=line) from e


def _merge_repeated(events: Iterable[BudgetEvent]) -> list[BudgetEvent]:
    """Merge equal events, at the place of the first one."""
    found: dict[tuple[str, ...], BudgetEvent] = {}
    for one in events:
        key = (one.what, one.subject) if one.what == "denied" else (one.what, one.subject, one.why)
        before = found.get(key)
        if before is None:
            found[key] = one
        else:
            found[key] = replace(
                before, last=one.last, nusd=before.nusd + one.nusd, times=before.times + one.times
            )
    return list(found.values())


def _of_call(record: LLMInteraction) -> Iterator[BudgetEvent]:
    envelope, result = record.envelope, record.result
    subject = f"{limit_types.agent_of(envelope)} · {envelope.workflow} · {envelope.provider}/{envelope.model}"
    at = record.stored_at
    failure = result.failure
    if failure is not None and failure.category in GOVERNED:
        yield BudgetEvent("denied", f"{subject} · {failure.category}", failure.description, at, at)
    if result.in_doubt:
        why = failure.description if failure is not None else "no answer was kept"
        yield BudgetEvent("in doubt", subject, why, at, at, result.cost_nusd)
    elif result.cost_nusd > result.reserved_nusd and result.served_from != "recorded":
        why = f"more than the {limit_types.usd_text(result.reserved_nusd)} that were reserved"
        yield BudgetEvent("overrun", subject, why, at, at, result.cost_nusd)


def _of_event(event: Event) -> Iterator[BudgetEvent]:
    body, at = ledger_events.KINDS.must(event), event.time
    match body:
        case AppliedCommand():
            why = _with_reason(f"{body.before} -> {body.after}, by {body.by}", body.why)
            yield BudgetEvent("command", body.subject, why, at, at)
        case (
            ledger_events.BudgetThresholdReached()
            | ledger_events.BudgetExhausted()
            | ledger_events.BudgetExhaustionForecast()
        ):
            subject = f"{body.scope} {body.id} · {body.window_id or 'total'}"
            yield BudgetEvent("warning", subject, _warning(body), at, at)
        case ledger_events.ReservationExpired():
            why = f"its lease expired: {body.state}"
            yield BudgetEvent("expired", body.reservation_id, why, at, at, body.nusd)
        case (
            ledger_events.AttemptDispatched()
            | ledger_events.AttemptUnsent()
            | ledger_events.AttemptAnsweredLate()
            | ledger_events.LedgerCheckpointed()
            | None
        ):
            pass  # no event of a budget
        case _:
            assert_never(body)


def _warning(
    body: ledger_events.BudgetThresholdReached
    | ledger_events.BudgetExhausted
    | ledger_events.BudgetExhaustionForecast,
) -> str:
    used = (
        f"{limit_types.amount_text(body.spent, body.unit)} of {limit_types.amount_text(body.most, body.unit)}"
    )
    if isinstance(body, ledger_events.BudgetExhausted):
        if body.spent < body.most:
            return f"calls were refused for five minutes and none was admitted: {used} used"
        return f"nothing is left: {used} used"
    if isinstance(body, ledger_events.BudgetExhaustionForecast) and body.exhausted_at is not None:
        return f"{used} used. At this pace, nothing is left at {body.exhausted_at:%Y-%m-%d %H:%M}"
    return f"{used} used"


def _with_reason(text: str, why: str) -> str:
    return f"{text}: {why}" if why else text


@dataclass(frozen=True, slots=True)
class LedgerRebuildReport:
    """The result of rebuilding a ledger. Amounts are in nano-dollars.

    Attributes:
        tenant: The tenant.
        logs: The logs.
        calls: The number of booked calls.
        in_doubt: Calls in doubt among them.
        charged_nusd: The charge of all calls.
        in_doubt_nusd: The charge of the calls in doubt.
        knew_nusd: The total of the ledger before the rebuild.
        generation: The new epoch of the ledger.
        discarded: Totals of the ledger that were lowered, with `discard_server`.
        kept: Charges of the ledger that no log explains.
        restored: Limits and halts that the server had lost or had in an older version.
        limits: The limits that apply now.
        halts: The halts that apply now.
        differing: Logs whose newest ledger snapshot differs from their lines. The rebuild uses the lines.

    """

    tenant: str
    logs: tuple[str, ...]
    calls: int
    in_doubt: int
    charged_nusd: int
    in_doubt_nusd: int
    knew_nusd: int
    generation: int
    discarded: tuple[str, ...] = ()
    kept: tuple[KeptCharge, ...] = ()
    restored: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    halts: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()


async def rebuild_ledger(
    logs: Sequence[Path],
    ledger_url: str | None,
    tenant: str,
    *,
    zone: tzinfo = UTC,
    discard_server: bool = False,
) -> LedgerRebuildReport:
    """Rebuild the ledger of a tenant on a server from logs.

    Calls that the ledger still has are kept, unless `discard_server`. Limits and halts that the server has
    lost are restored first, so that they apply before any call runs. `zone` must be that of the workers.

    Raises:
        OptionError: Without a server, or if it has higher totals than logs and known calls explain. Nothing
            is changed.
        StoreError: If a log cannot be read.
        LedgerUnavailableError: If the server is unreachable.
        ControlError: If limits and halts cannot be read or restored. Then no call runs.

    """
    url = _checked_url(ledger_url)
    calls = LedgerRebuild(tenant, "live")
    readers = [_LogReader(log, await asyncio.to_thread(_mode_of, log.parent)) for log in logs]
    for reader in readers:  # before the fence, so that an unreadable log does not close the ledger
        await reader.read_on(calls)
    differing = [one.log for one in readers if await _snapshot_differs(one.log, tenant, one.mode, zone)]
    async with _opened(url, zone) as (ledger, controls):
        for name in (PLATFORM, tenant):  # so that an unreadable command does not close the ledger
            await _restored(controls, name, readers, writes=False)
        knew = await ledger.balances(tenant)
        for reader in readers:  # again, because a charge is recorded a moment after it is made
            await reader.read_on(calls)
        lowered = await _lowered(knew, calls, ledger, discard_server=discard_server)
        await ledger.fence(tenant)
        for reader in readers:  # after the fence. Later records are of calls that the ledger remembers
            await reader.read_on(calls)
        if calls.checkpoint is not None:
            await ledger.require_at_least(tenant, calls.checkpoint)
        bookings, kept = await _joined(calls, ledger, discard_server=discard_server)
        platform, own = [await _restored(controls, name, readers) for name in (PLATFORM, tenant)]
        if own.controls.speaks_of_limits:
            await ledger.apply_limits(tenant, own.controls.limits, version=own.controls.serial)
        position = await ledger.restore(tenant, bookings)
    doubtful = [one for one in bookings if one.state is ReservationState.IN_DOUBT]
    return LedgerRebuildReport(
        tenant=tenant,
        logs=tuple(map(str, logs)),
        calls=len(bookings),
        in_doubt=len(doubtful),
        charged_nusd=sum(one.charged.nusd for one in bookings),
        in_doubt_nusd=sum(one.charged.nusd for one in doubtful),
        knew_nusd=sum(one.spent.nusd for one in knew if _is_of_tenant(one)),
        generation=position.epoch,
        discarded=tuple(lowered),
        kept=tuple(kept),
        restored=(*(f"{one}, of every tenant" for one in platform.changes), *own.changes),
        limits=tuple(map(limit_types.limit_text, own.controls.limits)),
        halts=tuple(f"{one.scope} {one.id}" for one in (*platform.controls.halts, *own.controls.halts)),
        differing=tuple(map(str, differing)),
    )


@asynccontextmanager
async def _opened(ledger_url: str, zone: tzinfo) -> AsyncGenerator[tuple[Ledger, ControlStore]]:
    """Open the ledger and the controls of a server while the block runs."""
    async with AsyncExitStack() as stack:
        controls, statuses = await asyncio.to_thread(boards_of, ledger_url, None)
        ledger = await asyncio.to_thread(lambda: ledger_of(ledger_url, zone=zone))
        for port in (controls, statuses, ledger):
            await stack.enter_async_context(aclosing(port))
        yield ledger, controls


async def _restored(
    controls: ControlStore, tenant: str, readers: Iterable["_LogReader"], *, writes: bool = True
) -> RestoredControls:
    """Restore commands that a server has lost. Without `writes`, only raise possible errors."""
    return await restore_controls(
        controls, tenant, [one.commands.of(tenant) for one in readers], writes=writes
    )


async def _joined(
    calls: LedgerRebuild, ledger: RebuildableLedger, *, discard_server: bool
) -> tuple[list[LedgerEntry], list[KeptCharge]]:
    """Return the bookings from the logs and, unless discarded, from the ledger."""
    return join(calls.entries(), [] if discard_server else await ledger.entries(calls.tenant))


@dataclass(slots=True)
class _LogReader:
    """Reads a log in steps while it grows."""

    log: Path
    mode: ClockMode
    commands: CommandHistory = field(default_factory=CommandHistory)
    position: port_adapters.LogPlace = port_adapters.LOG_START

    async def read_on(self, calls: LedgerRebuild) -> None:
        """Add new records to `calls`. Raises `StoreError` for an event that cannot be read."""
        calls.mode = self.mode
        async with (
            aclosing(port_adapters.records_of(self.log)) as records,
            aclosing(records.read_on(self.position, 0, records.entry)) as batches,
        ):
            async for entries, reached in batches:
                for entry in entries:
                    with _placed(self.log, entry.seq):
                        calls.read(entry.record)
                        self.commands.read(entry.record)
                self.position = reached


def _is_of_tenant(balance: Balance) -> bool:
    """Whether it is the total of a tenant."""
    return (balance.scope, balance.window) == (limit_types.ScopeKind.TENANT, limit_types.Window.NONE)


async def _lowered(
    knew: Sequence[Balance], calls: LedgerRebuild, ledger: RebuildableLedger, *, discard_server: bool
) -> list[str]:
    """Return the totals of a server that a rebuild lowers, as text.

    Raises `OptionError` for such a total without `discard_server`.
    """
    # Only totals are compared, because the server knows better than a log in which minute a call was counted.
    if not any(any(one.spent.units) for one in knew):
        return []
    bookings, _ = await _joined(calls, ledger, discard_server=discard_server)
    lowered = await _lower_totals(knew, calls.tenant, bookings)
    if not discard_server:
        _refuse_lowered(lowered)
    return lowered


async def _lower_totals(knew: Iterable[Balance], tenant: str, bookings: Sequence[LedgerEntry]) -> list[str]:
    found = await _totals(tenant, bookings)
    return [
        f"{one.scope} {one.id} {limit_types.amount_text(was, unit)} instead of {limit_types.amount_text(is_now, unit)}"
        for one in knew
        if one.window is limit_types.Window.NONE
        for unit, was, is_now in zip(
            limit_types.UNITS, one.spent.units, found.get((one.scope, one.id), (0, 0, 0)), strict=True
        )
        if is_now < was
    ]


async def _totals(
    tenant: str, bookings: Sequence[LedgerEntry]
) -> dict[tuple[limit_types.ScopeKind, str], tuple[int, int, int]]:
    """Return the total of every scope."""
    rebuilt = port_adapters.totals_ledger()
    await rebuilt.restore(tenant, bookings)
    return {
        (one.scope, one.id): one.spent.units
        for one in await rebuilt.balances(tenant)
        if one.window is limit_types.Window.NONE
    }


async def _snapshot_differs(log: Path, tenant: str, mode: ClockMode, zone: tzinfo) -> bool:
    """Whether the newest ledger snapshot in a log has other totals than the lines that it covers."""
    async with aclosing(port_adapters.records_of(log)) as records:
        snapshot = LedgerRebuilds(log, records, [tenant], mode, str(zone))
        await snapshot.load()
        if not (last := snapshot.read_from):
            return False
        lines = LedgerRebuild(tenant, mode)
        async with aclosing(records.scan()) as entries:
            async for entry in entries:
                if entry.seq > last:
                    break
                with _placed(log, entry.seq):
                    lines.read(entry.record)
    sums = [await _totals(tenant, rebuild.entries()) for rebuild in (lines, snapshot.by_tenant[tenant])]
    first, second = (
        {key: spent for key, spent in one.items() if any(spent) and key[0] not in limit_types.SHORT_LIVED}
        for one in sums
    )
    return first != second


def _checked_url(ledger_url: str | None) -> str:
    """Return the URL of a server. Raises `OptionError` if it is missing or invalid."""
    if not ledger_url:
        raise OptionError(
            "--ledger",
            "left out, and AGENTIC_LEDGER_URL is not set",
            "the server to rebuild, redis://HOST:PORT. Budgets in a folder need no rebuild",
        )
    check_ledger_url(ledger_url)
    return ledger_url


def _refuse_lowered(lowered: Sequence[str]) -> None:
    """Raise `OptionError` if a rebuild would lower totals."""
    if lowered:
        raise OptionError(
            "--discard-server",
            f"left out, but the server has higher totals than the logs and its known calls explain: {', '.join(lowered)}",
            "every log that was written with the server, or --discard-server, which lets these amounts be spent again",
        )


def _mode_of(folder: Path) -> ClockMode:
    """Return the mode of a session's last run, or `live` without a run."""
    session = SessionFolder(folder)
    return session.read_manifest().mode if session.last_run() else "live"
