"""Periodic work of a pool: controls, expired leases, status reports, and budget warnings."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

from agentic_trading.clock import Clock
from agentic_trading.governance.admission import RefusedCounter
from agentic_trading.governance.burn_rate import Alerts, BurnRateMeter, Forecast, warning_event
from agentic_trading.governance.commands import store_raised_halts
from agentic_trading.governance.controls_document import (
    AppliedCommand,
    ControlStore,
    HaltRegistry,
    HaltScope,
    TenantControls,
    event_of,
)
from agentic_trading.governance.controls_merge import history_of, restore_controls
from agentic_trading.governance.errors import ControlsUnreadableError
from agentic_trading.governance.events import ReservationExpired
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import Balance, ExpiredReservation, OperableLedger, tenant_of
from agentic_trading.governance.limits import Limit
from agentic_trading.governance.rebuild import checkpoint_event
from agentic_trading.governance.status_feed import (
    BudgetStatus,
    StatusFeed,
    call_counts,
    counters,
    parked,
    refusals,
)
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import RecordConflictError
from agentic_trading.llm.event import PLATFORM, Event
from agentic_trading.logger import get_logger
from agentic_trading.worker.error_boundary import log_and_continue
from agentic_trading.worker.recorder import Recorder

log = get_logger()

RECONCILE_EVERY_S = 0.25
"""The interval of reading controls, so that a command of an operator reaches every worker within a second."""

TICK_EVERY_S = 0.5
CHECKPOINT_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class _AppliedLimits:
    """The limits that were applied last, the serial of their document, and the number used to apply them."""

    limits: tuple[Limit, ...]
    serial: int
    number: int


@dataclass(slots=True)
class ControlReconciler:
    """Apply the controls of each tenant when they change, and record the commands behind them.

    Until a tenant's controls were read once, and while they are unreadable, no call of the tenant runs,
    because an unknown command may be a halt. If the store is only unavailable, the last controls stay in
    force.

    If the store no longer has a command that was read before, the store was lost or restored to an older
    state. The command is then written back. Only a removal lifts a limit, and only a resume lifts a halt. Of
    two commands, the newer one applies.
    """

    store: ControlStore
    halts: HaltRegistry
    ledger: OperableLedger
    recorder: Recorder
    _seen: dict[str, TenantControls] = field(default_factory=dict)
    _applied: dict[str, _AppliedLimits] = field(default_factory=dict)

    def version(self, tenant: str) -> int:
        """Return the version of the tenant's controls in force."""
        return self._seen.get(tenant, TenantControls()).version

    def serial(self, tenant: str) -> int:
        """Return the serial of the tenant's controls in force."""
        return self._seen.get(tenant, TenantControls()).serial

    async def reconcile(self, tenant: str) -> bool:
        """Read a tenant's controls, apply them and record their commands.

        Return whether they were new. Raises the errors of the store and the ledger. Repeat the whole call
        after an error.
        """
        if self.halts.raised(tenant):
            await store_raised_halts(self.store, self.halts, tenant)
        awaited = 0 if tenant == PLATFORM else self.ledger.awaited_limits(tenant)
        seen = self._seen.get(tenant)
        controls = await self._read(tenant)
        if seen is not None and not _follows(controls, seen):
            controls = await self._restored(tenant, controls, seen)
        if controls == seen and not awaited:
            self.halts.open(tenant)
            return False
        self.halts.update(tenant, controls)
        if tenant != PLATFORM and controls.speaks_of_limits:
            await self._apply_limits(tenant, controls)
        self.ledger.confirm_limits(tenant, awaited)
        for command in _new_commands(controls, seen):
            with log_and_continue("command_not_on_record", tenant=tenant, version=command.version):
                await self.recorder.keep_event(event_of(tenant, command))
        self._seen[tenant] = controls
        return controls != seen

    async def _restored(self, tenant: str, found: TenantControls, seen: TenantControls) -> TenantControls:
        """Write lost commands back to the store, and return the resulting controls."""
        restored = await restore_controls(self.store, tenant, [history_of(seen)], serial=seen.serial)
        if restored.is_changed:
            log.error(
                "controls_rolled_back", tenant=tenant, seen=seen.version, found=found.version,
                restored=list(restored.changes),
            )  # fmt: skip
        return restored.controls

    async def _read(self, tenant: str) -> TenantControls:
        try:
            return await self.store.read(tenant)
        except Exception as e:
            # Stop the tenant's calls, because an unknown command may be a halt.
            if isinstance(e, ControlsUnreadableError) or not self.halts.knows(tenant):
                self.halts.close(tenant, str(e))
            raise

    async def _apply_limits(self, tenant: str, controls: TenantControls) -> None:
        """Apply limits to the ledger, with a larger number than before.

        The ledger ignores smaller numbers.
        """
        # The serial is equal in all processes that read the store, so that all workers use the same numbers. It
        # also stays when its commands are gone.
        before = self._applied.get(tenant)
        number = controls.serial
        if before is not None:
            is_again = before.limits == controls.limits and before.serial == controls.serial
            number = max(number, before.number if is_again else before.number + 1)
        await self.ledger.apply_limits(tenant, controls.limits, version=number)
        self._applied[tenant] = _AppliedLimits(controls.limits, controls.serial, number)


