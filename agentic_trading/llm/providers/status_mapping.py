"""Say what a status means for a call: the kind of failure, and whether the request may have been billed."""

from typing import Final, NamedTuple

from agentic_trading.llm.failure import FailureKind


class StatusMapping(NamedTuple):
    """The kind of a failure; `sent` is False only where the request was surely not processed."""

    kind: FailureKind
    sent: bool


NEVER_PROCESSED: Final = frozenset({
    400,
    401,
    402,
    403,
    404,
    405,
    411,
    412,
    413,
    414,
    415,
    421,
    422,
    426,
    428,
    429,
    431,
    529,
})
"""The statuses by which a server says that it did not work on a request (RFC 9110, RFC 6585; 402 and 529: the vendors).

One rule for every adapter: all others may have been billed. Among them are redirects, which nobody follows and which
some servers answer with after the work, statuses that no document explains, conflicts, time-outs and failures inside.
"""

_KINDS: Final = {
    401: FailureKind.AUTH_ERROR,
    402: FailureKind.BILLING,
    403: FailureKind.AUTH_ERROR,
    408: FailureKind.TIMEOUT,
    409: FailureKind.SERVER_ERROR,
    429: FailureKind.RATE_LIMIT,
    499: FailureKind.TIMEOUT,
    504: FailureKind.TIMEOUT,
}


def meaning_of_status(status: int) -> StatusMapping:
    """Return what an answer with `status`, and nothing that says more, means; from 500 on it is the server's error."""
    otherwise = FailureKind.SERVER_ERROR if status >= 500 else FailureKind.INVALID_REQUEST
    return StatusMapping(_KINDS.get(status, otherwise), sent=status not in NEVER_PROCESSED)
