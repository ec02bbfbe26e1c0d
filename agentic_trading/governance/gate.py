"""One attempt past every rule of the platform, and its money settled on every way out."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from agentic_trading.clock import Clock
from agentic_trading.governance.determinism import SIMULATED, Mode
from agentic_trading.governance.errors import (
    AskError,
    ReservationStateError,
    UnknownPriceError,
    UnknownReservationError,
)
from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.ledger import (
    ANY,
    Ask,
    CallState,
    Held,
    Ledger,
    Limit,
    Refusal,
    Reservation,
    ScopeKind,
    Settlement,
    reservation_id,
)
from agentic_trading.governance.prices import PriceBook
from agentic_trading.governance.quote import Quote, quote
from agentic_trading.governance.refusals import (
    deadline_problem,
    exhausted,
    foreign_problem,
    future_problem,
)
from agentic_trading.governance.windows import Window
from agentic_trading.llm.capability import Capabilities, Capability
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.failure import FailureKind, FailureReason
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import Usage

_SENT = (CallState.DISPATCHED, CallState.IN_DOUBT, CallState.SETTLED)


@dataclass(frozen=True, slots=True)
class Admission:
    """The attempt may run: `amount` is set aside for it. `price_book` is the id of the book that it is charged by."""

    reservation_id: str
    amount: Amount
    capability: Capability
    price_book: str
    priced_at: datetime


@dataclass(frozen=True, slots=True)
class Refused:
    """The attempt must not run; nothing is set aside and nothing was paid."""

    reason: FailureReason


@dataclass(frozen=True, slots=True)
class Parked:
    """The attempt would fit, but for what calls in flight hold, or others wait for; nothing is set aside."""

    ask: Ask
    quote: Quote
    held: Held
    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class Taken:
    """Another run has sent this attempt, or is about to; what it costs and gave is that run's to settle and to tell."""

    reservation_id: str
    state: CallState


@dataclass(frozen=True, slots=True)
class Charge:
    """What the attempt was charged, in nano-dollars; `overrun_nusd` of it is above the reservation.

    `late` corrects an earlier charge in doubt. `in_doubt` may still be corrected. Without `priced` the usage, or the
    model that served, had no price in the book, and the whole reservation was charged at least.
    """

    cost_nusd: int
    overrun_nusd: int = 0
    late: bool = False
    in_doubt: bool = False
    priced: bool = True


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """Answers given since the start, and the real seconds that parked attempts have waited, all together."""

    admitted: int
    parked: int
    refused: Mapping[FailureKind, int]
    waited_s: float
    taken: int = 0


