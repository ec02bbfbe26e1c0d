"""The metrics of a dashboard: the budgets that it shows, with the names that workers use."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.status_feed import BudgetStatus
from agentic_trading.llm.event import PLATFORM
from agentic_trading.monitor.budget_rows import is_running, newest_report
from agentic_trading.operate.budgets import BudgetView
from agentic_trading.platform.metrics import budget_samples, metrics_text
from agentic_trading.worker.housekeeping import BudgetReports

REFUSED = "agentic_budget_refused"
"""The only metric of budgets that a dashboard does not know, because each worker counts its own refusals."""


def metrics_of(views: Iterable[BudgetView], now: datetime) -> bytes:
    """Return the metrics of budgets in the Prometheus text format. Blocks for thousands of counters.

    Several sessions may have a tenant with the same name. The one that reported last counts.
    """
    newest: dict[str, BudgetView] = {}
    for view in sorted(views, key=_reported_at):
        newest[view.tenant] = view
    halts = Counter[tuple[str, HaltScope]]()
    for view in newest.values():
        halts.update((view.tenant, halt.scope) for halt in view.controls.halts)
        halts |= Counter((PLATFORM, halt.scope) for halt in view.platform.halts)
    reporting = {
        tenant: sum(is_running(status, now) for status in view.workers) for tenant, view in newest.items()
    }
    reports = BudgetReports([_status(view, now) for view in newest.values()], {}, _every_scope(halts, newest))
    samples = budget_samples(reports, reporting)
    return metrics_text({name: values for name, values in samples.items() if name != REFUSED})


def _every_scope(
    halts: Counter[tuple[str, HaltScope]], tenants: Iterable[str]
) -> dict[tuple[str, HaltScope], int]:
    """Return the number of halts by tenant and scope, with 0 where there is none."""
    return {(tenant, scope): halts[tenant, scope] for tenant in (PLATFORM, *tenants) for scope in HaltScope}


def _reported_at(view: BudgetView) -> datetime:
    report = newest_report(view)
    return report.time if report is not None else datetime.min.replace(tzinfo=UTC)


def _status(view: BudgetView, now: datetime) -> BudgetStatus:
    """Return the last report of a tenant, with its counters of this moment."""
    report = newest_report(view) or BudgetStatus(
        worker="", tenant=view.tenant, time=now, as_of=now, is_running=False, limits_version=0, counters=()
    )
    return report.model_copy(update={"counters": view.counters, "parked": view.parked})
