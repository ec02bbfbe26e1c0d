"""The streams of the three APIs: their events, and the fold of the events of an answer to its body."""

import re
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from pydantic_core import from_json

from agentic_trading.canonical import Fragment, member_of
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.hosted import Unpacking, counts_any, too_large
from agentic_trading.llm.taps import EventKind, Place, Tap
from agentic_trading.llm.verbatim import Api, decoded_answer, event_json

CONTENT_TYPE: Final = "text/event-stream"

HEADERS: Final[Mapping[str, str]] = {"accept": CONTENT_TYPE, "accept-encoding": "identity"}
"""The headers of a request for a stream. A packed stream may arrive late, because servers fill a buffer first."""

_BETWEEN: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_UNPACKED_PER_PIECE: Final = 16
_PLACES: Final = ("type", "index", "output_index", "content_index", "summary_index")
_WHOLE: Final = frozenset({"role", "type", "id", "finish_reason"})
"""Texts of chat completions that come whole. Some servers repeat them in each chunk."""


def stream_fields(request: ModelRequest) -> dict[str, Any]:
    """Return the fields that ask for the answer as a stream with its usage. Empty without a tap."""
    if request.tap is None or request.verbatim is None:
        return {}
    is_chat = request.verbatim.api == "chat_completions"
    return {"stream": True} | ({"stream_options": {"include_usage": True}} if is_chat else {})


class Fold(Protocol):
    """Puts the events of an answer together."""

    def add(self, page: Any, data: str) -> EventKind:
        """Add an event, as a value and as its text, and return its kind. `[DONE]` is None.

        Raises:
            ValueError: If the event has another form than its API gives it.
            KeyError: The same.
            TypeError: The same.
            AttributeError: The same.
            RecursionError: If it is nested too deeply.

        """
        ...

    def body(self) -> bytes:
        """Return the body of the answer as far as it has come, or of the error in its place."""
        ...


class ChatFold:
    """The fold of chat completions."""

    def __init__(self) -> None:
        self._page: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._error = b""

    def add(self, page: Any, data: str) -> EventKind:
        """Add a chunk."""
        if page is None:
            return "end"
        if _is_error(page):
            self._error = data.encode()
            return "error"
        choices = page.get("choices") or ()
        for name, value in page.items():
            # Null is no news, because the usage comes once, and is null in all other chunks.
            if name not in {"choices", "obfuscation"} and (value is not None or name not in self._page):
                self._page[name] = value
        for choice in choices:
            self._add_choice(dict(choice))
        return "event" if choices or page.get("usage") is None else "usage"

    def body(self) -> bytes:
        """Return the body."""
        if self._error:
            return self._error
        choices = [_joined(choice) for _, choice in sorted(self._choices.items())]
        for choice in choices:
            for call in choice["message"].get("tool_calls") or ():
                call.pop("index", None)
        return event_json({**self._page, "object": "chat.completion", "choices": choices})

    def _add_choice(self, choice: dict[str, Any]) -> None:
        index, delta = choice.pop("index"), choice.pop("delta", None)
        message = {"role": "assistant", "content": None, "refusal": None}
        empty = {"index": index, "message": message, "logprobs": None, "finish_reason": None}
        _merge(self._choices.setdefault(index, empty), {"message": delta or {}, **choice})


class ResponseFold:
    """The fold of responses. Their last event has the whole body."""

    def __init__(self) -> None:
        self._body = b""

    def add(self, page: Any, data: str) -> EventKind:
        """Add an event."""
        if _is_error(page):
            self._body = data.encode()
            return "error"
        if page["type"] not in {"response.completed", "response.incomplete", "response.failed"}:
            return "event"
        # Cut out, so that its bytes are unchanged.
        self._body = member_of(data, "response").encode()
        return "end"

    def body(self) -> bytes:
        """Return the body."""
        return self._body


