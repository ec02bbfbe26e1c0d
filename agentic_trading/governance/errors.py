"""What governance raises at callers that cannot go on; a call that may not run is a value, not an error.

TradingError
└── LLMError
    ├── UnknownPriceError                a usage that the price book cannot price
    └── LedgerError                      the ledger was used against its rules
        ├── LimitError                   a limit that limits nothing, or cannot be
        ├── AskError                     an ask that cannot be counted
        │   ├── ReservationConflictError the same attempt was asked for with other facts
        │   └── ClosedWindowError        its moment is too far back: those counters are gone
        ├── UnknownReservationError      no such reservation, or not any more
        └── ReservationStateError        not a step from the state it is in
"""

from collections.abc import Sequence
from datetime import datetime

from agentic_trading.llm.errors import LLMError


class UnknownPriceError(LLMError, LookupError):
    """The price book has no price for `value` as `field` of `model`; `known` lists those there are."""

    def __init__(self, model: str, field: str, value: str, known: Sequence[str]) -> None:
        self.model = model
        self.field = field
        self.value = value
        self.known = tuple(known)
        super().__init__(f"no price for {field} {value!r} of {model}; known are {', '.join(known)}")


class LedgerError(LLMError):
    """The ledger was used against its rules."""


class LimitError(LedgerError, ValueError):
    """A limit on `subject` cannot be used, for `reason`."""

    def __init__(self, subject: str, reason: str) -> None:
        self.subject = subject
        self.reason = reason
        super().__init__(f"limit on {subject}: {reason}")


class AskError(LedgerError, ValueError):
    """An ask with idempotency key `key` cannot be counted, for `reason`."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"ask {key!r}: {reason}")


class ReservationConflictError(AskError):
    """The same key and attempt were reserved before with another amount, other scopes or other limits."""

    def __init__(self, key: str, attempt: int) -> None:
        self.attempt = attempt
        super().__init__(
            key, f"attempt {attempt} was reserved with other facts; allowed are the same facts, or a new key"
        )


class ClosedWindowError(AskError):
    """An ask for the moment `at`, older than the oldest one (`open_since`) whose counters are still kept."""

    def __init__(self, key: str, at: datetime, open_since: datetime) -> None:
        self.at = at
        self.open_since = open_since
        super().__init__(
            key,
            f"{at.isoformat()} is no longer counted; allowed are moments from {open_since.isoformat()} on",
        )


class UnknownReservationError(LedgerError, LookupError):
    """The ledger has no reservation `reservation_id`: never made, or finished and forgotten."""

    def __init__(self, reservation_id: str) -> None:
        self.reservation_id = reservation_id
        super().__init__(f"no reservation {reservation_id!r}; allowed are ids that reserve() returned")


class ReservationStateError(LedgerError):
    """`step` is not possible for `reservation_id`, which is `state`; `allowed` lists the states it starts from."""

    def __init__(self, reservation_id: str, step: str, state: str, allowed: Sequence[str]) -> None:
        self.reservation_id = reservation_id
        self.step = step
        self.state = state
        self.allowed = tuple(allowed)
        super().__init__(
            f"cannot {step} {reservation_id!r}: it is {state}; allowed from {', '.join(allowed)}"
        )
