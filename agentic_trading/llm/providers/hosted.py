"""Parts that adapters of hosted APIs share.

Meanings of statuses, `Retry-After`, bounded reading, the answer tool, and bills.
"""

import json
import re
import zlib
from collections.abc import AsyncIterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from fractions import Fraction
from math import ceil, isfinite
from typing import Any, Final, Literal, NamedTuple

from agentic_trading.canonical import quoted
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.provider import ANSWER_TOOL, MAX_ANSWER_BYTES
from agentic_trading.llm.redaction import Redaction

BillUnit = Literal["known", "usd", "none"]
"""How `usage.cost` is read: if its unit is known, always in US dollars, or never."""

MOST_BILL_USD: Final = 1_000_000

_HOSTS_IN_USD: Final = ("openrouter.ai", "perplexity.ai")
_TICKS_PER_USD: Final = 10**10
_ALLOWED: Final = f"allowed are numbers from 0 to {MOST_BILL_USD:,} dollars"
_UNKNOWN_UNIT: Final = 'usage.cost has no known unit and is not read; the option bill = "usd" reads it as US dollars, "none" ignores it'


@dataclass(frozen=True, slots=True)
class Bill:
    """The server's own bill of a call, None if it reports none.

    `problem` names unreadable parts.
    """

    nusd: int | None = None
    problem: str = ""


NO_BILL: Final = Bill()


def unit_at(host: str) -> BillUnit:
    """Return how `usage.cost` of a host is read."""
    return "usd" if any(host == one or host.endswith(f".{one}") for one in _HOSTS_IN_USD) else "known"


def bill_of(usage: Any, unit: BillUnit = "known") -> Bill:
    """Return the bill in a usage.

    `cost` is the router's charge, and `cost_details.upstream_inference_cost` the charge of the provider
    behind it. With `is_byok`, the bill is their sum. Otherwise it is the larger one. If a cost and its parts
    differ, the larger of the cost and the sum of the parts counts. Negative values, NaN and values that are
    not numbers are ignored, and listed in `problem`.
    """
    if unit == "none" or not isinstance(usage, Mapping):
        return NO_BILL
    reader = _Reader()
    ticks = reader.amount("usage.cost_in_usd_ticks", usage.get("cost_in_usd_ticks"), _TICKS_PER_USD)
    own = _own(reader, usage, unit)
    upstream = _upstream(reader, usage.get("cost_details"))
    costs = [cost for cost in (own, upstream) if cost is not None]
    # With the caller's own key at the provider, both are billed. A value that is not a bool counts as true,
    # because that is dearer (decision 51).
    if not (usage.get("is_byok") is None or usage.get("is_byok") is False):
        costs = [sum(costs, Fraction())] if costs else []
    found = max([*costs, *([] if ticks is None else [ticks])], default=None)
    return Bill(None if found is None else ceil(found * NANO), "; ".join(reader.problems))


def _own(reader: "_Reader", usage: Mapping[str, Any], unit: BillUnit) -> Fraction | None:
    cost = usage.get("cost")
    if isinstance(cost, Mapping):  # Perplexity's form: its `total_cost` shows that the unit is the dollar
        if unit != "usd" and "total_cost" not in cost:
            reader.skip()
            return None
        parts = [name for name in cost if name.endswith("_cost") and name != "total_cost"]
        return reader.larger("usage.cost", cost, "total_cost", parts)
    if unit != "usd" and not {"is_byok", "cost_details"} & usage.keys():
        if cost:
            reader.skip()
        return None
    return reader.amount("usage.cost", cost)


def _upstream(reader: "_Reader", details: Any) -> Fraction | None:
    if not isinstance(details, Mapping):
        return None
    parts = ["upstream_inference_prompt_cost", "upstream_inference_completions_cost"]
    return reader.larger("usage.cost_details", details, "upstream_inference_cost", parts)


