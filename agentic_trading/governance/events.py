"""What workers put on record about money and operators: attempts, reservations, the ledger, budgets, commands.

A ledger is rebuilt from these, so readers of money use `KINDS.must`: an unknown kind in one of their namespaces is an
error, and not passed over.
"""

from collections.abc import Mapping

from pydantic import Field

from agentic_trading.governance.controls_document import AppliedCommand
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.limits import ScopeKind, Unit, Window
from agentic_trading.llm.event import EventBody, Kinds
from agentic_trading.llm.fields import AnswerText, Moment, Open


class ReservationExpired(EventBody, frozen=True):
    """A reservation whose lease ran out: `released` and refunded, or `in_doubt` and charged in full.

    `scopes` are at least those that it was counted in, `window_at` is a moment in its windows, where that is known.
    """

    KIND = "reservation.expired"

    reservation_id: str
    state: Open[ReservationState]
    nusd: int
    tokens: int
    calls: int = 1
    scopes: Mapping[Open[ScopeKind], str] = Field(default_factory=dict)
    window_at: Moment | None = None


class LedgerCheckpointed(EventBody, frozen=True):
    """How far a tenant's ledger had come: its epoch (`generation`), that epoch's id (`mark`), and the last change in it."""

    KIND = "ledger.checkpointed"

    generation: int
    mark: str
    sequence: int


class BudgetWarned(EventBody, frozen=True):
    """A counter near its ceiling: `spent` of `most` in `unit`, and its pace in the last hour, in nano-dollars an hour.

    `exhausted_at` is when it will have nothing left at this pace, None if not before its window ends.
    """

    scope: Open[ScopeKind]
    id: str
    window: Open[Window]
    window_id: str
    unit: Open[Unit]
    spent: int
    most: int
    nusd_per_hour: int
    exhausted_at: Moment | None = None


class BudgetThresholdReached(BudgetWarned, frozen=True):
    """The share of its ceiling from which on a counter is warned of is used up."""

    KIND = "budget.threshold_reached"


class BudgetExhausted(BudgetWarned, frozen=True):
    """Nothing is left of a counter, or it has refused calls for five minutes and admitted none between."""

    KIND = "budget.exhausted"


class BudgetExhaustionForecast(BudgetWarned, frozen=True):
    """A counter will have nothing left before its window ends, if it goes on as in the last hour."""

    KIND = "budget.exhaustion_forecast"


class AttemptDispatched(EventBody, frozen=True):
    """A request is about to be sent, with what is reserved for it: what the reservation is called and counted in.

    `window_at` is a moment in its windows. None is the ledger's own present.
    """

    KIND = "attempt.dispatched"

    attempt: int
    request_hash: str
    provider: str
    model: str
    reservation_id: str
    scopes: Mapping[Open[ScopeKind], str]
    reserved_nusd: int
    reserved_tokens: int = 0
    reserved_calls: int = 1
    window_at: Moment | None = None


class AttemptUnsent(EventBody, frozen=True):
    """A dispatch on record was taken back before anything was sent; the event's cause is that dispatch."""

    KIND = "attempt.unsent"

    attempt: int
    reservation_id: str
    why: str


class AttemptAnsweredLate(EventBody, frozen=True):
    """An answer that came when another worker had taken the envelope, and had put the attempt on record as in doubt.

    It is not used. It costs what it used: the charge in doubt is corrected by it. The event's cause is the dispatch.
    """

    KIND = "attempt.answered_late"

    attempt: int
    reservation_id: str
    cost_nusd: int
    tokens: int
    model: str = ""
    raw_output: AnswerText = ""


GovernanceBody = (
    AttemptDispatched
    | AttemptUnsent
    | AttemptAnsweredLate
    | ReservationExpired
    | LedgerCheckpointed
    | BudgetThresholdReached
    | BudgetExhausted
    | BudgetExhaustionForecast
    | AppliedCommand
)

WARNINGS = (BudgetThresholdReached, BudgetExhausted, BudgetExhaustionForecast)
"""Warnings have one id for each counter, and every worker records its own: the first record counts."""

KINDS = Kinds[GovernanceBody](
    AttemptDispatched,
    AttemptUnsent,
    AttemptAnsweredLate,
    ReservationExpired,
    LedgerCheckpointed,
    BudgetThresholdReached,
    BudgetExhausted,
    BudgetExhaustionForecast,
    AppliedCommand,
)
