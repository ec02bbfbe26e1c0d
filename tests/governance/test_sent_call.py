"""Every way out of a call that was sent ends it once: charged, unsent or in doubt."""

import asyncio
from contextlib import suppress

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.governance.admission import Admitted, Charge
from agentic_trading.governance.controls_document import Halt, HaltScope, TenantControls
from agentic_trading.governance.errors import LedgerUnavailableError, ReservationStateError
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import ReservationState, Settlement
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import Deployment, RateLimits, Throttle
from agentic_trading.governance.limiters.deployment import MemoryLimiter
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.sent_call import SentCall
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import UnusableAnswerError
from agentic_trading.llm.result import Usage
from tests.build import NOW
from tests.governance.asking import balance
from tests.governance.away import AwayLedger
from tests.governance.gates import MOST_NUSD, USAGE, USED_NUSD, admitted, gate, tenant
from tests.governance.requests import request

LANE = Deployment(LLMProvider.SCRIPTED, "scripted-1")
ASKED = request()
REFUSED = ProviderError(FailureKind.SERVER_ERROR, "connection refused", sent=False)
LOST = ProviderError(FailureKind.SERVER_ERROR, "connection lost", sent=True)
UNUSABLE = UnusableAnswerError(FailureKind.SERVER_ERROR, "broken off", usage=USAGE)


class SlowLedger(AwayLedger):
    """A ledger whose steps take a turn of the loop, and that of the end of a call another one after it is noted."""

    async def dispatch(self, reservation_id: str, *, lease_s: float = 60.0) -> None:
        await asyncio.sleep(0)
        await super().dispatch(reservation_id, lease_s=lease_s)

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        await asyncio.sleep(0)
        settlement = await super().settle(reservation_id, actual)
        await asyncio.sleep(0)
        return settlement

    async def in_doubt(self, reservation_id: str) -> Settlement:
        await asyncio.sleep(0)
        settlement = await super().in_doubt(reservation_id)
        await asyncio.sleep(0)
        return settlement


