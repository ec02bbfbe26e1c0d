"""A board in this process's memory: for one process, or tests."""

from agentic_trading.governance.controls_document import TenantControls


class MemoryControlStore:
    """Orders of operators for as long as the process lives."""

    def __init__(self) -> None:
        self._documents: dict[str, TenantControls] = {}

    async def read(self, tenant: str) -> TenantControls:
        """Return the tenant's document."""
        return self._documents.get(tenant, TenantControls())

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        """Put `controls` in the place of the version before it."""
        before = self._documents.get(tenant, TenantControls())
        if before.version != controls.version - 1:
            return False
        self._documents[tenant] = controls
        return True

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""
