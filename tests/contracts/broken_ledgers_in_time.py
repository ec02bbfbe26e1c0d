"""More ledgers that break one promise each, most about leases, changed limits or their past: the suite finds every one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import ClassVar

from agentic_trading.governance.errors import ReservationConflictError
from agentic_trading.governance.ledger import (
    LEASE_S,
    Balance,
    Blocked,
    Declined,
    ExpiredReservation,
    LedgerCheckpoint,
    LedgerEntry,
    Reservation,
    ReservationRequest,
    ReservationState,
    Settlement,
)
from agentic_trading.governance.ledgers.counters import CountedIds
from agentic_trading.governance.ledgers.memory import MemoryLedger, TenantLedger
from agentic_trading.governance.ledgers.reservation_table import ReservationTable
from agentic_trading.governance.limits import ANY, Limit, ScopeKind
from agentic_trading.governance.prices import Amount
from tests.contracts import ledger_changes as changes
from tests.contracts import ledger_entries as entries_
from tests.contracts import ledger_history as history
from tests.contracts import ledger_leases as leases
from tests.contracts import ledger_limits
from tests.contracts import ledger_queue as queue
from tests.contracts import ledger_steps as steps
from tests.contracts.broken_ledgers import NeverWakes
from tests.contracts.ledger_opening import Promise
from tests.contracts.whole_ledger import Whole
from tests.governance.asking import AT


class SweepsOnlyWhatWasSent(Whole):
    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        for id_, call in self._ledger_of("acme").calls.in_flight.items():
            if call.state is ReservationState.RESERVED:
                await super().dispatch(id_, lease_s=0)
        return await super().expire_leases()


class RefundsWhatIsSilent(Whole):
    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        expired = await super().expire_leases()
        for one in expired:
            if one.state is ReservationState.IN_DOUBT:
                await super().settle(one.reservation_id, Amount(0, 0, 0))
        return expired


class ReportsOnce(Whole):
    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        expired = await super().expire_leases()
        for one in expired:
            await super().acknowledge_expired(one.reservation_id)
        return expired


class ReportsWhatWentOn(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.over: Sequence[ExpiredReservation] = ()

    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        self.over = [*self.over, *await super().expire_leases()]
        return self.over


class DropsWhatRests(Whole):
    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        expired = await super().expire_leases()
        ledger = self._ledger_of("acme")
        if not ledger.calls.in_flight:
            ledger.counters = ledger.counters.empty_copy()
        return expired


class KnowsNoLease(Whole):
    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        await super().dispatch(reservation_id, lease_s=0)


class ClosesWhatIsOver(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.over: set[str] = set()

    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        expired = await super().expire_leases()
        self.over |= {one.reservation_id for one in expired}
        return expired

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        if reservation_id in self.over:
            return await super().in_doubt(reservation_id)
        return await super().settle(reservation_id, actual)


class ForgetsWhatIsOver(ClosesWhatIsOver):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, key=f"{ask.key} again") if ask.reservation_id in self.over else ask


class RevivesTheDead(ClosesWhatIsOver):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.asks: dict[str, ReservationRequest] = {}

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        self.asks[ask.reservation_id] = ask
        return await super().reserve(ask)

    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        if reservation_id in self.over:
            await super().reserve(self.asks[reservation_id])
        await super().dispatch(reservation_id, lease_s=lease_s)


class IgnoresOrders(Whole):
    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Do nothing."""


class TakesEveryVersion(Whole):
    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        await super().apply_limits(tenant, limits, version=self._ledger_of(tenant).version + 1)


class WritesOffWhatIsInFlight(Whole):
    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        await super().apply_limits(tenant, limits, version=version)
        for id_ in list(self._ledger_of(tenant).calls.in_flight):
            await super().settle(id_, Amount(0, 0, 0))


class ForgetsNamesWhenTold(Whole):
    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        await super().apply_limits(tenant, [limit for limit in limits if limit.id == ANY], version=version)


