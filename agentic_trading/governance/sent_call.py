"""An admitted call on its way: dispatched, watched, and settled, released or in doubt on every way out."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

from agentic_trading.cancellation import run_shielded
from agentic_trading.governance.admission import Admitted, Charge
from agentic_trading.governance.controls_document import HaltRegistry
from agentic_trading.governance.errors import (
    LedgerUnavailableError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import ReservationLedger, ReservationState, Settlement
from agentic_trading.governance.limiter import FAIR_PATIENCE_S, Failed, Throttle
from agentic_trading.governance.prices import Amount, PriceBook, charged_models, cost_of
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, ProviderError
from agentic_trading.llm.provider import UnusableAnswerError
from agentic_trading.llm.result import Usage

MOST_TOKENS = 10**9
"""No call uses more: a count or a usage of more is none, and its cost passes what a log can count."""

_GRACE_S = 30.0
"""How much longer than an answer is waited for a call counts as under way: it has to be settled as well."""


@dataclass(frozen=True, slots=True)
class ReservationLifecycle:
    """The steps of an admitted call: dispatch, then settle or in doubt; or release. Each gives its permit back."""

    ledger: ReservationLedger
    prices: PriceBook
    throttle: Throttle

    async def dispatch(self, admission: Admitted, *, patience_s: float = 60.0) -> None:
        """Note that the request is about to be sent; an answer is waited for up to `patience_s` seconds.

        Raises `ReservationStateError` the second time: the attempt is then taken by the run that was first; and
        `LedgerUnavailableError` if it could not be noted, so that nothing may be sent.
        """
        await self.ledger.dispatch(admission.reservation_id, lease_s=patience_s + _GRACE_S)

    async def settle(
        self, admission: Admitted, usage: Usage, *, served_model: str = "", failure: Failed | None = None
    ) -> Charge:
        """Charge what the provider reports; harmless twice.

        Another model than the one asked for, if `served_model` names one, is charged at the dearer price of the two.
        A usage or a model without a price costs the whole reservation at least, and no charge is below the server's
        own bill. `failure` is that of an answer that cannot be used, and counts against the provider.
        """
        tokens = admission.amount.tokens if usage.unmetered else usage.total_tokens
        if failure is None:
            await self.throttle.answered(admission.permit, tokens)
        else:
            await self.throttle.failed(admission.permit, failure)
        cost_nusd, unpriced = self._cost(admission, usage, served_model)
        actual = Amount(cost_nusd, tokens)
        charge = _charge(await self.ledger.settle(admission.reservation_id, actual))
        return _billed(replace(charge, unpriced=unpriced), admission, usage.bill_nusd)

    async def settle_again(self, admission: Admitted, usage: Usage, *, served_model: str = "") -> Charge:
        """Charge what an earlier owner of the attempt was answered; what the ledger has forgotten was charged by it."""
        try:
            return await self.settle(admission, usage, served_model=served_model)
        except (UnknownReservationError, ReservationStateError):
            cost_nusd, unpriced = self._cost(admission, usage, served_model)
            return _billed(Charge(cost_nusd, unpriced=unpriced), admission, usage.bill_nusd)

    async def settle_recorded(self, reservation_id: str, actual: Amount) -> None:
        """Charge what is on record for an attempt; what the ledger has forgotten was charged by it. Harmless twice."""
        with suppress(ReservationStateError, UnknownReservationError):
            await self.ledger.settle(reservation_id, actual)

    async def abandon(self, reservation_id: str) -> bool:
        """End an attempt whose owner is gone; returns whether it may have been sent, and is then charged in full.

        One that the ledger does not know was perhaps sent, as it forgets what is over.
        """
        state = await self.ledger.state_of(reservation_id)
        if state in {ReservationState.RESERVED, ReservationState.RELEASED}:
            with suppress(ReservationStateError, UnknownReservationError):
                await self.ledger.release(reservation_id)
                return False
            state = await self.ledger.state_of(reservation_id)  # its owner lived, and was faster
        if state is ReservationState.DISPATCHED:
            with suppress(ReservationStateError):  # settled meanwhile
                await self.ledger.in_doubt(reservation_id)
        return True

    async def abandon_billed(self, admission: Admitted, bill_nusd: int) -> Charge:
        """End a sent attempt whose owner is gone and whose answer could not be used: in doubt, or at its higher bill."""
        if bill_nusd <= admission.amount.nusd:
            await self.abandon(admission.reservation_id)
            return _billed(Charge(admission.amount.nusd, in_doubt=True), admission, bill_nusd or None)
        await self.settle_recorded(admission.reservation_id, Amount(bill_nusd, admission.amount.tokens))
        return _billed(Charge(bill_nusd), admission, bill_nusd)

    def _cost(self, admission: Admitted, usage: Usage, served_model: str) -> tuple[int, str]:
        """Return what a usage costs, and the word that has no price."""
        capability = admission.capability
        return cost_of(
            usage,
            self.prices,
            capability.provider,
            charged_models(capability.model, served_model, capability.served_as),
            at=admission.priced_at,
            reserved_nusd=admission.amount.nusd,
        )

    async def settle_unsent(self, admission: Admitted, failure: Failed | None = None) -> Charge:
        """Charge nothing for a dispatched request that surely was not sent, as by a refused connection.

        Harmless twice. Raises `ReservationStateError` if it was not dispatched. `failure` counts against the provider.
        """
        await self.throttle.failed(admission.permit, failure)
        return _charge(await self.ledger.settle(admission.reservation_id, Amount(0, 0, 0)))

    async def in_doubt(
        self, admission: Admitted, failure: Failed | None = None, *, bill_nusd: int = 0
    ) -> Charge:
        """Charge the whole reservation, because the call may have been billed; a late `settle` corrects it.

        A higher bill of the server is charged instead, and is not in doubt.
        """
        await self.throttle.failed(admission.permit, failure)
        if bill_nusd <= admission.amount.nusd:
            charge = _charge(await self.ledger.in_doubt(admission.reservation_id))
            return _billed(charge, admission, bill_nusd or None)
        actual = Amount(bill_nusd, admission.amount.tokens)
        charge = _charge(await self.ledger.settle(admission.reservation_id, actual))
        return _billed(charge, admission, bill_nusd)

    async def release(self, admission: Admitted) -> None:
        """Give back a reservation that was never dispatched; one that was, or is over, is left alone. Harmless twice."""
        await self.throttle.unused(admission.permit)
        await self.give_back(admission.reservation_id)

    async def give_back(self, reservation_id: str) -> None:
        """Give back a reservation without a permit."""
        with suppress(ReservationStateError, UnknownReservationError):
            await self.ledger.release(reservation_id)  # sent by another run, or over: it is not ours then

    async def step_aside(self, admission: Admitted) -> None:
        """Give the permit back, as another run has sent the attempt; its reservation is that run's."""
        await self.throttle.unused(admission.permit)


