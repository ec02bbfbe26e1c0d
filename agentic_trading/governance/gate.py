"""The gate decides which attempts may run: admitted, denied, deferred, or already dispatched."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import Clock
from agentic_trading.governance import admission as answers
from agentic_trading.governance import rules as gate_rules
from agentic_trading.governance.controls_document import HaltRegistry
from agentic_trading.governance.errors import (
    LedgerSettingsError,
    LedgerUnavailableError,
    ReservationRequestError,
)
from agentic_trading.governance.ledger import (
    Blocked,
    Declined,
    Reservation,
    ReservationLedger,
    ReservationRequest,
    ReservationState,
)
from agentic_trading.governance.limiter import Permit, Throttle, Throttled
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.prices import PriceBook
from agentic_trading.governance.sent_call import ReservationLifecycle, SentCall
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest

_SENT = (ReservationState.DISPATCHED, ReservationState.IN_DOUBT, ReservationState.SETTLED)


_REMEMBERED = 50
"""The number of denials that are kept."""


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Counts of answers since the start, and the total real seconds that deferred attempts have waited."""

    admitted: int
    parked: int
    refused: Mapping[FailureKind, int]
    waited_s: float
    taken: int = 0


class AdmissionCounters:
    """Counts answers, and remembers the last denials and the counters that refused calls."""

    def __init__(self) -> None:
        self._admitted = self._parked = self._taken = 0
        self._refused: Counter[FailureKind] = Counter()
        self._refusals: deque[answers.DeniedCall] = deque(maxlen=_REMEMBERED)
        self.refused_for = answers.RefusedCounters()
        self._waited_s = 0.0

    def note(
        self,
        envelope: LLMEnvelope,
        answer: answers.Admitted | answers.Denied | answers.Deferred | answers.AlreadyDispatched,
        now: datetime,
    ) -> None:
        """Count an answer given at `now`."""
        match answer:
            case answers.Admitted():
                self._admitted += 1
            case answers.Deferred():
                self._parked += 1
            case answers.Denied():
                self._refused[answer.reason.category] += 1
                self._refusals.append(answers.DeniedCall(now, envelope, answer.reason, answer.declined))
                if answer.declined is not None and not answer.is_by_own_limit:
                    self.refused_for.note(envelope.tenant_id, answer.declined, now)
            case answers.AlreadyDispatched():
                self._taken += 1
            case _:
                assert_never(answer)

    def note_wait(self, seconds: float) -> None:
        """Add real seconds that a deferred attempt has waited."""
        self._waited_s += seconds

    def statistics(self) -> AdmissionStatistics:
        """Return the counts since the start."""
        return AdmissionStatistics(
            self._admitted, self._parked, dict(self._refused), self._waited_s, self._taken
        )

    def refusals(self) -> Sequence[answers.DeniedCall]:
        """Return the last denied calls, oldest first."""
        return tuple(self._refusals)


@dataclass(frozen=True, slots=True)
class _Quoted:
    """A request to the ledger and the quote behind it. Both stay unchanged while the attempt waits."""

    request: ReservationRequest
    quote: gate_rules.Quote


