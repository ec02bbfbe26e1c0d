"""One spelling of JSON, so that equal values have equal bytes and equal hashes."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from numbers import Integral, Real
from operator import index
from typing import Any
from uuid import UUID

import orjson

from agentic_trading.errors import TradingError

Fragment = orjson.Fragment
"""Bytes that are JSON already and are put in as they are."""

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
# What the C encoder spells in another way than we do, or hides: an integral float, an exponent, a null that may have
# been NaN. Folding all that an exponent may begin with into a minus (orjson 3.11 spells no plus), and brackets into
# commas, leaves a few searches. Text may look like it too: hashes hold `3e1f`, instructions `1.0, 1.5`. What stands in
# front of an exponent is a digit behind a bracket, a comma or a colon, or digits behind a point: not so in most hashes.
_FOLDED = bytes.maketrans(b"+123456789[]}:", b"-" * 10 + b",,,,")
_EXPONENT = re.compile(rb"[0-9]e[-+0-9]")
_EXPONENT_BEHIND_POINT = re.compile(rb"\.[0-9]+e[-+0-9]")
_WITH_EXPONENT = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?e[-+]?[0-9]+")
_MINUS_ZERO = re.compile(rb"-0\.0(?=[,}\]])")
_POINT_ZERO = re.compile(rb"\.0(?=[,}\]])")
_LONGEST_NUMBER = len(b'":-1.7976931348623157e+308')
_EXACT_INTEGER = 2**53
_LARGEST_INTEGER = 10**21
_DEEPEST = 128
_UNUSUAL = object()
_EXACT_DECODER = json.JSONDecoder(parse_float=Decimal)  # made once: `json.loads` makes one for each text


class CanonicalError(TradingError, ValueError):
    """A value has no canonical JSON spelling; `path` says where, `reason` why and what is allowed."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


def canonical_bytes(value: Any) -> bytes:
    """Spell `value` as JSON with sorted keys, in the one way that its hash is taken over.

    Times become UTC with `Z`, Decimals strings, integral floats integers, -0.0 zero. For ASCII keys,
    integers within ±2^53 and floats with 1e-5 <= |x| < 1e16 this equals RFC 8785; other floats are
    spelled as ECMAScript does. Raises `CanonicalError` with a path for NaN, Infinity, keys that are
    not strings, integers of more than 21 digits, and types that JSON does not have.
    """
    spelled, _ = _encode(value)
    return spelled


def assembled_bytes(fields: dict[str, Any]) -> bytes:
    """Spell an object put together from `Fragment`s, texts, whole numbers and times, as `canonical_bytes` would.

    Nothing in it is looked at that those do not have: no float but one with digits behind its point, and no more than
    five before it. Raises `CanonicalError` with a path for text that UTF-8 cannot spell.
    """
    try:
        return orjson.dumps(fields, default=_plain_scalar, option=_OPTIONS)
    except TypeError:
        return canonical_bytes(fields)


def to_json_value(value: Any) -> Any:
    """Return `value` as what its canonical JSON reads back as: dict, list, str, int, float, bool, None."""
    _, read = canonical_bytes_and_value(value)
    return read


def canonical_bytes_and_value(value: Any) -> tuple[bytes, Any]:
    """Return `value` in canonical JSON, and as what that reads back as."""
    spelled, read = _encode(value)
    if read is _UNUSUAL:
        return spelled, json.loads(spelled)  # the C reader rounds whole numbers from 2^64 on
    return spelled, orjson.loads(spelled) if read is None else read


def exact_bytes(value: Any) -> bytes:
    """Spell decoded JSON digit for digit: Decimals and integers of any size stand as numbers.

    Keys keep their order. Raises `CanonicalError` for what JSON does not have.
    """
    try:
        return orjson.dumps(value, default=_number)
    except TypeError:
        return orjson.dumps(_exact(value, "$", 0))


def exact_value(raw: bytes) -> Any:
    """Read JSON in UTF-8 without a byte order mark: integers as int, every other number as Decimal; raises `ValueError`."""
    return _EXACT_DECODER.decode(raw.decode("utf-8", "surrogatepass"))


def sha256_hex(*parts: bytes) -> str:
    """Return the SHA-256 over `parts`, one after the other, in 64 hexadecimal digits."""
    return sha256(b"".join(parts)).hexdigest()


