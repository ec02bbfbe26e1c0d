"""Admission and charging of calls: policies, prices, limits, the ledger, the limiter and the gate."""

from agentic_trading.governance.controls_document import ControlStore
from agentic_trading.governance.errors import (
    ClosedWindowError,
    CommandError,
    ControlError,
    ControlsUnavailableError,
    ControlsUnreadableError,
    LedgerError,
    LedgerRolledBackError,
    LedgerSettingsError,
    LedgerUnavailableError,
    LimitError,
    LimiterUnavailableError,
    PolicyError,
    ReservationConflictError,
    ReservationRequestError,
    ReservationStateError,
    UnknownPriceError,
    UnknownReservationError,
)
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.limiter import Limiter
from agentic_trading.governance.limits import Limit, Window
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.prices import PriceBook

__all__ = [
    "ClosedWindowError",
    "CommandError",
    "ControlError",
    "ControlStore",
    "ControlsUnavailableError",
    "ControlsUnreadableError",
    "Gate",
    "Ledger",
    "LedgerError",
    "LedgerRolledBackError",
    "LedgerSettingsError",
    "LedgerUnavailableError",
    "Limit",
    "LimitError",
    "Limiter",
    "LimiterUnavailableError",
    "Policy",
    "PolicyError",
    "PriceBook",
    "ReservationConflictError",
    "ReservationRequestError",
    "ReservationStateError",
    "UnknownPriceError",
    "UnknownReservationError",
    "Window",
]