class Gate:
    """Admits attempts and reserves their maximum cost.

    Each admitted attempt ends settled, released or in doubt.

    Args:
        ledger: Counts and reserves money, tokens and calls.
        prices: The price book.
        capabilities: The known models.
        clock: The time of the mode, simulated or not. Deadlines use it.
        mode: The mode of the session.
        wall: The time of day, by which prices and retirement dates apply. Default: `clock`.
        tenants: The tenants that may send calls. Default: all. A limit on `tenant *` applies to each tenant
            separately, so it only limits the whole gate if there is one tenant.
        providers: The providers that are served. Default: all.
        policy: The rights of each principal. Default: everything is allowed.
        halts: The current halts.
        throttle: The rate limits of each model.
        is_shared: Whether other processes use the ledger. It then counts by its own clock, unless time is
            simulated, because the market time of other sessions differs.

    Example:
        ```python
        answer = await gate.admit(request, principal="desk")
        if isinstance(answer, Admitted):
            async with gate.sent(answer, request.envelope) as sent:
                response = await provider.complete(request)
                charge = await sent.answered(response.usage)
        ```

    """

    def __init__(
        self,
        *,
        ledger: ReservationLedger,
        prices: PriceBook,
        capabilities: Capabilities,
        clock: Clock,
        mode: gate_rules.ClockMode,
        wall: Clock | None = None,
        tenants: frozenset[str] | None = None,
        providers: frozenset[str] | None = None,
        policy: Policy | None = None,
        halts: HaltRegistry | None = None,
        throttle: Throttle | None = None,
        is_shared: bool = False,
    ) -> None:
        self.halts = halts or HaltRegistry()
        self._ledger = ledger
        self._prices = prices
        self._capabilities = capabilities
        self._clock = clock
        self._wall = wall or clock
        self._mode: gate_rules.ClockMode = mode
        # A paper session follows its market. On a shared ledger it uses the server's time, because two
        # sessions with bars of two days would otherwise have a day's budget each (decision 28).
        self._names_moment = mode in gate_rules.SIMULATED or (mode == "paper" and not is_shared)
        self._tenants = tenants
        self._providers = providers
        self._policy = policy
        self._throttle = throttle or Throttle(None, self._wall)
        self.lifecycle = ReservationLifecycle(ledger, prices, self._throttle)
        self._waited: dict[str, _Quoted | answers.Denied] = {}
        self._counts = AdmissionCounters()

    async def admit(
        self,
        request: ModelRequest,
        *,
        principal: str = "",
        is_retry: bool = False,
        input_tokens: int | None = None,
    ) -> answers.Admitted | answers.Denied | answers.Deferred | answers.AlreadyDispatched:
        """Reserve the maximum cost of `request`, or return why it must not run or has to wait.

        Repeating an attempt returns the same reservation until it is dispatched. From then on the answer is
        `AlreadyDispatched`.

        Args:
            request: The attempt.
            principal: The sender, as authenticated by the bus.
            is_retry: Whether an earlier attempt failed at the provider.
            input_tokens: The provider's own count of the input. Without it, the bytes of the request bound
                the tokens.

        Returns:
            `Admitted`, `Denied`, `Deferred` (call `headroom` and then `admit` again), or `AlreadyDispatched`.

        """
        answer = await self._answer(request, principal, input_tokens)
        if isinstance(answer, answers.Admitted):
            answer = await self._with_permit(request, answer, is_retry=is_retry)
        self._counts.note(request.envelope, answer, self._clock.now())
        return answer

    async def headroom(self, parked: answers.Deferred) -> None:
        """Wait until a deferred attempt can be answered, is halted, or reaches its deadline.

        Then call `admit` again. Requests are served in order of arrival minus priority (`queue_priority`).
        Headroom is reserved here, and the next `admit` of the same request returns it. If that comes after
        the lease of the reservation, it is reserved again. A cancelled wait releases everything.

        If the retry policy has a `park_s`, a wait for held money ends after it, and `admit` then denies the
        attempt as `budget_busy`. A wait for the rate limits of a model has no such end.
        """
        started = self._clock.monotonic()
        limit = asyncio.timeout(self._seconds_of(parked))
        try:
            async with limit:
                with self.halts.reached(parked.envelope, limit):
                    await self._wait(parked)
        except TimeoutError:
            self._note_busy(parked)
        except (ReservationRequestError, LedgerUnavailableError, LedgerSettingsError):
            return  # the next admit() says which
        finally:
            self._counts.note_wait(self._clock.monotonic() - started)

    def sent(
        self, admission: answers.Admitted, envelope: LLMEnvelope, *, patience_s: float = 60.0
    ) -> SentCall:
        """Return the context manager within which the request is sent.

        Args:
            admission: The admitted attempt.
            envelope: Its envelope.
            patience_s: Seconds to wait for an answer.

        """
        return SentCall(self.lifecycle, self.halts, admission, envelope, patience_s=patience_s)

    async def release(self, admission: answers.Admitted) -> None:
        """Release a reservation that was never dispatched.

        Otherwise do nothing. Repeating is harmless.
        """
        await self.lifecycle.release(admission)

    def problem(self, envelope: LLMEnvelope, principal: str, *, max_tokens: int = 0) -> FailureReason | None:
        """Return why calls of this envelope may not be sent now, at any price, or None.

        `max_tokens` is the output cap of the attempt, if it may be higher than the envelope's own.
        """
        problem = self.answer_problem(envelope, principal, max_tokens=max_tokens)
        return problem or gate_rules.unserved_problem(envelope.provider, self._providers)

    def answer_problem(
        self, envelope: LLMEnvelope, principal: str, *, max_tokens: int = 0
    ) -> FailureReason | None:
        """Return why this envelope may not even get an answer that already exists, or None."""
        now = self._clock.now()
        return (
            self.access_problem(envelope, principal, max_tokens=max_tokens)
            or self.halts.problem(envelope)
            or gate_rules.deadline_problem(envelope.deadline, now)
            or gate_rules.future_problem(envelope.as_of, now, mode=self._mode)
        )

    def access_problem(
        self, envelope: LLMEnvelope, principal: str, *, max_tokens: int = 0
    ) -> FailureReason | None:
        """Return why `principal` may not even get a recorded answer to this envelope, or None."""
        problem = gate_rules.foreign_problem(envelope.tenant_id, self._tenants)
        if problem is None and self._policy is not None:
            problem = self._policy.problem(principal, envelope, max_tokens=max_tokens)
        return problem

    def statistics(self) -> AdmissionStatistics:
        """Return the counts since the start."""
        return self._counts.statistics()

    def refusals(self) -> Sequence[answers.DeniedCall]:
        """Return the last denied calls, oldest first."""
        return self._counts.refusals()

    def take_refused(self) -> Mapping[answers.RefusedCounter, answers.RefusalSpan]:
        """Return the counters that have refused calls since the last call of this method.

        Only one reader may use it.
        """
        return self._counts.refused_for.take()

    def refused_calls(self) -> Mapping[answers.RefusedCounter, int]:
        """Return the number of refused calls by counter since the start."""
        return self._counts.refused_for.calls()

    async def _answer(
        self, request: ModelRequest, principal: str, input_tokens: int | None
    ) -> answers.Admitted | answers.Denied | answers.Deferred | answers.AlreadyDispatched:
        envelope = request.envelope
        id_ = answers.reservation_id_of(envelope, request.attempt)
        waited_for = self._waited.pop(id_, None)
        problem = self.problem(envelope, principal, max_tokens=request.max_tokens)
        if problem is not None:
            if (
                isinstance(waited_for, answers.Denied)
                and waited_for.is_busy
                and problem.category is FailureKind.EXPIRED
            ):
                return waited_for  # it says why the time was not enough
            if isinstance(waited_for, _Quoted):
                # It was reserved while the attempt waited, so that a refusal now must release it.
                await self.lifecycle.give_back(id_)
            if self.access_problem(envelope, principal, max_tokens=request.max_tokens) is not None:
                return answers.Denied(problem)  # not even whether such an attempt is known
            return await self._unless_sent(id_, problem)
        if isinstance(waited_for, answers.Denied):
            return waited_for
        try:
            asked = waited_for or self._quoted(request, principal, input_tokens)
            if isinstance(asked, _Quoted):
                return await self._reserve(envelope, asked)
        except ReservationRequestError as e:
            asked = FailureReason(category=FailureKind.INVALID_REQUEST, description=str(e))
        return await self._unless_sent(id_, asked)

    async def _unless_sent(
        self, id_: str, problem: FailureReason
    ) -> answers.Denied | answers.AlreadyDispatched:
        """Deny the attempt, unless another run has already dispatched it."""
        try:
            # A sent attempt was allowed when it was sent, and only the run that sent it has the outcome.
            # Denying it here would put a second, wrong outcome on record.
            state = await self._ledger.state_of(id_)
        except LedgerUnavailableError:
            return answers.Denied(problem)
        return answers.AlreadyDispatched(id_, state) if state in _SENT else answers.Denied(problem)

    def _quoted(
        self, request: ModelRequest, principal: str, input_tokens: int | None
    ) -> _Quoted | FailureReason:
        """Return the request and its quote, or a failure.

        Raises `ReservationRequestError` if it cannot be counted.
        """
        quoted = gate_rules.quote(
            request, self._capabilities, self._prices,
            mode=self._mode, now=self._wall.now(), input_tokens=input_tokens,
        )  # fmt: skip
        if isinstance(quoted, FailureReason):
            return quoted
        ceilings = self._policy.limits(principal) if self._policy is not None else ()
        moment = self._clock.now() if self._names_moment else None  # None: by the ledger's own clock
        if self._mode in gate_rules.SIMULATED:
            moment = request.envelope.as_of or moment
        asked = answers.reservation_request(
            request.envelope, request.attempt, quoted.amount, moment, principal, ceilings
        )
        return _Quoted(asked, quoted)

    async def _reserve(
        self, envelope: LLMEnvelope, quoted: _Quoted
    ) -> answers.Admitted | answers.Denied | answers.Deferred | answers.AlreadyDispatched:
        try:
            answer = await self._ledger.reserve(quoted.request)
        except (LedgerUnavailableError, LedgerSettingsError) as e:
            return answers.Denied(answers.unavailable(e, envelope.workflow))
        if isinstance(answer, Blocked):
            return answers.Deferred(envelope, answer, quoted.request, quoted.quote)
        return _final(answer, quoted, self._prices)

    async def _with_permit(
        self, request: ModelRequest, admission: answers.Admitted, *, is_retry: bool
    ) -> answers.Admitted | answers.Denied | answers.Deferred:
        """Get a permit for a reserved attempt, otherwise release the reservation."""
        try:
            permitted = await self._throttle.acquire(
                request.envelope, admission.reservation_id, admission.amount.tokens, is_retry=is_retry
            )
        except BaseException:
            # Otherwise a cancelled wait for the permit would hold money until the reservation's lease ends.
            await run_shielded(self.release(admission))
            raise
        match permitted:
            case Permit() | None:
                reserved, book, priced_at = admission.request, admission.price_book, admission.priced_at
                return answers.Admitted(reserved, admission.capability, book, priced_at, permitted)
            case Throttled():
                await self.release(admission)
                return answers.Deferred(request.envelope, permitted)
            case FailureReason():
                await self.release(admission)
                return answers.Denied(permitted)
            case _:
                assert_never(permitted)

    async def _wait(self, parked: answers.Deferred) -> None:
        if isinstance(parked.held, Throttled):
            await self._throttle.wait(parked.held)
        elif parked.request is not None and parked.quote is not None:
            answer = await self._ledger.wait_for_reservation(parked.request)
            limits = parked.request.limits
            refused = answers.denied(answer, limits) if isinstance(answer, Declined) else None
            self._waited[parked.request.reservation_id] = refused or _Quoted(parked.request, parked.quote)

    def _note_busy(self, parked: answers.Deferred) -> None:
        """Deny a waiter at its next `admit` after the end of its `park_s`. Without one, do nothing."""
        park_s = parked.envelope.retry_policy.park_s
        if parked.request is not None and isinstance(parked.held, Blocked) and park_s is not None:
            self._waited[parked.request.reservation_id] = answers.Denied(answers.busy(parked.held))

    def _seconds_of(self, parked: answers.Deferred) -> float | None:
        """Return the longest wait of a deferred attempt."""
        deadline, park_s = parked.envelope.deadline, parked.envelope.retry_policy.park_s
        ends = [] if deadline is None else [max(0.0, (deadline - self._clock.now()).total_seconds())]
        if park_s is not None and isinstance(parked.held, Blocked):
            ends.append(park_s)
        return min(ends, default=None)


def _final(
    answer: Reservation | Declined, quoted: _Quoted, prices: PriceBook
) -> answers.Admitted | answers.Denied | answers.AlreadyDispatched:
    match answer:
        case Declined():
            return answers.denied(answer, quoted.request.limits)
        case Reservation(state=ReservationState.RESERVED):
            priced, request = quoted.quote, quoted.request
            if answer.counted_at is not None:
                request = replace(request, at=answer.counted_at)
            return answers.Admitted(request, priced.capability, prices.id, priced.priced_at)
        case Reservation():
            return answers.AlreadyDispatched(answer.id, answer.state)
        case _:
            assert_never(answer)
