"""Parts that adapters of hosted APIs share: meanings of statuses, `Retry-After`, bounded reading, the answer tool, bills."""

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
"""How `usage.cost` is read: where its unit is known, always in US dollars, or never."""

MOST_BILL_USD: Final = 1_000_000

_HOSTS_IN_USD: Final = ("openrouter.ai", "perplexity.ai")
_TICKS_PER_USD: Final = 10**10
_ALLOWED: Final = f"allowed are numbers from 0 to {MOST_BILL_USD:,} dollars"
_UNKNOWN_UNIT: Final = 'usage.cost has no known unit and is not read; the option bill = "usd" reads it as US dollars, "none" ignores it'


@dataclass(frozen=True, slots=True)
class Bill:
    """What a server says that a call has cost it, None if it does not; `problem` is about what could not be read."""

    nusd: int | None = None
    problem: str = ""


NO_BILL: Final = Bill()


def unit_at(host: str) -> BillUnit:
    """Return how `usage.cost` of a host is read."""
    return "usd" if any(host == one or host.endswith(f".{one}") for one in _HOSTS_IN_USD) else "known"


def bill_of(usage: Any, unit: BillUnit = "known") -> Bill:
    """Return the bill in a usage.

    `cost` is the router's own charge, `cost_details.upstream_inference_cost` that of the provider behind it. With
    `is_byok` both are billed, else the larger one is the bill. Of a cost and the sum of its parts the larger one counts.
    Negative values, NaN and values that are not numbers are ignored and named in `problem`.
    """
    if unit == "none" or not isinstance(usage, Mapping):
        return NO_BILL
    reader = _Reader()
    ticks = reader.amount("usage.cost_in_usd_ticks", usage.get("cost_in_usd_ticks"), _TICKS_PER_USD)
    own = _own(reader, usage, unit)
    upstream = _upstream(reader, usage.get("cost_details"))
    costs = [cost for cost in (own, upstream) if cost is not None]
    if not (usage.get("is_byok") is None or usage.get("is_byok") is False):
        costs = [sum(costs, Fraction())] if costs else []
    found = max([*costs, *([] if ticks is None else [ticks])], default=None)
    return Bill(None if found is None else ceil(found * NANO), "; ".join(reader.problems))


def _own(reader: "_Reader", usage: Mapping[str, Any], unit: BillUnit) -> Fraction | None:
    cost = usage.get("cost")
    if isinstance(cost, Mapping):  # Perplexity's form, which names its unit by its `total_cost`
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
    """Reads amounts in US dollars, and notes those that are none."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def amount(self, place: str, value: Any, per_usd: int = 1) -> Fraction | None:
        """Return an amount exactly as its shortest decimal says; None for one that is missing or not an amount."""
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
        """Note a cost whose unit is not known."""
        self.problems.append(_UNKNOWN_UNIT)


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


GIVEN_UP: Final = frozenset({"abort", "aborted", "error", "insufficient_system_resource"})
"""Stop reasons of an answer that its server gave up: vLLM's and SGLang's, those of routers, DeepSeek's. Read in any case."""


def word_of(value: object) -> str:
    """Return a word of an answer, such as its stop reason: empty where there is none, as JSON where it is no text."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value)


def response_id_of(value: object) -> str:
    """Return an id of an answer, which may be a number; nothing depends on it."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def counts_any(said: object) -> bool:
    """Whether a usage or an error says anything, however deep: zeros, nulls and empty texts do not."""
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
    """A content in a form that no API has."""


class PartsText(NamedTuple):
    """The text of an answer's content, and the text by which it refuses; thinking is in neither."""

    text: str
    refusal: str = ""


def text_of_parts(content: object) -> PartsText:
    """Return what a content says: a text, nothing, or typed parts, of which those of text are joined.

    Parts of another type, such as thinking, are left out. Raises `ContentError` for a content in another form.
    """
    if content is None or isinstance(content, str):
        return PartsText(content or "")
    parts = [content] if isinstance(content, dict) else content
    if not isinstance(parts, list):
        raise ContentError(f"its content is {quoted(content)}; allowed are a text and a list of parts")
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
    """The body of an answer with a good status, and the id that the server gave the request.

    `retry_after_s` is the wait in its headers, `with_schema` whether the request held a schema to be enforced: the body
    may be an error all the same. `redaction` knows the key that was sent: a message is shortened without it.
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
    """Return the reply with these headers, whose names are read in any case."""
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
    """Return a body, unpacked, up to `max_bytes`; `packing` is its `Content-Encoding`.

    A longer answer raises `ProviderError`, as it may have been billed, with what was read as its `text`; of a page that
    goes with an error the rest is left out. No more than the limit and one packed piece is held, and no more is read than
    an answer of that size can take. A page with an error that cannot be unpacked is as it came, unless its beginning could
    be: its status counts all the same. For the same reason, an error of `breaks_off` ends such a page and is not raised.
    """
    unpacking = _Unpacking(packing.strip().lower(), max_bytes + 1)
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
        raise _too_large(bytes(body[:max_bytes]), max_bytes)
    return bytes(body[:max_bytes])


_PACKED_ROOM: Final = 1 << 16
_MEMBER = b"\x1f\x8b"
_MOST_MEMBERS: Final = 1000


class _Unpacking:
    """Unpacks one piece after the other, each to `most` bytes: the rest is then of no use.

    A gzip body is one member or several (RFC 1952). `is_over` is set at the first byte behind a member that begins no other
    one: what follows is not read. An input that is longer than any answer of `most` bytes, or has more than `_MOST_MEMBERS`,
    raises `ProviderError`: it is made of members without a content, each of which takes a copy of the rest.
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
        """Return a piece unpacked; raises `ProviderError` for one that cannot be, or that is packed in another way."""
        if self._packing in {"", "identity"}:
            return piece
        if self._packing not in _GZIP_NAMES:
            name, allowed = quoted(self._packing), f"allowed is {ACCEPT_ENCODING}"
            raise _unpackable(f"the answer is packed as {name}, which was not asked for; {allowed}")
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
        """Whether another member begins; of a single byte that may begin one, the next piece says so."""
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


_BLANK = frozenset(" \t\n\r")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # the values are only measured


def member_of(text: str, name: str) -> str:
    """Return the one value of a member of an object, as it is written; raises `ValueError` for none and for several."""
    values = [value for key, value in members_of(text) if key == name]
    if len(values) != 1:
        raise ValueError(f"{name!r} stands {len(values)} times in one object; allowed is once")
    return values[0]


def members_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the members of an object, or the items of a list without a name, as they are written: a parsed one loses digits.

    Raises `ValueError` for what is neither, and `RecursionError` for one that is nested without end.
    """
    at = _past(text, 0, "{[")
    is_object = text[at - 1] == "{"
    at = _skip(text, at)
    while text[at : at + 1] not in {"}", "]"}:
        name = ""
        if is_object:
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _past(text, at, ":"))
        _, end = _DECODER.raw_decode(text, at)
        yield name, text[at:end]
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)


def _past(text: str, at: int, signs: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] not in set(signs):
        raise ValueError(f"no {' or '.join(signs)} at {at}")
    return at + 1


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in _BLANK:
        at += 1
    return at
