"""Budgets from the log: what happened to them, and a ledger rebuilt from what is on record."""

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
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record
from agentic_trading.operate.choices import check_ledger_url
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import boards_of, ledger_of

BudgetEventKind = Literal["command", "warning", "expired", "denied", "in doubt", "overrun"]

GOVERNED = frozenset({
    FailureKind.BUDGET_EXHAUSTED,
    FailureKind.LEDGER_UNAVAILABLE,
    FailureKind.CIRCUIT_OPEN,
    FailureKind.RETRY_BUDGET,
    FailureKind.HALTED,
    FailureKind.NOT_ALLOWED,
})  # fmt: skip
"""Reasons for which the platform, and not a provider, denied a call."""


@dataclass(frozen=True, slots=True)
class BudgetEvent:
    """One thing that happened, or the same again and again: `times`, from `first` to `last`.

    `nusd` is what was charged for it, all times together.
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
    """Return the budget events of a tenant in a log; with `together`, repeated ones are one.

    Raises `StoreError` for a log that cannot be read or understood.
    """
    found: list[BudgetEvent] = []
    async with aclosing(port_adapters.records_of(log)) as records:
        async for entry in records.scan():
            with _placed(log, entry.seq):
                found += budget_events([entry.record], tenant)
    return _merge_repeated(found) if together else found


@contextmanager
def _placed(log: Path, line: int) -> Generator[None]:
    """Raise `StoreError` with the place for an event that cannot be understood."""
    try:
        yield
    except EventError as e:
        raise StoreError(log, str(e), line=line) from e


def _merge_repeated(events: Iterable[BudgetEvent]) -> list[BudgetEvent]:
    """Return the events with repeated ones as one, at the place of the first."""
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
            why = f"its lease ran out; {body.state}"
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
        return f"{used} used; at this pace nothing is left at {body.exhausted_at:%Y-%m-%d %H:%M}"
    return f"{used} used"


def _with_reason(text: str, why: str) -> str:
    return f"{text}: {why}" if why else text


@dataclass(frozen=True, slots=True)
class LedgerRebuildReport:
    """What a rebuild has charged, in nano-dollars; `knew_nusd` is what the ledger had before.

    `kept` are charges of the ledger that no log explains. `discarded` are the totals that the ledger had higher, where
    that was asked for. `restored` are the limits and halts that the server had lost, or had in an older version. `limits`
    and `halts` are those that hold from now on.
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


async def rebuild_ledger(
    logs: Sequence[Path],
    ledger_url: str | None,
    tenant: str,
    *,
    zone: tzinfo = UTC,
    discard_server: bool = False,
) -> LedgerRebuildReport:
    """Charge every call of a tenant that is on record on a server, joined with what its ledger still knows of each call.

    Commands of operators that are on record and that the server has lost are put back first: limits and halts hold
    before any call runs again. `zone` is where days and months begin, the same as for the workers that share the server.
    Raises `OptionError` without a server, and for a server with higher totals than logs and known calls come to, which
    would be free to be spent again: nothing is then changed. With `discard_server` only the logs count.
    Raises `StoreError` for a log that cannot be read or understood, `LedgerUnavailableError`, `ControlError` for limits
    and halts that cannot be read or put back: no call runs then.
    """
    url = _checked_url(ledger_url)
    calls = LedgerRebuild(tenant, "live")
    readers = [_LogReader(log, await asyncio.to_thread(_mode_of, log.parent)) for log in logs]
    for reader in readers:  # so that a log that cannot be read closes no ledger
        await reader.read_on(calls)
    async with _opened(url, zone) as (ledger, controls):
        for name in (PLATFORM, tenant):  # so that a command that cannot be read closes no ledger
            await _restored(controls, name, readers, writes=False)
        knew = await ledger.balances(tenant)
        for reader in readers:  # what was charged up to now is on record a moment later
            await reader.read_on(calls)
        lowered = await _lowered(knew, calls, ledger, discard_server=discard_server)
        await ledger.fence(tenant)
        for reader in readers:  # what comes on record later has just ended, and that the ledger remembers
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
    )