class SentCall:
    """An admitted request that is sent within the block: `async with gate.sent(admission, envelope) as sent`.

    Entering dispatches. Raises `ReservationStateError` if another run was faster, and `LedgerUnavailableError` if that
    could not be noted: nothing may be sent, and nothing is held. Raises `ProviderError`, unsent, for an envelope that
    was halted since its admission: it is charged nothing.

    Within the block the provider has `patience_s` seconds to answer, and less if the envelope is halted. Leaving it
    without `answered` charges nothing if a `ProviderError` says that nothing was sent. An answer that cannot be used is
    charged by its usage. Any other end charges the whole reservation, in doubt. A time-out and a halt become a
    `ProviderError`, whatever else was raised is raised. All this is done to the end though the caller is cancelled. Then `is_charged` holds, unless the ledger failed, and `charge` and
    `failure` say what the call came to.
    """

    def __init__(
        self,
        lifecycle: ReservationLifecycle,
        halts: HaltRegistry,
        admission: Admitted,
        envelope: LLMEnvelope,
        *,
        patience_s: float,
    ) -> None:
        self.charge = Charge(0)
        self.failure: ProviderError | None = None
        self.is_dispatched = False
        self.is_charged = False
        self._lifecycle = lifecycle
        self._halts = halts
        self._admission = admission
        self._envelope = envelope
        self._patience_s = patience_s
        self._gave_up_early = False
        self._limit: asyncio.Timeout | None = None
        self._settle: Callable[[], Awaitable[Charge]] | None = None

    async def __aenter__(self) -> Self:
        """Dispatch; from then on the reservation is charged, however the block is left."""
        await self._dispatch()
        halted = self._halts.problem(self._envelope)
        if halted is not None:
            self.failure = ProviderError(FailureKind.HALTED, halted.description, sent=False)
            await run_shielded(self._end(self.failure))
            raise self.failure
        self._limit = await asyncio.timeout(self._patience_s).__aenter__()
        self._halts.watch(self._envelope, self._limit, in_flight=True)
        return self

    async def answered(
        self, usage: Usage, *, served_model: str = "", keep: Callable[[], Awaitable[None]] | None = None
    ) -> Charge:
        """Charge what the provider reports for its answer, once `keep` has kept it: see `ReservationLifecycle.settle`.

        Neither the time limit nor a halt ends this; a caller that is cancelled meanwhile leaves the block settled.
        Raises `ProviderError`, sent, for a usage of more than `MOST_TOKENS`: let it leave the block, which is in doubt.
        """
        await self._end_limit(None, None, None)
        if usage.total_tokens > MOST_TOKENS:
            message = f"the answer reports {usage.total_tokens} tokens; allowed are {MOST_TOKENS}"
            bill_nusd = usage.bill_nusd or 0
            raise ProviderError(FailureKind.SERVER_ERROR, message, sent=True, bill_nusd=bill_nusd)
        self._settle = partial(self._lifecycle.settle, self._admission, usage, served_model=served_model)
        if keep is not None:
            await keep()
        self.charge, self.is_charged = await self._settle(), True
        return self.charge

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the call on every way out."""
        try:
            await self._end_limit(kind, e, trace)
        except TimeoutError as late:
            e = late
        if self.is_charged:
            return
        if isinstance(e, ProviderError):
            self.failure = e
        elif isinstance(e, TimeoutError):
            self._gave_up_early = self._patience_s < FAIR_PATIENCE_S
            halted = self._halts.problem(self._envelope, in_flight=True)
            self.failure = _given_up(halted, self._patience_s)
        await run_shielded(self._end(e))
        if self.failure is not None and self.failure is not e:
            raise self.failure from e

    async def _end_limit(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let neither time nor a halt end the call any more. Harmless twice; raises `TimeoutError` if one of them did."""
        limit, self._limit = self._limit, None
        if limit is not None:
            self._halts.forget(limit)
            await limit.__aexit__(kind, e, trace)

    async def _dispatch(self) -> None:
        try:
            await self._lifecycle.dispatch(self._admission, patience_s=self._patience_s)
        except ReservationStateError:
            await self._lifecycle.step_aside(self._admission)
            raise
        except BaseException:
            with suppress(LedgerUnavailableError):  # its lease ends
                await run_shielded(self._lifecycle.release(self._admission))
            raise
        self.is_dispatched = True

    async def _end(self, e: BaseException | None) -> None:
        """Charge a call that was left without a charge."""
        if self._settle is not None and isinstance(e, asyncio.CancelledError):
            self.charge, self.is_charged = await self._settle(), True  # it was cancelled while it was settled
            return
        kind = FailureKind.SHUTDOWN if isinstance(e, asyncio.CancelledError) else FailureKind.INTERNAL_ERROR
        failed, bill_nusd, metered = Failed(kind=kind, sent=True), 0, metered_answer(self.failure)
        if self.failure is not None:
            failed = replace(failed_by(self.failure), gave_up_early=self._gave_up_early)
            bill_nusd = self.failure.bill_nusd
        if metered is not None:
            self.charge = await self._lifecycle.settle(
                self._admission, metered.usage, served_model=metered.model, failure=failed
            )
        elif failed.sent:
            self.charge = await self._lifecycle.in_doubt(self._admission, failed, bill_nusd=bill_nusd)
        else:
            self.charge = await self._lifecycle.settle_unsent(self._admission, failed)
        self.is_charged = True


