"""What a pool does beside its calls: sees what operators order, ends what has run out, warns before a ceiling."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import structlog

from agentic_trading.clock import Clock
from agentic_trading.governance.burn_rate import Alert, Alerts, BurnRateMeter, Forecast
from agentic_trading.governance.controls_document import (
    KEPT_ACTIONS,
    PLATFORM,
    AppliedCommand,
    ControlStore,
    HaltRegistry,
    TenantControls,
    event_of,
)
from agentic_trading.governance.errors import ControlsUnreadableError
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import Balance, ExpiredReservation, OperableLedger, tenant_of
from agentic_trading.governance.rebuild import EXPIRED, checkpoint_event
from agentic_trading.governance.status_feed import (
    BudgetStatus,
    StatusFeed,
    call_counts,
    counters,
    parked,
    refusals,
)
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import Event
from agentic_trading.worker.error_boundary import log_and_continue
from agentic_trading.worker.recorder import Recorder

log = structlog.get_logger()


@dataclass(slots=True)
class ControlReconciler:
    """Knows the orders that were last seen, and has new ones done.

    Until a tenant's orders were read once, and whenever something stands there that cannot be read, nothing of it
    runs: an order that is not known may be a halt. While the board is only away, what was read last holds.

    A board that was lost begins anew with version 1. Such orders are followed as any new ones: what the operators see
    there is what holds. An empty board, or an older copy of it, takes nothing back: what was seen last holds until
    somebody orders anew.
    """

    board: ControlStore
    halts: HaltRegistry
    ledger: OperableLedger
    recorder: Recorder
    _seen: dict[str, TenantControls] = field(default_factory=dict)
    _adopted: dict[str, int] = field(default_factory=dict)

    def version(self, tenant: str) -> int:
        """Return the version of a tenant's orders that is followed."""
        return self._seen.get(tenant, TenantControls()).version

    async def follow(self, tenant: str) -> bool:
        """See what stands on the board, have it done and put it on record; returns whether it was new.

        Raises what the board and the ledger raise; then all of it is to be tried again.
        """
        controls = await self._read(tenant)
        seen = self._seen.get(tenant)
        if seen is not None and not _is_news(controls, seen):
            self.halts.open(tenant)
            if controls != seen:
                log.error("orders_went_back", tenant=tenant, seen=seen.version, found=controls.version)
            return False
        self.halts.update(tenant, controls)
        if tenant != PLATFORM and controls.speaks_of_limits:
            await self._adopt(tenant, controls)
        _say_if_begun_anew(tenant, controls, seen)
        for action in _new_actions(controls, seen):
            with log_and_continue("order_not_on_record", tenant=tenant, version=action.version):
                await self.recorder.keep_event(event_of(tenant, action))
        self._seen[tenant] = controls
        return True

    async def _read(self, tenant: str) -> TenantControls:
        try:
            return await self.board.read(tenant)
        except Exception as e:
            if isinstance(e, ControlsUnreadableError) or not self.halts.knows(tenant):
                self.halts.close(tenant, str(e))
            raise

    async def _adopt(self, tenant: str, controls: TenantControls) -> None:
        """Hand limits to the ledger, under a number that is larger than any before: an older one changes nothing there.

        The serial is the same in every process that follows the board, and outlives the orders that it comes from.
        """
        number = max(controls.serial, self._adopted.get(tenant, 0) + 1)
        await self.ledger.apply_limits(tenant, controls.limits, version=number)
        self._adopted[tenant] = number


def _is_news(controls: TenantControls, seen: TenantControls) -> bool:
    """Whether a document was written after another one: it is a later version, or its last order is not known there.

    Moments are not compared, as operators' clocks differ; only what is older than all that is still known counts as
    an old copy.
    """
    if controls.version > seen.version:
        return True
    if not controls.actions or controls.actions[-1] in seen.actions:
        return False
    is_all_known = len(seen.actions) < KEPT_ACTIONS
    return is_all_known or controls.actions[-1].at >= seen.actions[0].at


