"""An admitted call from dispatch to its end: settled, released or in doubt on every way out."""

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
"""The maximum tokens of a call.

Larger counts are invalid, because their cost would exceed a log's numbers.
"""

_GRACE_S = 30.0
"""Seconds that the lease of a call exceeds the wait for its answer, so that it can still be settled."""


@dataclass(frozen=True, slots=True)
class ReservationLifecycle:
    """The steps of an admitted call: dispatch, then settle or in doubt, or release.

    Each end returns the permit.
    """

    ledger: ReservationLedger
    prices: PriceBook
    throttle: Throttle

    async def dispatch(self, admission: Admitted, *, patience_s: float = 60.0) -> None:
        """Record that the request is about to be sent.

        Args:
            admission: The admitted attempt.
            patience_s: Seconds to wait for an answer.

        Raises:
            ReservationStateError: If another run has dispatched the attempt.
            LedgerUnavailableError: If the step could not be recorded. The request must not be sent.

        """
        await self.ledger.dispatch(admission.reservation_id, lease_s=patience_s + _GRACE_S)

    async def settle(
        self, admission: Admitted, usage: Usage, *, served_model: str = "", failure: Failed | None = None
    ) -> Charge:
        """Charge the usage that the provider reports. Repeating is harmless.

        If another model served, the dearer price of both is charged. A usage or a model without a price costs
        at least the whole reservation. The charge is never below the server's own bill. `failure` is the
        failure of an unusable answer, and counts against the provider.
        """
        # An answer without counts is charged in full, because it was paid and its usage is unknown.
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
        """Charge an answer that an earlier owner received.

        If the ledger has forgotten the call, it was charged before.
        """
        try:
            return await self.settle(admission, usage, served_model=served_model)
        except (UnknownReservationError, ReservationStateError):
            cost_nusd, unpriced = self._cost(admission, usage, served_model)
            return _billed(Charge(cost_nusd, unpriced=unpriced), admission, usage.bill_nusd)

    async def settle_recorded(self, reservation_id: str, actual: Amount) -> None:
        """Charge a recorded attempt.

        If the ledger has forgotten the call, it was charged before. Repeating is harmless.
        """
        with suppress(ReservationStateError, UnknownReservationError):
            await self.ledger.settle(reservation_id, actual)

    async def abandon(self, reservation_id: str) -> bool:
        """End an attempt whose owner is gone.

        Return whether it may have been sent. It is then charged in full. An attempt that the ledger does not
        have may have been sent, because ended calls are forgotten.
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
        """End a sent attempt of a lost owner with an unusable answer, in doubt or at its higher bill."""
        if bill_nusd <= admission.amount.nusd:
            await self.abandon(admission.reservation_id)
            return _billed(Charge(admission.amount.nusd, in_doubt=True), admission, bill_nusd or None)
        await self.settle_recorded(admission.reservation_id, Amount(bill_nusd, admission.amount.tokens))
        return _billed(Charge(bill_nusd), admission, bill_nusd)

    def _cost(self, admission: Admitted, usage: Usage, served_model: str) -> tuple[int, str]:
        """Return the cost of a usage, and the word without a price."""
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
        """Charge zero for a dispatched request that was surely not sent.

        An example is a refused connection. Repeating is harmless. `failure` counts against the provider.
        Raises `ReservationStateError` if it was not dispatched.
        """
        await self.throttle.failed(admission.permit, failure)
        return _charge(await self.ledger.settle(admission.reservation_id, Amount(0, 0, 0)))

    async def in_doubt(
        self, admission: Admitted, failure: Failed | None = None, *, bill_nusd: int = 0
    ) -> Charge:
        """Charge the whole reservation, because the call may have been billed.

        A late `settle` corrects it. A higher bill of the server is charged instead, and is not in doubt.
        """
        await self.throttle.failed(admission.permit, failure)
        if bill_nusd <= admission.amount.nusd:
            charge = _charge(await self.ledger.in_doubt(admission.reservation_id))
            return _billed(charge, admission, bill_nusd or None)
        actual = Amount(bill_nusd, admission.amount.tokens)
        charge = _charge(await self.ledger.settle(admission.reservation_id, actual))
        return _billed(charge, admission, bill_nusd)

    async def release(self, admission: Admitted) -> None:
        """Release a reservation that was never dispatched.

        Otherwise do nothing. Repeating is harmless.
        """
        await self.throttle.unused(admission.permit)
        await self.give_back(admission.reservation_id)

    async def give_back(self, reservation_id: str) -> None:
        """Release a reservation without a permit."""
        with suppress(ReservationStateError, UnknownReservationError):
            await self.ledger.release(reservation_id)  # sent by another run, or over: it is not ours then

    async def step_aside(self, admission: Admitted) -> None:
        """Return the permit of an attempt that another run has sent.

        Its reservation belongs to that run.
        """
        await self.throttle.unused(admission.permit)


class SentCall:
    """A request that is sent within the block: `async with gate.sent(admission, envelope) as sent`.

    Entering the block dispatches the call. It raises, and the request must not be sent:

    - `ReservationStateError` if another run was faster.
    - `LedgerUnavailableError` if the dispatch could not be recorded. The reservation is released.
    - `ProviderError` (unsent) if the envelope was halted since its admission. The call is charged zero.

    In the block the provider has `patience_s` seconds to answer, less if the envelope is halted. If the block
    ends without `answered`, the charge is:

    - zero, after a `ProviderError` for a request that was not sent,
    - the usage of an answer that cannot be used,
    - otherwise the whole reservation, in doubt.

    A time-out and a halt are raised as `ProviderError`, other errors unchanged. The charge is completed even
    if the caller is cancelled. After the block, `charge` and `failure` have the outcome, and `is_charged` is
    true unless the ledger failed.
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
        """Dispatch the call. From then on it is charged on every way out of the block."""
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
        """Charge the usage of the answer, after `keep` has stored it.

        See `ReservationLifecycle.settle`. The time limit and halts no longer apply. If the caller is
        cancelled here, the charge is still completed.

        Raises:
            ProviderError: (sent) If the usage exceeds `MOST_TOKENS`. Let it leave the block, which is then in
                doubt.

        """
        # The answer has been paid for, so that neither a time-out nor a halt may end its settlement.
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
        """Stop the time limit and the halts.

        Raises `TimeoutError` if one of them has ended the call. Repeating is harmless.
        """
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
        """Charge a call that left the block without a charge."""
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
    """Return `e` if it is an unusable answer whose usage can be charged, otherwise None."""
    if isinstance(e, UnusableAnswerError) and e.usage.total_tokens <= MOST_TOKENS:
        return e
    return None


def failed_by(e: ProviderError) -> Failed:
    """Return a provider's error as a `Failed`."""
    return Failed(kind=e.kind, sent=e.sent, retry_after_s=e.retry_after_s)


def _given_up(halted: FailureReason | None, patience_s: float) -> ProviderError:
    """Return the error of a call that was halted or took too long."""
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
