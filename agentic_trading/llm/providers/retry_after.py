"""Read how long a server asks a client to wait."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_S = 86_400.0
"""A day: whoever asks for more means the same."""

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def retry_after_s(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return the wait that `headers` ask for, in seconds from 0 to `LONGEST_S`; None where they ask for none.

    Three forms (RFC 9110 §10.2.3, and a vendors' own): `retry-after-ms`, which goes first, and `retry-after` as
    seconds, also with a fraction, or as an HTTP date, which is 0 once it has passed. What is none of these, a
    negative number among them, counts as absent. Names of headers are read in any case.
    """
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = fields.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        return min(float(milliseconds) / 1000, LONGEST_S)
    wait = fields.get("retry-after", "")
    if _NUMBER.fullmatch(wait):
        return min(float(wait), LONGEST_S)
    return _until(wait, now)


def _until(date: str, now: datetime) -> float | None:
    try:
        at = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    if at.tzinfo is None:  # "-0000": UTC, from a sender who does not say where it stands
        at = at.replace(tzinfo=UTC)
    return min(max((at - now).total_seconds(), 0.0), LONGEST_S)
