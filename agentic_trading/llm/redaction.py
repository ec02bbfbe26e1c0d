"""Known secrets, and how they are removed from texts, answers and records."""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import chain
from os.path import commonprefix
from typing import Any, Final, Literal, Protocol, Self, TypeVar
from urllib.parse import quote, quote_plus

import orjson
from typing_extensions import override

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.provider import ModelResponse, UnusableAnswerError
from agentic_trading.llm.result import Usage

MARK: Final = "***"
"""The replacement of a secret."""

SHORTEST: Final = 8
"""The length of the shortest secret that is redacted.

A start of a secret at the end of a text must have this length too.
"""

SHORTEST_WORD: Final = 16
"""The same for a secret of letters of one case, or of digits only.

It may be an ordinary word or number.
"""

MOST_KNOWN: Final = 256
"""The maximum number of known secrets.

The oldest are forgotten, but a key is added again before each request.
"""

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_ASCII_ESCAPE: Final = re.compile(r"\\+u00([2-7][0-9a-fA-F])")


class WireRecord(Protocol):
    """A record with bytes, which can be read from them."""

    @property
    def wire(self) -> bytes:
        """The record in JSON."""
        ...

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read a record. Raises `ValueError` if the bytes are not one."""
        ...


R = TypeVar("R", bound=WireRecord)


class Redaction:
    """Known secrets, and their replacement by `MARK` in text, JSON, URLs and base64.

    Secrets shorter than `SHORTEST`, and plain words or numbers shorter than `SHORTEST_WORD`, are ignored,
    because they may be in any text. No repr shows a secret.

    Attributes:
        known: All forms of the secrets. If it is empty, no redaction is needed.

    """

    def __init__(self, *secrets: str | bytes) -> None:
        self.known: tuple[str, ...] = ()
        self._spellings: dict[bytes, tuple[str, ...]] = {}
        self._on_wire: tuple[str, ...] = ()
        self._heads: tuple[str, ...] = ()
        self._starts: tuple[str, ...] = ()
        self._starts_on_wire: tuple[str, ...] = ()
        self._longest = 0
        self.add(*secrets)

    def add(self, *secrets: str | bytes) -> None:
        """Add secrets. You may add a secret twice."""
        raws = [one if isinstance(one, bytes) else one.encode("utf-8", "surrogateescape") for one in secrets]
        new = [raw for raw in raws if raw not in self._spellings and _is_distinct(raw)]
        if not new:
            return
        for raw in new:
            self._spellings[raw] = tuple(dict.fromkeys(_spellings(raw)))
        while len(self._spellings) > MOST_KNOWN:
            del self._spellings[next(iter(self._spellings))]
        self.known = tuple(chain.from_iterable(self._spellings.values()))
        self._on_wire = tuple({orjson.dumps(one)[1:-1].decode(): None for one in self.known})
        self._heads = tuple({one[:SHORTEST]: None for one in self.known})
        self._starts, self._starts_on_wire = _starts(self.known), _starts(self._on_wire)
        self._longest = max(map(len, self.known))

    def text(self, text: str) -> str:
        """Return `text` without secrets, or the same object if it has none.

        If the text was cut within a secret, the start of that secret is removed from its end.
        """
        plain = _without_escapes(text)
        found = [one for one in self.known if one in plain] if self._may_be_in(plain) else ()
        if found:
            longest_first = sorted(found, key=len, reverse=True)
            text = re.sub("|".join(map(_pattern, longest_first)), MARK, text)
            # Removed whole, because the mark in it would otherwise complete another secret.
            if any(one in _without_escapes(text) for one in self.known):
                return MARK
        return self._without_cut_secret(text)

    @property
    def longest(self) -> int:
        """The length of the longest form of a secret."""
        return self._longest

    def find(self, text: str) -> Literal["", "start", "whole"]:
        """Return whether a secret is in `text`, or starts at its end."""
        plain = _without_escapes(text)
        if self._may_be_in(plain) and any(one in plain for one in self.known):
            return "whole"
        return "" if self._without_cut_secret(text) is text else "start"

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets in its texts and names, at every depth."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.value(name): self.value(item) for name, item in value.items()}
            case list() | tuple():
                return type(value)(map(self.value, value))
            case _:
                return value

    def response(self, response: ModelResponse) -> ModelResponse:
        """Return an answer without secrets, or the same object if it has none."""
        if self._is_plain(response):
            return response
        changed: dict[str, Any] = {}
        for field in fields(response):
            value = getattr(response, field.name)
            redacted = self._usage(value) if isinstance(value, Usage) else self.value(value)
            if redacted != value:
                changed[field.name] = redacted
        return replace(response, **changed) if changed else response

    def _usage(self, usage: Usage) -> Usage:
        said = {**vars(usage), **(usage.model_extra or {})}
        redacted = self.value(said)
        return usage if redacted == said else Usage.model_validate(redacted)

    def _is_plain(self, response: ModelResponse) -> bool:
        """Return whether an answer has the usual form and no secret.

        It is checked as one text, for speed.
        """
        usage, text = response.usage, response.text
        words = (
            text, response.stop_reason, response.model, response.provider_request_id,
            response.provider_response_id, usage.service_tier, usage.speed, usage.inference_geo,
            usage.bill_problem, usage.unmetered,
        )  # fmt: skip
        return (
            response.structured is None
            and not response.beside
            and not usage.model_extra
            and r"\u00" not in text
            and not self._may_be_in("\0".join(words))
            and self._without_cut_secret(text) is text
        )

    def error(self, e: ProviderError) -> ProviderError:
        """Remove the secrets from an error and return it.

        A cause with a secret is removed.
        """
        e.message, e.text = self.text(e.message), self.text(e.text)
        e.provider_request_id = self.text(e.provider_request_id)
        if isinstance(e, UnusableAnswerError):
            e.model, e.usage = self.text(e.model), self._usage(e.usage)
        e.args = (f"{e.kind}: {e.message}",)
        # The cause goes if its text holds a secret, because a traceback would show it.
        if e.__cause__ is not None and self.text(said := str(e.__cause__)) is not said:
            e.__cause__ = None
            e.__suppress_context__ = True
        return e

    async def guard(self, answer: Awaitable[ModelResponse]) -> ModelResponse:
        """Return an answer without secrets, or raise its `ProviderError` without secrets."""
        try:
            return self.response(await answer)
        except ProviderError as e:
            raise self.error(e) from e.__cause__

    def record(self, record: R) -> R:
        """Return a record without secrets, or the same object if it has none.

        Its hashes are not changed: they are of the original request.

        Raises:
            ValueError: If the record is not valid without its secrets.

        """
        try:
            raw = record.wire
        except (ValueError, TypeError, OverflowError):
            return record  # it has no bytes: the log refuses it with a reason
        if not self._is_in(text := raw.decode()):
            return record
        return type(record).from_wire(_STRING.sub(self._literal, text).encode())

    @override
    def __repr__(self) -> str:
        return f"Redaction({len(self._spellings)} secrets)"

    def _literal(self, found: re.Match[str]) -> str:
        """Return a JSON string without secrets, or the same text if it has none."""
        literal = found[0]
        return orjson.dumps(self.text(orjson.loads(literal))).decode() if self._is_in(literal) else literal

    def _may_be_in(self, text: str) -> bool:
        for start in self._starts:  # noqa: SIM110 - a loop costs half of a generator, and every answer is looked at
            if start in text:
                return True
        return False

    def _is_in(self, on_wire: str) -> bool:
        for start in self._starts_on_wire:  # a loop, as above
            if start in on_wire:
                return any(one in on_wire for one in self._on_wire)
        return False

    def _without_cut_secret(self, text: str) -> str:
        end = text[-self._longest :]
        for head in self._heads:  # a loop, as above
            if head in end:
                break
        else:
            return text
        cut = (
            length
            for one in self.known
            for length in range(min(len(one) - 1, len(end)), SHORTEST - 1, -1)
            if end.endswith(one[:length])
        )
        longest = max(cut, default=0)
        return text[:-longest] + MARK if longest else text


def _starts(spellings: Iterable[str]) -> tuple[str, ...]:
    """Return the longest common starts of forms with the same head.

    Keys of one vendor are searched for together. Searching for a long text takes a third of the time of a
    short one.
    """
    by_head: dict[str, list[str]] = {}
    for one in spellings:
        by_head.setdefault(one[:SHORTEST], []).append(one)
    return tuple(map(commonprefix, by_head.values()))


def _is_distinct(raw: bytes) -> bool:
    """Return whether a secret cannot be confused with a part of an ordinary text."""
    text = raw.decode("utf-8", "replace")
    is_word = text.isdecimal() or (text.isalpha() and (text.islower() or text.isupper()))
    return len(text) >= (SHORTEST_WORD if is_word else SHORTEST)


def _spellings(raw: bytes) -> Iterator[str]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        pass  # a key of random bytes has no text
    else:
        yield from _in_json(text)
        for quoted in (quote(text, safe=""), quote(text), quote_plus(text)):
            yield quoted
            yield re.sub("%..", lambda escape: escape[0].lower(), quoted)
    for encode in (b64encode, urlsafe_b64encode):
        for offset in range(3):
            # A part of a longer text, as in `Basic`: only characters that are made of the secret's bits
            # alone.
            encoded = encode(b"\0" * offset + raw).decode()
            part = encoded[(0, 2, 3)[offset] : 8 * (offset + len(raw)) // 6]
            yield from (part, part.replace("/", r"\/"))


def _in_json(text: str) -> Iterator[str]:
    """Yield a text as it is in a JSON string, and in a JSON string within another one."""
    for is_ascii in (False, True):
        spelled = text
        for _ in range(3):
            yield from (spelled, spelled.replace("/", r"\/"))
            spelled = json.dumps(spelled, ensure_ascii=is_ascii)[1:-1]


def _without_escapes(text: str) -> str:
    """Return `text` without unnecessary JSON escapes. A server may escape any letter."""
    if r"\u00" not in text:
        return text
    return _ASCII_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)


def _pattern(spelling: str) -> str:
    """Return a pattern for a form whose characters may be escaped."""
    return "".join(
        rf"(?:\\*{re.escape(c)}|\\+u00(?i:{ord(c):02x}))" if c.isascii() else re.escape(c) for c in spelling
    )
