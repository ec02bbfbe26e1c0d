"""Ledgers that break one promise each, as others really do: the suite has to find every one."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count
from typing import ClassVar

from agentic_trading.governance.errors import (
    ClosedWindowError,
    ReservationConflictError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import (
    LEASE_S,
    Balance,
    Blocked,
    Declined,
    LedgerStatistics,
    Reservation,
    ReservationRequest,
    ReservationState,
    Settlement,
)
from agentic_trading.governance.ledgers.memory import MemoryLedger, TenantLedger
from agentic_trading.governance.ledgers.reservation_table import QueuedRequest
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.contracts import ledger_limits as limits
from tests.contracts import ledger_queue as queue
from tests.contracts import ledger_steps as steps
from tests.contracts.ledger_opening import Promise
from tests.contracts.whole_ledger import Whole
from tests.governance.asking import AT


class HidesWhatIsHeld(Whole):
    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> list[Balance]:
        found = await super().balances(tenant, limited=limited, at=at)
        return [replace(one, held=Amount(0, 0, 0)) for one in found]


class CutsTheLastOneDownToFit(Whole):
    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        answer = await super().reserve(ask)
        if isinstance(answer, Declined) and answer.left:
            return await super().reserve(replace(ask, amount=Amount(answer.left, 0)))
        return answer


class RefusesWhatMayWait(Whole):
    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        answer = await super().reserve(ask)
        if isinstance(answer, Blocked):
            return Declined(answer.scope, answer.id, answer.window, answer.unit, answer.asked, answer.left)
        return answer


class CountsMoneyOnly(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, amount=Amount(ask.amount.nusd, 0, 0))


class KnowsNoTraces(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, scope_ids={kind: id_ for kind, id_ in ask.scope_ids.items() if kind != "trace"})


class CountsPrincipalsByTheirAgents(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        named = {ScopeKind.PRINCIPAL: ask.scope_ids[ScopeKind.AGENT]}
        return replace(ask, scope_ids={**ask.scope_ids, **named})


class BooksBeforeItLooks(Whole):
    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        answer = await super().reserve(ask)
        if isinstance(answer, Declined):
            alone = {ScopeKind.TENANT: ask.scope_ids[ScopeKind.TENANT]}
            await super().reserve(replace(ask, key=f"half of {ask.key}", scope_ids=alone))
        return answer


class SharesOneCounter(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, scope_ids={**ask.scope_ids, ScopeKind.AGENT: "all"})


class IgnoresNames(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__([limit for limit in limits if limit.id == ANY], zone, reserved_lease_s)


class MixesTenants(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, scope_ids={**ask.scope_ids, ScopeKind.TENANT: "all"})


class NeverRollsOver(Whole):
    first: datetime | None = None

    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        self.first = self.first or ask.at
        return replace(ask, at=self.first)


class EndsWhatDoesNotEnd(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        ending = {Window.NONE: Window.MONTH}
        super().__init__(
            [replace(limit, window=ending.get(limit.window, limit.window)) for limit in limits],
            zone,
            reserved_lease_s,
        )


class IgnoresTheZone(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, UTC, reserved_lease_s)


class ChargesThePresentWindow(Whole):
    """As a ledger does that books a charge where the clock stands when it comes: here, a day later."""

    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.asks: dict[str, ReservationRequest] = {}

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        self.asks[ask.reservation_id] = ask
        return await super().reserve(ask)

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        ask = self.asks[reservation_id]
        today = replace(ask, key=f"{ask.key} today", at=(ask.at or AT) + timedelta(days=1), amount=actual)
        await super().reserve(today)
        return await super().settle(reservation_id, Amount(0, 0, 0))


class ForgetsKeys(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.numbers = count()

    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, key=f"{ask.key}-{next(self.numbers)}")


class IgnoresTheAttempt(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, attempt=1)


class TakesOtherFactsForTheSame(Whole):
    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        try:
            return await super().reserve(ask)
        except ReservationConflictError:
            return Reservation(ask.reservation_id, ask.amount)


class ChargesTwice(Whole):
    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        return (await super().settle(reservation_id, actual))._replace(charged=actual)


class CapsTheCharge(Whole):
    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        return await super().settle(reservation_id, Amount(min(actual.nusd, 60), actual.tokens))


class KeepsWhatIsReleased(Whole):
    async def release(self, reservation_id: str) -> None:
        with suppress(ReservationStateError):
            await super().dispatch(reservation_id)
        await super().in_doubt(reservation_id)


class RemembersWhatWasReleased(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.gone: set[str] = set()

    async def release(self, reservation_id: str) -> None:
        self.gone.add(reservation_id)
        await super().release(reservation_id)

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        if ask.reservation_id in self.gone:
            return Reservation(ask.reservation_id, ask.amount, ReservationState.RELEASED)
        return await super().reserve(ask)


class RefundsWhatWasSent(Whole):
    async def release(self, reservation_id: str) -> None:
        try:
            await super().release(reservation_id)
        except ReservationStateError:
            await super().settle(reservation_id, Amount(0, 0, 0))


class LetsTwoDispatch(Whole):
    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        with suppress(ReservationStateError):
            await super().dispatch(reservation_id, lease_s=lease_s)


class KnowsOnlyWhatIsInFlight(Whole):
    async def state_of(self, reservation_id: str) -> ReservationState | None:
        state = await super().state_of(reservation_id)
        return state if state in {ReservationState.RESERVED, ReservationState.DISPATCHED} else None


class ChargesWhatWasNotSent(Whole):
    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        with suppress(ReservationStateError):
            await super().dispatch(reservation_id)
        return await super().settle(reservation_id, actual)


class ShrugsAtTheUnknown(Whole):
    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        with suppress(UnknownReservationError):
            await super().dispatch(reservation_id, lease_s=lease_s)


class RefundsWhatIsInDoubt(Whole):
    async def in_doubt(self, reservation_id: str) -> Settlement:
        return await super().settle(reservation_id, Amount(0, 0, 0))


class IgnoresLateAnswers(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.doubts: dict[str, Settlement] = {}

    async def in_doubt(self, reservation_id: str) -> Settlement:
        self.doubts[reservation_id] = await super().in_doubt(reservation_id)
        return self.doubts[reservation_id]

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        return self.doubts.get(reservation_id) or await super().settle(reservation_id, actual)


class IgnoresOwnLimits(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, limits=())


class TakesNothingForNoLimit(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__([limit for limit in limits if limit.nusd != 0], zone, reserved_lease_s)


class DeafBook(TenantLedger):
    __slots__ = ()

    def serve(self, now: datetime) -> None:
        """Do nothing."""


class NeverWakes(Whole):
    ledger_class: ClassVar[type[TenantLedger]] = DeafBook


class AlwaysWaits(Whole):
    async def wait_for_reservation(self, ask: ReservationRequest) -> Reservation | Declined:
        await asyncio.Event().wait()
        return await super().wait_for_reservation(ask)


class HopesOn(Whole):
    async def in_doubt(self, reservation_id: str) -> Settlement:
        queue = self._ledger_of("acme").queue
        requests, queue.requests = queue.requests, []
        settlement = await super().in_doubt(reservation_id)
        queue.requests = requests
        return settlement


class ServesTheLastFirst(Whole):
    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone, reserved_lease_s)
        self.numbers = count()

    async def wait_for_reservation(self, ask: ReservationRequest) -> Reservation | Declined:
        return await super().wait_for_reservation(replace(ask, priority=next(self.numbers)))


class LetsOthersOvertake(Whole):
    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        queue = self._ledger_of("acme").queue
        requests, queue.requests = queue.requests, []
        answer = await super().reserve(ask)
        queue.requests = requests
        return answer


class KnowsNoPriority(Whole):
    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return replace(ask, priority=0)


class HauntedBook(TenantLedger):
    __slots__ = ()

    def leave(self, waiter: QueuedRequest, now: datetime) -> None:
        """Do nothing."""


class LeavesGhostsInTheLine(Whole):
    ledger_class: ClassVar[type[TenantLedger]] = HauntedBook


class ChecksThenBooks(Whole):
    """As a ledger does that reads its counter, and writes it later."""

    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        MemoryLedger.__init__(self, (), zone=zone, counted=((ScopeKind.TENANT, Window.NONE),))
        self.ceiling = limits[0].nusd or 0

    async def wait_for_reservation(self, ask: ReservationRequest) -> Reservation | Declined:
        for _ in range(1000):
            used = sum(one.spent.nusd + one.held.nusd for one in await self.balances("acme"))
            if used + ask.amount.nusd <= self.ceiling:
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await super().wait_for_reservation(ask)


class CountsNothing(Whole):
    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics()


class LetsTheRefusedMoveTime(Whole):
    newest = AT

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        at = ask.at or AT
        if at < self.newest - timedelta(days=1):
            raise ClosedWindowError(ask.key, at, self.newest)
        self.newest = max(self.newest, at)
        return await super().reserve(ask)


BROKEN: Sequence[tuple[type[Whole], Promise]] = (
    (HidesWhatIsHeld, limits.what_fits_is_held_until_it_is_settled),
    (CutsTheLastOneDownToFit, limits.what_would_pass_a_ceiling_is_refused_with_the_facts),
    (RefusesWhatMayWait, limits.what_waits_only_for_calls_in_flight_is_held_not_refused),
    (CountsMoneyOnly, limits.each_unit_has_a_ceiling_of_its_own),
    (KnowsNoTraces, limits.each_kind_of_scope_has_a_ceiling_of_its_own),
    (CountsPrincipalsByTheirAgents, limits.a_principal_has_one_ceiling_whatever_names_it_chooses),
    (BooksBeforeItLooks, limits.a_refusal_by_one_scope_books_nothing_in_the_others),
    (SharesOneCounter, limits.a_limit_on_everyone_is_each_ones_own),
    (IgnoresNames, limits.a_named_limit_goes_before_that_on_everyone),
    (MixesTenants, limits.tenants_share_no_counter),
    (NeverRollsOver, limits.a_window_is_spent_by_itself),
    (EndsWhatDoesNotEnd, limits.a_window_that_does_not_end_is_one),
    (IgnoresTheZone, limits.a_day_begins_at_midnight_of_the_zone),
    (ChargesThePresentWindow, limits.a_charge_goes_to_the_window_of_its_reservation),
    (ForgetsKeys, steps.asking_twice_reserves_and_charges_once),
    (IgnoresTheAttempt, steps.another_attempt_is_another_reservation),
    (TakesOtherFactsForTheSame, steps.the_same_attempt_with_other_facts_is_an_error),
    (ChargesTwice, steps.settling_twice_charges_once),
    (CapsTheCharge, steps.more_than_was_reserved_is_charged_and_counted),
    (KeepsWhatIsReleased, steps.a_release_gives_all_back_and_twice_is_harmless),
    (RemembersWhatWasReleased, steps.what_was_released_can_be_reserved_anew),
    (RefundsWhatWasSent, steps.what_was_dispatched_is_not_refunded),
    (LetsTwoDispatch, steps.only_one_may_dispatch),
    (KnowsOnlyWhatIsInFlight, steps.its_state_can_be_asked),
    (ChargesWhatWasNotSent, steps.what_was_not_dispatched_is_not_charged),
    (ShrugsAtTheUnknown, steps.an_unknown_reservation_is_an_error),
    (RefundsWhatIsInDoubt, steps.a_call_in_doubt_is_charged_in_full_and_twice_is_harmless),
    (IgnoresLateAnswers, steps.a_late_answer_corrects_the_charge_in_its_window),
    (IgnoresOwnLimits, limits.an_asks_own_ceiling_holds_over_its_attempts),
    (KnowsNoTraces, limits.an_asks_own_ceiling_on_its_trace_holds_over_all_its_calls),
    (LetsTheRefusedMoveTime, limits.a_moment_of_the_future_that_is_refused_closes_nothing),
    (TakesNothingForNoLimit, limits.a_ceiling_of_nothing_lets_only_nothing_through),
    (NeverWakes, queue.who_waits_gets_what_is_given_back),
    (AlwaysWaits, queue.who_need_not_wait_does_not),
    (HopesOn, queue.who_waits_in_vain_is_refused),
    (ServesTheLastFirst, queue.who_came_first_goes_first),
    (LetsOthersOvertake, queue.who_comes_later_does_not_overtake),
    (KnowsNoPriority, queue.a_higher_priority_goes_before),
    (LeavesGhostsInTheLine, queue.who_is_cancelled_leaves_the_line_and_holds_nothing),
    (LeavesGhostsInTheLine, queue.who_is_cancelled_when_served_gives_it_back),
    (ChecksThenBooks, queue.sixty_four_at_once_never_overspend_and_none_is_refused),
    (CountsNothing, steps.everything_is_counted),
)