def utc_text(moment: datetime) -> str:
    """Return `moment` in UTC as ISO 8601 with `Z`; microseconds only where there are any.

    Raises `TypeError` for a subclass of datetime with nanoseconds.
    """
    if type(moment) is not datetime:
        moment = _plain_time(moment)
    return _utc_text(moment if moment.tzinfo is UTC else moment.astimezone(UTC))


def _plain_time(moment: datetime) -> datetime:
    """Return the value of a subclass, such as pandas' Timestamp, as a datetime."""
    if getattr(moment, "nanosecond", 0):
        raise TypeError("it has nanoseconds; allowed are microseconds")
    return datetime.combine(
        date(moment.year, moment.month, moment.day),
        time(moment.hour, moment.minute, moment.second, moment.microsecond, moment.tzinfo, fold=moment.fold),
    )


@lru_cache(maxsize=1024)  # one call spells its few moments some twenty times
def _utc_text(moment: datetime) -> str:
    """Spell a moment whose zone is `UTC`: in others, the two passes of a repeated hour are equal and not the same."""
    return orjson.dumps(moment, option=orjson.OPT_UTC_Z)[1:-1].decode()


def _encode(value: Any) -> tuple[bytes, Any]:
    """Return `value` in canonical JSON, and as what that reads back as if it had to be read; `_UNUSUAL` if it is so."""
    try:
        spelled = orjson.dumps(value, default=_plain_scalar, option=_OPTIONS)
        folded = spelled.translate(_FOLDED)
        if spelled[-1:].isdigit():  # a lone number, with nothing around it by which to know it
            return orjson.dumps(_walk(value, "$", 0), option=_OPTIONS), _UNUSUAL
        find = folded.find  # `in` looks for a whole number first, and fails: it costs five times as much
        if find(b"e-") >= 0 and _has_exponent(spelled, folded):
            ways: Sequence[Callable[[bytes], bytes]] = (_respell_numbers,)
        elif find(b".0,") >= 0:
            ways = _shorten_all, _shorten_numbers
        elif find(b"null") >= 0:
            ways = (bytes,)
        else:
            return spelled, None
        for respell in ways:
            respelled = respell(spelled)
            if (read := orjson.loads(respelled)) == value:  # nothing was lost: no NaN, no text like a number
                return respelled, _UNUSUAL if respell is _respell_numbers else read
    except (TypeError, RecursionError):
        pass
    return orjson.dumps(_walk(value, "$", 0), option=_OPTIONS), _UNUSUAL


def _has_exponent(spelled: bytes, folded: bytes) -> bool:
    """Whether a number may have an exponent: never False where one has, seldom True where only text looks like it."""
    if (
        folded.find(b",-e-") >= 0
        or folded.find(b",--e-") >= 0
        or (spelled.find(b".") >= 0 and _EXPONENT_BEHIND_POINT.search(spelled))
    ):
        return any(map(_in_number, _EXPONENT.finditer(spelled)))
    return False


def _shorten_all(spelled: bytes) -> bytes:
    """Take the point and zero from all that looks like an integral float, in texts too."""
    if b"-0.0" in spelled:
        spelled = _MINUS_ZERO.sub(b"0", spelled)
    return _POINT_ZERO.sub(b"", spelled)


def _shorten_numbers(spelled: bytes) -> bytes:
    """Take the point and zero from integral floats; a match at a time, so for values with text that looks like one."""
    if b"-0.0" in spelled:
        spelled = _MINUS_ZERO.sub(lambda found: b"0" if _in_number(found) else found[0], spelled)
    return _POINT_ZERO.sub(lambda found: b"" if _in_number(found) else found[0], spelled)


def _respell_numbers(spelled: bytes) -> bytes:
    """Spell each number that has an exponent as ECMAScript does, and integral floats as integers."""
    return _shorten_numbers(_WITH_EXPONENT.sub(_as_ecmascript, spelled))


def _as_ecmascript(found: re.Match[bytes]) -> bytes:
    number = float(found[0])
    return ecmascript_number(number).encode() if math.isfinite(number) and _in_number(found) else found[0]


def _in_number(found: re.Match[bytes]) -> bool:
    r"""Whether `found` may stand in a number of an array or an object: those begin behind `":`, a bracket or a comma.

    Never False for a number; seldom True for text (`\":1.0`), which then shows on reading or costs the slow walk.
    """
    start = found.start()
    before = found.string[max(0, start - _LONGEST_NUMBER) : start].rstrip(b"0123456789.").removesuffix(b"-")
    return before.endswith((b'":', b"[", b","))


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TypeError("no time zone")
        return utc_text(value)
    if isinstance(value, Decimal):
        if not Decimal.is_finite(value):
            raise TypeError("not a number")
        return Decimal.__str__(value)
    if isinstance(value, date):
        return date.isoformat(value)
    if type(value).__module__ == "numpy" and type(value).__name__ in {"bool", "bool_"}:
        return bool(value)
    raise TypeError(type(value).__name__)


