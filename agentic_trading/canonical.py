"""Canonical JSON: equal values have equal bytes and equal hashes."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Bytes that are JSON already. They are inserted unchanged."""

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
# orjson differs from canonical JSON in integral floats, exponents, and NaN, which it writes as null. These patterns find
# them. To need only a few searches, digits and plus are folded into minus, and brackets and colons into commas (orjson
# 3.11 writes no plus). Texts may match too: hashes contain `3e1f`, instructions `1.0, 1.5`. A number with an exponent
# begins after a bracket, comma or colon, or has digits after a point. Most hashes do not match this, so that they are
# not searched for exponents.
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
_EXACT_DECODER = json.JSONDecoder(parse_float=Decimal)  # because `json.loads` would create one per text


class CanonicalError(TradingError, ValueError):
    """A value cannot be serialized as canonical JSON.

    Attributes:
        path: The place of the value, such as `$.context.price`.
        reason: The reason, with the allowed values.

    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


def canonical_bytes(value: Any) -> bytes:
    """Serialize a value as canonical JSON, the input of its hash.

    Keys are sorted. Times become UTC with `Z`, Decimals become strings, integral floats become integers, and
    -0.0 becomes 0. For ASCII keys, integers within ±2^53 and floats with 1e-5 <= |x| < 1e16, the result
    equals RFC 8785. Other floats are serialized as in ECMAScript.

    Raises:
        CanonicalError: For NaN, Infinity, keys that are not strings, integers of more than 21 digits, and
            other types.

    """
    spelled, _ = _encode(value)
    return spelled


def assembled_bytes(fields: dict[str, Any]) -> bytes:
    """Serialize an object of `Fragment`s, texts, integers and times.

    The result equals that of `canonical_bytes`, which is slower. Floats are allowed only with a fraction and
    at most five digits before the point.

    Raises:
        CanonicalError: If a text cannot be encoded as UTF-8.

    """
    try:
        return orjson.dumps(fields, default=_plain_scalar, option=_OPTIONS)
    except TypeError:
        return canonical_bytes(fields)


def to_json_value(value: Any) -> Any:
    """Return the value that the canonical JSON of `value` decodes to."""
    _, read = canonical_bytes_and_value(value)
    return read


def canonical_bytes_and_value(value: Any) -> tuple[bytes, Any]:
    """Return the canonical JSON of `value`, and the value decoded from it."""
    spelled, read = _encode(value)
    if read is _UNUSUAL:
        return spelled, json.loads(spelled)  # because orjson rounds integers from 2^64 on
    return spelled, orjson.loads(spelled) if read is None else read


def exact_bytes(value: Any) -> bytes:
    """Serialize decoded JSON with all digits of Decimals and integers.

    Keys keep their order.

    Raises:
        CanonicalError: If the value is not decoded JSON.

    """
    try:
        return orjson.dumps(value, default=_number)
    except TypeError:
        return orjson.dumps(_exact(value, "$", 0))


def exact_value(raw: bytes) -> Any:
    """Decode JSON in UTF-8. Integers become int, other numbers Decimal. Raises `ValueError`."""
    return _EXACT_DECODER.decode(raw.decode("utf-8", "surrogatepass"))


def sha256_hex(*parts: bytes) -> str:
    """Return the SHA-256 of the joined `parts` as 64 hexadecimal digits."""
    return sha256(b"".join(parts)).hexdigest()


def utc_text(moment: datetime) -> str:
    """Return a time in UTC as ISO 8601 with `Z`. Microseconds appear only if they are not zero.

    Raises:
        TypeError: If a subclass of datetime has nanoseconds.

    """
    if type(moment) is not datetime:
        moment = _plain_time(moment)
    return _utc_text(moment if moment.tzinfo is UTC else moment.astimezone(UTC))


def _plain_time(moment: datetime) -> datetime:
    """Return a subclass instance, such as pandas' Timestamp, as a plain datetime."""
    if getattr(moment, "nanosecond", 0):
        raise TypeError("it has nanoseconds; allowed are microseconds")
    return datetime.combine(
        date(moment.year, moment.month, moment.day),
        time(moment.hour, moment.minute, moment.second, moment.microsecond, moment.tzinfo, fold=moment.fold),
    )


# Cached because one call serializes its few times about twenty times. Only for `UTC` itself: in other zones, the two
# passes of a repeated hour compare as equal.
@lru_cache(maxsize=1024)
def _utc_text(moment: datetime) -> str:
    """Return the text of a time whose zone is `UTC`."""
    return orjson.dumps(moment, option=orjson.OPT_UTC_Z)[1:-1].decode()


