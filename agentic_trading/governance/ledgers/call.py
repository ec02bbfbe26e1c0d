"""One attempt in the memory ledger: what it has booked, and where."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.ledger import Ask, Balance, CallState, Settlement
from agentic_trading.governance.ledgers.accounts import Account

NOTHING = Amount(0, 0, 0)


@dataclass(slots=True, eq=False)
class Call:
    """An ask that was reserved; it knows its accounts for as long as what it booked in them may change."""

    ask: Ask
    accounts: Sequence[Account]
    state: CallState = CallState.RESERVED
    settlement: Settlement | None = None

    def book(self, new: Amount, *, instead_of: Amount = NOTHING) -> None:
        """Count `new` in every account in place of what was counted before."""
        nusd, tokens, calls = (
            new.nusd - instead_of.nusd,
            new.tokens - instead_of.tokens,
            new.calls - instead_of.calls,
        )
        for account in self.accounts:
            account.used_nusd += nusd
            account.used_tokens += tokens
            account.used_calls += calls


def excess(actual: Amount, reserved: Amount) -> Amount:
    """Return by how much `actual` passes `reserved`, unit by unit."""
    if actual.nusd <= reserved.nusd and actual.tokens <= reserved.tokens and actual.calls <= reserved.calls:
        return NOTHING
    return Amount(*(max(0, used - kept) for used, kept in zip(actual.units, reserved.units, strict=True)))


def booked_in(account: Account, calls: Iterable[Call]) -> Amount:
    """Return what the reservations of `calls` make up in an account."""
    amounts = [call.ask.amount for call in calls if account in call.accounts]
    return Amount(*(sum(amount.units[unit] for amount in amounts) for unit in range(3)))


def balance(account: Account, in_flight: Collection[Call], in_doubt: Collection[Call]) -> Balance:
    """Return an account as others see it."""
    held = booked_in(account, in_flight)
    return Balance(
        tenant=account.scope.tenant,
        scope=account.scope.kind,
        id=account.scope.id,
        window=account.window,
        window_id=account.span.id,
        ceiling=account.ceiling,
        spent=Amount(*(used - back for used, back in zip(account.used, held.units, strict=True))),
        held=held,
        in_doubt=booked_in(account, in_doubt),
    )
