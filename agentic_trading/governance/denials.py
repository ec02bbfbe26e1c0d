"""Denials by a budget: their reasons, the last ones, and the counters that refuse calls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.ledger import Declined
from agentic_trading.governance.limits import (
    SHORT_LIVED,
    Limit,
    ScopeKind,
    Unit,
    Window,
    amount_text,
    rules_text,
)
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, shortfall_text

_COUNTERS = 1_000
"""How many counters that refuse calls are kept between two readings; names of agents are chosen by callers."""


@dataclass(frozen=True, slots=True)
class DeniedCall:
    """An attempt that was refused, and when; `declined` is the counter with too little left, if that is the reason."""

    at: datetime
    envelope: LLMEnvelope
    reason: FailureReason
    declined: Declined | None = None


class RefusedCounter(NamedTuple):
    """A counter for which calls were refused."""

    tenant: str
    scope: ScopeKind
    id: str
    window: Window
    unit: Unit


@dataclass(frozen=True, slots=True)
class RefusalSpan:
    """When calls were refused for one counter: the first and the last time, in the time of the calls.

    `left` is the ceiling less what was spent, at the last refusal that is known.
    """

    first: datetime
    last: datetime
    left: int = 0

    def joined(self, other: "RefusalSpan") -> "RefusalSpan":
        """Return the span that covers both; `other` came later."""
        return RefusalSpan(min(self.first, other.first), max(self.last, other.last), other.left)


class RefusedCounters:
    """The counters that refuse calls, since they were read last."""

    def __init__(self) -> None:
        self._spans: dict[RefusedCounter, RefusalSpan] = {}

    def note(self, tenant: str, declined: Declined, now: datetime) -> None:
        """Note that a call was refused; counters of calls and traces are left out, as no other call needs them."""
        if declined.scope in SHORT_LIVED:
            return
        of = RefusedCounter(tenant, declined.scope, declined.id, declined.window, declined.unit)
        span = RefusalSpan(now, now, declined.left)
        self._spans[of] = self._spans.pop(of, span).joined(span)
        if len(self._spans) > _COUNTERS:
            del self._spans[next(iter(self._spans))]

    def take(self) -> Mapping[RefusedCounter, RefusalSpan]:
        """Return the counters since this was asked last."""
        taken, self._spans = self._spans, {}
        return taken


def exhausted(declined: Declined, limits: Iterable[Limit] = ()) -> FailureReason:
    """Return which budget has too little left; of the request's own `limits`, what set those that are of this budget."""
    window = "" if declined.window is Window.NONE else f" this {declined.window}"
    return FailureReason(
        category=FailureKind.BUDGET_EXHAUSTED,
        description=f"{declined.scope} {declined.id} has {amount_text(declined.left, declined.unit)} left{window}, "
        f"the call may need {amount_text(declined.asked, declined.unit)}; raise the limit or ask for less"
        + rules_text(limits, declined.scope, declined.window, declined.unit),
        technical_details=shortfall_text(
            declined.scope,
            declined.id,
            declined.window,
            declined.unit,
            asked=declined.asked,
            left=declined.left,
        ),
    )


def unavailable(e: LedgerError, workflow: EnvelopeWorkflow) -> FailureReason:
    """Return that a call may not run, as it is not known what is left to spend."""
    return FailureReason(
        category=FailureKind.LEDGER_UNAVAILABLE,
        description=f"{workflow} may not run without the ledger: {e}",
        recoverable=True,
    )
