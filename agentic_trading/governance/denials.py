"""What a refused attempt is told; plain functions, values in, values out."""

from collections.abc import Collection
from datetime import datetime, timedelta

from agentic_trading.governance.determinism import SIMULATED, ClockMode
from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledger import Declined
from agentic_trading.governance.amount_text import amount_text
from agentic_trading.governance.windows import Window
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.failure import FailureKind, FailureReason

CLOCK_SKEW = timedelta(seconds=60)
"""By how much an envelope's `as_of` may pass the gate's clock where two machines tell the time."""


def foreign_problem(tenant_id: str, tenants: Collection[str] | None) -> FailureReason | None:
    """Return why this tenant may not use the gate, or None; without `tenants` everybody may."""
    if tenants is None or tenant_id in tenants:
        return None
    allowed = ", ".join(sorted(tenants)) or "none"
    description = f"tenant {tenant_id!r} may not use this gateway; allowed are {allowed}"
    return FailureReason(category=FailureKind.NOT_ALLOWED, description=description)


def deadline_problem(deadline: datetime | None, now: datetime) -> FailureReason | None:
    """Return that no time is left for a call, or None; at the deadline itself none is left."""
    if deadline is None or now < deadline:
        return None
    description = f"the deadline {deadline.isoformat()} has come, it is {now.isoformat()}"
    return FailureReason(category=FailureKind.EXPIRED, description=description)


def future_problem(as_of: datetime | None, now: datetime, *, mode: ClockMode) -> FailureReason | None:
    """Return that `as_of` has not come yet, or None; outside of simulated time `CLOCK_SKEW` is allowed."""
    if as_of is None:
        return None
    newest = now if mode in SIMULATED else now + CLOCK_SKEW
    if as_of <= newest:
        return None
    description = f"as_of is {as_of.isoformat()}, but it is {now.isoformat()}; allowed is {newest.isoformat()} and before"
    return FailureReason(category=FailureKind.LOOK_AHEAD, description=description)


def exhausted(refusal: Declined) -> FailureReason:
    """Return which budget has too little left."""
    window = "" if refusal.window is Window.NONE else f" this {refusal.window}"
    return FailureReason(
        category=FailureKind.BUDGET_EXHAUSTED,
        description=f"{refusal.scope} {refusal.id} has {amount_text(refusal.left, refusal.unit)} left{window}, "
        f"the call may need {amount_text(refusal.asked, refusal.unit)}; raise the limit or ask for less",
        technical_details=f"scope={refusal.scope} id={refusal.id} window={refusal.window} unit={refusal.unit} "
        f"asked={refusal.asked} left={refusal.left}",
    )


def unavailable(e: LedgerUnavailableError, workflow: EnvelopeWorkflow) -> FailureReason:
    """Return that a call may not run, as nobody knows what is left to spend."""
    return FailureReason(
        category=FailureKind.LEDGER_UNAVAILABLE,
        description=f"{workflow} may not run without the ledger: {e}",
        recoverable=True,
    )