def metered_answer(e: ProviderError | None) -> UnusableAnswerError | None:
    """Return `e` if it is an answer that cannot be used, whose usage is charged."""
    if isinstance(e, UnusableAnswerError) and e.usage.total_tokens <= MOST_TOKENS:
        return e
    return None


def failed_by(e: ProviderError) -> Failed:
    """Return what a provider's error says to the throttle and to the next attempt."""
    return Failed(kind=e.kind, sent=e.sent, retry_after_s=e.retry_after_s)


def _given_up(halted: FailureReason | None, patience_s: float) -> ProviderError:
    """Return why a call was given up: it was halted, or its time was over."""
    if halted is not None:
        return ProviderError(FailureKind.HALTED, halted.description, sent=True)
    return ProviderError(FailureKind.TIMEOUT, f"no answer within {patience_s:g} s", sent=True)


def _billed(charge: Charge, admission: Admitted, bill_nusd: int | None) -> Charge:
    """Return a charge with the server's own bill."""
    return replace(
        charge, bill_nusd=bill_nusd, overbilled=bill_nusd is not None and bill_nusd > admission.amount.nusd
    )


def _charge(settlement: Settlement) -> Charge:
    return Charge(
        cost_nusd=settlement.charged.nusd,
        overrun_nusd=settlement.overrun.nusd,
        late=settlement.late,
        in_doubt=settlement.in_doubt,
    )