class MessageFold:
    """The fold of Messages."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._error = b""

    def add(self, page: Any, data: str) -> EventKind:
        """Add an event."""
        if _is_error(page):
            self._error = data.encode()
            return "error"
        match page["type"]:
            case "message_start":
                self._message = dict(page["message"])
            case "content_block_start":
                _merge(self._blocks.setdefault(page["index"], {}), page["content_block"])
            case "content_block_delta":
                self._add_delta(page["index"], dict(page["delta"]))
            case "message_delta":
                usage = {
                    name: value for name, value in (page.get("usage") or {}).items() if value is not None
                }
                self._message |= page["delta"]
                self._message["usage"] = {**(self._message.get("usage") or {}), **usage}
            case "message_stop":
                return "end"
            case _:  # a ping, or the end of a block
                pass
        return "event"

    def body(self) -> bytes:
        """Return the body."""
        if self._error:
            return self._error
        blocks = [self._block(index) for index in sorted(self._blocks)]
        return event_json({**self._message, "content": blocks} if self._message else {})

    def _add_delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        del delta["type"]
        if (piece := delta.pop("partial_json", None)) is not None:
            self._inputs.setdefault(index, []).append(piece)
        if (citation := delta.pop("citation", None)) is not None:
            block["citations"] = [*(block.get("citations") or ()), citation]
        _merge(block, delta)

    def _block(self, index: int) -> dict[str, Any]:
        block: dict[str, Any] = _joined(self._blocks[index])
        written = "".join(self._inputs.get(index, ()))
        return {**block, "input": _input(written)} if written else block


FOLDS: Final[Mapping[Api, type[ChatFold | ResponseFold | MessageFold]]] = {
    "chat_completions": ChatFold,
    "responses": ResponseFold,
    "messages": MessageFold,
}
"""The fold of each API."""


class EventSplitter:
    """Splits a stream into events."""

    def __init__(self) -> None:
        self.rest = bytearray()
        self._searched = 0

    def add(self, piece: bytes) -> Iterator[tuple[bytes, str]]:
        """Yield the bytes and the data of each event that a piece ends. Comments are left out."""
        self.rest += piece
        start = 0
        for found in _BETWEEN.finditer(self.rest, self._searched):
            yield from _with_data(bytes(self.rest[start : found.end()]))
            start = found.end()
        del self.rest[:start]
        # The last bytes again, because the end of an event may be split.
        self._searched = max(len(self.rest) - 3, 0)

    def close(self) -> Iterator[tuple[bytes, str]]:
        """Yield the last event, if the stream has ended without an empty line."""
        yield from _with_data(bytes(self.rest).rstrip(b"\r\n") + b"\n\n")


async def read_folded(
    pieces: AsyncIterable[bytes], packing: str, most_bytes: int, api: Api, tap: Tap
) -> bytes:
    """Hand the events of a stream to `tap`, and return the body that they are folded to.

    Args:
        pieces: The stream, as it arrives.
        packing: Its `Content-Encoding`.
        most_bytes: The limit of the body. The stream may be longer, because each event repeats names.
        api: The API of the stream.
        tap: The client.

    Raises:
        ProviderError: If the stream ends before its last event, if an event cannot be read, or if the answer is
            larger than `most_bytes`. It may have been billed.

    """
    fold, splitter = FOLDS[api](), EventSplitter()
    most_at_once = _UNPACKED_PER_PIECE * most_bytes
    unpacking = Unpacking(packing.strip().lower(), most_at_once)
    since = 0
    async for packed in pieces:
        piece = unpacking.unpacked(packed)
        if _has_last(splitter.add(piece), fold, tap):
            return _within(fold.body(), most_bytes)
        since += len(piece)
        # Seldom, because it puts the whole body together. Memory then holds twice the limit at most.
        if since > most_bytes:
            _within(_body(fold), most_bytes)
            since = 0
        if len(splitter.rest) > 2 * most_bytes or len(piece) >= most_at_once:
            raise too_large(bytes(splitter.rest[:most_bytes]), most_bytes)
        if unpacking.is_over:
            break
    if _has_last(splitter.close(), fold, tap):
        return _within(fold.body(), most_bytes)
    raise ProviderError(FailureKind.SERVER_ERROR, "the stream ended before its last event", sent=True)


def _has_last(events: Iterable[tuple[bytes, str]], fold: Fold, tap: Tap) -> bool:
    """Add events, hand them on, and return whether the last one of the answer is among them."""
    return any(_is_last(fold, raw, data, tap) for raw, data in events)


def _is_last(fold: Fold, raw: bytes, data: str, tap: Tap) -> bool:
    try:
        page = event_page(data)
        kind = fold.add(page, data)
        if kind == "end":
            fold.body()
        tap.put(kind, raw, _texts(page))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise _unreadable(e) from e
    return kind in {"end", "error"}


def _body(fold: Fold) -> bytes:
    try:
        return fold.body()
    except (ValueError, TypeError, RecursionError) as e:
        raise _unreadable(e) from e


def _unreadable(e: Exception) -> ProviderError:
    why = f"the stream of the answer cannot be read ({type(e).__name__}: {e})"
    return ProviderError(FailureKind.SERVER_ERROR, why, sent=True)


def _within(body: bytes, most_bytes: int) -> bytes:
    if len(body) > most_bytes:
        raise too_large(body[:most_bytes], most_bytes)
    return body


def _with_data(raw: bytes) -> Iterator[tuple[bytes, str]]:
    lines = (
        raw.decode(errors="replace").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    )
    data = [line[5:].removeprefix(" ") for line in lines if line.startswith("data:")]
    if data:
        yield raw, "\n".join(data)


def _is_error(page: Any) -> bool:
    return "error" in (page.get("type"), page.get("object")) or counts_any(page.get("error"))


def event_page(data: str) -> Any:
    """Return the data of an event as a value. The end of chat completions, `[DONE]`, is None."""
    return None if data == "[DONE]" else decoded_answer(data.encode())


def _texts(page: Any) -> Iterator[tuple[Place, str]]:
    """Yield the texts in an event, each with its place in the answer."""
    if page is not None:
        yield from _texts_in(page, tuple(page.get(name) for name in _PLACES))


def _texts_in(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    match value:
        case str():
            yield place, value
        case dict():
            for name, item in value.items():
                yield from _texts_in(item, (*place, name))
        case list():
            for number, item in enumerate(value):
                at = item.get("index", number) if isinstance(item, dict) else number
                yield from _texts_in(item, (*place, at))
        case _:
            pass


class _Pieces(list[str]):
    """The pieces of a text, joined at the end. Joining each one would copy the text for each event."""


class _ByIndex(dict[int, dict[str, Any]]):
    """The items of a list that come in pieces."""


def _merge(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add the pieces of an object to it, as the vendors' libraries do."""
    for name, value in delta.items():
        old = into.get(name)
        match value:
            case str():
                into[name] = value or old if name in _WHOLE else _longer(old, value)
            case dict():
                _merge(into.setdefault(name, {}) if isinstance(old, dict) else _put(into, name, {}), value)
            case [{"index": int()}, *_]:
                items = old if isinstance(old, _ByIndex) else _put(into, name, _ByIndex())
                for item in value:
                    _merge(items.setdefault(item["index"], {}), item)
            case list() if isinstance(old, list):
                old.extend(value)
            case None:
                into.setdefault(name, None)
            case _:
                into[name] = value


def _longer(old: Any, piece: str) -> "_Pieces":
    """Return a text with another piece."""
    pieces = old if isinstance(old, _Pieces) else _Pieces()
    pieces.append(piece)
    return pieces


def _put(into: dict[str, Any], name: str, value: Any) -> Any:
    into[name] = value
    return value


def _joined(value: Any) -> Any:
    """Return a value with the texts of its pieces."""
    match value:
        case _Pieces():
            return "".join(value)
        case _ByIndex():
            return [_joined(item) for _, item in sorted(value.items())]
        case dict():
            return {name: _joined(item) for name, item in value.items()}
        case list():
            return [_joined(item) for item in value]
        case _:
            return value


def _input(written: str) -> Any:
    """Return the input of a tool as it was written. One that was cut off is closed, as the vendor's library does."""
    try:
        decoded_answer(written.encode())
    except ValueError:
        return from_json(written, allow_partial=True)
    return Fragment(written)
