"""A board in this process's memory: for one process, or tests."""

from agentic_trading.governance.control import Controls


class MemoryControlBoard:
    """Orders of operators for as long as the process lives."""

    def __init__(self) -> None:
        self._documents: dict[str, Controls] = {}

    async def read(self, tenant: str) -> Controls:
        """Return the tenant's document."""
        return self._documents.get(tenant, Controls())

    async def replace(self, tenant: str, controls: Controls) -> bool:
        """Put `controls` in the place of the version before it."""
        before = self._documents.get(tenant, Controls())
        if before.version != controls.version - 1:
            return False
        self._documents[tenant] = controls
        return True

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""