def _follows(controls: TenantControls, seen: TenantControls) -> bool:
    """Whether a document was surely written by a process that had read `seen`.

    Every document follows an empty one.
    """
    if controls == seen or not seen.version:
        return True
    return controls.version > seen.version and bool(seen.actions) and seen.actions[-1] in controls.actions


def _new_commands(controls: TenantControls, seen: TenantControls | None) -> Sequence[AppliedCommand]:
    known = seen.actions if seen is not None else ()
    return [action for action in controls.actions if action not in known]


@dataclass(frozen=True, slots=True)
class HousekeepingScope:
    """The ledger, the gate and the controls of the tenants that a housekeeper serves.

    `statuses` gets its reports. If the ledger `outlives` this process, its checkpoints are recorded, so that
    the next process can detect a rollback. `windows_by` is the clock of the ledger's windows, if it differs
    from the clock of the calls. Without `has_present`, each call has its own time, as in a backtest of
    another process, and no current time ends a window.
    """

    ledger: OperableLedger
    gate: Gate
    controls: ControlStore
    statuses: StatusFeed
    tenants: Sequence[str]
    outlives: bool = False
    windows_by: Clock | None = None
    has_present: bool = True


@dataclass(frozen=True, slots=True)
class BudgetReports:
    """The budgets of a process for metrics.

    Attributes:
        statuses: The last report of each tenant.
        refused: Refused calls by counter since the start, of this process alone.
        halts: The number of halts by tenant and scope. Halts of all tenants are those of tenant `*`.

    """

    statuses: Sequence[BudgetStatus]
    refused: Mapping[RefusedCounter, int]
    halts: Mapping[tuple[str, HaltScope], int]


