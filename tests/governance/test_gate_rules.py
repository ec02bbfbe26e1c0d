"""The gate asks everybody who may say no: the policy, operators, and a ledger that may be away."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission import (
    Admitted,
    AlreadyDispatched,
    Deferred,
    Denied,
    RefusalSpan,
    RefusedCounter,
    RefusedCounters,
)
from agentic_trading.governance.controls_document import Halt, HaltScope, TenantControls
from agentic_trading.governance.errors import LedgerError, LedgerSettingsError, LedgerUnavailableError
from agentic_trading.governance.ledger import Blocked, Declined, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.policy import Highest, Policy, Principal
from agentic_trading.llm import LLMBudget
from agentic_trading.llm.errors import FailureKind
from tests.build import NOW
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import select
from tests.governance.away import AwayLedger
from tests.governance.gates import MOST_NUSD, USAGE, admitted, gate, parked, refused, tenant
from tests.governance.requests import request


def policy(**highest: Any) -> Policy:
    """Return a policy under which only desk-a may do something."""
    may = Principal(
        tenants=("default",), models=("scripted/*",), highest=Highest().model_copy(update=highest)
    )
    return Policy({"desk-a": may})


def halted(agent: str, version: int = 1) -> TenantControls:
    return TenantControls(
        version=version, halts=(Halt(scope=HaltScope.AGENT, id=agent, by="ann", why="odd", at=NOW),)
    )


async def test_unlisted_principal_is_refused_before_reservation() -> None:
    ledger = MemoryLedger()
    at = gate(ledger, policy=policy())

    for principal in ("", "desk-b"):
        answer = await at.admit(request(), principal=principal)
        assert isinstance(answer, Denied)
        assert answer.reason.category is FailureKind.NOT_ALLOWED

    assert isinstance(await at.admit(request(), principal="desk-a"), Admitted)
    assert ledger.statistics().reserved == 1


async def test_policy_without_principals_allows_everyone() -> None:
    ledger = MemoryLedger()

    assert isinstance(await gate(ledger, policy=Policy()).admit(request()), Admitted)


@pytest.mark.parametrize(
    ("highest", "scope", "window"),
    [
        ({"nusd_per_call": MOST_NUSD}, ScopeKind.CALL, Window.NONE),
        ({"nusd_per_trace": MOST_NUSD}, ScopeKind.TRACE, Window.NONE),
        ({"nusd_per_agent_day": MOST_NUSD}, ScopeKind.AGENT, Window.DAY),
        ({"nusd_per_day": MOST_NUSD}, ScopeKind.PRINCIPAL, Window.DAY),
    ],
)
async def test_policy_ceiling_is_enforced_alone(
    highest: dict[str, int], scope: ScopeKind, window: Window
) -> None:
    asked = request(trace_id="trace-1")
    ledger = MemoryLedger()
    fits = gate(ledger, policy=policy(**highest))
    less = gate(MemoryLedger(), policy=policy(**{name: most - 1 for name, most in highest.items()}))

    assert isinstance(await fits.admit(asked, principal="desk-a"), Admitted)
    answer = await less.admit(asked, principal="desk-a")

    assert isinstance(answer, Denied)
    assert answer.reason.category is FailureKind.BUDGET_EXHAUSTED
    assert answer.reason.description.startswith(str(scope))
    (rule,) = highest
    assert (
        f"is principals.desk-a.highest.{rule.removeprefix('n')} in the policy)" in answer.reason.description
    )
    assert select(await ledger.balances("default"), scope, answer.reason.description.split()[1], window)


async def test_new_names_give_principal_no_budget() -> None:
    at = gate(MemoryLedger(), policy=policy(nusd_per_day=2 * MOST_NUSD - 1))

    assert isinstance(await at.admit(request(agent_id="a", trace_id="1"), principal="desk-a"), Admitted)
    asked = await at.admit(request(agent_id="b", trace_id="2"), principal="desk-a")

    assert isinstance(asked, Deferred)  # the first may cost less than it has set aside


@pytest.mark.parametrize(
    ("own", "platforms"), [(MOST_NUSD - 1, 10 * MOST_NUSD), (10 * MOST_NUSD, MOST_NUSD - 1)]
)
async def test_tighter_of_envelope_and_policy_wins(own: int, platforms: int) -> None:
    at = gate(MemoryLedger(), policy=policy(nusd_per_call=platforms))

    answer = await at.admit(request(budget={"max_cost_nusd": own}), principal="desk-a")

    assert isinstance(answer, Denied)
    assert answer.reason.category is FailureKind.BUDGET_EXHAUSTED


async def test_raised_cap_is_checked_against_policy() -> None:
    budget = {"max_output_tokens": 1000, "thinking_budget": 0}
    at = gate(MemoryLedger(), policy=policy(output_tokens=1500))
    first = request(budget=budget, max_tokens=1000)
    raised = replace(first, attempt=2, max_tokens=2000)

    assert isinstance(await at.admit(first, principal="desk-a"), Admitted)
    answer = await at.admit(raised, principal="desk-a")

    assert isinstance(answer, Denied)
    assert answer.reason.category is FailureKind.NOT_ALLOWED
    assert "2000 output tokens" in answer.reason.description


async def test_halted_agent_is_refused_until_resumed() -> None:
    ledger = MemoryLedger()
    at = gate(ledger)
    at.halts.update("default", halted("cmt-1"))

    assert await refused(at, request(agent_id="cmt-1")) is FailureKind.HALTED
    await admitted(at, request(agent_id="cmt-2"))
    at.halts.update("default", TenantControls(version=2))

    await admitted(at, request(agent_id="cmt-1"))


async def test_halt_does_not_affect_sent_attempt() -> None:
    at = gate(MemoryLedger())
    asked = request(agent_id="cmt-1")
    admission = await admitted(at, asked)
    await at.lifecycle.dispatch(admission)
    at.halts.update("default", halted("cmt-1"))

    assert await at.admit(asked) == AlreadyDispatched(admission.reservation_id, ReservationState.DISPATCHED)


async def test_halt_ends_waiting_request() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    first = await admitted(at, request(agent_id="cmt-1"))
    asked = request(agent_id="cmt-2")
    waiting = await parked(at, asked)

    async with asyncio.timeout(2), asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        at.halts.update("default", halted("cmt-2"))
    await at.release(first)

    assert await refused(at, asked) is FailureKind.HALTED
    assert (ledger.statistics().waiting, ledger.statistics().in_flight) == (0, 0)


async def test_halt_prevents_new_wait() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    await admitted(at, request(agent_id="cmt-1"))
    asked = request(agent_id="cmt-2")
    waiting = await parked(at, asked)
    at.halts.update("default", halted("cmt-2"))

    async with asyncio.timeout(2):
        await at.headroom(waiting)

    assert await refused(at, asked) is FailureKind.HALTED


async def test_halt_returns_reservation_of_waiter() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    first = await admitted(at, request(agent_id="cmt-1"))
    asked = request(agent_id="cmt-2")
    waiting = await parked(at, asked)
    async with asyncio.timeout(2), asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        await at.release(first)
    at.halts.update("default", halted("cmt-2"))

    assert await refused(at, asked) is FailureKind.HALTED
    assert ledger.statistics().in_flight == 0


async def test_deferred_without_quote_does_not_wait() -> None:
    lacks = Blocked(ScopeKind.TENANT, "default", Window.NONE, "nano-USD", 2, 1)

    ledger = MemoryLedger()

    async with asyncio.timeout(2):
        await gate(ledger).headroom(Deferred(request().envelope, lacks))

    assert (ledger.statistics().waiting, ledger.statistics().in_flight) == (0, 0)


async def test_second_halt_leaves_ending_wait_alone() -> None:
    at = gate(MemoryLedger())
    asked, is_ending, may_end = request(agent_id="cmt-2"), asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        limit = asyncio.timeout(None)
        with suppress(TimeoutError):
            async with limit:
                with at.halts.reached(asked.envelope, limit):
                    try:
                        await asyncio.Event().wait()
                    finally:
                        is_ending.set()
                        await may_end.wait()
        assert limit.expired()

    async with asyncio.timeout(2), asyncio.TaskGroup() as group:
        group.create_task(slow_to_end())
        await asyncio.sleep(0)
        at.halts.update("default", halted("cmt-2"))
        await is_ending.wait()
        at.halts.update("default", halted("cmt-2", version=2))
        may_end.set()


@pytest.mark.parametrize("workflow", ["analysis", "planning"])
async def test_call_without_ledger_is_refused_recoverably(workflow: str) -> None:
    ledger = AwayLedger()
    at = gate(ledger)
    ledger.leave()

    answer = await at.admit(request(workflow=workflow))

    assert isinstance(answer, Denied)
    assert (answer.reason.category, answer.reason.recoverable) == (FailureKind.LEDGER_UNAVAILABLE, True)
    assert answer.reason.description.startswith(f"{workflow} may not run without the ledger")


async def test_missing_ledger_keeps_other_refusal_reasons() -> None:
    ledger = AwayLedger()
    at = gate(ledger)
    at.halts.update("default", halted("cmt-1"))
    ledger.leave()

    assert await refused(at, request(agent_id="cmt-1")) is FailureKind.HALTED
    assert await refused(at, request(model="gpt-next")) is FailureKind.INVALID_REQUEST


@pytest.mark.parametrize(
    "why", [LedgerUnavailableError("refused"), LedgerSettingsError("zone of 'default'", "UTC", "Asia/Tokyo")]
)
async def test_ledger_outage_ends_the_wait(why: LedgerError) -> None:
    ledger = AwayLedger([tenant(MOST_NUSD)])
    ledger.why = why
    at = gate(ledger)
    await admitted(at, request())
    asked = request()
    waiting = await parked(at, asked)
    ledger.leave()

    await at.headroom(waiting)

    assert await refused(at, asked) is FailureKind.LEDGER_UNAVAILABLE


async def test_dispatch_raises_without_the_ledger() -> None:
    ledger = AwayLedger()
    at = gate(ledger)
    admission = await admitted(at, request())
    ledger.leave("dispatch")

    with pytest.raises(LedgerUnavailableError):
        await at.lifecycle.dispatch(admission)


@pytest.mark.parametrize("state", [ReservationState.DISPATCHED, ReservationState.SETTLED])
async def test_sent_attempt_ignores_changed_request(state: ReservationState) -> None:
    at = gate(MemoryLedger())
    asked = request(idempotency_key="mine")
    admission = await admitted(at, asked)
    await at.lifecycle.dispatch(admission)
    if state is ReservationState.SETTLED:
        await at.lifecycle.settle(admission, USAGE)

    other = await at.admit(replace(asked, max_tokens=2000))

    assert other == AlreadyDispatched(admission.reservation_id, state)


async def test_last_fifty_refusals_are_remembered() -> None:
    clock = SimClock(NOW)
    at = gate(MemoryLedger([tenant(0)]), clock=clock)
    asked = [request(agent_id=f"cmt-{number}") for number in range(60)]
    for one in asked:
        await refused(at, one)

    told = at.refusals()

    assert [one.envelope for one in told] == [one.envelope for one in asked[-50:]]
    assert {(one.at, one.reason.category) for one in told} == {(NOW, FailureKind.BUDGET_EXHAUSTED)}
    assert at.statistics().refused == {FailureKind.BUDGET_EXHAUSTED: 60}


async def test_only_refusals_are_remembered() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    asked = request()
    await at.lifecycle.dispatch(await admitted(at, asked))

    assert isinstance(await at.admit(request()), Deferred)
    assert isinstance(await at.admit(asked), AlreadyDispatched)

    assert at.refusals() == ()


def declined_by(scope: ScopeKind, id_: str) -> Declined:
    return Declined(scope, id_, Window.NONE, "calls", asked=1, left=0)


def test_call_and_trace_refusals_are_ignored() -> None:
    counters = RefusedCounters()

    for scope in (ScopeKind.CALL, ScopeKind.TRACE, ScopeKind.AGENT):
        counters.note("acme", declined_by(scope, "a"), NOW)

    assert [counter.scope for counter in counters.take()] == [ScopeKind.AGENT]


def test_newest_thousand_refused_counters_are_kept() -> None:
    counters = RefusedCounters()

    for number in range(1_001):
        counters.note("acme", declined_by(ScopeKind.AGENT, f"a{number}"), NOW)

    for read in (counters.take(), counters.calls()):
        kept = [counter.id for counter in read]
        assert (len(kept), kept[0], kept[-1]) == (1_000, "a1", "a1000")


async def test_refusing_counter_is_reported_until_read() -> None:
    clock = SimClock(NOW)
    at = gate(MemoryLedger([tenant(0)]), clock=clock)
    for minutes in (0, 3):
        clock.advance_to(NOW + timedelta(minutes=minutes))
        await refused(at, request(tenant_id="acme"))

    taken = at.take_refused()

    counter = RefusedCounter("acme", ScopeKind.TENANT, "acme", Window.NONE, "nano-USD")
    assert taken == {counter: RefusalSpan(NOW, NOW + timedelta(minutes=3), left=0)}
    assert at.take_refused() == {}
    assert at.refused_calls() == {counter: 2}
    declined = at.refusals()[0].declined
    assert declined is not None
    assert (declined.scope, declined.id, declined.unit) == (ScopeKind.TENANT, "acme", "nano-USD")


async def test_request_limit_refusal_reports_no_counter() -> None:
    at = gate(MemoryLedger([tenant(10**15)]))

    await refused(at, request(budget=LLMBudget(max_calls_per_day=0)))

    assert at.take_refused() == {}
    assert at.refusals()[0].declined is not None
