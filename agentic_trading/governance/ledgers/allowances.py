"""Sums that a process has set aside beforehand, and the calls that are paid from them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from agentic_trading.clock import Clock
from agentic_trading.governance.allowance import (
    KEY,
    Allowance,
    AllowanceRules,
    AllowanceScope,
    LedgerEpochId,
    limited_windows,
    may_use,
    payer_of,
)
from agentic_trading.governance.errors import (
    LedgerRolledBackError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import (
    Blocked,
    Declined,
    Ledger,
    Reservation,
    ReservationRequest,
    ReservationState,
    Settlement,
)
from agentic_trading.governance.ledgers.pending_writes import LONG_OVER_S, charge_anew
from agentic_trading.governance.ledgers.reservation_table import overrun_of
from agentic_trading.governance.limits import Limit, ScopeKind, Windows
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.ids import NewId

_OVER = (ReservationState.DISPATCHED, ReservationState.IN_DOUBT, ReservationState.SETTLED)


@dataclass(slots=True, eq=False)
class _Call:
    ask: ReservationRequest
    allowance: Allowance
    state: ReservationState = ReservationState.RESERVED
    settlement: Settlement | None = None


@dataclass(slots=True)
class AllowanceCalls:
    """The steps of such calls, as a ledger takes them; each is taken at once."""

    _calls: dict[str, _Call] = field(default_factory=dict)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._calls

    def reserve(self, ask: ReservationRequest, allowance: Allowance, now_s: float) -> bool:
        """Set the amount aside from `allowance`; returns False if too little is left of it, or it has ended."""
        fits = allowance.take(ask.amount, now_s)
        if fits:
            self._calls[ask.reservation_id] = _Call(ask, allowance)
        return fits

    def state_of(self, reservation_id: str) -> ReservationState:
        """Return how far a call has come."""
        return self._calls[reservation_id].state

    def dispatch(self, reservation_id: str) -> None:
        """Note that the request is about to be sent."""
        self._in(reservation_id, "dispatch", (ReservationState.RESERVED,)).state = ReservationState.DISPATCHED

    def release(self, reservation_id: str) -> None:
        """Give back what was never dispatched; it can be reserved anew, wherever."""
        call = self._in(reservation_id, "release", (ReservationState.RESERVED,))
        call.allowance.give_back(call.ask.amount, NOTHING)
        del self._calls[reservation_id]

    def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        """Charge what a call used to its allowance; the second time changes nothing."""
        call = self._in(reservation_id, "settle", _OVER)
        doubtful = call.settlement
        if doubtful is not None and not doubtful.in_doubt:
            return doubtful
        reserved = call.ask.amount
        if doubtful is not None:
            call.allowance.correct(reserved)
        call.allowance.give_back(reserved if doubtful is None else NOTHING, actual)
        call.state = ReservationState.SETTLED
        over = overrun_of(actual, reserved)
        call.settlement = Settlement(reservation_id, actual, reserved, over, late=doubtful is not None)
        return call.settlement

    def in_doubt(self, reservation_id: str) -> Settlement:
        """Charge a call in full to its allowance; a later `settle` corrects it as long as the allowance is held."""
        call = self._in(reservation_id, "doubt", _OVER)
        if call.settlement is None:
            amount = call.ask.amount
            call.allowance.give_back(amount, amount)
            call.state = ReservationState.IN_DOUBT
            call.settlement = Settlement(reservation_id, amount, amount, NOTHING, in_doubt=True)
        return call.settlement

    def under_way(self, allowance: Allowance) -> bool:
        """Whether a call is still to be settled from `allowance`."""
        return any(
            call.allowance is allowance
            and call.state in {ReservationState.RESERVED, ReservationState.DISPATCHED}
            for call in self._calls.values()
        )

    def give_up(self, allowance: Allowance, state: ReservationState) -> None:
        """End the calls that are still in this state, as a ledger does with those whose lease is over."""
        end = self.release if state is ReservationState.RESERVED else self.in_doubt
        for id_, call in list(self._calls.items()):
            if call.allowance is allowance and call.state is state:
                end(id_)

    def forget(self, allowance: Allowance) -> None:
        """Forget the calls that were paid from `allowance`: it is booked."""
        self._calls = {id_: call for id_, call in self._calls.items() if call.allowance is not allowance}

    def _in(self, reservation_id: str, step: str, allowed: Sequence[ReservationState]) -> _Call:
        call = self._calls[reservation_id]
        if call.state not in allowed:
            raise ReservationStateError(reservation_id, step, call.state, allowed)
        return call


class Allowances:
    """The sums of one process: set aside while `ledger` is there, paid from while it is away, booked in the end.

    All sums for a tenant together are never more than `rules.amount`: who asks first gets what is left of it, until it
    is given back, after half of `rules.lasts_s` or when it stands in somebody's way. A sum stands behind those who
    wait, as every ask does; and where an ask of this process was held or refused, by a counter that the sum is in too,
    nothing is set aside for half of `rules.lasts_s`, and after a hold what was is given back by the next `tend`. What is
    left under each ceiling is not looked at. Processes do not know of each other's sums.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Clock,
        new_id: NewId,
        windows: Windows,
        limits: Sequence[Limit],
        rules: AllowanceRules | None,
    ) -> None:
        self.calls = AllowanceCalls()
        self._ledger = ledger
        self._clock = clock
        self._new_id = new_id
        self._windows = windows
        self._limits = tuple(limits)
        self._adopted: dict[str, tuple[Limit, ...]] = {}
        self._rules = rules
        self._sums: dict[AllowanceScope, Allowance] = {}
        self._short_until_s: dict[tuple[str, ScopeKind, str], float] = {}

    def apply_limits(self, tenant: str, limits: Sequence[Limit]) -> None:
        """Know of a tenant's limits."""
        self._adopted[tenant] = tuple(limits)

    def pay(self, ask: ReservationRequest) -> bool:
        """Reserve from a sum; returns False where there is none that keeps every limit."""
        allowance = self._sums.get(payer_of(ask))
        return (
            allowance is not None
            and may_use(ask, self._limits_of(ask.tenant))
            and allowance.windows == self._limited(ask)
            and self.calls.reserve(ask, allowance, self._clock.monotonic())
        )

    async def set_aside(self, ask: ReservationRequest) -> None:
        """See that the payer of `ask` has a sum, if there is one to be had; the ledger is asked once in a while."""
        payer, rules = payer_of(ask), self._rules
        if rules is None or payer in self._sums or payer[1] not in rules.workflows or self._is_short(ask):
            return
        amount = Amount(*map(_rest, rules.amount.units, *self._shares(ask.tenant)))
        if 0 in amount.units:
            return
        key, now_s = f"{KEY}{self._new_id()}", self._clock.monotonic()
        scopes = {**ask.scope_ids, ScopeKind.CALL: key, ScopeKind.TRACE: key}
        allowance = Allowance(
            ReservationRequest(key, 1, scopes, amount, ask.at),
            self._limited(ask),
            now_s + rules.lasts_s / 2,
            now_s + rules.lasts_s,
        )
        self._sums[payer] = allowance
        try:
            await self._ask_for(allowance, rules.lasts_s)
        finally:
            allowance.is_asking = False

    def make_way(self, ask: ReservationRequest, answer: Blocked | Declined) -> None:
        """Set nothing aside where there is little left; what is held somebody else may have instead."""
        if self._rules is None or answer.scope in {ScopeKind.CALL, ScopeKind.TRACE}:
            return
        counter = ask.tenant, answer.scope, answer.id
        self._short_until_s[counter] = self._clock.monotonic() + self._rules.lasts_s / 2
        if isinstance(answer, Blocked):
            for allowance in self._sums.values():
                if counter in _counters(allowance.ask):
                    allowance.close()

    def close(self, tenant: str) -> None:
        """Pay for nobody new of a tenant from what is set aside now: the ledger may have forgotten it."""
        for payer, allowance in self._sums.items():
            if payer[0] == tenant:
                allowance.close()

    def end(self) -> None:
        """Have the next `tend` give back what nobody uses."""
        for allowance in self._sums.values():
            allowance.renew_s = 0.0

    async def tend(self) -> None:
        """Book what was used of sums whose time is over, that are closed, or of a ledger that was rebuilt since."""
        now_s = self._clock.monotonic()
        self._short_until_s = {at: until_s for at, until_s in self._short_until_s.items() if now_s < until_s}
        for tenant in dict.fromkeys(payer[0] for payer in self._sums):
            with suppress(LedgerRolledBackError):  # booked when it is rebuilt
                era = await self._era(tenant)
                for payer, allowance in list(self._sums.items()):
                    if payer[0] == tenant and not allowance.is_asking:
                        await self._tend(payer, allowance, era)

    async def _ask_for(self, allowance: Allowance, lasts_s: float) -> None:
        ask = allowance.ask
        allowance.era = await self._era(ask.tenant)
        if isinstance(await self._ledger.reserve(ask), Reservation):
            await self._ledger.dispatch(ask.reservation_id, lease_s=lasts_s)
            allowance.book()
        else:
            allowance.is_asked = False

    async def _tend(self, payer: AllowanceScope, allowance: Allowance, era: LedgerEpochId) -> None:
        now_s = self._clock.monotonic()
        if allowance.is_booked and allowance.era != era:
            allowance.close()
        if allowance.ends_s <= now_s:
            self.calls.give_up(allowance, ReservationState.RESERVED)
        if allowance.ends_s + LONG_OVER_S <= now_s:
            self.calls.give_up(allowance, ReservationState.DISPATCHED)
        is_over = allowance.renew_s <= now_s or allowance.is_closed
        if not is_over or self.calls.under_way(allowance):
            return
        allowance.close()
        if allowance.is_asked:
            await self._book(allowance)
        if self._sums.get(payer) is allowance:
            del self._sums[payer]
        self.calls.forget(allowance)

    async def _book(self, allowance: Allowance) -> None:
        """Charge what was used, the same however often it is tried; what comes late on top of it for itself."""
        ask = allowance.ask
        final = allowance.final = allowance.used if allowance.final is None else allowance.final
        try:
            await self._ledger.settle(ask.reservation_id, final)
        except (UnknownReservationError, ReservationStateError):
            await self._book_unknown(ask, final)
        late = overrun_of(allowance.used, final)
        if late != NOTHING:
            await charge_anew(self._ledger, replace(ask, key=f"{ask.key}-late"), late)

    async def _book_unknown(self, ask: ReservationRequest, used: Amount) -> None:
        """Charge a sum that is not booked any more: the log that it was rebuilt from may count its calls once more."""
        if used != NOTHING:
            await charge_anew(self._ledger, ask, used)
            return
        with suppress(UnknownReservationError, ReservationStateError):  # it never was, or was given back
            await self._ledger.release(ask.reservation_id)

    async def _era(self, tenant: str) -> LedgerEpochId:
        position = await self._ledger.checkpoint(tenant)
        return position.generation, position.mark

    def _is_short(self, ask: ReservationRequest) -> bool:
        now_s = self._clock.monotonic()
        return any(now_s < self._short_until_s.get(counter, now_s) for counter in _counters(ask))

    def _shares(self, tenant: str) -> list[tuple[int, int, int]]:
        return [one.share.units for payer, one in self._sums.items() if payer[0] == tenant]

    def _limits_of(self, tenant: str) -> Sequence[Limit]:
        return self._adopted.get(tenant, self._limits)

    def _limited(self, ask: ReservationRequest) -> tuple[str, ...]:
        return limited_windows(self._limits_of(ask.tenant), self._windows, ask.at or self._clock.now())


def _rest(most: int, *taken: int) -> int:
    return most - sum(taken)


def _counters(ask: ReservationRequest) -> list[tuple[str, ScopeKind, str]]:
    return [(ask.tenant, kind, id_) for kind, id_ in ask.scope_ids.items()]