@dataclass(slots=True)
class Housekeeper:
    """Run next to the workers until cancelled.

    Failed work is repeated in the next round. Controls are read in a separate loop, so that slow work does
    not delay them. Errors are logged. Only a `StoreError` of the log ends it.

    `clock` is the time of the calls, simulated or not, and is used for forecasts. `wall` is used for waits.
    """

    watched: HousekeepingScope
    meter: BurnRateMeter
    recorder: Recorder
    clock: Clock
    wall: Clock
    worker: str = "worker"
    alerts: Alerts = field(default_factory=Alerts)
    _reported: dict[str, BudgetStatus] = field(default_factory=dict)
    _reconciler: ControlReconciler = field(init=False)
    _failing: dict[str, type[Exception]] = field(default_factory=dict)
    _expiries: deque[ExpiredReservation] = field(default_factory=deque)
    _next_tick: float = 0.0
    _next_checkpoint: float = 0.0

    def __post_init__(self) -> None:
        watched = self.watched
        self._reconciler = ControlReconciler(
            watched.controls, watched.gate.halts, watched.ledger, self.recorder
        )

    async def run(self) -> None:
        """Reconcile and tick again and again. Raises `StoreError` if the log fails."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reconcile_on(), name="controls")
                group.create_task(self._tick_on(), name="ticks")
        except ExceptionGroup as e:
            raise e.exceptions[0] from e

    async def end(self) -> None:
        """Store halts that are not stored yet, report for the last time, and record the last checkpoints."""
        for tenant in self.watched.tenants:
            if self.watched.gate.halts.raised(tenant):
                await self.reconcile()
        self._next_checkpoint = 0.0
        await self.tick(is_running=False)

    def reports(self) -> BudgetReports:
        """Return the last reports, and the counts behind them."""
        gate = self.watched.gate
        halts = {
            (tenant, scope): count
            for tenant in (PLATFORM, *self.watched.tenants)
            for scope, count in gate.halts.counts(tenant).items()
        }
        return BudgetReports(tuple(self._reported.values()), gate.refused_calls(), halts)

    async def reconcile(self) -> bool:
        """Apply the controls of the platform and of every tenant. Return whether any were new."""
        is_changed = False
        for tenant in (PLATFORM, *self.watched.tenants):
            with log_and_continue("controls_not_read", self._failing, tenant=tenant):
                is_changed |= await self._reconciler.reconcile(tenant)
        return is_changed

    async def tick(self, *, is_running: bool = True) -> None:
        """Expire leases, report the status of every tenant, and warn of counters near their limit."""
        with log_and_continue("housekeeping_failed", self._failing):
            self._expiries.extend(await self.watched.ledger.expire_leases())
            while self._expiries:  # kept across a stop, so that `end` records the rest
                await self._keep(self._expired(self._expiries[0]))
                expired = self._expiries.popleft()
                await self.watched.ledger.acknowledge_expired(expired.reservation_id)
            await self._report_all(is_running=is_running)
            await self._record_checkpoints()

    async def _reconcile_on(self) -> None:
        while True:
            if await self.reconcile():
                self._next_tick = 0.0
            await self.wall.sleep(RECONCILE_EVERY_S)

    async def _tick_on(self) -> None:
        while True:
            if self.wall.monotonic() >= self._next_tick:
                self._next_tick = self.wall.monotonic() + TICK_EVERY_S
                await self.tick()
            await self.wall.sleep(RECONCILE_EVERY_S)

    async def _keep(self, event: Event) -> None:
        """Record an event, if possible. An id that is already in use is only logged."""
        with log_and_continue("event_not_on_record", kind=event.kind, id=event.id):
            await self.recorder.keep_event(event)

    async def _report_all(self, *, is_running: bool) -> None:
        """Report the status of every tenant, and record warnings."""
        watched = self.watched
        now = (watched.windows_by or self.clock).now()
        present = now if watched.has_present else None
        balances = {
            tenant: await watched.ledger.balances(tenant, limited=True, at=present)
            for tenant in watched.tenants
        }
        refused = watched.gate.take_refused()
        forecasts = self.meter.look(chain.from_iterable(balances.values()), now, refused)
        for tenant, of_tenant in balances.items():
            leading = [one for one in forecasts if one.balance.tenant == tenant]
            await self._report(tenant, of_tenant, leading, present, is_running=is_running)
        for alert in self.alerts.new(forecasts):
            await self._warn(warning_event(alert, self.clock.now()))

    async def _warn(self, event: Event) -> None:
        """Record a warning, once for its counter.

        An earlier round or process may have recorded it.
        """
        failed = log_and_continue("event_not_on_record", kind=event.kind, id=event.id)
        with failed, suppress(RecordConflictError):
            await self.recorder.keep_event(event)

    async def _report(
        self,
        tenant: str,
        balances: Sequence[Balance],
        forecasts: Sequence[Forecast],
        present: datetime | None,
        *,
        is_running: bool,
    ) -> None:
        watched = self.watched
        gate = watched.gate.statistics()
        status = BudgetStatus(
            worker=self.worker,
            tenant=tenant,
            time=self.wall.now(),
            as_of=self.clock.now(),
            is_running=is_running,
            limits_version=self._reconciler.version(tenant),
            controls_serial=self._reconciler.serial(tenant),
            platform_serial=self._reconciler.serial(PLATFORM),
            windows_at=present,
            counters=counters(balances, forecasts),
            parked=parked(await watched.ledger.waiting(tenant)),
            refusals=refusals(watched.gate.refusals(), tenant),
            calls=call_counts(
                watched.ledger.statistics(), admitted=gate.admitted, refused=sum(gate.refused.values())
            ),
        )
        self._reported[tenant] = status
        await watched.statuses.publish(status)

    async def _record_checkpoints(self) -> None:
        """Record the checkpoints of a ledger that outlives this process."""
        if not self.watched.outlives or self.wall.monotonic() < self._next_checkpoint:
            return
        self._next_checkpoint = self.wall.monotonic() + CHECKPOINT_EVERY_S
        for tenant in self.watched.tenants:
            checkpoint = await self.watched.ledger.checkpoint(tenant)
            await self._keep(checkpoint_event(tenant, checkpoint, self.wall.now()))

    def _expired(self, expired: ExpiredReservation) -> Event:
        """Return the record of an expired reservation.

        If it is reserved again, it may expire again.
        """
        amount, now = expired.amount, self.wall.now()
        facts = (expired.state, amount.nusd, amount.tokens, now.isoformat())
        body = ReservationExpired(
            reservation_id=expired.reservation_id,
            state=expired.state,
            nusd=amount.nusd,
            tokens=amount.tokens,
            calls=amount.calls,
            scopes=expired.scope_ids,
            window_at=expired.counted_at,
        )
        return body.as_event(
            event_id=derived_id("expired", expired.reservation_id, *facts),
            trace_id="budget",
            tenant_id=tenant_of(expired.reservation_id),
            time=now,
            as_of=self.clock.now(),
        )
