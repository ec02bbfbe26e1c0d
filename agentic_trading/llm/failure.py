"""Why a call gave no usable answer, as values."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel

from agentic_trading.llm.wire_types import Text


class FailureKind(StrEnum):
    """The closed set of reasons; the seed's six retry words are among them."""

    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    SERVER_ERROR = "server_error"
    AUTH_ERROR = "auth_error"
    BILLING = "billing"
    INVALID_REQUEST = "invalid_request"
    SCHEMA_REFUSED = "schema_refused"
    BUDGET_EXHAUSTED = "budget_exhausted"
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    CIRCUIT_OPEN = "circuit_open"
    RETRY_BUDGET = "retry_budget"
    HALTED = "halted"
    NOT_ALLOWED = "not_allowed"
    LOOK_AHEAD = "look_ahead"
    EXPIRED = "expired"
    REFUSAL = "refusal"
    TRUNCATED = "truncated"
    PARSING_ERROR = "parsing_error"
    WRONG_MODEL = "wrong_model"
    REPLAY_MISS = "replay_miss"
    SHUTDOWN = "shutdown"
    UNDELIVERABLE = "undeliverable"
    INTERNAL_ERROR = "internal_error"


RETRYABLE = (FailureKind.RATE_LIMIT, FailureKind.TIMEOUT, FailureKind.SERVER_ERROR)


class FailureReason(BaseModel, frozen=True, extra="allow"):
    """What went wrong, for people (`description`), for debugging (`technical_details`) and for code (`category`).

    `recoverable` says that asking again may help.
    """

    category: FailureKind
    description: Text
    technical_details: Text = ""
    recoverable: bool = False


class NoDecision(BaseModel, frozen=True, extra="allow"):
    """No decision was made, for `reason`. It is not HOLD, not flat, not neutral, and no order may come of it."""

    reason: FailureReason
    envelope_id: str = ""
    trace_id: str = ""
    as_of: datetime | None = None
