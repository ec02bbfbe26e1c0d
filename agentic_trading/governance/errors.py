"""What governance raises at callers that cannot go on; a call that may not run is a value, not an error.

TradingError
└── LLMError
    ├── UnknownPriceError                a usage that the price book cannot price
    ├── LimiterUnavailableError          the limiter cannot be reached: whether the step was taken is not known
    ├── PolicyError                      the policy file says something that it cannot
    ├── ControlError                     the controls of operators cannot be read or changed
    │   ├── CommandError                 a command that changes nothing, or cannot be given
    │   ├── ControlsUnreadableError      something else stands where the controls should
    │   └── ControlsUnavailableError     the control store cannot be reached: whether the step was taken is not known
    └── LedgerError                      the ledger was used against its rules
        ├── LimitError                   a limit that limits nothing, or cannot be
        ├── ReservationRequestError      a request that cannot be counted
        │   ├── ReservationConflictError the same attempt was reserved with other facts
        │   └── ClosedWindowError        its moment is too far back: those counters are gone
        ├── UnknownReservationError      no such reservation, or not any more
        ├── ReservationStateError        not a step from the state it is in
        ├── LedgerUnavailableError       it cannot be reached: whether the step was taken is not known
        │   └── LedgerRolledBackError    it has forgotten steps: nothing may run until it is rebuilt from the log
        └── LedgerSettingsError          its server is set up so that it may forget what it acknowledged
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from agentic_trading.llm.errors import LLMError


class UnknownPriceError(LLMError, LookupError):
    """The price book has no price for `value` as `field` of `model`; `known` lists those there are."""

    def __init__(self, model: str, field: str, value: str, known: Sequence[str]) -> None:
        self.model = model
        self.field = field
        self.value = value
        self.known = tuple(known)
        super().__init__(f"no price for {field} {value!r} of {model}; known are {', '.join(known)}")


class PolicyError(LLMError, ValueError):
    """The policy at `path` cannot be used: at `where` (table and key; empty: the file itself) stands `found`."""

    def __init__(self, path: Path, where: str, found: str, allowed: str) -> None:
        self.path = path
        self.where = where
        self.found = found
        self.allowed = allowed
        place = f"{path}, {where}" if where else str(path)
        super().__init__(f"{place}: found {found}; allowed: {allowed}")


class ControlError(LLMError):
    """The controls of operators cannot be read or changed."""


class CommandError(ControlError, ValueError):
    """A command about `subject` cannot be executed, for `reason`; `allowed` says what can."""

    def __init__(self, subject: str, reason: str, allowed: str) -> None:
        self.subject = subject
        self.reason = reason
        self.allowed = allowed
        super().__init__(f"{subject}: {reason}; allowed: {allowed}")


class ControlsUnreadableError(ControlError):
    """What stands at `where` is not what this version writes there, for `reason`; it was left as it is."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(
            f"{where} is not a controls document: {reason}; nothing was changed: restore it, or move it away"
        )


class ControlsUnavailableError(ControlError):
    """The controls at `where` cannot be reached, for `reason`."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(
            f"the controls at {where} cannot be reached: {reason}; see that they can be, then try again"
        )


class LimiterUnavailableError(LLMError):
    """The limiter cannot be reached, for `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the rate limiter cannot be reached: {reason}; the outcome is unknown; retry is safe"
        )


class LedgerError(LLMError):
    """The ledger was used against its rules."""


class LimitError(LedgerError, ValueError):
    """A limit on `subject` cannot be used, for `reason`."""

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
            key, f"attempt {attempt} was reserved with other facts; allowed are the same facts, or a new key"
        )


class ClosedWindowError(ReservationRequestError):
    """A request for the moment `at`, older than the oldest one (`open_since`) whose counters are still kept."""

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


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be reached, for `reason`; where the step `is_sent`, it may have been taken."""

    def __init__(self, reason: str, *, is_sent: bool = True) -> None:
        self.reason = reason
        hint = "the outcome is unknown; retry is safe" if is_sent else "see that it runs, then try again"
        super().__init__(f"the ledger cannot be reached: {reason}; {hint}")


class LedgerRolledBackError(LedgerUnavailableError):
    """The ledger of `tenant` has forgotten steps that it had acknowledged: `found` comes before `known`."""

    def __init__(self, tenant: str, known: str, found: str) -> None:
        self.tenant = tenant
        self.known = known
        self.found = found
        LedgerError.__init__(
            self,
            f"the ledger of {tenant!r} has gone back: it had come to {known}, now it is at {found}; nothing may run "
            "until `agentic-trading budget rebuild` has booked the log again",
        )
        self.reason = "it has gone back"


class LedgerSettingsError(LedgerError):
    """The ledger's server is not safe for money: `setting` is `found`; `allowed` says what it must be."""

    def __init__(self, setting: str, found: str, allowed: str) -> None:
        self.setting = setting
        self.found = found
        self.allowed = allowed
        super().__init__(f"the ledger's server has {setting} = {found!r}; allowed is {allowed}")
