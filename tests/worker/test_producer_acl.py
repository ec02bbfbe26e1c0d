"""Who sends what comes over the bus, and which events they may put on record."""

from typing import Any

import pytest

from agentic_trading.governance.policy import Policy, Principal
from agentic_trading.llm.event import Event
from agentic_trading.worker.delivery import ProducerAcl
from agentic_trading.worker.error_boundary import UndeliverableError
from tests.build import NOW

POLICY = Policy({"desk-a": Principal(tenants=("acme",), models=("scripted/*",))})


def event(kind: str = "order.sent", **more: Any) -> Event:
    return Event(**{"kind": kind, "id": "e-1", "trace_id": "t-1", "tenant_id": "acme", "time": NOW, **more})


@pytest.mark.parametrize(
    "kind", ["operator.commanded", "ledger.checkpointed", "budget.threshold_reached", "attempt.dispatched"]
)
def test_worker_event_from_bus_is_refused(kind: str) -> None:
    with pytest.raises(UndeliverableError, match="only workers may send events of kind"):
        ProducerAcl().check_event("", event(kind))


@pytest.mark.parametrize(
    "senders", [ProducerAcl(), ProducerAcl(policy=Policy())], ids=["no policy", "rates alone"]
)
def test_everyone_may_record_without_principals(senders: ProducerAcl) -> None:
    senders.check_event("anybody", event(tenant_id="other"))
    senders.check_tenant("anybody", "other")


def test_policy_limits_events_to_own_tenants() -> None:
    ProducerAcl(policy=POLICY).check_event("desk-a", event())

    for principal, tenant, why in (
        ("desk-a", "other", "principal 'desk-a' may not use tenant 'other'; allowed: acme"),
        ("desk-b", "acme", "principal 'desk-b' is unknown; allowed are those with a table"),
    ):
        with pytest.raises(UndeliverableError, match=why):
            ProducerAcl(policy=POLICY).check_event(principal, event(tenant_id=tenant))