class Gate:
    """Let attempts through that the platform allows; in the end each is settled, released or in doubt.

    `clock` is the time of the mode, simulated or not, that deadlines go by. `wall` is the time of day, by which
    providers raise prices and retire models (default: `clock`). `tenants` are those that may ask (default: all): a
    limit on tenants counts each by itself, so only with one tenant here is it a limit on the gate.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        prices: PriceBook,
        capabilities: Capabilities,
        clock: Clock,
        mode: Mode,
        wall: Clock | None = None,
        tenants: frozenset[str] | None = None,
    ) -> None:
        self._ledger = ledger
        self._prices = prices
        self._capabilities = capabilities
        self._clock = clock
        self._wall = wall or clock
        self._mode: Mode = mode
        self._tenants = tenants
        self._in_turn: dict[str, Admission | Refused | Taken] = {}
        self._admitted = self._parked = self._taken = 0
        self._refused: Counter[FailureKind] = Counter()
        self._waited_s = 0.0

    async def admit(
        self, request: ModelRequest, *, input_tokens: int | None = None
    ) -> Admission | Refused | Parked | Taken:
        """Set the most that `request` can cost aside, or say why it must not run, or must wait.

        `input_tokens` is the provider's own count where there is one; else bytes bound the tokens. The same attempt
        again gets the same reservation until it is dispatched, as nothing was sent; from then on it is `Taken`.
        """
        answer = await self._answer(request, input_tokens)
        match answer:
            case Admission():
                self._admitted += 1
            case Parked():
                self._parked += 1
            case Refused():
                self._refused[answer.reason.category] += 1
            case Taken():
                self._taken += 1
            case _:
                assert_never(answer)
        return answer

    async def headroom(self, parked: Parked) -> None:
        """Wait until the parked attempt can be answered for good, or its deadline passes; then admit it again.

        Who waits gets its turn in order of arrival within a priority: what comes free is set aside for it here, and
        handed out by the next `admit` of the same request. Who is cancelled holds nothing.
        """
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._seconds_to(parked.deadline)):
                answer = await self._ledger.reserve_in_turn(parked.ask)
        except (TimeoutError, AskError):
            return  # the next admit() says which
        finally:
            self._waited_s += self._clock.monotonic() - started
        self._in_turn[parked.ask.reservation_id] = self._final(answer, parked.quote)

    async def dispatch(self, admission: Admission) -> None:
        """Note that the request is about to be sent.

        Raises `ReservationStateError` the second time: the attempt is then taken by who was first.
        """
        await self._ledger.dispatch(admission.reservation_id)

    async def settle(self, admission: Admission, usage: Usage, *, served_model: str = "") -> Charge:
        """Charge what the provider reports; harmless twice.

        Another model than the one asked for, if `served_model` names one, is charged at the dearer price of the two.
        A usage or a model without a price costs the whole reservation at least.
        """
        cost, priced = self._cost(admission, usage, served_model)
        settlement = await self._ledger.settle(admission.reservation_id, Amount(cost, usage.total_tokens))
        return _charge(settlement, priced=priced)

    async def settle_unsent(self, admission: Admission) -> Charge:
        """Charge nothing for a dispatched request that surely was not sent, as by a refused connection.

        Harmless twice. Only for who has dispatched it; raises `ReservationStateError` if nobody has.
        """
        settlement = await self._ledger.settle(admission.reservation_id, Amount(0, 0, 0))
        return _charge(settlement, priced=True)

    async def release(self, admission: Admission) -> None:
        """Give back a reservation that was never dispatched; whatever else became of it is left alone.

        Harmless twice, and from a run whose attempt was taken by another one.
        """
        try:
            await self._ledger.release(admission.reservation_id)
        except (ReservationStateError, UnknownReservationError):
            return  # sent by another run, or over: not ours to settle

    async def in_doubt(self, admission: Admission) -> Charge:
        """Charge the whole reservation, as nobody knows whether the call was billed; a late `settle` corrects it."""
        return _charge(await self._ledger.in_doubt(admission.reservation_id), priced=True)

    def statistics(self) -> GateStatistics:
        """Return the counts since the start."""
        return GateStatistics(self._admitted, self._parked, dict(self._refused), self._waited_s, self._taken)

    async def _answer(
        self, request: ModelRequest, input_tokens: int | None
    ) -> Admission | Refused | Parked | Taken:
        envelope = request.envelope
        id_ = reservation_id(_key(envelope), request.attempt)
        waited_for = self._in_turn.pop(id_, None)
        now = self._clock.now()
        problem = self._standing_problem(envelope, now)
        if problem is not None:
            if isinstance(waited_for, Admission):
                await self.release(waited_for)
            return await self._unless_sent(id_, problem)
        if waited_for is not None:
            return waited_for
        quoted = quote(
            request, self._capabilities, self._prices,
            mode=self._mode, now=self._wall.now(), input_tokens=input_tokens,
        )  # fmt: skip
        if isinstance(quoted, FailureReason):
            return await self._unless_sent(id_, quoted)
        return await self._reserve(request, quoted, now)

    async def _unless_sent(self, id_: str, problem: FailureReason) -> Refused | Taken:
        """Refuse; but what another run has sent was allowed then, and only that run knows what came of it."""
        state = await self._ledger.state_of(id_)
        return Taken(id_, state) if state in _SENT else Refused(problem)

    def _standing_problem(self, envelope: LLMEnvelope, now: datetime) -> FailureReason | None:
        """Return why nothing of this envelope may run now, whatever it asks for."""
        return (
            foreign_problem(envelope.tenant_id, self._tenants)
            or deadline_problem(envelope.deadline, now)
            or future_problem(envelope.as_of, now, mode=self._mode)
        )

    async def _reserve(
        self, request: ModelRequest, quoted: Quote, now: datetime
    ) -> Admission | Refused | Parked | Taken:
        envelope = request.envelope
        at = envelope.as_of if self._mode in SIMULATED and envelope.as_of is not None else now
        try:
            ask = _ask(envelope, request.attempt, quoted.amount, at)
            answer = await self._ledger.reserve(ask)
        except AskError as e:
            return Refused(FailureReason(category=FailureKind.INVALID_REQUEST, description=str(e)))
        if isinstance(answer, Held):
            return Parked(ask, quoted, answer, envelope.deadline)
        return self._final(answer, quoted)

    def _final(self, answer: Reservation | Refusal, quoted: Quote) -> Admission | Refused | Taken:
        match answer:
            case Refusal():
                return Refused(exhausted(answer))
            case Reservation(state=CallState.RESERVED):
                return Admission(
                    answer.id, answer.amount, quoted.capability, self._prices.id, quoted.priced_at
                )
            case Reservation():
                return Taken(answer.id, answer.state)
            case _:
                assert_never(answer)

    def _cost(self, admission: Admission, usage: Usage, served_model: str) -> tuple[int, bool]:
        """Return what the usage costs in nano-dollars, and whether the book has a price for all of it."""
        capability = admission.capability
        models = {capability.model}
        if served_model and served_model not in capability.served_as:
            models.add(served_model)
        costs, priced = [], True
        for model in models:
            try:
                costs.append(
                    self._prices.cost_nusd(capability.provider, model, usage, at=admission.priced_at)
                )
            except (UnknownModelError, UnknownPriceError):
                costs.append(admission.amount.nusd)
                priced = False
        return max(costs), priced

    def _seconds_to(self, deadline: datetime | None) -> float | None:
        return None if deadline is None else max(0.0, (deadline - self._clock.now()).total_seconds())


def _ask(envelope: LLMEnvelope, attempt: int, amount: Amount, at: datetime) -> Ask:
    scopes = {
        ScopeKind.CALL: envelope.idempotency_key,
        ScopeKind.TRACE: envelope.trace_id,
        ScopeKind.AGENT: envelope.agent_id or envelope.agent_type or "unnamed",
        ScopeKind.WORKFLOW: str(envelope.workflow),
        ScopeKind.TENANT: envelope.tenant_id,
    }
    return Ask(_key(envelope), attempt, scopes, amount, at, _own_limits(envelope), envelope.priority)


def _key(envelope: LLMEnvelope) -> str:
    """Return the idempotency key among all tenants: what one calls its own, another may too."""
    return f"{envelope.tenant_id.replace('%', '%25').replace(':', '%3A')}:{envelope.idempotency_key}"


def _own_limits(envelope: LLMEnvelope) -> tuple[Limit, ...]:
    """Return what the envelope allows itself: money over all its attempts, calls of its agent in a day."""
    budget = envelope.budget
    limits = []
    if budget.max_cost_nusd is not None:
        limits.append(Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=budget.max_cost_nusd))
    if budget.max_calls_per_day is not None:
        limits.append(Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=budget.max_calls_per_day))
    return tuple(limits)


def _charge(settlement: Settlement, *, priced: bool) -> Charge:
    return Charge(
        cost_nusd=settlement.charged.nusd,
        overrun_nusd=settlement.overrun.nusd,
        late=settlement.late,
        in_doubt=settlement.in_doubt,
        priced=priced,
    )
