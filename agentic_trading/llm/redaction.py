"""Known secrets, and texts, answers and records without them."""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import chain
from os.path import commonprefix
from typing import Any, Final, Protocol, Self, TypeVar
from urllib.parse import quote, quote_plus

import orjson
from typing_extensions import override

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.provider import ModelResponse, UnusableAnswerError
from agentic_trading.llm.result import Usage

MARK: Final = "***"
"""What stands in place of a secret."""

SHORTEST: Final = 8
"""Characters of the shortest secret that is looked for, and of the shortest beginning of one at the end of a text."""

SHORTEST_WORD: Final = 16
"""The same of a secret that is letters of one case, or digits, and nothing else: it may be a word or a number."""

MOST_KNOWN: Final = 256
"""Of more secrets the first are forgotten; a key is known again whenever a request is about to be sent with it."""

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_ASCII_ESCAPE: Final = re.compile(r"\\+u00([2-7][0-9a-fA-F])")


class WireRecord(Protocol):
    """A record that has bytes, and is read from them."""

    @property
    def wire(self) -> bytes:
        """The record in JSON."""
        ...

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read a record; raises `ValueError` for anything else."""
        ...


R = TypeVar("R", bound=WireRecord)


class Redaction:
    """Put `MARK` in place of every known secret, as it is and as it stands in JSON, in an address and in base64.

    A secret shorter than `SHORTEST`, or a plain word or number shorter than `SHORTEST_WORD`, is not looked for: it may
    stand in any text. `known` are the spellings that are looked for: where there are none, nothing has to be asked of
    this. No repr shows a secret.
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
        """Know these secrets from now on; harmless twice."""
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
        """Return `text` without secrets, the same object where it has none.

        Of a text that was cut within a secret, the beginning of that secret is taken off its end.
        """
        plain = _without_escapes(text)
        found = [one for one in self.known if one in plain] if self._may_be_in(plain) else ()
        if found:
            longest_first = sorted(found, key=len, reverse=True)
            text = re.sub("|".join(map(_pattern, longest_first)), MARK, text)
            if any(one in _without_escapes(text) for one in self.known):
                return MARK
        return self._without_cut_secret(text)

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets in its texts and names, however deep."""
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
        """Return an answer without secrets; of one that has none, the same object."""
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
        """Whether an answer is one of the usual kind and holds no secret: looked at as one text, as each call is."""
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
        """Take the secrets out of an error, and its cause if that has one; returns the error."""
        e.message, e.text = self.text(e.message), self.text(e.text)
        e.provider_request_id = self.text(e.provider_request_id)
        if isinstance(e, UnusableAnswerError):
            e.model, e.usage = self.text(e.model), self._usage(e.usage)
        e.args = (f"{e.kind}: {e.message}",)
        if e.__cause__ is not None and self.text(said := str(e.__cause__)) is not said:
            e.__cause__ = None
            e.__suppress_context__ = True
        return e

    async def guard(self, answer: Awaitable[ModelResponse]) -> ModelResponse:
        """Return an answer, or raise the `ProviderError` that came in its place, without secrets."""
        try:
            return self.response(await answer)
        except ProviderError as e:
            raise self.error(e) from e.__cause__

    def record(self, record: R) -> R:
        """Return a record without secrets; of one that has none, the same object.

        Its hashes stay as they are: they are of what was asked. Raises `ValueError` where it is no record without them.
        """
        try:
            raw = record.wire
        except (ValueError, TypeError, OverflowError):
            return record  # it has no bytes: the log refuses it, and says why
        if not self._is_in(text := raw.decode()):
            return record
        return type(record).from_wire(_STRING.sub(self._literal, text).encode())

    @override
    def __repr__(self) -> str:
        return f"Redaction({len(self._spellings)} secrets)"

    def _literal(self, found: re.Match[str]) -> str:
        """Return a JSON string without secrets; of one that has none, the same."""
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
    """Return what spellings with the same head begin with: keys of one vendor are looked for together.

    The longest there is: a long text is looked for in a third of the time of a short one.
    """
    by_head: dict[str, list[str]] = {}
    for one in spellings:
        by_head.setdefault(one[:SHORTEST], []).append(one)
    return tuple(map(commonprefix, by_head.values()))


def _is_distinct(raw: bytes) -> bool:
    """Whether a secret cannot be taken for a piece of an ordinary text."""
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
            # A part of a longer text, as in `Basic`: only characters that are made of the secret's bits alone.
            encoded = encode(b"\0" * offset + raw).decode()
            part = encoded[(0, 2, 3)[offset] : 8 * (offset + len(raw)) // 6]
            yield from (part, part.replace("/", r"\/"))


def _in_json(text: str) -> Iterator[str]:
    """Yield a text as it stands in a JSON string, and in one within another."""
    for is_ascii in (False, True):
        spelled = text
        for _ in range(3):
            yield from (spelled, spelled.replace("/", r"\/"))
            spelled = json.dumps(spelled, ensure_ascii=is_ascii)[1:-1]


def _without_escapes(text: str) -> str:
    """Return `text` with what needs no escape in JSON as it is: a server may escape any letter."""
    if r"\u00" not in text:
        return text
    return _ASCII_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)


def _pattern(spelling: str) -> str:
    """Return what matches a spelling whose characters are escaped, or not."""
    return "".join(
        rf"(?:\\*{re.escape(c)}|\\+u00(?i:{ord(c):02x}))" if c.isascii() else re.escape(c) for c in spelling
    )
