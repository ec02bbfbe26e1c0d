"""MLflow AI Gateway: `should_reject_request`, the call, `record_cost`, as its gateway does it."""

import logging
from time import time_ns

from mlflow.entities.gateway_budget_policy import (
    BudgetAction,
    BudgetDuration,
    BudgetDurationUnit,
    BudgetTargetScope,
    BudgetUnit,
    GatewayBudgetPolicy,
)
from mlflow.gateway.budget_tracker.redis import RedisBudgetTracker

from benchmarks.peers.load import NANO
from benchmarks.peers.spending import Open, Opening, run_peer


class Tracked:
    """The tracker is not asynchronous: its gateway calls it on the loop as well."""

    def __init__(self, tracker: RedisBudgetTracker) -> None:
        self._tracker = tracker

    async def take(self, call: str) -> bool | None:  # noqa: ARG002 - it does not ask which
        """Return whether the budget is not used up."""
        rejected, _ = self._tracker.should_reject_request()
        return None if rejected else True

    async def book(self, leave: bool, call: str, nusd: int) -> None:  # noqa: ARG002, FBT001 - the protocol's
        """Record a cost."""
        self._tracker.record_cost(nusd / NANO)


def open_purse(url: str) -> Open:
    """Return what opens a budget of a month: a run does not meet its end."""

    async def opened(opening: Opening) -> Tracked:
        tracker = RedisBudgetTracker(_redis_url=url)
        policy = GatewayBudgetPolicy(
            budget_policy_id=opening.run,
            budget_unit=BudgetUnit.USD,
            budget_amount=opening.budget_nusd / NANO,
            duration=BudgetDuration(unit=BudgetDurationUnit.MONTHS, value=12),
            target_scope=BudgetTargetScope.GLOBAL,
            budget_action=BudgetAction.REJECT,
            created_at=time_ns() // 10**6,
            last_updated_at=time_ns() // 10**6,
        )
        tracker.refresh_policies([policy])
        return Tracked(tracker)

    return opened


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    run_peer(open_purse)
