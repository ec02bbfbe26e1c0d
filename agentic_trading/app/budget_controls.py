"""Where budgets are put together: which ledger counts, where orders stand, who may do what."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta, tzinfo
from pathlib import Path
from urllib.parse import urlsplit

from agentic_trading.app.options import RunMode
from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import SetLimit, execute_command
from agentic_trading.governance.controls_document import ControlStore
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import Limiter
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.status_feed import StatusFeed
from agentic_trading.platform.adapters import boards_of, limiter_of
from agentic_trading.platform.config import LedgerConfig, PlatformConfig


@dataclass(frozen=True, slots=True)
class BudgetControls:
    """What governs a session's calls: controls of operators, statuses of workers, a policy, rates, and what they rest on.

    `principal` is the sender, which is trusted; `zone` is where days begin.
    """

    controls: ControlStore
    statuses: StatusFeed
    limiter: Limiter | None = None
    policy: Policy | None = None
    policy_file: Path | None = None
    principal: str = ""
    ledger_url: str | None = None
    zone: str = "UTC"

    def config(self, mode: RunMode, workers: int) -> PlatformConfig:
        """Return the configuration of a session that is governed by these."""
        return PlatformConfig(
            mode=mode,
            concurrency=workers,
            policy=self.policy_file,
            sign_as=self.principal,
            zone=self.zone,
            ledger=LedgerConfig(url=self.ledger_url),
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self.controls.aclose()
        await self.statuses.aclose()
        if self.limiter is not None:
            await self.limiter.aclose()


def tenant_limit(budget_nusd: int, max_calls: int | None = None) -> Limit:
    """Return the limit that `--budget-usd` and `--max-calls` mean: on what each tenant spends in total."""
    return Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=budget_nusd, calls=max_calls)


def budget_ledger(budget_nusd: int, *, max_calls: int | None = None, zone: tzinfo = UTC) -> MemoryLedger:
    """Return a ledger that lets a tenant spend `budget_nusd` and make `max_calls` in all; a pool serves one tenant."""
    return MemoryLedger([tenant_limit(budget_nusd, max_calls)], zone=zone)


def totals_ledger() -> MemoryLedger:
    """Return a ledger without limits that counts what every scope has spent in all, and forgets nothing."""
    return MemoryLedger(keep=timedelta(days=36_500), counted=[(scope, Window.NONE) for scope in ScopeKind])


def oversight(
    folder: Path,
    ledger_url: str | None,
    *,
    policy_file: Path | None = None,
    principal: str = "",
    zone: str = "UTC",
) -> BudgetControls:
    """Return the oversight of a session: on the server where its ledger is, else in its folder; reads files.

    Raises `PolicyError` for a wrong policy.
    """
    controls, statuses = boards_of(ledger_url, folder)
    policy = Policy.load(policy_file) if policy_file is not None else None
    return BudgetControls(
        controls=controls,
        statuses=statuses,
        limiter=limiter_of(ledger_url, policy),
        policy=policy,
        policy_file=policy_file,
        principal=principal,
        ledger_url=ledger_url,
        zone=zone,
    )


async def set_budget(controls: ControlStore, tenant: str, limit: Limit) -> None:
    """Set a limit in the controls, if it is not set already."""
    present = (await controls.read(tenant)).limit(limit.scope, limit.id, limit.window)
    if present != limit:
        await execute_command(
            controls, tenant, SetLimit(limit), by="run", why="--budget-usd", at=SystemClock().now()
        )


def has_limits(limits: Sequence[Limit]) -> bool:
    """Whether a tenant as a whole has a limit on its money."""
    return any(limit.scope is ScopeKind.TENANT and limit.nusd is not None for limit in limits)


def host_of(url: str) -> str:
    """Return an address without its secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or parts.path}" + (f":{parts.port}" if parts.port else "")