class _Reader:
    """Reads amounts in US dollars and collects the invalid ones."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def amount(self, place: str, value: Any, per_usd: int = 1) -> Fraction | None:
        """Return an amount exactly, by its shortest decimal, or None if missing or invalid."""
        if value is None:
            return None
        is_number = type(value) is int or (type(value) is float and isfinite(value))
        if is_number:
            usd = Fraction(Decimal(repr(value))) / per_usd
            if 0 <= usd <= MOST_BILL_USD:
                return usd
        self.problems.append(f"{place} is {quoted(value)}; {_ALLOWED}")
        return None

    def larger(self, place: str, costs: Mapping[str, Any], total: str, parts: list[str]) -> Fraction | None:
        """Return the larger of a total and the sum of its parts."""
        split = [self.amount(f"{place}.{name}", costs.get(name)) for name in parts]
        known = [part for part in split if part is not None]
        found = [self.amount(f"{place}.{total}", costs.get(total)), sum(known, Fraction()) if known else None]
        return max((each for each in found if each is not None), default=None)

    def skip(self) -> None:
        """Add the problem of a cost with an unknown unit."""
        self.problems.append(_UNKNOWN_UNIT)


PromptCacheTtl = Literal["", "5m", "1h"]
"""How long a provider caches the stable prefix of a prompt.

Empty disables caching.
"""


class StatusMapping(NamedTuple):
    """The kind of a failure.

    `sent` is False only if the request was certainly not processed.
    """

    kind: FailureKind
    sent: bool


NEVER_PROCESSED: Final = frozenset({
    400, 401, 402, 403, 404, 405, 411, 412, 413, 414, 415, 421, 422, 426, 428, 429, 431, 529,
})  # fmt: skip
"""The statuses of a request that was not processed.

Sources: RFC 9110, RFC 6585, and for 402 and 529 the vendors. All adapters use this list. Requests with any
other status may have been billed: redirects (not followed, and sent by some servers after the work),
undocumented statuses, conflicts, timeouts and internal errors.
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
    """Return the failure of a status if the body has no more exact one.

    From 500 on, it is the server's error.
    """
    otherwise = FailureKind.SERVER_ERROR if status >= 500 else FailureKind.INVALID_REQUEST
    return StatusMapping(_KINDS.get(status, otherwise), sent=status not in NEVER_PROCESSED)


LONGEST_WAIT_S = 86_400.0
"""One day in seconds. Longer waits count as one day."""

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def retry_after_s(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return the wait that headers ask for, in seconds, or None.

    It is from 0 to `LONGEST_WAIT_S`. There are three forms (RFC 9110 §10.2.3, and one of vendors):
    `retry-after-ms`, which takes precedence, and `retry-after` as seconds (with or without a fraction) or as
    an HTTP date, which is 0 if it has passed. Other values, such as negative numbers, count as absent. Header
    names may be in any case.
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
    if at.tzinfo is None:  # "-0000" is UTC, from a sender whose zone is unknown
        at = at.replace(tzinfo=UTC)
    return min(max((at - now).total_seconds(), 0.0), LONGEST_WAIT_S)


GIVEN_UP: Final = frozenset({"abort", "aborted", "error", "insufficient_system_resource"})
"""Stop reasons of an answer that the server did not complete.

They are those of vLLM, SGLang, routers and DeepSeek, and are read in any case.
"""


def word_of(value: object) -> str:
    """Return a word of an answer, such as its stop reason, as text.

    Other values become JSON.
    """
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value)