def _walk(value: Any, path: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise CanonicalError(path, f"nested deeper than {_DEEPEST} levels")
    if isinstance(value, Mapping):
        return {_key(key, path): _walk(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    return _leaf(value, path)


def _leaf(value: Any, path: str) -> Any:
    match value:
        case None | bool() | Fragment():
            return value
        case Enum():
            return _leaf(value.value, path)
        case str():
            return _text(value, path)
        case int():
            return _integer(int.__int__(value), path)
        case float():
            return _float(float.__float__(value), path)
        case UUID():
            return str(value)
        case _:
            return _scalar(value, path)


def _scalar(value: Any, path: str) -> Any:
    try:
        if isinstance(value, Integral):
            return _integer(index(value), path)
        if isinstance(value, Real):
            return _float(_exact_double(value), path)
        return _plain_scalar(value)
    except (TypeError, ValueError, OverflowError) as e:
        if isinstance(e, CanonicalError):
            raise
        allowed = "allowed are str, int, finite float and Decimal, bool, None, UTC datetime, dict, list"
        raise CanonicalError(path, f"{shown(value)} has no JSON spelling ({e}); {allowed}") from e


def _exact_double(value: Any) -> float:
    """Return a number of a foreign type, such as NumPy's float32, as a float of the same value."""
    double = float(value)
    if math.isfinite(double) and double != value:
        raise ValueError("a double does not hold it exactly")
    return double


def shown(value: Any) -> str:
    """Return the start of what `value` prints; an object whose `repr` fails is named by its type."""
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - code of the caller's; the error to report is another one
        return f"a {type(value).__name__}"


def quoted(value: Any, most: int = 40) -> str:
    """Return `value` as it prints, or its type and length if that is longer than `most` characters.

    For messages that are redacted later: redaction does not find the beginning of a secret.
    """
    text = repr(value)
    return text if len(text) <= most else f"a {type(value).__name__} of {len(text)} characters"


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise CanonicalError(path, f"the key {shown(key)} is not a string; allowed are string keys")
    return _text(key, path)


def _text(value: str, path: str) -> str:
    text = str.__str__(value)  # the value of a subclass, whatever it prints: the encoder takes none as a key
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise CanonicalError(path, "holds a lone surrogate; allowed is text that UTF-8 can spell") from e
    return text


def _integer(value: int, path: str) -> Any:
    if -(2**63) <= value < 2**63:
        return int(value)
    if abs(value) < _LARGEST_INTEGER:
        return Fragment(str(value))
    raise CanonicalError(
        path, "an integer of more than 21 digits cannot be spelled exactly; write it as text"
    )


def _float(value: float, path: str) -> Any:
    if not math.isfinite(value):
        raise CanonicalError(path, f"{value} is not a JSON number; allowed are finite numbers")
    if value.is_integer() and abs(value) < _EXACT_INTEGER:
        return int(value)
    return Fragment(ecmascript_number(value))


def ecmascript_number(value: float) -> str:
    """Spell a finite float as ECMAScript's Number::toString does (ECMA-262 §6.1.6.1.20, RFC 8785 §3.2.2.3)."""
    sign = "-" if value < 0 else ""
    digits_tuple = Decimal(repr(abs(value))).normalize().as_tuple()
    digits = "".join(map(str, digits_tuple.digits))
    point = len(digits) + int(digits_tuple.exponent)
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    exponent = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return sign + (digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}") + exponent


def _number(value: Any) -> Any:
    if isinstance(value, Decimal) and Decimal.is_finite(value):
        return Fragment(Decimal.__str__(value))
    raise TypeError(type(value).__name__)


def _exact(value: Any, path: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise CanonicalError(path, f"nested deeper than {_DEEPEST} levels")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return Fragment(int.__repr__(value))
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, Mapping):
        return {_key(key, path): _exact(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_exact(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    try:
        return _number(value)
    except TypeError as e:
        raise CanonicalError(path, f"{value!r:.80} is not decoded JSON ({e})") from e
