"""What the adapters of hosted APIs share: meanings of statuses, `Retry-After`, reading up to a limit, calls of the answer tool."""

import json
import re
import zlib
from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Literal, NamedTuple

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ANSWER_TOOL, MAX_ANSWER_BYTES

PromptCacheTtl = Literal["", "5m", "1h"]
"""How long a provider keeps a prompt's stable prefix: five minutes or an hour; empty requests no caching."""


class StatusMapping(NamedTuple):
    """The kind of a failure; `sent` is False only where the request was surely not processed."""

    kind: FailureKind
    sent: bool


NEVER_PROCESSED: Final = frozenset({
    400, 401, 402, 403, 404, 405, 411, 412, 413, 414, 415, 421, 422, 426, 428, 429, 431, 529,
})  # fmt: skip
"""The statuses by which a server says that it did not work on a request (RFC 9110, RFC 6585; 402 and 529: the vendors).

One rule for every adapter: all others may have been billed. Among them are redirects, which are not followed and
which some servers answer with after the work, statuses that no document explains, conflicts, time-outs and failures inside.
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


LONGEST_WAIT_S = 86_400.0
"""A day: a longer wait counts as one."""

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def retry_after_s(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return the wait that `headers` ask for, in seconds from 0 to `LONGEST_WAIT_S`; None where they ask for none.

    Three forms (RFC 9110 §10.2.3, and one of vendors): `retry-after-ms`, which goes first, and `retry-after` as
    seconds, also with a fraction, or as an HTTP date, which is 0 once it has passed. What is none of these, a
    negative number among them, counts as absent. Names of headers are read in any case.
    """
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = fields.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        return min(float(milliseconds) / 1000, LONGEST_WAIT_S)
    wait = fields.get("retry-after", "")
    if _NUMBER.fullmatch(wait):
        return min(float(wait), LONGEST_WAIT_S)
    return _until(wait, now)


def _until(date: str, now: datetime) -> float | None:
    try:
        at = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    if at.tzinfo is None:  # "-0000": UTC, the sender's own zone unknown
        at = at.replace(tzinfo=UTC)
    return min(max((at - now).total_seconds(), 0.0), LONGEST_WAIT_S)


@contextmanager
def nothing_sent() -> Iterator[None]:
    """Raise whatever goes wrong while a client is loaded and made as `invalid_request`, not sent.

    Only messages of imports and of the system are repeated: others may hold a proxy's password.
    """
    try:
        yield
    except Exception as e:  # noqa: BLE001 - whatever it was, no request had left, and none must be charged
        said = f": {e}" if isinstance(e, ImportError | OSError) else ""
        message = (
            f"the client cannot be made ({type(e).__name__}{said}); "
            "check the installed extra, and the proxies and certificates that the environment names"
        )
        raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from None


ACCEPT_ENCODING: Final = "gzip"
"""What `read_up_to` unpacks without holding more than its limit."""


class HttpReply(NamedTuple):
    """The body of a good answer, and the id that the server gave the request."""

    body: bytes
    request_id: str


async def read_up_to(pieces: AsyncIterable[bytes], packing: str, max_bytes: int, *, is_answer: bool) -> bytes:
    """Return a body, unpacked, up to `max_bytes`; `packing` is its `Content-Encoding`.

    A longer answer raises `ProviderError`, as it may have been billed, with what was read as its `text`; of a page that
    goes with an error the rest is left out. No more than the limit and one packed piece is held.
    """
    unpacked = _unpacking(packing.strip().lower(), max_bytes + 1)
    body = bytearray()
    async for piece in pieces:
        body += unpacked(piece)
        if len(body) > max_bytes:
            break
    if len(body) > max_bytes and is_answer:
        raise _too_large(bytes(body[:max_bytes]), max_bytes)
    return bytes(body[:max_bytes])


def _unpacking(packing: str, most: int) -> Callable[[bytes], bytes]:
    """Return what unpacks one piece after the other, each to `most` bytes: the rest is then of no use."""
    if packing in {"", "identity"}:
        return bytes
    if packing != ACCEPT_ENCODING:
        message = (
            f"the answer is packed as {packing[:40]!r}, which was not asked for; allowed is {ACCEPT_ENCODING}"
        )
        raise ProviderError(FailureKind.SERVER_ERROR, message, sent=True)
    unpack = zlib.decompressobj(wbits=31)  # gzip

    def unpacked(piece: bytes) -> bytes:
        try:
            return unpack.decompress(piece, most)
        except zlib.error as e:
            message = f"the answer is no {packing}, as it says: {e}"
            raise ProviderError(FailureKind.SERVER_ERROR, message, sent=True) from e

    return unpacked


def _too_large(read: bytes, max_bytes: int) -> ProviderError:
    message = (
        f"the answer was cut off after {max_bytes} bytes, the provider's max_answer_bytes; "
        f"ask for less, or raise it (allowed are up to {MAX_ANSWER_BYTES})"
    )
    text = _spelled_within(read.decode("utf-8", errors="replace"), max_bytes)
    return ProviderError(FailureKind.TRUNCATED, message, sent=True, text=text)


_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-f]{0,3})?\Z")


def _spelled_within(text: str, most: int) -> str:
    """Return as much of a text as JSON spells in so many bytes: there a control character takes six."""
    spelled = json.dumps(text, ensure_ascii=False)[1:-1].encode()[:most].decode(errors="ignore")
    return str(json.loads('"' + _CUT_ESCAPE.sub(r"\1", spelled) + '"'))


TOOL_DESCRIPTION = "Takes the whole answer to the request as its input. Call it once."


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is its input as the model wrote it: digits, repeated keys and white space kept."""

    name: str
    arguments: str


class CallsText(NamedTuple):
    """The text of an answer that calls tools, and what was called where that is not `ANSWER_TOOL`, once."""

    text: str
    tool_called: str = ""


_MOST_NAMES = 200


def text_of_calls(calls: Sequence[ToolCall]) -> CallsText:
    """Return the input of the one call of a tool.

    Several calls are no answer, whatever they call: they are spelled as a JSON list of calls, and the names joined by
    commas, which is the name of no tool.
    """
    if len(calls) == 1:
        name = calls[0].name[:_MOST_NAMES]
        return CallsText(calls[0].arguments, "" if name == ANSWER_TOOL else name or "(no name)")
    names = ", ".join(call.name for call in calls)[:_MOST_NAMES]
    return CallsText(
        json.dumps([{"name": call.name, "arguments": call.arguments} for call in calls]), f"({names})"
    )
