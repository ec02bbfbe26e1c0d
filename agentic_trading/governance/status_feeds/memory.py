"""Statuses within one process."""

from agentic_trading.governance.status_feed import BudgetStatus


class MemoryStatusFeed:
    """Keeps what was told last, for as long as the process lives."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], BudgetStatus] = {}

    async def publish(self, status: BudgetStatus) -> None:
        """Tell `status`."""
        self._told[status.tenant, status.worker] = status

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return what was told of a tenant, by worker."""
        return [self._told[key] for key in sorted(self._told) if key[0] == tenant]

    async def aclose(self) -> None:
        """There is nothing to give back."""
