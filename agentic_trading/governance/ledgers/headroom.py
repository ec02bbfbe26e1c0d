"""Does a request fit under every ceiling of its counters, and where not: what is lacking, for good or for now."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentic_trading.governance.ledger import Blocked, Declined, ReservationRequest
from agentic_trading.governance.ledgers.counters import WindowCounter
from agentic_trading.governance.limits import UNITS, Ceiling, Unit
from agentic_trading.governance.prices import Amount


@dataclass(frozen=True, slots=True)
class InsufficientHeadroom:
    """An ask does not fit into one account: `used` is spent, held and in doubt together, `held` may come back."""

    account: WindowCounter
    unit: Unit
    asked: int
    most: int
    used: int
    held: int

    @property
    def is_final(self) -> bool:
        """Whether the ask would not fit even if all that is held came back."""
        return self.used - self.held + self.asked > self.most

    def refusal(self) -> Declined:
        """Return the answer to who asked in vain."""
        table = self.account.table
        left = max(0, self.most - self.used + self.held)
        return Declined(table.kind, self.account.id, table.window, self.unit, self.asked, left)

    def wait(self) -> Blocked:
        """Return the answer to who may wait."""
        table = self.account.table
        left = max(0, self.most - self.used)
        return Blocked(table.kind, self.account.id, table.window, self.unit, self.asked, left)


def fits(ask: ReservationRequest, accounts: Sequence[WindowCounter]) -> bool:
    """Say whether `ask` fits under every ceiling, the accounts' and its own."""
    nusd, tokens, calls = ask.amount.nusd, ask.amount.tokens, ask.amount.calls
    for account in accounts:
        if nusd > account.left_nusd or tokens > account.left_tokens or calls > account.left_calls:
            return False
    if not ask.limits:
        return True
    return not any(_over(ask.amount, account, ceiling) for account, ceiling in _own_ceilings(ask, accounts))


def behind(ask: ReservationRequest, held: Blocked) -> Blocked:
    """Return the answer to who would fit, but comes after somebody who is `held` on the same counter."""
    return replace(held, asked=ask.amount.units[UNITS.index(held.unit)])


def shortages(ask: ReservationRequest, accounts: Sequence[WindowCounter]) -> Iterator[InsufficientHeadroom]:
    """Name every account and unit in which `ask` does not fit under a ceiling, the account's or one of its own."""
    ceilings = [(account, account.cap.ceiling) for account in accounts]
    for account, ceiling in [*ceilings, *_own_ceilings(ask, accounts)]:
        if _over(ask.amount, account, ceiling):
            yield from _of_account(ask.amount, account, ceiling)


def _own_ceilings(
    ask: ReservationRequest, accounts: Sequence[WindowCounter]
) -> Iterator[tuple[WindowCounter, Ceiling]]:
    for limit in ask.limits:
        for account in accounts:
            if account.table.window is limit.window and account.table.kind is limit.scope:
                yield account, limit.ceiling


def _over(amount: Amount, account: WindowCounter, ceiling: Ceiling) -> bool:
    for asked, most, used in zip(amount.units, ceiling.units, account.used, strict=True):
        if most is not None and used + asked > most:
            return True
    return False


def _of_account(amount: Amount, account: WindowCounter, ceiling: Ceiling) -> Iterator[InsufficientHeadroom]:
    for unit, asked, most, used, back in zip(
        UNITS, amount.units, ceiling.units, account.used, account.held.units, strict=True
    ):
        if most is not None and used + asked > most:
            yield InsufficientHeadroom(account, unit, asked, most, used, back)
