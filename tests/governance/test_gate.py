"""The gate: what may run, and what must not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission import Admitted, AlreadyDispatched, Charge, Denied, exhausted
from agentic_trading.governance.ledger import Declined, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, usd_text
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rules import ClockMode
from agentic_trading.llm.errors import FailureKind, LLMBudgetExhaustedError
from agentic_trading.llm.result import Usage
from tests.build import NOW
from tests.governance.asking import balance
from tests.governance.gates import (
    CAPABILITIES,
    MOST,
    MOST_NUSD,
    PRICES,
    USAGE,
    USED_NUSD,
    admitted,
    gate,
    refused,
    tenant,
)
from tests.governance.requests import request


async def test_call_reserves_maximum_and_charges_usage() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    asked = request(idempotency_key="envelope-1")

    admission = await admitted(at, asked)
    before = await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")
    await at.lifecycle.dispatch(admission)
    charge = await at.lifecycle.settle(admission, USAGE)

    assert (admission.reservation_id, admission.amount) == ("default:envelope-1:1", MOST)
    capability = CAPABILITIES.of(asked.envelope.provider, "scripted-1")
    assert (admission.capability, admission.price_book, admission.priced_at) == (capability, PRICES.id, NOW)
    assert before.held == MOST
    assert charge == Charge(USED_NUSD)
    after = await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")
    assert (after.spent, after.held) == (Amount(USED_NUSD, 110), Amount(0, 0, 0))


async def test_every_envelope_scope_is_charged() -> None:
    ledger = MemoryLedger([Limit(kind, ANY, Window.NONE, calls=10) for kind in ScopeKind])
    at = gate(ledger)
    asked = request(
        idempotency_key="key-1", trace_id="trace-1", agent_id="cmt-1", workflow="planning", tenant_id="acme"
    )

    await at.lifecycle.dispatch(await admitted(at, asked))

    counters = await ledger.balances("acme")
    ids = {one.scope: one.id for one in counters if one.window is Window.NONE}
    assert ids == {
        "call": "key-1",
        "trace": "trace-1",
        "agent": "cmt-1",
        "workflow": "planning",
        "tenant": "acme",
    }
    assert {one.tenant for one in counters} == {"acme"}


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"agent_id": ""}, "analyst"), ({"agent_id": "", "agent_type": ""}, "unnamed")],
)
async def test_agent_without_id_counts_by_type(changes: dict[str, str], name: str) -> None:
    ledger = MemoryLedger()

    await admitted(gate(ledger), request(**changes))

    assert [one.id for one in await ledger.balances("default")] == [name]


async def test_exhausted_budget_refusal_includes_amounts() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=MOST_NUSD - 1)])
    at = gate(ledger)

    answer = await at.admit(request(agent_id="cmt-1"))

    assert isinstance(answer, Denied)
    assert answer.reason.category is FailureKind.BUDGET_EXHAUSTED
    assert not answer.reason.recoverable
    assert answer.reason.description.startswith(
        f"agent cmt-1 has {usd_text(MOST_NUSD - 1)} left this day, the call may need {usd_text(MOST_NUSD)}; raise"
    )


@given(
    agent_id=st.text(min_size=1, max_size=20),
    window=st.sampled_from(Window),
    left=st.integers(0, MOST_NUSD - 1),
)
def test_exhausted_error_carries_scope_and_amounts(agent_id: str, window: Window, left: int) -> None:
    reason = exhausted(Declined(ScopeKind.AGENT, agent_id, window, "nano-USD", MOST_NUSD, left))

    error = LLMBudgetExhaustedError.of(reason)

    this = "" if window is Window.NONE else f" this {window}"
    assert (error.scope, error.unit) == (f"agent {agent_id}{this}", "nano-USD")
    assert (error.asked, error.left) == (MOST_NUSD, left)
    assert str(error) == reason.description


async def test_exhausted_total_budget_omits_window() -> None:
    answer = await gate(MemoryLedger([tenant(0)])).admit(request())

    assert isinstance(answer, Denied)
    assert "tenant default has 0 USD left, the call may need" in answer.reason.description


async def test_zero_budget_admits_free_rules() -> None:
    at = gate(MemoryLedger([tenant(0)]))

    admission = await admitted(at, request(provider="rules", model="rules-1"))
    await at.lifecycle.dispatch(admission)

    assert await at.lifecycle.settle(admission, USAGE) == Charge(0)


async def test_invalid_request_reserves_no_budget() -> None:
    ledger = MemoryLedger()
    at = gate(ledger)

    assert await refused(at, request(model="gpt-next")) is FailureKind.INVALID_REQUEST

    assert ledger.statistics().reserved == 0
    assert at.statistics().refused == {FailureKind.INVALID_REQUEST: 1}


async def test_envelope_expires_exactly_at_deadline() -> None:
    clock = SimClock(NOW)
    at = gate(MemoryLedger(), clock=clock)
    asked = request(deadline=NOW + timedelta(seconds=5))
    clock.advance_to(NOW + timedelta(seconds=5) - timedelta(microseconds=1))
    await at.release(await admitted(at, asked))

    clock.advance_to(NOW + timedelta(seconds=5))

    assert await refused(at, asked) is FailureKind.EXPIRED


async def test_unlisted_tenant_is_refused() -> None:
    ledger = MemoryLedger()
    at = gate(ledger, tenants=frozenset({"acme", "zenith"}))

    answer = await at.admit(request(tenant_id="other"))

    assert isinstance(answer, Denied)
    assert answer.reason.category is FailureKind.NOT_ALLOWED
    assert answer.reason.description == "tenant 'other' may not use this gateway; allowed are acme, zenith"
    assert ledger.statistics().reserved == 0
    await admitted(at, request(tenant_id="zenith"))


async def test_tenant_gate_keeps_budget_across_callers() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger, tenants=frozenset({"t0"}))
    charged = 0

    for number in range(20):
        answer = await at.admit(request(tenant_id=f"t{number % 10}"))
        if isinstance(answer, Admitted):
            await at.lifecycle.dispatch(answer)
            charged += (await at.lifecycle.in_doubt(answer)).cost_nusd

    assert charged == MOST_NUSD


@pytest.mark.parametrize(
    ("mode", "slack"),
    [
        ("backtest", timedelta(0)),
        ("replay", timedelta(0)),
        ("paper", timedelta(seconds=60)),
        ("shadow", timedelta(seconds=60)),
        ("live", timedelta(seconds=60)),
    ],
)
async def test_future_as_of_is_refused(mode: ClockMode, slack: timedelta) -> None:
    at = gate(MemoryLedger(), mode=mode)
    await admitted(at, request(as_of=NOW + slack))
    ahead = NOW + slack + timedelta(microseconds=1)

    answer = await at.admit(request(as_of=ahead))

    assert isinstance(answer, Denied)
    assert answer.reason.category is FailureKind.LOOK_AHEAD
    assert ahead.isoformat() in answer.reason.description
    assert NOW.isoformat() in answer.reason.description


async def test_refused_future_request_keeps_present_open() -> None:
    at = gate(MemoryLedger([tenant(MOST_NUSD)]), mode="backtest")
    await at.admit(request(as_of=NOW + timedelta(days=60)))

    await admitted(at, request(as_of=NOW))


async def test_envelope_cost_limit_spans_attempts() -> None:
    at = gate(MemoryLedger())
    asked = request(budget={"max_cost_nusd": MOST_NUSD + USED_NUSD - 1})
    first = await admitted(at, asked)
    await at.lifecycle.dispatch(first)
    await at.lifecycle.settle(first, USAGE)

    assert await refused(at, replace(asked, attempt=2)) is FailureKind.BUDGET_EXHAUSTED


async def test_daily_call_limit_counts_per_agent() -> None:
    clock = SimClock(NOW)
    at = gate(MemoryLedger(), clock=clock, mode="paper")
    for _ in range(2):
        admission = await admitted(at, request(agent_id="cmt-1"))
        await at.lifecycle.dispatch(admission)
        await at.lifecycle.settle(admission, USAGE)
    asked = request(agent_id="cmt-1", budget={"max_calls_per_day": 2})

    assert await refused(at, asked) is FailureKind.BUDGET_EXHAUSTED
    await admitted(at, request(agent_id="cmt-2", budget={"max_calls_per_day": 2}))
    clock.advance_to(NOW + timedelta(days=1))
    await admitted(at, asked)


@pytest.mark.parametrize(
    "ceiling", [{"max_trace_calls": 2}, {"max_trace_cost_nusd": 2 * USED_NUSD + MOST_NUSD - 1}]
)
async def test_trace_limits_of_envelope_are_enforced(ceiling: dict[str, int]) -> None:
    at = gate(MemoryLedger())
    for _ in range(2):
        admission = await admitted(at, request(trace_id="tree", agent_id="any", budget=ceiling))
        await at.lifecycle.dispatch(admission)
        await at.lifecycle.settle(admission, USAGE)

    denied = await at.admit(request(trace_id="tree", budget=ceiling))

    assert isinstance(denied, Denied)
    assert f"is {next(iter(ceiling))} of the envelope's budget" in denied.reason.description
    await admitted(at, request(trace_id="tree"))
    await admitted(at, request(trace_id="another", budget=ceiling))


@pytest.mark.parametrize(
    ("mode", "is_shared", "day"),
    [
        ("backtest", False, "2025-05-05"), ("backtest", True, "2025-05-05"), ("replay", True, "2025-05-05"),
        ("paper", False, "2025-05-06"), ("paper", True, "2026-01-02"), ("live", False, "2026-01-02"),
    ],
)  # fmt: skip
async def test_window_clock_follows_mode_and_sharing(
    mode: ClockMode,
    is_shared: bool,  # noqa: FBT001 - a parameter of the table above
    day: str,
) -> None:
    ledger, market = MemoryLedger(clock=SimClock(NOW)), SimClock(datetime(2025, 5, 6, tzinfo=UTC))
    at = gate(ledger, mode=mode, clock=market, is_shared=is_shared)

    admission = await admitted(at, request(as_of=datetime(2025, 5, 5, tzinfo=UTC)))

    assert [one.window_id for one in await ledger.balances("default")] == [day]
    assert f"{admission.request.at:%Y-%m-%d}" == day


async def test_prices_and_retirement_follow_wall_clock() -> None:
    clock, wall = SimClock(NOW), SimClock(datetime(2026, 11, 21, tzinfo=UTC))
    at = gate(MemoryLedger(), clock=clock, wall=wall, mode="backtest")
    today = request(provider="anthropic", model="claude-sonnet-5-5", as_of=NOW)
    retiring = request(provider="anthropic", model="claude-sonnet-4-5-20250929", as_of=NOW)
    admission = await admitted(at, today)
    await admitted(at, retiring)

    await at.lifecycle.dispatch(admission)
    charge = await at.lifecycle.settle(admission, Usage(cache_read_tokens=1000))
    wall.advance_to(datetime(2026, 12, 1, tzinfo=UTC))

    assert (admission.priced_at, charge.cost_nusd) == (datetime(2026, 11, 21, tzinfo=UTC), 100_000)
    assert await refused(at, replace(retiring, attempt=2)) is FailureKind.NOT_ALLOWED


async def test_provider_token_count_replaces_bytes() -> None:
    at = gate(MemoryLedger())

    answer = await at.admit(request(system="s" * 4000), input_tokens=1000)

    assert isinstance(answer, Admitted)
    assert answer.amount.tokens == 1000 + 16 + 1000


async def test_redelivered_attempt_reuses_reservation() -> None:
    ledger = MemoryLedger()
    at = gate(ledger)
    asked = request()

    assert await admitted(at, asked) == await admitted(at, asked)
    assert ledger.statistics().reserved == 1


@pytest.mark.parametrize(
    "state", [ReservationState.DISPATCHED, ReservationState.IN_DOUBT, ReservationState.SETTLED]
)
async def test_attempt_sent_elsewhere_is_already_dispatched(state: ReservationState) -> None:
    ledger = MemoryLedger()
    at = gate(ledger)
    asked = request(idempotency_key="envelope-1")
    admission = await admitted(at, asked)
    await at.lifecycle.dispatch(admission)
    if state is ReservationState.IN_DOUBT:
        await at.lifecycle.in_doubt(admission)
    if state is ReservationState.SETTLED:
        await at.lifecycle.settle(admission, USAGE)

    assert await at.admit(asked) == AlreadyDispatched(admission.reservation_id, state)

    assert (ledger.statistics().reserved, at.statistics().taken) == (1, 1)
    assert at.statistics().refused == {}


async def test_sent_attempt_does_not_expire() -> None:
    clock = SimClock(NOW)
    at = gate(MemoryLedger(), clock=clock)
    asked = request(deadline=NOW + timedelta(seconds=5))
    admission = await admitted(at, asked)
    await at.lifecycle.dispatch(admission)

    clock.advance_to(NOW + timedelta(seconds=6))

    assert await at.admit(asked) == AlreadyDispatched(admission.reservation_id, ReservationState.DISPATCHED)


async def test_sent_attempt_survives_model_retirement() -> None:
    wall = SimClock(datetime(2026, 11, 30, 23, 59, tzinfo=UTC))
    at = gate(MemoryLedger(), wall=wall)
    asked = request(provider="anthropic", model="claude-sonnet-4-5-20250929")
    admission = await admitted(at, asked)
    await at.lifecycle.dispatch(admission)
    await at.lifecycle.settle(admission, USAGE)

    wall.advance_to(datetime(2026, 12, 1, tzinfo=UTC))

    assert await at.admit(asked) == AlreadyDispatched(admission.reservation_id, ReservationState.SETTLED)


async def test_released_attempt_can_be_repeated() -> None:
    at = gate(MemoryLedger())
    asked = request()
    await at.release(await admitted(at, asked))

    await admitted(at, asked)


async def test_conflicting_key_reuse_is_refused() -> None:
    at = gate(MemoryLedger())
    await admitted(at, request(idempotency_key="mine", trace_id="one"))

    assert await refused(at, request(idempotency_key="mine", trace_id="two")) is FailureKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("one", "other"), [(("acme", "mine"), ("zenith", "mine")), (("a", "b:c"), ("a:b", "c"))]
)
async def test_tenants_may_use_the_same_keys(one: tuple[str, str], other: tuple[str, str]) -> None:
    at = gate(MemoryLedger())
    first, second = (request(tenant_id=tenant_id, idempotency_key=key) for tenant_id, key in (one, other))
    await at.lifecycle.dispatch(await admitted(at, first))

    await at.lifecycle.dispatch(await admitted(at, second))


async def test_envelope_without_tenant_is_refused() -> None:
    assert await refused(gate(MemoryLedger()), request(tenant_id="")) is FailureKind.INVALID_REQUEST


async def test_too_old_as_of_is_refused() -> None:
    at = gate(MemoryLedger(keep=timedelta(hours=1)), mode="backtest")
    await admitted(at, request(as_of=NOW))

    assert await refused(at, request(as_of=NOW - timedelta(days=9))) is FailureKind.INVALID_REQUEST
