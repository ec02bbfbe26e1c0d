"""Records of workers about money and operators: attempts, reservations, the ledger, budgets and commands.

A ledger is rebuilt from these. Readers of money use `KINDS.must`, so that an unknown kind in these namespaces
is an error.
"""

from collections.abc import Mapping

from pydantic import Field

from agentic_trading.governance.controls_document import AppliedCommand
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.limits import ScopeKind, Unit, Window
from agentic_trading.llm.event import EventBody, Kinds
from agentic_trading.llm.fields import AnswerText, FrozenObject, JsonObject, Moment, Open
from agentic_trading.llm.store import Records


class ReservationExpired(EventBody, frozen=True):
    """A reservation whose lease ran out: `released` and refunded, or `in_doubt` and charged in full.

    `scopes` contains at least the scopes that it was counted in. `window_at` is a time in its windows, if
    known.
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
    """How far a tenant's ledger had progressed: epoch (`generation`), epoch id (`mark`) and sequence.

    Without a known progress, the epoch is 0 and has no id. `snapshot` is a part of the ledger's content, from
    which a start continues (`LedgerSnapshot`), or empty.
    """

    KIND = "ledger.checkpointed"

    generation: int
    mark: str
    sequence: int
    snapshot: JsonObject = Field(default_factory=FrozenObject)


class BudgetWarned(EventBody, frozen=True):
    """A counter near its ceiling: `spent` of `most` in `unit`, and its spending rate of the last hour.

    `nusd_per_hour` is in nano-dollars per hour. `exhausted_at` is when the counter will be exhausted at this
    rate, or None if its window ends before.
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
    """A counter has used up the share of its ceiling at which warnings start."""

    KIND = "budget.threshold_reached"


class BudgetExhausted(BudgetWarned, frozen=True):
    """A counter is used up, or has refused calls for five minutes without admitting one."""

    KIND = "budget.exhausted"


class BudgetExhaustionForecast(BudgetWarned, frozen=True):
    """A counter will be used up before its window ends, at the rate of the last hour."""

    KIND = "budget.exhaustion_forecast"


class AttemptDispatched(EventBody, frozen=True):
    """A request is about to be sent, with its reservation: the id, the scopes and the reserved amounts.

    `window_at` is a time in its windows. None means the ledger's own present.
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
    """A dispatch on record was taken back before the request was sent.

    The event's cause is that dispatch.
    """

    KIND = "attempt.unsent"

    attempt: int
    reservation_id: str
    why: str


class AttemptAnsweredLate(EventBody, frozen=True):
    """An answer that arrived after another worker had taken over and recorded the attempt as in doubt.

    The answer is not used, but its actual cost replaces the charge in doubt. The event's cause is the
    dispatch.
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
"""Warnings. They have one id per counter, and every worker records them. The first record counts."""

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


async def kinds_to_read(records: Records) -> tuple[str, ...]:
    """Return the kinds that `KINDS.must` does not skip: its own, and others of its namespaces in a log."""
    known = [body.KIND for body in KINDS.bodies]
    # Unknown kinds are included, because `must` refuses them and a sum without them would be wrong.
    recorded = [kind for one in await records.sums("kind") for kind in one.key]
    others = [kind for kind in recorded if kind.partition(".")[0] in KINDS.namespaces]
    return tuple(dict.fromkeys((*known, *others)))