class Case:
    """One admitted call at a gate with a place for one call."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.ledger = ledger or SlowLedger([tenant(10**12)])
        self.limiter = MemoryLimiter(default=RateLimits(concurrent=1), clock=SystemClock())
        self.gate: Gate = gate(self.ledger, throttle=Throttle(self.limiter, SystemClock()))

    async def admit(self) -> Admitted:
        return await admitted(self.gate, ASKED)

    def sent(self, admission: Admitted, *, patience_s: float = 60.0) -> SentCall:
        return self.gate.sent(admission, ASKED.envelope, patience_s=patience_s)

    def halt(self) -> None:
        halt = Halt(scope=HaltScope.TENANT, id="default", by="ann", why="odd", at=NOW)
        self.gate.halts.update("default", TenantControls(version=1, halts=(halt,)))

    async def charged(self, admission: Admitted) -> tuple[ReservationState | None, int]:
        """Return the state of the reservation and what is charged; nothing is held, in the ledger or in the limiter."""
        counter = await balance(self.ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")
        assert counter.held == Amount(0, 0, 0)
        assert (await self.limiter.status(LANE)).in_flight == 0
        return await self.ledger.state_of(admission.reservation_id), counter.spent.nusd


async def test_answered_call_is_charged_for_usage() -> None:
    case = Case()
    admission = await case.admit()

    async with case.sent(admission) as sent:
        charge = await sent.answered(USAGE, served_model="scripted-1")

    assert charge == sent.charge == Charge(USED_NUSD)
    assert (sent.is_dispatched, sent.is_charged, sent.failure) == (True, True, None)
    assert await case.charged(admission) == (ReservationState.SETTLED, USED_NUSD)


async def left_with(case: Case, sent: SentCall, error: BaseException | None) -> None:
    async with sent:
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "state", "nusd"),
    [
        (REFUSED, ReservationState.SETTLED, 0),
        (LOST, ReservationState.IN_DOUBT, MOST_NUSD),
        (UNUSABLE, ReservationState.SETTLED, USED_NUSD),
        (RuntimeError("a bug"), ReservationState.IN_DOUBT, MOST_NUSD),
    ],
)
async def test_failed_call_is_charged_unless_unsent(
    error: Exception, state: ReservationState, nusd: int
) -> None:
    case = Case()
    admission = await case.admit()
    sent = case.sent(admission)

    with pytest.raises(type(error)) as raised:
        await left_with(case, sent, error)

    assert raised.value is error
    assert sent.failure is (error if isinstance(error, ProviderError) else None)
    assert (sent.is_charged, sent.charge.cost_nusd) == (True, nusd)
    assert await case.charged(admission) == (state, nusd)


@pytest.mark.parametrize(
    ("usage", "tokens", "nusd", "unpriced"),
    [
        (USAGE, USAGE.total_tokens, USED_NUSD, ""),
        (Usage(unmetered="none"), None, MOST_NUSD, "usage=unknown"),
        (Usage(unmetered="none", bill_nusd=MOST_NUSD + 1), None, MOST_NUSD + 1, "usage=unknown"),
    ],
    ids=["metered", "unmetered", "unmetered and billed"],
)
async def test_answer_without_usage_costs_reservation(
    usage: Usage, tokens: int | None, nusd: int, unpriced: str
) -> None:
    case = Case()
    admission = await case.admit()

    async with case.sent(admission) as sent:
        charge = await sent.answered(usage)

    assert (charge.cost_nusd, charge.in_doubt, charge.unpriced) == (nusd, False, unpriced)
    counter = await balance(case.ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")
    assert counter.spent.tokens == (admission.amount.tokens if tokens is None else tokens)


async def test_impossible_usage_is_in_doubt() -> None:
    case = Case()
    admission = await case.admit()

    async def call() -> None:
        async with case.sent(admission) as sent:
            await sent.answered(Usage(output_tokens=10**15))

    with pytest.raises(ProviderError, match="reports 1000000000000000 tokens; allowed are 1000000000"):
        await call()

    assert await case.charged(admission) == (ReservationState.IN_DOUBT, MOST_NUSD)


async def test_call_without_answer_is_in_doubt() -> None:
    case = Case()
    admission = await case.admit()

    await left_with(case, case.sent(admission), None)

    assert await case.charged(admission) == (ReservationState.IN_DOUBT, MOST_NUSD)


async def never(sent: SentCall, started: asyncio.Event) -> None:
    """Send a request that is never answered."""
    async with sent:
        started.set()
        await asyncio.Event().wait()


async def test_answer_timeout_is_in_doubt() -> None:
    case = Case()
    admission = await case.admit()
    sent = case.sent(admission, patience_s=0.01)

    with pytest.raises(ProviderError, match=r"no answer within 0\.01 s") as raised:
        await never(sent, asyncio.Event())

    assert (raised.value.kind, raised.value.sent) == (FailureKind.TIMEOUT, True)
    assert await case.charged(admission) == (ReservationState.IN_DOUBT, MOST_NUSD)


async def test_halt_leaves_running_call_in_doubt() -> None:
    case = Case()
    admission = await case.admit()
    started = asyncio.Event()

    async def halt_once_started() -> None:
        await started.wait()
        case.halt()

    async with asyncio.TaskGroup() as group:
        group.create_task(halt_once_started())
        with pytest.raises(ProviderError, match="halted by ann") as raised:
            await never(case.sent(admission), started)

    assert (raised.value.kind, raised.value.sent) == (FailureKind.HALTED, True)
    assert await case.charged(admission) == (ReservationState.IN_DOUBT, MOST_NUSD)


async def test_call_halted_before_sending_is_free() -> None:
    case = Case()
    admission = await case.admit()
    case.halt()
    started = asyncio.Event()
    sent = case.sent(admission)

    with pytest.raises(ProviderError, match="halted by ann") as raised:
        await never(sent, started)

    assert not started.is_set()
    assert (raised.value.kind, raised.value.sent, sent.failure) == (FailureKind.HALTED, False, raised.value)
    assert await case.charged(admission) == (ReservationState.SETTLED, 0)


@pytest.mark.parametrize("late", ["time is over", "halted"])
async def test_arrived_answer_is_charged_despite_interruption(late: str) -> None:
    class Late(SlowLedger):
        async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
            if late == "halted":
                case.halt()
            await asyncio.sleep(0.02)
            return await super().settle(reservation_id, actual)

    case = Case(Late([tenant(10**12)]))
    admission = await case.admit()

    async with case.sent(admission, patience_s=0.01) as sent:
        await sent.answered(USAGE)

    assert await case.charged(admission) == (ReservationState.SETTLED, USED_NUSD)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("error", [None, REFUSED, LOST], ids=["answered", "refused", "lost"])
async def test_cancelled_call_ends_exactly_once(error: ProviderError | None, steps: int, times: int) -> None:
    case = Case()
    admission = await case.admit()
    sent = case.sent(admission)
    was_sent = []

    async def call() -> None:
        with suppress(ProviderError):
            async with sent:
                was_sent.append(True)
                await asyncio.sleep(0)
                if error is not None:
                    raise error
                await sent.answered(USAGE)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(call())
        for _ in range(steps):
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)

    state, nusd = await case.charged(admission)
    assert state is not None
    ends = {
        ReservationState.RELEASED: 0,
        ReservationState.IN_DOUBT: MOST_NUSD,
        ReservationState.SETTLED: USED_NUSD if error is None else 0,
    }
    assert nusd == ends[state] == sent.charge.cost_nusd
    assert sent.is_charged is sent.is_dispatched
    assert sent.is_dispatched or not was_sent
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_second_run_leaves_reservation_alone() -> None:
    case = Case()
    admission = await case.admit()

    async with case.sent(admission) as first:
        second = case.sent(admission)
        with pytest.raises(ReservationStateError):
            await left_with(case, second, None)
        await first.answered(USAGE)

    assert (second.is_dispatched, second.is_charged) == (False, False)
    assert await case.charged(admission) == (ReservationState.SETTLED, USED_NUSD)


@pytest.mark.parametrize("away", [("dispatch",), ("dispatch", "release")])
async def test_unrecorded_dispatch_is_not_sent(away: tuple[str, ...]) -> None:
    ledger = SlowLedger([tenant(10**12)])
    case = Case(ledger)
    admission = await case.admit()
    ledger.leave(*away)
    sent, started = case.sent(admission), asyncio.Event()

    with pytest.raises(LedgerUnavailableError):
        await never(sent, started)

    assert (started.is_set(), sent.is_dispatched, sent.is_charged) == (False, False, False)
    assert (await case.limiter.status(LANE)).in_flight == 0


async def test_failed_charge_raises_without_charging() -> None:
    ledger = SlowLedger([tenant(10**12)])
    case = Case(ledger)
    sent = case.sent(await case.admit())
    ledger.leave("in_doubt")

    with pytest.raises(LedgerUnavailableError):
        await left_with(case, sent, LOST)

    assert (sent.is_dispatched, sent.is_charged, sent.charge) == (True, False, Charge(0))


async def test_failed_settlement_ends_in_doubt() -> None:
    ledger = SlowLedger([tenant(10**12)])
    case = Case(ledger)
    admission = await case.admit()
    ledger.leave("settle")

    async def call() -> None:
        async with case.sent(admission) as sent:
            await sent.answered(USAGE)

    with pytest.raises(LedgerUnavailableError):
        await call()

    assert await case.charged(admission) == (ReservationState.IN_DOUBT, MOST_NUSD)
