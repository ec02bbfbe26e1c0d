"""Errors of LLM calls, and the failures that calls return as values.

TradingError
└── LLMError
    ├── EnvelopeValidationError      the envelope breaks a rule and must not be sent
    │   └── LookAheadError           a part of it was not known at `as_of`
    ├── LLMBudgetExhaustedError      a budget is too small for the call
    ├── LLMResponseValidationError   the answer does not fit the schema
    ├── LLMCallError                 any other failed call, with its reason
    ├── ProviderError                one attempt failed at the provider (only within the worker)
    │   └── UnusableAnswerError      there was an answer, and its usage is charged (in llm/provider.py)
    ├── UnknownModelError            the capability table or the price book has no row for the model
    ├── ConditionError               the condition of a query is refused
    ├── RecordError                  a record cannot be kept, but the log accepts others
    │   └── RecordConflictError      another record has its id
    ├── EventError                   an event on record cannot be understood, and stays unchanged
    │   ├── UnreadableBodyError      its body does not fit its kind
    │   └── UnknownKindError         its kind is of a newer release, and must not be skipped
    └── StoreError                   the log cannot be read or written
        └── StoreLockedError         another process writes to it
"""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field

from agentic_trading.canonical import quoted
from agentic_trading.errors import TradingError
from agentic_trading.llm.fields import OpenName, Text


class FailureKind(OpenName):
    """The reason why a call failed. It includes the six retry words of the seed.

    A reason of a newer release is read and kept. It equals none of these members and is not retried.
    """

    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    SERVER_ERROR = "server_error"
    AUTH_ERROR = "auth_error"
    BILLING = "billing"
    INVALID_REQUEST = "invalid_request"
    SCHEMA_REFUSED = "schema_refused"
    BUDGET_EXHAUSTED = "budget_exhausted"
    BUDGET_BUSY = "budget_busy"
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    CIRCUIT_OPEN = "circuit_open"
    RETRY_BUDGET = "retry_budget"
    HALTED = "halted"
    NOT_ALLOWED = "not_allowed"
    NOT_SERVED = "not_served"
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
    """The reason of a failure.

    Attributes:
        category: The kind, for code.
        description: The text, for people.
        technical_details: More, for debugging.
        recoverable: Asking again may help.

    """

    category: FailureKind
    description: Text
    technical_details: Text = ""
    recoverable: bool = False
    occurred_at: datetime | None = Field(default=None, exclude=True)
    """The time of the failure, by the worker's clock.

    Only `StructuredOutcome` sets it, from `LLMResult.timestamp`. It is not serialized, because an event with
    a reason must be the same in a replay or a resumed run.
    """


UNKNOWN_MODEL_DETAILS = "unknown model"
"""The technical details of a call that was refused because the tables have no row for its model."""


class NoDecision(BaseModel, frozen=True, extra="allow"):
    """No decision was made, for `reason`.

    It is not HOLD, flat or neutral: place no order.

    It is always false, so that `if not decision: return` is safe.
    """

    reason: FailureReason
    envelope_id: str = ""
    trace_id: str = ""
    as_of: datetime | None = None

    def __bool__(self) -> Literal[False]:
        """Return False."""
        return False

    @property
    def actionable(self) -> bool:
        """Always False. `LLMInteraction` has the same property."""
        return False

    @property
    def failure(self) -> FailureReason:
        """The reason why there is no decision."""
        return self.reason


class LLMError(TradingError):
    """The base class of all errors of LLM calls and their log."""


