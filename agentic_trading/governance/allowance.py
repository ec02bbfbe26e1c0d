"""A small sum set aside beforehand, for calls that may go on while the ledger cannot be reached."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import add, sub

from agentic_trading.governance.ledger import ReservationRequest
from agentic_trading.governance.limits import Limit, ScopeKind, Window, Windows
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.llm.envelope import EnvelopeWorkflow

KEY = "agentic/allowance/"
"""What the keys of such sums begin with: the calls that they pay for are counted for themselves where a log is booked again."""

AllowanceScope = tuple[str, str, str]
"""Tenant, workflow and agent: whom a sum was set aside for, in all limits that they share with others."""

LedgerEpochId = tuple[int, str]
"""Generation and mark of a ledger: what was set aside in another one may not be there any more."""


@dataclass(frozen=True, slots=True)
class AllowanceRules:
    """What a process sets aside for agents of these workflows, and for how many seconds at a time.

    `amount` is the most for all agents of a tenant together. Raises `ValueError` if it has nothing of a unit: no call
    could be paid from it.
    """

    amount: Amount
    workflows: Collection[EnvelopeWorkflow] = frozenset({EnvelopeWorkflow.ANALYSIS})
    lasts_s: float = 600.0

    def __post_init__(self) -> None:
        """Check the amount."""
        if 0 in self.amount.units:
            raise ValueError(f"an allowance of {self.amount} pays for no call; allowed are amounts from 1 on")


@dataclass(slots=True, eq=False)
class Allowance:
    """A sum for one payer: what was asked of the ledger, and what is left of it while it is booked there.

    It is good for `windows`. From `renew_s` on it is given back when nobody uses it, at `ends_s` the ledger ends it;
    both on the machine's own clock. `is_asked` says that the ledger may know of it, and nothing ends it `is_asking`
    meanwhile. What is closed pays for nobody new, for good; `final` is what it was charged then.
    """

    ask: ReservationRequest
    windows: tuple[str, ...]
    renew_s: float
    ends_s: float
    era: LedgerEpochId | None = None
    left: Amount = NOTHING
    used: Amount = NOTHING
    is_asking: bool = True
    is_asked: bool = True
    is_booked: bool = False
    is_closed: bool = False
    final: Amount | None = None

    @property
    def share(self) -> Amount:
        """How much of what may be set aside it takes up."""
        return self.ask.amount if self.is_asked else NOTHING

    def book(self) -> None:
        """Let it be used: the ledger has booked it."""
        self.is_booked = True
        self.left = self.ask.amount

    def close(self) -> None:
        """Let nobody begin with it any more, whatever is given back to it."""
        self.is_closed = True

    def take(self, amount: Amount, now_s: float) -> bool:
        """Set `amount` aside of what is left; returns False, with nothing taken, if it does not fit."""
        rest = [mine - asked for mine, asked in zip(self.left.units, amount.units, strict=True)]
        if self.is_closed or not self.is_booked or self.ends_s <= now_s or min(rest) < 0:
            return False
        self.left = Amount(*rest)
        return True

    def give_back(self, taken: Amount, used: Amount) -> None:
        """Count what a call used of what it had taken; more than it had taken is counted all the same."""
        self.used = Amount(*map(add, self.used.units, used.units))
        self.left = Amount(*(
            max(0, left + mine - spent)
            for left, mine, spent in zip(self.left.units, taken.units, used.units, strict=True)
        ))  # fmt: skip

    def correct(self, charged: Amount) -> None:
        """Take back what a call in doubt was charged, as it is known now what it used."""
        self.used = Amount(*map(sub, self.used.units, charged.units))
        self.left = Amount(*map(add, self.left.units, charged.units))


def payer_of(ask: ReservationRequest) -> AllowanceScope:
    """Return whose sum a call may use."""
    return ask.tenant, ask.scope_ids.get(ScopeKind.WORKFLOW, ""), ask.scope_ids.get(ScopeKind.AGENT, "")


def may_use(ask: ReservationRequest, limits: Sequence[Limit]) -> bool:
    """Whether a call keeps every limit by the sum alone: what its own call, trace or agent has used is not known.

    So there must be no limit on calls or traces, and none of its own but on a call that is made for the first time.
    """
    if any(limit.scope in {ScopeKind.CALL, ScopeKind.TRACE} for limit in limits):
        return False
    return all(
        limit.scope is ScopeKind.CALL and ask.attempt == 1 and _is_within(ask.amount, limit)
        for limit in ask.limits
    )


def limited_windows(limits: Sequence[Limit], windows: Windows, at: datetime) -> tuple[str, ...]:
    """Return the ids of the windows that are limited: a sum is good for those that it was booked in."""
    spans = windows.at(at)
    limited = {limit.window for limit in limits}
    return tuple(spans[window].id for window in Window if window in limited)


def _is_within(amount: Amount, limit: Limit) -> bool:
    return all(
        most is None or asked <= most for asked, most in zip(amount.units, limit.ceiling.units, strict=True)
    )