def response_id_of(value: object) -> str:
    """Return the id of an answer, which may be a number, or an empty text."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def counts_any(said: object) -> bool:
    """Return whether a usage or an error holds anything but zeros, nulls and empty texts."""
    left = [said]
    while left:
        one = left.pop()
        if isinstance(one, dict | list):
            left.extend(one.values() if isinstance(one, dict) else one)
        elif one:
            return True
    return False


_TEXTS = frozenset({"text", "output_text"})


class ContentError(ValueError):
    """A content has a form that no API uses."""


class PartsText(NamedTuple):
    """The text of an answer's content, and the text of a refusal.

    Neither includes thinking.
    """

    text: str
    refusal: str = ""


def text_of_parts(content: object) -> PartsText:
    """Return the text of a content, which is a text, empty, or a list of typed parts.

    Parts of other types, such as thinking, are left out.

    Raises:
        ContentError: If the content has another form.

    """
    if content is None or isinstance(content, str):
        return PartsText(content or "")
    parts = [content] if isinstance(content, dict) else content
    if not isinstance(parts, list):
        raise ContentError(f"its content is {quoted(content)}. Allowed: a text or a list of parts")
    said: list[str] = []
    refusals: list[str] = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise ContentError("a part of its content has no type")
        if kind in _TEXTS:
            said.append(_part_text(part, "text"))
        elif kind == "refusal":
            refusals.append(_part_text(part, "refusal"))
    return PartsText("".join(said), "".join(refusals))


def _part_text(part: Mapping[str, object], name: str) -> str:
    text = part.get(name)
    if not isinstance(text, str):
        raise ContentError(f"a part of its content has no {name}")
    return text


@contextmanager
def nothing_sent() -> Iterator[None]:
    """Raise any error of the block as `invalid_request`, not sent.

    Use it while a client is loaded and created.
    """
    try:
        yield
    except Exception as e:  # noqa: BLE001 - whatever it was, no request had left, and none must be charged
        # Only texts of imports and of the system, because others may hold a proxy's password.
        said = f": {e}" if isinstance(e, ImportError | OSError) else ""
        message = (
            f"the client cannot be made ({type(e).__name__}{said}); "
            "check the installed extra, and the proxies and certificates that the environment names"
        )
        raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from None


ACCEPT_ENCODING: Final = "gzip"
"""The only encoding that `read_up_to` can unpack within its limit."""


class HttpReply(NamedTuple):
    """The body of an answer with a success status, which may still be an error.

    Attributes:
        request_id: The server's id of the request.
        retry_after_s: The wait in its headers, in seconds.
        with_schema: The request had a schema to enforce.
        redaction: Secrets that are removed from messages, the sent key included.

    """

    body: bytes
    request_id: str
    retry_after_s: float | None = None
    with_schema: bool = False
    redaction: Redaction = Redaction()


def reply_of(
    body: bytes,
    headers: Mapping[str, str],
    request_id: str,
    *,
    with_schema: bool,
    redaction: Redaction,
    now: datetime,
) -> HttpReply:
    """Return the reply with these headers, whose names may be in any case."""
    asks_to_wait = "retry-after" in headers or "retry-after-ms" in headers
    wait_s = retry_after_s(headers, now=now) if asks_to_wait else None
    return HttpReply(body, headers.get(request_id, ""), wait_s, with_schema, redaction)


async def read_up_to(
    pieces: AsyncIterable[bytes],
    packing: str,
    max_bytes: int,
    *,
    is_answer: bool,
    breaks_off: tuple[type[Exception], ...] = (),
) -> bytes:
    """Read and unpack a body, up to `max_bytes`.

    Memory holds at most the limit and one packed piece. Reading stops when an answer of that size is
    complete.

    Args:
        pieces: The body, as it arrives.
        packing: Its `Content-Encoding`.
        max_bytes: The limit after unpacking.
        is_answer: False for the page of an error. Only its start is needed, because its status counts: a
            longer page is cut. A page that cannot be unpacked is returned packed, unless its start could be
            unpacked.
        breaks_off: Errors that end the page of an error, and are not raised.

    Raises:
        ProviderError: If an answer is longer or cannot be unpacked. It may have been billed. For a longer
            answer, `text` is the part that was read.

    """
    unpacking = Unpacking(packing.strip().lower(), max_bytes + 1)
    body, raw, is_unpackable = bytearray(), bytearray(), False
    with nullcontext() if is_answer else suppress(*breaks_off):
        async for piece in pieces:
            if not is_answer:
                raw += piece[: max_bytes - len(raw)]
            try:
                body += b"" if is_unpackable else unpacking.unpacked(piece)
            except ProviderError:
                if is_answer:
                    raise
                is_unpackable = True
            if (
                len(body) > max_bytes
                or unpacking.is_over
                or (is_unpackable and (body or len(raw) == max_bytes))
            ):
                break
    if is_unpackable and not body:
        body = raw
    if len(body) > max_bytes and is_answer:
        raise too_large(bytes(body[:max_bytes]), max_bytes)
    return bytes(body[:max_bytes])


_PACKED_ROOM: Final = 1 << 16
_MEMBER = b"\x1f\x8b"
_MOST_MEMBERS: Final = 1000


class Unpacking:
    """Unpacks one piece after the other, each up to `most` bytes.

    A gzip body has one or several members (RFC 1952). `is_over` is set at the first byte after a member that
    does not start another one: the rest is not read. An input that is longer than any answer of `most` bytes,
    or has more than `_MOST_MEMBERS` members, raises `ProviderError`: its members are empty, and each takes a
    copy of the rest.
    """

    def __init__(self, packing: str, most: int) -> None:
        self.is_over = False
        self._packing = packing
        self._most = most
        self._left = 2 * most + _PACKED_ROOM
        self._member = zlib.decompressobj(wbits=_GZIP)
        self._start = b""
        self._members = 1

    def unpacked(self, piece: bytes) -> bytes:
        """Return an unpacked piece. Raises `ProviderError` if it cannot be unpacked."""
        if self._packing in {"", "identity"}:
            return piece
        if self._packing not in _GZIP_NAMES:
            name, allowed = quoted(self._packing), f"Allowed: {ACCEPT_ENCODING}"
            raise _unpackable(f"the answer is packed as {name}. {allowed}")
        # Bounded, because members without content would otherwise be unpacked without end.
        self._left -= len(piece)
        if self._left < 0:
            raise _unpackable("the packed answer is longer than one of its size can be")
        body = bytearray()
        rest = self._start + piece
        self._start = b""
        while rest and not self.is_over and len(body) < self._most:
            if self._member.eof and not self._begins_member(rest):
                break
            try:
                body += self._member.decompress(rest, self._most - len(body))
            except zlib.error as e:
                raise _unpackable(f"the answer is no {self._packing}, as it says: {e}") from e
            rest = self._member.unused_data if self._member.eof else b""
        return bytes(body)

    def _begins_member(self, rest: bytes) -> bool:
        """Return whether another member starts.

        A single byte is kept until the next piece.
        """
        if len(rest) == 1 and _MEMBER.startswith(rest):
            self._start = rest
            return False
        self.is_over = not rest.startswith(_MEMBER)
        self._members += 1
        if self._members > _MOST_MEMBERS and not self.is_over:
            raise _unpackable(f"the packed answer has more than {_MOST_MEMBERS} parts")
        self._member = zlib.decompressobj(wbits=_GZIP)
        return not self.is_over


_GZIP: Final = 31  # zlib's word for a gzip member with its checksum
_GZIP_NAMES: Final = frozenset({"gzip", "x-gzip"})


def _unpackable(message: str) -> ProviderError:
    return ProviderError(FailureKind.SERVER_ERROR, message, sent=True)


def too_large(read: bytes, max_bytes: int) -> ProviderError:
    message = (
        f"the answer was cut off after {max_bytes} bytes, the provider's max_answer_bytes; "
        f"ask for less, or raise it (allowed are up to {MAX_ANSWER_BYTES})"
    )
    text = _spelled_within(read.decode("utf-8", errors="replace"), max_bytes)
    return ProviderError(FailureKind.TRUNCATED, message, sent=True, text=text)


_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-f]{0,3})?\Z")


def _spelled_within(text: str, most: int) -> str:
    """Return the start of a text whose JSON has at most `most` bytes.

    A control character takes six bytes in JSON.
    """
    spelled = json.dumps(text, ensure_ascii=False)[1:-1].encode()[:most].decode(errors="ignore")
    return str(json.loads('"' + _CUT_ESCAPE.sub(r"\1", spelled) + '"'))


TOOL_DESCRIPTION = "Takes the whole answer to the request as its input. Call it once."


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool.

    `arguments` is its input as the model wrote it, with all digits and keys.
    """

    name: str
    arguments: str


class CallsText(NamedTuple):
    """The text of an answer that calls tools, and the name of the called tool.

    `tool_called` is empty for a single call of `ANSWER_TOOL`.
    """

    text: str
    tool_called: str = ""


_MOST_NAMES = 200


def text_of_calls(calls: Sequence[ToolCall]) -> CallsText:
    """Return the input of the only call.

    Several calls are not an answer. Their text is a JSON list of the calls, and `tool_called` is the list of
    names in parentheses, which no tool can have as its name.
    """
    if len(calls) == 1:
        name = calls[0].name[:_MOST_NAMES]
        return CallsText(calls[0].arguments, "" if name == ANSWER_TOOL else name or "(no name)")
    names = ", ".join(call.name for call in calls)[:_MOST_NAMES]
    return CallsText(
        json.dumps([{"name": call.name, "arguments": call.arguments} for call in calls]), f"({names})"
    )
