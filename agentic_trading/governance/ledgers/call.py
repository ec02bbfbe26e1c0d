"""One attempt in the memory ledger: what it has booked, where, and until when it may be silent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from agentic_trading.governance.estimate import NOTHING, Amount
from agentic_trading.governance.ledger import Ask, Balance, CallState, Settlement
from agentic_trading.governance.ledgers.accounts import Account

# In Python 3.11 a member looked up in its class costs ten times a name of the module, and every call would pay for it.
DISPATCHED = CallState.DISPATCHED
SETTLED = CallState.SETTLED
IN_DOUBT = CallState.IN_DOUBT


@dataclass(slots=True, eq=False)
class Call:
    """An ask that was reserved for the moment `at`, and `charged` once it was settled or came into doubt.

    It knows its accounts for as long as what it booked in them may change. Its lease runs for `lease_s` from `since`.
    """

    ask: Ask
    at: datetime
    accounts: Sequence[Account]
    since: datetime
    lease_s: float
    state: CallState = CallState.RESERVED
    charged: Amount | None = None
    is_late: bool = False

    @property
    def booked(self) -> Amount:
        """What it counts for now, held or spent."""
        if self.charged is not None:
            return self.charged
        return NOTHING if self.state is CallState.RELEASED else self.ask.amount

    def settlement(self, id_: str) -> Settlement:
        """Return what it was charged, as others see it."""
        charged, reserved = self.booked, self.ask.amount
        is_in_doubt = self.state is IN_DOUBT
        return Settlement(id_, charged, reserved, excess(charged, reserved), self.is_late, is_in_doubt)

    def is_silent(self, now: datetime) -> bool:
        """Whether its lease is over; one of 0 s is at once."""
        return now >= self.since + timedelta(seconds=self.lease_s)


@dataclass(slots=True)
class Closure:
    """Why nothing may begin any more, and the calls that have ended since."""

    why: str
    has_gone_back: bool
    ended: dict[str, Call] = field(default_factory=dict)


def book_in(accounts: Iterable[Account], new: Amount, instead_of: Amount = NOTHING) -> None:
    """Count `new` in every account in place of what was counted before."""
    nusd, tokens, calls = (
        new.nusd - instead_of.nusd,
        new.tokens - instead_of.tokens,
        new.calls - instead_of.calls,
    )
    for account in accounts:
        account.left_nusd -= nusd
        account.left_tokens -= tokens
        account.left_calls -= calls


def charge_in(accounts: Iterable[Account], new: Amount, instead_of: Amount, spent: Amount) -> None:
    """Count `new` as spent, in place of what was counted before, of which `spent` was spent already."""
    back_nusd, back_tokens, back_calls = (
        instead_of.nusd - new.nusd,
        instead_of.tokens - new.tokens,
        instead_of.calls - new.calls,
    )
    nusd, tokens, calls = new.nusd - spent.nusd, new.tokens - spent.tokens, new.calls - spent.calls
    for account in accounts:
        account.left_nusd += back_nusd
        account.left_tokens += back_tokens
        account.left_calls += back_calls
        account.spent_nusd += nusd
        account.spent_tokens += tokens
        account.spent_calls += calls


def doubt_in(accounts: Iterable[Account], new: Amount, instead_of: Amount = NOTHING) -> None:
    """Count `new` as in doubt, in place of what was before."""
    for account in accounts:
        account.in_doubt = Amount(
            *(
                was + more - less
                for was, more, less in zip(account.in_doubt.units, new.units, instead_of.units, strict=True)
            )
        )


def excess(actual: Amount, reserved: Amount) -> Amount:
    """Return by how much `actual` passes `reserved`, unit by unit."""
    if actual.nusd <= reserved.nusd and actual.tokens <= reserved.tokens and actual.calls <= reserved.calls:
        return NOTHING
    return Amount(*(max(0, used - kept) for used, kept in zip(actual.units, reserved.units, strict=True)))


def balance(account: Account) -> Balance:
    """Return an account as others see it."""
    return Balance(
        tenant=account.scope.tenant,
        scope=account.scope.kind,
        id=account.scope.id,
        window=account.window,
        window_id=account.span.id,
        ceiling=account.cap.ceiling,
        spent=account.spent,
        held=account.held,
        in_doubt=account.in_doubt,
    )
