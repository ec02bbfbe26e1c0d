"""Builders for what workers tell of their budgets."""

from typing import Any

from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.status_feed import BudgetStatus, CallCounts, CounterStatus
from tests.build import NOW


def told(worker: str = "w-1", tenant: str = "acme", **changes: Any) -> BudgetStatus:
    """Return what a worker tells of a tenant; `changes` are fields of `BudgetStatus`."""
    fields: dict[str, Any] = {
        "time": NOW,
        "as_of": NOW,
        "is_running": True,
        "limits_version": 0,
        "counters": (),
        **changes,
    }
    return BudgetStatus(worker=worker, tenant=tenant, **fields)


def full(worker: str = "w-1", tenant: str = "acme") -> BudgetStatus:
    """Return a status of which every part says something."""
    counter = CounterStatus(
        scope=ScopeKind.AGENT,
        id="Ärger \"'{}\n",
        window=Window.DAY,
        window_id="2026-01-02",
        most=(2**53 - 1, None, 0),
        spent=(1, 2, 3),
        held=(4, 5, 6),
        in_doubt=(0, 0, 0),
        nusd_per_hour=7,
        exhausted_at=NOW,
    )
    parked = {
        "reservation_id": "acme:k:1",
        "scope": "tenant",
        "id": "acme",
        "unit": "nano-USD",
        "asked": 5,
        "left": 2,
        "priority": 9,
        "since": NOW,
    }
    refusal = {
        "at": NOW,
        "envelope_id": "e",
        "agent": "a",
        "workflow": "analysis",
        "kind": "halted",
        "why": "“odd”",
    }
    return told(
        worker,
        tenant,
        is_running=False,
        limits_version=3,
        counters=(counter,),
        parked=(parked,),
        refusals=(refusal,),
        calls=CallCounts(
            admitted=1, refused=2, in_flight=3, in_doubt=4, overruns=5, reserved_nusd=6, charged_nusd=7
        ),
    )
