"""Which attempts may run: admitted with their money reserved, denied, deferred, or dispatched already."""

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
"""How many of the last denials are kept."""


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Answers given since the start, and the real seconds that parked attempts have waited, all together."""

    admitted: int
    parked: int
    refused: Mapping[FailureKind, int]
    waited_s: float
    taken: int = 0


class AdmissionCounters:
    """Counts answers, and remembers the last refusals, and when each counter refused calls."""

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
        """Count an answer that was given at `now`."""
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
        """Count real seconds that a parked attempt has waited."""
        self._waited_s += seconds

    def statistics(self) -> AdmissionStatistics:
        """Return the counts since the start."""
        return AdmissionStatistics(
            self._admitted, self._parked, dict(self._refused), self._waited_s, self._taken
        )

    def refusals(self) -> Sequence[answers.DeniedCall]:
        """Return the last refused calls, oldest first."""
        return tuple(self._refusals)


@dataclass(frozen=True, slots=True)
class _Quoted:
    """What an attempt requests of the ledger, and the quote behind it: while it waits both stay what they were."""

    request: ReservationRequest
    quote: gate_rules.Quote


class Gate:
    """Admit the attempts that the platform allows; each of them ends settled, released or in doubt.

    `clock` is the time of the mode, simulated or not, that deadlines go by. `wall` is the time of day, by which
    providers raise prices and retire models (default: `clock`). `tenants` are those that may send (default: all): a
    limit on tenants counts each by itself, so only with one tenant here is it a limit on the gate. `providers` are the
    names that are served (default: all). `policy` says what
    each principal may do (default: anything), `halts` what is stopped, `throttle` how fast each model may be called.
    A ledger that `is_shared` with other processes counts by its own clock, unless time is simulated: their market is at
    another moment.
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
        """Reserve the most that `request` can cost, or return why it must not run, or must wait.

        `principal` sent the envelope, as the bus has proved. `is_retry` says that an attempt before this one
        failed at the provider. `input_tokens` is the provider's own count where there is one; else bytes bound the
        tokens. The same attempt again gets the same reservation until it is dispatched, as nothing was sent; from
        then on it is `AlreadyDispatched`.
        """
        answer = await self._answer(request, principal, input_tokens)
        if isinstance(answer, answers.Admitted):
            answer = await self._with_permit(request, answer, is_retry=is_retry)
        self._counts.note(request.envelope, answer, self._clock.now())
        return answer

    async def headroom(self, parked: answers.Deferred) -> None:
        """Wait until the parked attempt can be answered for good, is halted, or its deadline passes; then admit it again.

        Requests get their turn in order of arrival less priority (`queue_priority`): what comes free is reserved here, and handed out
        by the next `admit` of the same request, which reserves it again if it comes after the reservation's lease. A
        cancelled wait holds nothing.
        """
        started = self._clock.monotonic()
        limit = asyncio.timeout(self._seconds_to(parked.envelope.deadline))
        try:
            async with limit:
                with self.halts.reached(parked.envelope, limit):
                    await self._wait(parked)
        except (TimeoutError, ReservationRequestError, LedgerUnavailableError, LedgerSettingsError):
            return  # the next admit() says which
        finally:
            self._counts.note_wait(self._clock.monotonic() - started)

    def sent(
        self, admission: answers.Admitted, envelope: LLMEnvelope, *, patience_s: float = 60.0
    ) -> SentCall:
        """Return the block within which the request is sent; an answer is waited for up to `patience_s` seconds."""
        return SentCall(self.lifecycle, self.halts, admission, envelope, patience_s=patience_s)

    async def release(self, admission: answers.Admitted) -> None:
        """Give back a reservation that was never dispatched; one that was, or is over, is left alone. Harmless twice."""
        await self.lifecycle.release(admission)

    def problem(self, envelope: LLMEnvelope, principal: str, *, max_tokens: int = 0) -> FailureReason | None:
        """Return why nothing of this envelope may be sent now, at whatever price; None if something may.

        `max_tokens` is the cap of the attempt, where that may be higher than the envelope's own.
        """
        problem = self.answer_problem(envelope, principal, max_tokens=max_tokens)
        return problem or gate_rules.unserved_problem(envelope.provider, self._providers)

    def answer_problem(
        self, envelope: LLMEnvelope, principal: str, *, max_tokens: int = 0
    ) -> FailureReason | None:
        """Return why this envelope may not even have an answer that is here already, or None."""
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
        """Return why `principal` may not even have a recorded answer to this envelope, or None."""
        problem = gate_rules.foreign_problem(envelope.tenant_id, self._tenants)
        if problem is None and self._policy is not None:
            problem = self._policy.problem(principal, envelope, max_tokens=max_tokens)
        return problem

    def statistics(self) -> AdmissionStatistics:
        """Return the counts since the start."""
        return self._counts.statistics()

    def refusals(self) -> Sequence[answers.DeniedCall]:
        """Return the last refused calls, oldest first."""
        return self._counts.refusals()

    def take_refused(self) -> Mapping[answers.RefusedCounter, answers.RefusalSpan]:
        """Return the counters that have refused calls since this was asked last; it has one reader."""
        return self._counts.refused_for.take()

    async def _answer(
        self, request: ModelRequest, principal: str, input_tokens: int | None
    ) -> answers.Admitted | answers.Denied | answers.Deferred | answers.AlreadyDispatched:
        envelope = request.envelope
        id_ = answers.reservation_id_of(envelope, request.attempt)
        waited_for = self._waited.pop(id_, None)
        problem = self.problem(envelope, principal, max_tokens=request.max_tokens)
        if problem is not None:
            if isinstance(waited_for, _Quoted):
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
        """Deny; but what another run has sent was allowed then, and only that run knows its outcome."""
        try:
            state = await self._ledger.state_of(id_)
        except LedgerUnavailableError:
            return answers.Denied(problem)
        return answers.AlreadyDispatched(id_, state) if state in _SENT else answers.Denied(problem)

    def _quoted(
        self, request: ModelRequest, principal: str, input_tokens: int | None
    ) -> _Quoted | FailureReason:
        """Return what to reserve, or why nothing; raises `ReservationRequestError` for what cannot be counted."""
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
        """Get a permit for an attempt that has its reservation, or release the reservation."""
        try:
            permitted = await self._throttle.acquire(
                request.envelope, admission.reservation_id, admission.amount.tokens, is_retry=is_retry
            )
        except BaseException:
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

    def _seconds_to(self, deadline: datetime | None) -> float | None:
        return None if deadline is None else max(0.0, (deadline - self._clock.now()).total_seconds())


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