def _encode(value: Any) -> tuple[bytes, Any]:
    """Return the canonical JSON of `value`, and its decoded value.

    The decoded value is None if it was not needed, and `_UNUSUAL` if only `json` decodes it exactly.
    """
    try:
        spelled = orjson.dumps(value, default=_plain_scalar, option=_OPTIONS)
        if spelled[-1:].isdigit():  # a lone number has no bracket or comma around it
            return orjson.dumps(_walk(value, "$", 0), option=_OPTIONS), _UNUSUAL
        ways = _respellings(value, spelled)
        if not ways:
            return spelled, None
        for respell in ways:
            respelled = respell(spelled)
            if (read := orjson.loads(respelled)) == value:  # nothing was lost: no NaN, no text like a number
                return respelled, _UNUSUAL if respell is _respell_numbers else read
    except (TypeError, RecursionError):
        pass
    return orjson.dumps(_walk(value, "$", 0), option=_OPTIONS), _UNUSUAL


def _respellings(value: Any, spelled: bytes) -> Sequence[Callable[[bytes], bytes]]:
    """Return the functions that may make the JSON of `value` canonical, the fastest first. Empty if it is."""
    if type(value) is dict and all(type(item) is str for item in value.values()):
        return ()  # because it has no numbers, and searching long texts for them takes long
    folded = spelled.translate(_FOLDED)
    find = folded.find  # because `in` converts to int first and is 5x slower here
    if find(b"e-") >= 0 and _has_exponent(spelled, folded):
        return (_respell_numbers,)
    if find(b".0,") >= 0:
        return _shorten_all, _shorten_numbers
    return (bytes,) if find(b"null") >= 0 else ()


def _has_exponent(spelled: bytes, folded: bytes) -> bool:
    """Whether a number may have an exponent.

    Never False if one has. Seldom True for text that looks like one.
    """
    if (
        folded.find(b",-e-") >= 0
        or folded.find(b",--e-") >= 0
        or (spelled.find(b".") >= 0 and _EXPONENT_BEHIND_POINT.search(spelled))
    ):
        return any(map(_in_number, _EXPONENT.finditer(spelled)))
    return False


def _shorten_all(spelled: bytes) -> bytes:
    """Remove `.0` from everything that looks like an integral float, also in texts."""
    if b"-0.0" in spelled:
        spelled = _MINUS_ZERO.sub(b"0", spelled)
    return _POINT_ZERO.sub(b"", spelled)


def _shorten_numbers(spelled: bytes) -> bytes:
    """Remove `.0` from integral floats only. Slower than `_shorten_all`."""
    if b"-0.0" in spelled:
        spelled = _MINUS_ZERO.sub(lambda found: b"0" if _in_number(found) else found[0], spelled)
    return _POINT_ZERO.sub(lambda found: b"" if _in_number(found) else found[0], spelled)


def _respell_numbers(spelled: bytes) -> bytes:
    """Serialize numbers with an exponent as in ECMAScript, and integral floats as integers."""
    return _shorten_numbers(_WITH_EXPONENT.sub(_as_ecmascript, spelled))


def _as_ecmascript(found: re.Match[bytes]) -> bytes:
    number = float(found[0])
    return ecmascript_number(number).encode() if math.isfinite(number) and _in_number(found) else found[0]


def _in_number(found: re.Match[bytes]) -> bool:
    r"""Whether `found` may be in a number of an array or an object.

    Never False for a number. True for text such as `\":1.0` is rare, and costs only the slow path.
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
    """Return a number of another type, such as NumPy's float32, as an equal float."""
    double = float(value)
    if math.isfinite(double) and double != value:
        raise ValueError("a double does not hold it exactly")
    return double


def shown(value: Any) -> str:
    """Return the start of the `repr` of a value. If `repr` fails, return its type."""
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - code of the caller's; the error to report is another one
        return f"a {type(value).__name__}"


def quoted(value: Any, most: int = 40) -> str:
    """Return the `repr` of a value, or its type and length if that is too long.

    Use it for messages that are redacted later, because redaction does not find the beginning of a secret.
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
    """Serialize a finite float as ECMAScript's Number::toString.

    See ECMA-262 §6.1.6.1.20 and RFC 8785 §3.2.2.3.
    """
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


_BLANK = frozenset(" \t\n\r")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # only the length of the values is needed


def member_of(text: str, name: str) -> str:
    """Return the value of a member of an object, as it is written.

    Raises:
        ValueError: If the object does not have exactly one such member.

    """
    values = [value for key, value in members_of(text) if key == name]
    if len(values) != 1:
        raise ValueError(f"{name!r} appears {len(values)} times in one object. Allowed: once")
    return values[0]


def members_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the members of an object as they are written, because parsing loses digits.

    The items of a list have an empty name.

    Raises:
        ValueError: If the text is not an object or a list.
        RecursionError: If it is nested too deeply.

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
