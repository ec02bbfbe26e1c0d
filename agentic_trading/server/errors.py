"""Failures of calls as HTTP errors, in the form of each API."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

import orjson

from agentic_trading.errors import TradingError
from agentic_trading.governance.limits import Window, Windows
from agentic_trading.llm.errors import UNKNOWN_MODEL_DETAILS, FailureKind, FailureReason
from agentic_trading.llm.verbatim import Api


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """A failure over HTTP.

    Attributes:
        status: The status.
        code: The code in errors of OpenAI's form.
        kind: The type in errors of Anthropic's form.

    """

    status: int
    code: str
    kind: str


UNKNOWN_KEY: Final = HttpFailure(401, "invalid_api_key", "authentication_error")
REFUSED_FIELD: Final = HttpFailure(400, "invalid_request_error", "invalid_request_error")
UNKNOWN_MODEL: Final = HttpFailure(404, "model_not_found", "not_found_error")
NO_EVENTS: Final = HttpFailure(403, "permission_denied", "permission_error")
UNKNOWN_CAUSE: Final = HttpFailure(404, "cause_not_found", "not_found_error")
UNKNOWN_TRACE: Final = HttpFailure(404, "trace_not_found", "not_found_error")
UNSOUND_TRACE: Final = HttpFailure(409, "unsound_trace", "invalid_request_error")
UNKNOWN_PATH: Final = HttpFailure(404, "not_found", "not_found_error")
WRONG_METHOD: Final = HttpFailure(405, "method_not_allowed", "invalid_request_error")
SLOW_REQUEST: Final = HttpFailure(408, "request_timeout", "timeout_error")
TOO_LARGE: Final = HttpFailure(413, "request_too_large", "request_too_large")
WRONG_HOST: Final = HttpFailure(421, "wrong_host", "invalid_request_error")
NO_COUNT: Final = HttpFailure(502, "provider_error", "api_error")
NO_PROVIDER: Final = HttpFailure(501, "not_supported", "api_error")
NEW_PRINCIPAL: Final = HttpFailure(503, "restart_needed", "api_error")
BUS_AWAY: Final = HttpFailure(503, "bus_unavailable", "api_error")
SHUTTING_DOWN: Final = HttpFailure(503, "shutting_down", "overloaded_error")
BUDGET_BUSY: Final = HttpFailure(429, "budget_busy", "rate_limit_error")
UNSENT_IN_TIME: Final = HttpFailure(503, "deadline_exceeded", "overloaded_error")
STREAM_ENDED: Final = HttpFailure(502, "stream_ended", "api_error")
KEY_REUSED: Final = HttpFailure(422, "idempotency_key_reused", "invalid_request_error")
_INTERNAL: Final = HttpFailure(500, "internal_error", "api_error")

_BY_KIND: Final[Mapping[FailureKind, HttpFailure]] = {
    FailureKind.BUDGET_EXHAUSTED: HttpFailure(402, "insufficient_quota", "billing_error"),
    FailureKind.BUDGET_BUSY: BUDGET_BUSY,
    FailureKind.NOT_ALLOWED: HttpFailure(403, "permission_denied", "permission_error"),
    FailureKind.HALTED: HttpFailure(403, "halted", "permission_error"),
    FailureKind.NOT_SERVED: UNKNOWN_MODEL,
    FailureKind.INVALID_REQUEST: REFUSED_FIELD,
    FailureKind.SCHEMA_REFUSED: REFUSED_FIELD,
    FailureKind.LOOK_AHEAD: HttpFailure(400, "look_ahead", "invalid_request_error"),
    FailureKind.REPLAY_MISS: HttpFailure(422, "replay_miss", "invalid_request_error"),
    FailureKind.RATE_LIMIT: HttpFailure(429, "rate_limit_exceeded", "rate_limit_error"),
    FailureKind.EXPIRED: HttpFailure(504, "deadline_exceeded", "timeout_error"),
    FailureKind.TIMEOUT: HttpFailure(504, "provider_timeout", "timeout_error"),
    FailureKind.AUTH_ERROR: HttpFailure(502, "provider_auth_error", "api_error"),
    FailureKind.BILLING: HttpFailure(502, "provider_billing_error", "api_error"),
    FailureKind.SERVER_ERROR: HttpFailure(502, "provider_error", "api_error"),
    FailureKind.CIRCUIT_OPEN: HttpFailure(503, "provider_unavailable", "overloaded_error"),
    FailureKind.RETRY_BUDGET: HttpFailure(503, "provider_unavailable", "overloaded_error"),
    FailureKind.LEDGER_UNAVAILABLE: HttpFailure(503, "ledger_unavailable", "api_error"),
    FailureKind.SHUTDOWN: SHUTTING_DOWN,
    FailureKind.UNDELIVERABLE: HttpFailure(504, "no_answer", "timeout_error"),
}

RETRY_AFTER_S: Final = 5
"""The seconds after which a call may be sent again if calls in flight held the money."""

_WINDOW = re.compile(r" window=(minute|hour|day|month) ")


class RequestError(TradingError):
    """A request is refused before it becomes a call. `param` is the place of the fault in it."""

    def __init__(self, failure: HttpFailure, why: str, *, param: str = "") -> None:
        self.failure = failure
        self.param = param
        super().__init__(why)


def reused_key(why: str = "") -> RequestError:
    """Return the refusal of an `Idempotency-Key` that was used before."""
    other = (
        "the Idempotency-Key was used for another request. Allowed: a new key, or the same API, model, body and "
        "output limit"
    )
    return RequestError(KEY_REUSED, why or other, param="Idempotency-Key")


def failure_of(reason: FailureReason) -> HttpFailure:
    """Return the HTTP failure of a call."""
    if reason.technical_details == UNKNOWN_MODEL_DETAILS:
        return UNKNOWN_MODEL
    return _BY_KIND.get(reason.category, _INTERNAL)


def failure_message(reason: FailureReason, zone: tzinfo) -> str:
    """Return the message of a failed call. It has the end of the budget's window, in UTC.

    The time of the failure counts, so that a replay has the same message.
    """
    window = _WINDOW.search(reason.technical_details)
    if reason.category != FailureKind.BUDGET_EXHAUSTED or window is None or reason.occurred_at is None:
        return reason.description
    over_by = Windows(zone).at(reason.occurred_at)[Window(window[1])].over_by
    return f"{reason.description}. This {window[1]} ends at {over_by:%Y-%m-%dT%H:%MZ}"


def error_body(api: Api, failure: HttpFailure, message: str, *, param: str = "") -> bytes:
    """Return the body of an error as the clients of an API read it."""
    text = f"agentic-trading: {message}"
    if api == "messages":
        return orjson.dumps({"type": "error", "error": {"type": failure.kind, "message": text}})
    kind = "invalid_request_error" if failure.status in {400, 404, 409, 413, 422} else failure.code
    error = {"message": text, "type": kind, "param": param or None, "code": failure.code}
    return orjson.dumps({"error": error})