@asynccontextmanager
async def _opened(ledger_url: str, zone: tzinfo) -> AsyncGenerator[tuple[Ledger, ControlStore]]:
    """Open the ledger and the controls of a server for as long as the block lasts."""
    async with AsyncExitStack() as stack:
        controls, statuses = await asyncio.to_thread(boards_of, ledger_url, None)
        ledger = await asyncio.to_thread(lambda: ledger_of(ledger_url, zone=zone))
        for port in (controls, statuses, ledger):
            await stack.enter_async_context(aclosing(port))
        yield ledger, controls


async def _restored(
    controls: ControlStore, tenant: str, readers: Iterable["_LogReader"], *, writes: bool = True
) -> RestoredControls:
    """Put back the commands of logs that a server has lost; without `writes`, only raise what that would."""
    return await restore_controls(
        controls, tenant, [one.commands.of(tenant) for one in readers], writes=writes
    )


async def _joined(
    calls: LedgerRebuild, ledger: RebuildableLedger, *, discard_server: bool
) -> tuple[list[LedgerEntry], list[KeptCharge]]:
    """Return what has to be booked by the logs, and by what the ledger has charged unless that is discarded."""
    return join(calls.entries(), [] if discard_server else await ledger.entries(calls.tenant))


@dataclass(slots=True)
class _LogReader:
    """Reads a log as far as it has been written, and further when it has grown."""

    log: Path
    mode: ClockMode
    commands: CommandHistory = field(default_factory=CommandHistory)
    position: port_adapters.LogPlace = port_adapters.LOG_START

    async def read_on(self, calls: LedgerRebuild) -> None:
        """Add to `calls` what has come on record since; raises `StoreError` for an event that cannot be understood."""
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
    """Return the totals of a server that a rebuild lowers, in words.

    Raises `OptionError` for such a total without `discard_server`. Totals only: in which minute or hour a call was
    counted, a log does not know better than the server.
    """
    if not any(any(one.spent.units) for one in knew):
        return []
    bookings, _ = await _joined(calls, ledger, discard_server=discard_server)
    lowered = await _lower_totals(knew, calls.tenant, bookings)
    if not discard_server:
        _refuse_lowered(lowered)
    return lowered


async def _lower_totals(knew: Iterable[Balance], tenant: str, bookings: Sequence[LedgerEntry]) -> list[str]:
    rebuilt = port_adapters.totals_ledger()
    await rebuilt.restore(tenant, bookings)
    found = {
        (one.scope, one.id): one.spent.units
        for one in await rebuilt.balances(tenant)
        if one.window is limit_types.Window.NONE
    }
    return [
        f"{one.scope} {one.id} {limit_types.amount_text(was, unit)} instead of {limit_types.amount_text(is_now, unit)}"
        for one in knew
        if one.window is limit_types.Window.NONE
        for unit, was, is_now in zip(
            limit_types.UNITS, one.spent.units, found.get((one.scope, one.id), (0, 0, 0)), strict=True
        )
        if is_now < was
    ]


def _checked_url(ledger_url: str | None) -> str:
    """Return the URL of a server; raises `OptionError` for none."""
    if not ledger_url:
        raise OptionError(
            "--ledger",
            "left out, and AGENTIC_LEDGER_URL is not set",
            "the server to rebuild, redis://HOST:PORT; budgets of a folder need no rebuild",
        )
    check_ledger_url(ledger_url)
    return ledger_url


def _refuse_lowered(lowered: Sequence[str]) -> None:
    """Raise `OptionError` for totals of a server that a rebuild would lower."""
    if lowered:
        raise OptionError(
            "--discard-server",
            f"left out, and the server has charged what is in none of the logs, nor known call by call: {'; '.join(lowered)}",
            "every log that was written with the server, or --discard-server to let that be spent again",
        )


def _mode_of(folder: Path) -> ClockMode:
    """Return the mode of a session's last run; a log without a run is of live calls."""
    session = SessionFolder(folder)
    return session.read_manifest().mode if session.last_run() else "live"
