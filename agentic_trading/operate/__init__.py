"""Tools for operators: halts, budgets, dead letters, models and live checks.

These names are for Python code.
"""

from agentic_trading.lazy import lazy_names

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

NAMES_OF = {
    "governance.ledger": ("ReservationState",),
    "governance.policy": ("Policy",),
    "governance.prices": ("PriceBook",),
    "governance.rebuild": ("LedgerRebuild",),
    "operate.actions": ("halt", "open_log", "rebuild", "resume", "set_limit", "spend", "status"),
    "operate.budgets": ("BudgetView",),
    "operate.operator_commands": ("CommandReach",),
}
"""The public names by module. They are imported on first use."""

__getattr__, __dir__ = lazy_names(__name__, NAMES_OF)