def _new_actions(controls: TenantControls, seen: TenantControls | None) -> Sequence[AppliedCommand]:
    known = seen.actions if seen is not None else ()
    return [action for action in controls.actions if action not in known]


def _say_if_begun_anew(tenant: str, controls: TenantControls, seen: TenantControls | None) -> None:
    if seen is None or controls.version > seen.version:
        return
    gone = [f"{halt.scope} {halt.id}" for halt in seen.halts if controls.halt(halt.scope, halt.id) is None]
    log.error(
        "orders_began_anew", tenant=tenant, seen=seen.version, found=controls.version, no_longer_halted=gone
    )


LOOK_EVERY_S = 0.25
"""An order of an operator reaches every worker within a second."""

TEND_EVERY_S = 0.5
NOTE_POSITION_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class HousekeepingScope:
    """What upkeep looks after: the ledger, the gate and the orders of these tenants; `statuses` is where it tells of them.

    A ledger that `outlives` this process has its position put on record, so that the next one can see it go back.
    """

    ledger: OperableLedger
    gate: Gate
    board: ControlStore
    statuses: StatusFeed
    tenants: Sequence[str]
    outlives: bool = False


@dataclass(slots=True)
class Housekeeper:
    """Runs beside the workers until it is cancelled; what it cannot reach now it looks for again.

    Orders are looked for at their own pace, however long the rest takes. Whatever goes wrong is logged, and the next
    round comes: only a log that gave up, `StoreError`, ends it.

    `clock` is the time of the calls, simulated or not, that forecasts are made in; `wall` is the one it waits by.
    """

    watched: HousekeepingScope
    meter: BurnRateMeter
    recorder: Recorder
    clock: Clock
    wall: Clock
    worker: str = "worker"
    alerts: Alerts = field(default_factory=Alerts)
    _following: ControlReconciler = field(init=False)
    _to_tell: deque[Event] = field(default_factory=deque)
    _next_tending: float = 0.0
    _next_position: float = 0.0

    def __post_init__(self) -> None:
        watched = self.watched
        self._following = ControlReconciler(watched.board, watched.gate.halts, watched.ledger, self.recorder)

    async def run(self) -> None:
        """Look after everything, again and again; raises `StoreError` if the log gave up."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._look_on(), name="orders")
                group.create_task(self._tend_on(), name="tending")
        except ExceptionGroup as e:
            raise e.exceptions[0] from e

    async def end(self) -> None:
        """Tell the last of it, and leave on record how far the ledger has come."""
        self._next_position = 0.0
        await self.tend(is_running=False)

    async def look(self) -> bool:
        """See what operators have ordered, have it done and put it on record; returns whether there was anything new."""
        is_changed = False
        for tenant in (PLATFORM, *self.watched.tenants):
            with log_and_continue("orders_not_seen", tenant=tenant):
                is_changed |= await self._following.follow(tenant)
        return is_changed

    async def tend(self, *, is_running: bool = True) -> None:
        """End the calls whose lease has run out, warn of counters that near their ceiling, tell how all stands."""
        with log_and_continue("ledger_not_tended"):
            self._to_tell.extend(map(self._expired, await self.watched.ledger.expire_leases()))
            while self._to_tell:  # what a stop leaves here is told by `end`
                await self._keep(self._to_tell[0])
                self._to_tell.popleft()
            await self._tell_all(is_running=is_running)
            await self._note_positions()

    async def _look_on(self) -> None:
        while True:
            if await self.look():
                self._next_tending = 0.0
            await self.wall.sleep(LOOK_EVERY_S)

    async def _tend_on(self) -> None:
        while True:
            if self.wall.monotonic() >= self._next_tending:
                self._next_tending = self.wall.monotonic() + TEND_EVERY_S
                await self.tend()
            await self.wall.sleep(LOOK_EVERY_S)

    async def _keep(self, event: Event) -> None:
        """Put an event on record, if it can be: an id that somebody else has taken is no reason to end."""
        with log_and_continue("event_not_on_record", kind=event.kind, id=event.id):
            await self.recorder.keep_event(event)

    async def _tell_all(self, *, is_running: bool) -> None:
        """Tell how every tenant stands, and warn where that is near its end."""
        balances = {
            tenant: await self.watched.ledger.balances(tenant, limited=True)
            for tenant in self.watched.tenants
        }
        forecasts = self.meter.look(chain.from_iterable(balances.values()), self.clock.now())
        for tenant, of_tenant in balances.items():
            leading = [one for one in forecasts if one.balance.tenant == tenant]
            await self._tell(tenant, of_tenant, leading, is_running=is_running)
        for alert in self.alerts.new(forecasts):
            await self._keep(self._warning(alert))

    async def _tell(
        self, tenant: str, balances: Sequence[Balance], forecasts: Sequence[Forecast], *, is_running: bool
    ) -> None:
        watched = self.watched
        gate = watched.gate.statistics()
        status = BudgetStatus(
            worker=self.worker,
            tenant=tenant,
            time=self.wall.now(),
            as_of=self.clock.now(),
            is_running=is_running,
            limits_version=self._following.version(tenant),
            counters=counters(balances, forecasts),
            parked=parked(await watched.ledger.waiting(tenant)),
            refusals=refusals(watched.gate.refusals(), tenant),
            calls=call_counts(
                watched.ledger.statistics(), admitted=gate.admitted, refused=sum(gate.refused.values())
            ),
        )
        await watched.statuses.publish(status)

    async def _note_positions(self) -> None:
        """Put on record how far a ledger has come that will be there when this process is not."""
        if not self.watched.outlives or self.wall.monotonic() < self._next_position:
            return
        self._next_position = self.wall.monotonic() + NOTE_POSITION_EVERY_S
        for tenant in self.watched.tenants:
            position = await self.watched.ledger.checkpoint(tenant)
            await self._keep(checkpoint_event(tenant, position, self.wall.now()))

    def _expired(self, expired: ExpiredReservation) -> Event:
        """Return the record of a call that ran out; one that was asked for anew may run out again."""
        amount, now = expired.amount, self.wall.now()
        facts = (expired.state, amount.nusd, amount.tokens, now.isoformat())
        return Event(
            kind=EXPIRED,
            id=derived_id("expired", expired.reservation_id, *facts),
            trace_id="budget",
            tenant_id=tenant_of(expired.reservation_id),
            time=now,
            as_of=self.clock.now(),
            body={
                "reservation_id": expired.reservation_id,
                "state": str(expired.state),
                "nusd": amount.nusd,
                "tokens": amount.tokens,
                "calls": amount.calls,
                "scopes": {str(kind): id_ for kind, id_ in expired.scope_ids.items()},
            },
        )

    def _warning(self, alert: Alert) -> Event:
        forecast, balance = alert.forecast, alert.forecast.balance
        subject = (balance.tenant, balance.scope, balance.id, balance.window, balance.window_id)
        ends, pace, now = forecast.exhausted_at, forecast.burn.long.nusd, self.clock.now()
        facts = (alert.spent, alert.most, pace, now.isoformat())
        return Event(
            kind=f"budget.{alert.kind}",
            id=derived_id("budget", alert.kind, alert.unit, *subject, *facts),
            trace_id="budget",
            tenant_id=balance.tenant,
            time=now,
            body={
                "scope": str(balance.scope),
                "id": balance.id,
                "window": str(balance.window),
                "window_id": balance.window_id,
                "unit": alert.unit,
                "spent": alert.spent,
                "most": alert.most,
                "nusd_per_hour": pace,
                "exhausted_at": ends.isoformat() if ends is not None else None,
            },
        )
