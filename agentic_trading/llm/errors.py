"""What can go wrong with an LLM call, as exceptions for callers that cannot go on.

TradingError
└── LLMError
    ├── EnvelopeValidationError      the envelope must not be sent as it is
    │   └── LookAheadError           it holds something that was not known at `as_of`
    ├── LLMBudgetExhaustedError      a ceiling would be passed
    ├── LLMResponseValidationError   the answer does not fit the schema
    ├── LLMCallError                 any other failed call, with its reason
    ├── ProviderError                one attempt failed at the provider; never leaves the worker
    │   └── UnusableAnswerError      it was answered, and its usage is charged (in llm/provider.py)
    ├── UnknownModelError            no row in the capability table or the price book
    ├── RecordError                  one record cannot be kept; the log takes others
    │   └── RecordConflictError      its id is taken by another record
    ├── EventError                   a record cannot be understood; it stays as it is
    │   ├── UnreadableBodyError      its body is none of its kind
    │   └── UnknownKindError         its kind is of a newer release, and must not be passed over
    └── StoreError                   the log cannot be read or written
        └── StoreLockedError         another process writes to it
"""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field

from agentic_trading.errors import TradingError
from agentic_trading.llm.fields import OpenName, Text


class FailureKind(OpenName):
    """Why a call failed; the seed's six retry words are among the reasons.

    A reason of a newer release is read and kept as it is, and is none of these: it is not retried.
    """

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
    """What went wrong, for people (`description`), for debugging (`technical_details`) and for code (`category`).

    `recoverable` says that asking again may help.
    """

    category: FailureKind
    description: Text
    technical_details: Text = ""
    recoverable: bool = False
    occurred_at: datetime | None = Field(default=None, exclude=True)
    """The time of the failure, by the worker's clock. Only `StructuredOutcome` sets it, from `LLMResult.timestamp`.

    It is not serialized: an event with a reason must be the same in a replay or a resumed run.
    """


class NoDecision(BaseModel, frozen=True, extra="allow"):
    """No decision was made, for `reason`. It is not HOLD, not flat, not neutral, and no order may come of it.

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
        """Never: like an `LLMInteraction`, so that both kinds of answer are asked the same way."""
        return False

    @property
    def failure(self) -> FailureReason:
        """Why there is no decision."""
        return self.reason


class LLMError(TradingError):
    """Anything that goes wrong between an envelope and its interaction."""


class EnvelopeValidationError(LLMError, ValueError):
    """An envelope breaks a rule; `problems` lists every one found, each with what is allowed."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class LookAheadError(EnvelopeValidationError):
    """Something in the envelope was not available at `as_of`; `what` names it, `known_at` says since when it is."""

    def __init__(self, what: str, known_at: datetime, as_of: datetime) -> None:
        self.what = what
        self.known_at = known_at
        self.as_of = as_of
        problem = f"{what} is known since {known_at}, after as_of {as_of}; allowed is what was known at as_of"
        super().__init__([problem])


class LLMBudgetExhaustedError(LLMError):
    """A ceiling leaves less than the call can cost.

    Of `scope` (its kind, id and window) are `left`, and the call may need `asked`, both in `unit`: nano-USD, tokens or
    calls. `asked` and `left` are None, and `scope` and `unit` empty, where the reason does not say.
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
        """Return the error for a reason whose details were written by `shortfall_text`."""
        found = _SHORTFALL.fullmatch(reason.technical_details)
        if found is None:
            return cls(reason.description)
        kind, id_, window, unit, asked, left = found.groups()
        scope = f"{kind} {id_}" if window == "none" else f"{kind} {id_} this {window}"
        return cls(reason.description, scope=scope, asked=int(asked), left=int(left), unit=unit)


def shortfall_text(kind: str, id_: str, window: str, unit: str, *, asked: int, left: int) -> str:
    """Return the technical details of a call that a budget refused: what it may need, and what the scope has left."""
    return f"scope={kind} id={id_} window={window} unit={unit} asked={asked} left={left}"


_SHORTFALL = re.compile(
    r"scope=(\S+) id=(.*) window=(\S+) unit=(\S+) asked=(-?\d+) left=(-?\d+)", flags=re.DOTALL | re.ASCII
)


class LLMResponseValidationError(LLMError):
    """The answer does not fit `expected_output_schema`; `errors` says where."""

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("the answer does not fit the schema: " + "; ".join(self.errors))


class LLMCallError(LLMError):
    """A call failed for `reason`."""

    def __init__(self, reason: FailureReason) -> None:
        self.reason = reason
        super().__init__(f"{reason.category}: {reason.description}")


class ProviderError(LLMError):
    """One attempt failed at the provider.

    `sent` says whether the request may have been processed (and billed): False only when it surely was not.
    `retry_after_s` is the wait that the provider asked for, in seconds. `text` is what was read of an answer that is none,
    `bill_nusd` the server's own bill for it.
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
    """A model has no row in `table`; `known` lists the rows there are."""

    def __init__(self, model: str, table: str, known: Sequence[str]) -> None:
        self.model = model
        self.table = table
        self.known = tuple(known)
        super().__init__(f"unknown model {model!r} in the {table}; known are {', '.join(sorted(known))}")


class RecordError(LLMError, ValueError):
    """The record `record_id` cannot be kept; the log is unharmed and takes the next one."""

    def __init__(self, record_id: str, reason: str) -> None:
        self.record_id = record_id
        self.reason = reason
        super().__init__(f"record {record_id}: {reason}")


class RecordConflictError(RecordError):
    """Another record was kept under this id before, and stays; `differs` names what is not the same in the two."""

    def __init__(self, record_id: str, differs: str, hint: str) -> None:
        self.differs = differs
        super().__init__(record_id, f"another one is kept under this id, which differs in {differs}; {hint}")


class EventError(LLMError):
    """An event on record cannot be understood; `event_id` and `kind` name it."""

    def __init__(self, event_id: str, kind: str, problem: str) -> None:
        self.event_id = event_id
        self.kind = kind
        super().__init__(f"event {event_id} of kind {kind}: {problem}")


class UnreadableBodyError(EventError):
    """The body of an event is none of its kind: `place` is wrong."""

    def __init__(self, event_id: str, kind: str, place: str, problem: str) -> None:
        self.place = place
        super().__init__(event_id, kind, f"{place}: {problem}; allowed is what the schema {kind}.v1 says")


class UnknownKindError(EventError):
    """An event has a kind that this release does not know, in a namespace of its own: passing over it could free money."""

    def __init__(self, event_id: str, kind: str, known: Sequence[str]) -> None:
        self.known = tuple(known)
        super().__init__(
            event_id,
            kind,
            f"the kind is not known; use the release that wrote it. Known are {', '.join(known)}",
        )


class StoreError(LLMError):
    """A log cannot be read or written at `path`, line `line` (1-based; 0 where no line is to blame)."""

    def __init__(self, path: Path, reason: str, *, line: int = 0) -> None:
        self.path = path
        self.line = line
        self.reason = reason
        where = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{where}: {reason}")


class StoreLockedError(StoreError):
    """Another process has the log open for writing."""