class OnlyAddsLimits(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.first = limits

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        await super().apply_limits(tenant, [*self.first, *limits], version=version)


class BlankBook(TenantLedger):
    __slots__ = ()

    def _count_calls(self, before: CountedIds) -> None:
        calls, self.calls = self.calls, ReservationTable()
        super()._count_calls(before)
        self.calls = calls


class StartsAtNothing(Whole):
    ledger_class: ClassVar[type[TenantLedger]] = BlankBook


class CountsOnlyWhatIsLimited(StartsAtNothing):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        MemoryLedger.__init__(self, limits, zone=zone, counted=())


class StandsStill(Whole):
    async def checkpoint(self, tenant: str) -> LedgerCheckpoint:
        return LedgerCheckpoint(1, "here", len(self._ledger_of(tenant).calls.past))


class IsNeverSure(Whole):
    async def require_at_least(self, tenant: str, checkpoint: LedgerCheckpoint) -> None:
        await super().require_at_least(tenant, replace(checkpoint, sequence=checkpoint.sequence + 1))


class NeverLooksBack(Whole):
    async def require_at_least(self, tenant: str, checkpoint: LedgerCheckpoint) -> None:
        """Do nothing."""


class LetsThemWaitBook(TenantLedger):
    __slots__ = ()

    def require_at_least(self, checkpoint: LedgerCheckpoint) -> None:
        requests, self.queue.requests = self.queue.requests, []
        super().require_at_least(checkpoint)
        self.queue.requests = requests


class LetsThemWait(Whole):
    ledger_class: ClassVar[type[TenantLedger]] = LetsThemWaitBook


class OpensWithoutTheLog(Whole):
    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        return await super().restore(tenant, ())


class AddsToWhatWas(Whole):
    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        for entry in entries:
            await super().reserve(entry.request)
            await super().dispatch(entry.request.reservation_id)
            await super().settle(entry.request.reservation_id, entry.charged)
        self._ledger_of(tenant).epoch._number += 1
        return await self.checkpoint(tenant)


class ForgetsWhatIsInFlight(Whole):
    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        self._ledger_of(tenant).calls.in_flight.clear()
        return await super().restore(tenant, entries)


class ForgetsWhatEndsWhileItIsShut(Whole):
    async def fence(self, tenant: str) -> None:
        """Let everything go on."""


class ForgetsWhatEndsWhenItHasGoneBack(Whole):
    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        fence = self._ledger_of(tenant).epoch.fence
        if fence is not None:
            fence.ended.clear()
        return await super().restore(tenant, entries)


class TrustsWhatHasGoneBack(Whole):
    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        self._ledger_of(tenant).epoch.fence = None
        return await super().restore(tenant, entries)


class KnowsOnlySums(Whole):
    async def entries(self, _tenant: str) -> list[LedgerEntry]:
        return []


class ForgetsTheMoment(Whole):
    async def entries(self, tenant: str) -> list[LedgerEntry]:
        found = await super().entries(tenant)
        return [replace(one, request=replace(one.request, at=AT)) for one in found]


class ForgetsWhatWasSent(Whole):
    async def entries(self, tenant: str) -> list[LedgerEntry]:
        found = await super().entries(tenant)
        return [one for one in found if one.state is not ReservationState.DISPATCHED]


class ForgetsDoubts(Whole):
    async def entries(self, tenant: str) -> list[LedgerEntry]:
        found = await super().entries(tenant)
        return [one for one in found if one.state is ReservationState.SETTLED]


class RestoresNoTraces(Whole):
    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        nowhere = {ScopeKind.TRACE: "nowhere"}
        return await super().restore(
            tenant,
            [
                replace(one, request=replace(one.request, scope_ids={**one.request.scope_ids, **nowhere}))
                for one in entries
            ],
        )


class ShowsAllTheSame(Whole):
    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> list[Balance]:
        is_limited = limited and not self._ledger_of(tenant).calls.past
        return await super().balances(tenant, limited=is_limited, at=at)


class ShowsWhatIsOver(Whole):
    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> list[Balance]:
        return await super().balances(tenant, limited=limited)


class ShowsEverybody(Whole):
    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> list[Balance]:
        return [one for of in list(self._ledgers) for one in await super(ShowsEverybody, self).balances(of)]


class LivesInThePast(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, at=ask.at or AT)


class KeepsItsWindowsToItself(Whole):
    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        answer = await super().reserve(ask)
        return answer._replace(counted_at=None) if isinstance(answer, Reservation) else answer


class TakesAnotherMomentForOtherFacts(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.moments: dict[str, datetime | None] = {}

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        if self.moments.setdefault(ask.reservation_id, ask.at) != ask.at:
            raise ReservationConflictError(ask.key, ask.attempt)
        return await super().reserve(ask)


class RemembersWhatWasAsked(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.amounts: dict[str, Amount] = {}

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        if self.amounts.setdefault(ask.reservation_id, ask.amount) != ask.amount:
            raise ReservationConflictError(ask.key, ask.attempt)
        return await super().reserve(ask)


class CountsNothingAsACall(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, amount=Amount(0, 0, 1)) if ask.is_for_nothing else ask


BROKEN_IN_TIME: Sequence[tuple[type[Whole], Promise]] = (
    (SweepsOnlyWhatWasSent, leases.what_was_never_sent_is_refunded_when_its_lease_is_over),
    (RefundsWhatIsSilent, leases.what_was_sent_and_is_silent_is_charged_in_full),
    (KnowsNoLease, leases.who_is_within_its_lease_is_left_alone),
    (ClosesWhatIsOver, leases.an_answer_after_the_lease_corrects_the_charge),
    (ForgetsWhatIsOver, leases.a_redelivery_after_the_lease_is_not_charged_again),
    (RevivesTheDead, leases.who_comes_back_after_the_lease_cannot_send),
    (NeverWakes, leases.who_waits_gets_what_the_dead_held),
    (ReportsOnce, leases.what_ran_out_is_returned_until_it_is_on_record),
    (ReportsWhatWentOn, leases.what_went_on_after_its_lease_is_returned_no_more),
    (IgnoresOrders, changes.adopted_limits_hold_from_the_next_ask_on),
    (TakesEveryVersion, changes.an_older_version_changes_nothing),
    (WritesOffWhatIsInFlight, changes.a_limit_below_what_is_used_stops_the_next_and_not_those_in_flight),
    (ForgetsNamesWhenTold, changes.adopted_limits_go_by_name_before_everyone),
    (OnlyAddsLimits, changes.a_limit_taken_away_holds_no_longer),
    (CountsOnlyWhatIsLimited, ledger_limits.an_asks_own_ceiling_knows_what_its_agent_did_before),
    (RestoresNoTraces, ledger_limits.an_asks_own_ceiling_on_its_trace_knows_what_is_restored),
    (StartsAtNothing, changes.a_new_limit_knows_the_calls_before_it),
    (NeverWakes, changes.who_waits_is_served_by_a_higher_limit),
    (NeverWakes, changes.who_waits_is_refused_by_a_lower_limit),
    (StandsStill, history.every_step_moves_the_position),
    (IsNeverSure, history.a_ledger_that_has_come_on_is_not_behind),
    (NeverLooksBack, history.a_ledger_that_has_gone_back_lets_nothing_run),
    (LetsThemWait, history.who_waits_at_a_ledger_that_has_gone_back_is_told),
    (OpensWithoutTheLog, history.a_call_without_its_own_limits_counts_against_them_once_restored),
    (OpensWithoutTheLog, history.what_is_restored_opens_it_again_and_is_never_charged_twice),
    (AddsToWhatWas, history.what_is_restored_takes_the_place_of_what_was),
    (ForgetsWhatEndsWhileItIsShut, history.what_ends_while_it_is_shut_is_not_forgotten),
    (ForgetsWhatEndsWhenItHasGoneBack, history.what_ends_in_a_ledger_that_has_gone_back_is_not_forgotten),
    (ForgetsWhatIsInFlight, history.what_is_in_flight_when_a_healthy_ledger_is_restored_stays_so),
    (TrustsWhatHasGoneBack, history.what_was_in_flight_in_a_ledger_that_has_gone_back_is_forgotten),
    (KnowsOnlySums, entries_.what_was_charged_is_known_call_by_call),
    (ForgetsTheMoment, entries_.what_is_known_call_by_call_can_be_booked_again_as_it_was),
    (ForgetsWhatWasSent, entries_.a_ledger_that_has_gone_back_names_what_was_sent),
    (ForgetsDoubts, entries_.what_is_joined_with_logs_counts_each_call_once),
    (ShowsAllTheSame, history.a_look_at_what_can_run_out_shows_nothing_else),
    (ShowsWhatIsOver, history.a_window_that_is_over_is_left_out_of_the_limited_counters),
    (ShowsEverybody, history.a_tenant_sees_only_its_own),
    (LivesInThePast, history.without_a_moment_it_is_the_present),
    (TakesAnotherMomentForOtherFacts, history.a_redelivery_stays_in_the_window_of_the_first),
    (KeepsItsWindowsToItself, history.a_reservation_names_the_windows_that_its_ledger_chose),
    (RemembersWhatWasAsked, steps.what_was_released_may_come_back_with_other_facts),
    (DropsWhatRests, history.what_still_counts_is_never_dropped_however_long_nobody_used_it),
    (CountsNothingAsACall, queue.who_asks_for_nothing_always_gets_it),
)
