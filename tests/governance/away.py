"""A ledger that can be taken away."""

from collections.abc import Awaitable, Callable
from typing import Any

from agentic_trading.governance.errors import LedgerError, LedgerUnavailableError
from agentic_trading.governance.ledgers.memory import MemoryLedger

_STEPS = (
    "reserve",
    "wait_for_reservation",
    "dispatch",
    "state_of",
    "settle",
    "release",
    "in_doubt",
    "expire_leases",
    "acknowledge_expired",
    "apply_limits",
    "balances",
    "waiting",
    "checkpoint",
)


class AwayLedger(MemoryLedger):
    """Raises `why` in the steps that are named in `away`."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.away: set[str] = set()
        self.why: LedgerError = LedgerUnavailableError("connection refused")

    def leave(self, *steps: str) -> None:
        """Be away for these steps, or all of them."""
        self.away = set(steps or _STEPS)

    def return_(self) -> None:
        """Be there again."""
        self.away = set()


def _unless_away(name: str) -> Callable[..., Awaitable[Any]]:
    async def step(self: AwayLedger, *args: Any, **more: Any) -> Any:
        if name in self.away:
            raise self.why
        return await getattr(MemoryLedger, name)(self, *args, **more)

    return step


for _name in _STEPS:
    setattr(AwayLedger, _name, _unless_away(_name))
