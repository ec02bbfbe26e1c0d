from agentic_trading.governance.ledger import ReservationState as ReservationState
from agentic_trading.governance.policy import Policy as Policy
from agentic_trading.governance.prices import PriceBook as PriceBook
from agentic_trading.governance.rebuild import LedgerRebuild as LedgerRebuild
from agentic_trading.operate.actions import (
    halt as halt,
)
from agentic_trading.operate.actions import (
    open_log as open_log,
)
from agentic_trading.operate.actions import (
    rebuild as rebuild,
)
from agentic_trading.operate.actions import (
    resume as resume,
)
from agentic_trading.operate.actions import (
    set_limit as set_limit,
)
from agentic_trading.operate.actions import (
    spend as spend,
)
from agentic_trading.operate.actions import (
    status as status,
)
from agentic_trading.operate.budgets import BudgetView as BudgetView
from agentic_trading.operate.operator_commands import CommandReach as CommandReach

__all__ = [
    "BudgetView",
    "CommandReach",
    "LedgerRebuild",
    "Policy",
    "PriceBook",
    "ReservationState",
    "halt",
    "open_log",
    "rebuild",
    "resume",
    "set_limit",
    "spend",
    "status",
]