class EnvelopeValidationError(LLMError, ValueError):
    """An envelope breaks rules.

    Attributes:
        problems: All broken rules, each with the allowed values.

    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class LookAheadError(EnvelopeValidationError):
    """A part of the envelope was not available at `as_of`.

    Attributes:
        what: The name of the part.
        known_at: Since when it is available.
        as_of: The `as_of` of the envelope.

    """

    def __init__(self, what: str, known_at: datetime, as_of: datetime) -> None:
        self.what = what
        self.known_at = known_at
        self.as_of = as_of
        problem = f"{what} is known since {known_at}, after as_of {as_of}; allowed is what was known at as_of"
        super().__init__([problem])


class LLMBudgetExhaustedError(LLMError):
    """A budget has less left than the call may cost.

    Attributes:
        scope: The kind, the id and the window of the budget. Empty if unknown.
        asked: The most that the call may need. None if unknown.
        left: The rest of the budget. None if unknown.
        unit: The unit of both: nano-dollars, tokens or calls. Empty if unknown.

    """

    def __init__(
        self,
        message: str,
        *,
        scope: str = "",
        asked: int | None = None,
        left: int | None = None,
        unit: str = "",
    ) -> None:
        self.scope = scope
        self.asked = asked
        self.left = left
        self.unit = unit
        super().__init__(message)

    @classmethod
    def of(cls, reason: FailureReason) -> Self:
        """Return the error of a reason.

        Its figures are known if `shortfall_text` wrote the details of the reason.
        """
        found = _SHORTFALL.fullmatch(reason.technical_details)
        if found is None:
            return cls(reason.description)
        kind, id_, window, unit, asked, left = found.groups()
        scope = f"{kind} {id_}" if window == "none" else f"{kind} {id_} this {window}"
        return cls(reason.description, scope=scope, asked=int(asked), left=int(left), unit=unit)


def shortfall_text(kind: str, id_: str, window: str, unit: str, *, asked: int, left: int) -> str:
    """Return the technical details of a call that a budget refused.

    `LLMBudgetExhaustedError.of` reads them.
    """
    return f"scope={kind} id={id_} window={window} unit={unit} asked={asked} left={left}"


_SHORTFALL = re.compile(
    r"scope=(\S+) id=(.*) window=(\S+) unit=(\S+) asked=(-?\d+) left=(-?\d+)", flags=re.DOTALL | re.ASCII
)


class LLMResponseValidationError(LLMError):
    """The answer does not fit `expected_output_schema`.

    Attributes:
        errors: The broken rules, with their places.

    """

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("the answer does not fit the schema: " + "; ".join(self.errors))


class LLMCallError(LLMError):
    """A call failed for `reason`."""

    def __init__(self, reason: FailureReason) -> None:
        self.reason = reason
        super().__init__(f"{reason.category}: {reason.description}")


# `sent` has no default, because the reservation of a request that was not sent is refunded.
class ProviderError(LLMError):
    """One attempt failed at the provider.

    Attributes:
        sent: Whether the request may have been processed and billed. False only if it certainly was not.
        retry_after_s: The wait that the provider asks for, in seconds.
        text: The part of a failed answer that was read.
        bill_nusd: The server's own bill for it, in nano-dollars.

    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        sent: bool,
        retry_after_s: float | None = None,
        provider_request_id: str = "",
        text: str = "",
        bill_nusd: int = 0,
    ) -> None:
        self.kind = kind
        self.message = message
        self.sent = sent
        self.retry_after_s = retry_after_s
        self.provider_request_id = provider_request_id
        self.text = text
        self.bill_nusd = bill_nusd
        super().__init__(f"{kind}: {message}")


class UnknownModelError(LLMError, LookupError):
    """A table has no row for a model.

    Attributes:
        known: The models in the table.

    """

    def __init__(self, model: str, table: str, known: Sequence[str]) -> None:
        self.model = model
        self.table = table
        self.known = tuple(known)
        super().__init__(f"unknown model {model!r} in the {table}; known are {', '.join(sorted(known))}")


class ConditionError(LLMError, ValueError):
    """The condition of a query is refused. The message names the reason and the allowed fields."""

    def __init__(self, condition: str, reason: str, allowed: Sequence[str]) -> None:
        self.condition = condition
        self.reason = reason
        super().__init__(
            f"the condition {quoted(condition, 80)} is refused: {reason}. Write one SQL condition over"
            f" {', '.join(allowed)}, such as: latency_ms > 8000 AND time > '2026-06-01'"
        )


class RecordError(LLMError, ValueError):
    """The record `record_id` cannot be kept. The log is intact and accepts others."""

    def __init__(self, record_id: str, reason: str) -> None:
        self.record_id = record_id
        self.reason = reason
        super().__init__(f"record {record_id}: {reason}")


class RecordConflictError(RecordError):
    """Another record has the same id. It is kept unchanged.

    Attributes:
        differs: The fields in which the two records differ.

    """

    def __init__(self, record_id: str, differs: str, hint: str) -> None:
        self.differs = differs
        super().__init__(record_id, f"another record with this id differs in {differs}: {hint}")


class EventError(LLMError):
    """An event on record cannot be understood. `event_id` and `kind` identify it."""

    def __init__(self, event_id: str, kind: str, problem: str) -> None:
        self.event_id = event_id
        self.kind = kind
        super().__init__(f"event {event_id} of kind {kind}: {problem}")


class UnreadableBodyError(EventError):
    """The body of an event does not fit its kind. `place` is the wrong field."""

    def __init__(self, event_id: str, kind: str, place: str, problem: str) -> None:
        self.place = place
        super().__init__(event_id, kind, f"{place}: {problem}. It must fit the schema {kind}.v1")


class UnknownKindError(EventError):
    """An event has an unknown kind, in a namespace of this package.

    It is an error because a skipped event could free money that is spent.
    """

    def __init__(self, event_id: str, kind: str, known: Sequence[str]) -> None:
        self.known = tuple(known)
        super().__init__(
            event_id,
            kind,
            f"the kind is unknown. Use the release that wrote it. Known kinds: {', '.join(known)}",
        )


class StoreError(LLMError):
    """A log cannot be read or written.

    Attributes:
        path: The file.
        line: The number of the line, from 1. It is 0 if the error is not about a line.

    """

    def __init__(self, path: Path, reason: str, *, line: int = 0) -> None:
        self.path = path
        self.line = line
        self.reason = reason
        where = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{where}: {reason}")


class StoreLockedError(StoreError):
    """Another process has the log open for writing."""
