"""Errors of governance. A call that may not run is returned as a value, not raised.

TradingError
└── LLMError
    ├── UnknownPriceError                the price book has no price for a usage
    ├── LimiterUnavailableError          the limiter cannot be reached: the step may have been taken
    ├── PolicyError                      the policy file is invalid
    ├── ControlError                     the controls of operators cannot be read or changed
    │   ├── CommandError                 a command is invalid, or would have no effect
    │   ├── ControlsUnreadableError      the stored controls are not a controls document
    │   └── ControlsUnavailableError     the control store cannot be reached: the step may have been taken
    └── LedgerError                      an invalid use of the ledger, or a failure of it
        ├── LimitError                   a limit is invalid
        ├── ReservationRequestError      a request cannot be counted
        │   ├── ReservationConflictError the same attempt was reserved with different facts
        │   └── ClosedWindowError        the request's time is too old: those counters are deleted
        ├── UnknownReservationError      the reservation does not exist, or is no longer kept
        ├── ReservationStateError        the step is not possible in the current state
        ├── LedgerUnavailableError       the ledger cannot be reached: the step may have been taken
        │   └── LedgerRolledBackError    the ledger has lost steps: calls stop until it is rebuilt from the log
        └── LedgerSettingsError          the server's settings may lose acknowledged writes, or its zone differs
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from agentic_trading.llm.errors import LLMError


class UnknownPriceError(LLMError, LookupError):
    """The price book has no price for `value` as `field` of `model`.

    `known` lists the values with a price.
    """

    def __init__(self, model: str, field: str, value: str, known: Sequence[str]) -> None:
        self.model = model
        self.field = field
        self.value = value
        self.known = tuple(known)
        super().__init__(f"no price for {field} {value!r} of {model}. Known: {', '.join(known)}")


class PolicyError(LLMError, ValueError):
    """The policy at `path` is invalid at `where`: a table and key, or empty for the file itself."""

    def __init__(self, path: Path, where: str, found: str, allowed: str) -> None:
        self.path = path
        self.where = where
        self.found = found
        self.allowed = allowed
        place = f"{path}, {where}" if where else str(path)
        super().__init__(f"{place}: found {found}. Allowed: {allowed}")


class ControlError(LLMError):
    """The controls of operators cannot be read or changed."""


class CommandError(ControlError, ValueError):
    """A command about `subject` cannot be executed, for `reason`.

    `allowed` lists the valid choices.
    """

    def __init__(self, subject: str, reason: str, allowed: str) -> None:
        self.subject = subject
        self.reason = reason
        self.allowed = allowed
        super().__init__(f"{subject}: {reason}. Allowed: {allowed}")


class ControlsUnreadableError(ControlError):
    """The content of `where` is not a controls document, for `reason`.

    It was not changed.
    """

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(
            f"{where} is not a controls document: {reason}. It was not changed. Restore it, or move it away"
        )


class ControlsUnavailableError(ControlError):
    """The controls at `where` cannot be reached, for `reason`."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(
            f"the controls at {where} cannot be reached: {reason}. Make them reachable, then try again"
        )


class LimiterUnavailableError(LLMError):
    """The limiter cannot be reached, for `reason`.

    The step may have been taken, and repeating it is safe.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the rate limiter cannot be reached: {reason}. The outcome is unknown. It is safe to retry"
        )


class LedgerError(LLMError):
    """The ledger was used in an invalid way, or has failed."""


class LimitError(LedgerError, ValueError):
    """A limit on `subject` is invalid, for `reason`."""

    def __init__(self, subject: str, reason: str) -> None:
        self.subject = subject
        self.reason = reason
        super().__init__(f"limit on {subject}: {reason}")


class ReservationRequestError(LedgerError, ValueError):
    """A reservation request with idempotency key `key` cannot be counted, for `reason`."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"reservation request {key!r}: {reason}")


class ReservationConflictError(ReservationRequestError):
    """The same key and attempt were reserved before with another amount, other scopes or other limits."""

    def __init__(self, key: str, attempt: int) -> None:
        self.attempt = attempt
        super().__init__(
            key,
            f"attempt {attempt} was reserved with another amount, other scopes or other limits. Repeat it unchanged, "
            "or use a new key",
        )


class ClosedWindowError(ReservationRequestError):
    """The request's time `at` is older than `open_since`, the oldest time with counters."""

    def __init__(self, key: str, at: datetime, open_since: datetime) -> None:
        self.at = at
        self.open_since = open_since
        super().__init__(
            key,
            f"{at.isoformat()} is no longer counted. The oldest allowed time is {open_since.isoformat()}",
        )


class UnknownReservationError(LedgerError, LookupError):
    """The ledger has no reservation `reservation_id`: it was never made, or has ended and was forgotten."""

    def __init__(self, reservation_id: str) -> None:
        self.reservation_id = reservation_id
        super().__init__(f"no reservation {reservation_id!r}. Pass an id that reserve() returned")


class ReservationStateError(LedgerError):
    """The reservation `reservation_id` is in `state`, and `step` is only possible in the `allowed` states."""

    def __init__(self, reservation_id: str, step: str, state: str, allowed: Sequence[str]) -> None:
        self.reservation_id = reservation_id
        self.step = step
        self.state = state
        self.allowed = tuple(allowed)
        super().__init__(
            f"cannot {step} {reservation_id!r}: it is {state}. Allowed states: {', '.join(allowed)}"
        )


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be reached, for `reason`.

    If `is_sent`, the step may have been taken.
    """

    def __init__(self, reason: str, *, is_sent: bool = True) -> None:
        self.reason = reason
        hint = (
            "The outcome is unknown. It is safe to retry" if is_sent else "Check that it runs, then try again"
        )
        super().__init__(f"the ledger cannot be reached: {reason}. {hint}")


class LedgerRolledBackError(LedgerUnavailableError):
    """The ledger of `tenant` has lost acknowledged steps: it is at `found`, and had reached `known`."""

    def __init__(self, tenant: str, known: str, found: str) -> None:
        self.tenant = tenant
        self.known = known
        self.found = found
        LedgerError.__init__(
            self,
            f"the ledger of {tenant!r} has gone back: it had come to {known}, now it is at {found}. Calls are stopped "
            "until `agentic-trading budget rebuild` has booked the log again",
        )
        self.reason = "it has gone back"


class LedgerSettingsError(LedgerError):
    """The ledger's server is not safe for money: `setting` is `found`, but must be `allowed`."""

    def __init__(self, setting: str, found: str, allowed: str) -> None:
        self.setting = setting
        self.found = found
        self.allowed = allowed
        super().__init__(f"the ledger's server has {setting} = {found!r}. Allowed: {allowed}")
