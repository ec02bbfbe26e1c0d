"""What a worker tells of its budgets says what the ledger and the gate know, and nothing more."""

from datetime import timedelta

from agentic_trading.governance.admission import DeniedCall
from agentic_trading.governance.burn_rate import Alerts, BurnRateMeter, warning_event
from agentic_trading.governance.ledger import Blocked, LedgerStatistics, QueuedReservation
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, Windows
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.status_feed import (
    BudgetStatus,
    CallCounts,
    DenialStatus,
    QueuedStatus,
    call_counts,
    counters,
    forecast_of,
    parked,
    refusals,
)
from agentic_trading.llm.errors import FailureKind, FailureReason
from tests.build import NOW, envelope
from tests.governance.asking import AT, ask, reserved, spend, tenant
from tests.governance.reporting import full


async def test_counter_status_includes_all_amounts() -> None:
    ledger = MemoryLedger([tenant(1000)])
    await spend(ledger, ask(100, tokens=7), 60)
    doubtful = await reserved(ledger, ask(50))
    await ledger.dispatch(doubtful)
    await ledger.in_doubt(doubtful)
    await reserved(ledger, ask(20, tokens=3))

    (told,) = counters(await ledger.balances("acme"), ())

    assert (told.scope, told.id, told.window, told.window_id) == ("tenant", "acme", "none", "")
    assert told.most == (1000, None, None)
    assert (told.spent, told.held, told.in_doubt) == ((110, 7, 2), (20, 3, 1), (50, 0, 1))
    assert (told.nusd_per_hour, told.exhausted_at) == (None, None)


async def test_only_limited_counters_are_reported() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, "agent-2", Window.DAY, calls=5)])
    await spend(ledger, ask(1))
    await spend(ledger, ask(1, agent="agent-2"))

    told = counters(await ledger.balances("acme"), ())

    assert [(one.id, one.most) for one in told] == [("agent-2", (None, None, 5))]


async def test_counter_status_includes_forecast() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=1000), tenant(10**9)])
    meter = BurnRateMeter(Windows())
    meter.look(await ledger.balances("acme"), AT)
    await spend(ledger, ask(300))
    await ledger.balances("acme")
    later = AT + timedelta(hours=1)
    meter.look(await ledger.balances("acme"), AT + timedelta(minutes=1))
    await spend(ledger, ask(300))
    balances = await ledger.balances("acme")

    told = {one.window: one for one in counters(balances, meter.look(balances, later))}

    assert told[Window.DAY].nusd_per_hour is not None
    ends = told[Window.DAY].exhausted_at
    assert ends is not None
    assert later < ends < later + timedelta(hours=2)


async def test_warnings_of_reports_equal_those_of_the_worker() -> None:
    limits = (Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=1000, calls=2), tenant(500))
    ledger, meter = MemoryLedger(limits), BurnRateMeter(Windows())
    await spend(ledger, ask(300))
    balances = await ledger.balances("acme")
    meter.look(balances, AT)
    meter.look(balances, AT + timedelta(minutes=56))
    await spend(ledger, ask(100))
    forecasts = meter.look(await ledger.balances("acme"), AT + timedelta(hours=1))

    told = [forecast_of("acme", one) for one in counters(await ledger.balances("acme"), forecasts)]

    recorded = [warning_event(alert, AT) for alert in Alerts().new(forecasts)]
    kinds = {event.kind.removeprefix("budget.") for event in recorded}
    assert kinds == {"threshold_reached", "exhausted", "exhaustion_forecast"}
    assert [warning_event(alert, AT) for alert in Alerts().new(told)] == recorded


def test_queued_status_includes_missing_amount() -> None:
    held = Blocked(ScopeKind.TENANT, "acme", Window.DAY, "nano-USD", 70, 40)

    told = parked([QueuedReservation("acme:k:1", held, 5, NOW)])

    assert told == (
        QueuedStatus(
            reservation_id="acme:k:1",
            scope=ScopeKind.TENANT,
            id="acme",
            unit="nano-USD",
            asked=70,
            left=40,
            priority=5,
            since=NOW,
        ),
    )


def test_refusals_are_reported_per_tenant() -> None:
    why = FailureReason(category=FailureKind.NOT_ALLOWED, description="not you")
    mine = envelope(tenant_id="acme", envelope_id="e-1", agent_id="", agent_type="analyst")
    calls = [DeniedCall(NOW, mine, why), DeniedCall(NOW, envelope(tenant_id="zenith"), why)]

    assert refusals(calls, "acme") == (
        DenialStatus(
            at=NOW,
            envelope_id="e-1",
            agent="analyst",
            workflow=str(mine.workflow),
            kind=FailureKind.NOT_ALLOWED,
            why="not you",
        ),
    )


async def test_corrected_doubts_are_not_counted() -> None:
    ledger = MemoryLedger([tenant(1000)])
    doubtful = [await reserved(ledger, ask(100)) for _ in range(2)]
    for id_ in doubtful:
        await ledger.dispatch(id_)
        await ledger.in_doubt(id_)
    await ledger.settle(doubtful[0], Amount(30, 0))
    await reserved(ledger, ask(5))

    told = call_counts(ledger.statistics(), admitted=3, refused=1)

    assert told == CallCounts(
        admitted=3, refused=1, in_flight=1, in_doubt=1, overruns=0, reserved_nusd=200, charged_nusd=130
    )
    assert call_counts(LedgerStatistics(), admitted=0, refused=0) == CallCounts()


def test_budget_status_round_trips() -> None:
    assert BudgetStatus.model_validate_json(full().model_dump_json()) == full()
