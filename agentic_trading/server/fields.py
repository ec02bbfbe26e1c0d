"""Requests of clients: the fields that an API allows, and the request that is passed on."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentic_trading.canonical import quoted
from agentic_trading.errors import TradingError
from agentic_trading.llm.verbatim import ASKED, MOST_CHOICES, Api, members_text

_LARGEST: Final = 2**64
_SURROGATE: Final = "\\ud"
_ABSENT: Final[tuple[Any, ...]] = (None, False, [], "")
"""Values of a refused field without an effect. An empty object is none of them: it switches web search on."""


class FieldError(TradingError, ValueError):
    """A request of a client is refused. `param` is the place of the fault in it."""

    def __init__(self, param: str, why: str) -> None:
        self.param = param
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The fields of an API. Those of `ASKED` are passed on. All others are refused.

    Attributes:
        api: The API.
        ours: Fields that the server answers or replaces.
        dropped: Fields that are not passed on and do not change the answer.
        refused: Fields of the API that are refused, each with the reason.
        caps: The fields of the output cap. The first one counts.
        tools: The types of tools that the client itself runs. None is a tool without a type.
        parts: The types of parts of a message with a known bound of tokens.
        items: The types of items of a conversation. None is an item without a type.

    """

    api: Api
    ours: frozenset[str]
    dropped: frozenset[str]
    refused: Mapping[str, str]
    caps: tuple[str, ...]
    tools: frozenset[str | None]
    parts: frozenset[str | None]
    items: frozenset[str | None] = frozenset({None})

    @property
    def known(self) -> frozenset[str]:
        """All fields that a request may have."""
        return ASKED[self.api] | self.ours | self.dropped


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request that may be passed on.

    Attributes:
        model: The model as the client names it.
        body: The fields that are passed on, as JSON text in the client's order and spelling.
        cap: The output tokens that the client allows for each answer. None if it has no limit.
        choices: The number of answers.
        stream: Whether the client wants the answer as events.
        include_usage: Whether a stream of chat completions ends with the usage.
        metadata: The metadata of the client. They are not passed on.
        fields: The fields that are passed on, parsed.

    """

    api: Api
    model: str
    body: str
    cap: int | None
    choices: int
    stream: bool
    include_usage: bool
    metadata: Mapping[str, Any]
    fields: Mapping[str, Any]


def read_request(table: FieldTable, raw: bytes) -> ClientRequest:
    """Read the body of a request.

    Raises:
        FieldError: If it is not JSON, or has a field that is refused.

    """
    text = _text(raw)
    fields = _fields(text)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise FieldError("model", f"model is {quoted(model)}. Allowed: the name of a model")
    _check_names(table, fields)
    _check_tools(table, fields.get("tools"))
    _check_items(table, fields)
    return ClientRequest(
        api=table.api,
        model=model,
        body=members_text(text, ASKED[table.api]),
        cap=_cap(table, fields),
        choices=_choices(fields),
        stream=fields.get("stream") is True,
        include_usage=_object(fields, "stream_options").get("include_usage") is True,
        metadata=_object(fields, "metadata"),
        fields={name: value for name, value in fields.items() if name in ASKED[table.api]},
    )


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise FieldError("", f"the body is not UTF-8: {e}") from e


def read_object(
    raw: bytes, *, parse_int: Callable[[str], Any], parse_float: Callable[[str], Any]
) -> dict[str, Any]:
    """Read a JSON object, with other readers of numbers.

    Raises:
        FieldError: If it is not one, or a name appears twice.

    """
    return _fields(_text(raw), parse_int, parse_float)


def _fields(
    text: str, parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    try:
        fields = json.loads(
            text,
            object_pairs_hook=_members,
            parse_int=parse_int or _whole,
            parse_float=parse_float or _finite,
            parse_constant=_constant,
        )
        if _SURROGATE in text.lower():
            json.dumps(fields, ensure_ascii=False, default=str).encode()
    except RecursionError as e:
        raise FieldError("", "the body is nested too deeply") from e
    except UnicodeEncodeError as e:
        raise FieldError("", "the body has half of a surrogate pair. Allowed: whole characters") from e
    except ValueError as e:
        raise FieldError("", f"the body is not JSON: {e}") from e
    if not isinstance(fields, dict):
        raise FieldError("", "the body is not a JSON object")
    return fields


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        # Readers disagree which of the two counts, so that a check of one could be passed by the other.
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{quoted(name)} appears twice")
            seen.add(name)
    return members


def _whole(digits: str) -> int:
    value = int(digits)
    if abs(value) >= _LARGEST:
        raise ValueError(f"a number of {len(digits)} digits, with more than 64 bits")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number that is too large")
    return value


def _constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _check_names(table: FieldTable, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name in table.refused and value not in _ABSENT:
            raise FieldError(name, f"{name} is refused: {table.refused[name]}")
        if name not in table.known and name not in table.refused:
            raise FieldError(
                name, f"{quoted(name)} is not a known field. Allowed: {', '.join(sorted(table.known))}"
            )


def _check_tools(table: FieldTable, tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list):
        raise FieldError("tools", f"tools is {quoted(tools)}. Allowed: a list")
    for place, tool in enumerate(tools):
        if not isinstance(tool, dict) or not _is_one_of(tool.get("type"), table.tools):
            kind = tool.get("type") if isinstance(tool, dict) else tool
            why = "a tool that runs at the provider has a price that no budget bounds"
            raise FieldError(
                f"tools[{place}]",
                f"the tool {quoted(kind)} is refused: {why}. Allowed: {_listed(table.tools)}",
            )


def _check_items(table: FieldTable, fields: Mapping[str, Any]) -> None:
    for name in ("messages", "input", "system"):
        given = fields.get(name)
        if given is None or isinstance(given, str):
            continue
        if not isinstance(given, list):
            raise FieldError(name, f"{name} is {quoted(given)}. Allowed: a list")
        for place, item in enumerate(given):
            where = f"{name}[{place}]"
            if name == "system":
                _check_part(table, item, where)
            else:
                _check_item(table, item, where)


def _check_item(table: FieldTable, item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise FieldError(where, f"{where} is {quoted(item)}. Allowed: an object")
    if not _is_one_of(item.get("type"), table.items):
        raise FieldError(
            where,
            f"an item of type {quoted(item.get('type'))} is refused: it names a state or a tool of the provider; "
            f"allowed are {_listed(table.items)}",
        )
    if item.get("audio") is not None:
        raise FieldError(where, "audio is refused: its tokens have no bound")
    _check_parts(table, item, where)


def _check_parts(table: FieldTable, holder: Mapping[str, Any], where: str) -> None:
    """Check the parts in the content of a message or of a result of a tool."""
    for name in ("content", "output"):
        content = holder.get(name)
        for place, part in enumerate(content if isinstance(content, list) else ()):
            _check_part(table, part, f"{where}.{name}[{place}]")
        if isinstance(content, dict):
            raise FieldError(
                f"{where}.{name}", f"{where}.{name} is an object. Allowed: text and a list of parts"
            )


def _check_part(table: FieldTable, part: Any, where: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not _is_one_of(kind, table.parts):
        raise FieldError(
            where,
            f"a part of type {quoted(kind)} is refused: its tokens have no bound. Allowed: {_listed(table.parts)}",
        )
    _check_parts(table, part, where)


def _is_one_of(kind: Any, allowed: Collection[str | None]) -> bool:
    return (kind is None or isinstance(kind, str)) and kind in allowed


def _listed(kinds: Collection[str | None]) -> str:
    return ", ".join(sorted("no type" if kind is None else kind for kind in kinds))


def _cap(table: FieldTable, fields: Mapping[str, Any]) -> int | None:
    for name in table.caps:
        if (cap := fields.get(name)) is not None:
            if type(cap) is not int or cap < 1:
                raise FieldError(name, f"{name} is {quoted(cap)}. Allowed: a whole number from 1")
            return cap
    return None


def _choices(fields: Mapping[str, Any]) -> int:
    choices = fields.get("n")
    if choices is None:
        return 1
    if type(choices) is not int or not 1 <= choices <= MOST_CHOICES:
        raise FieldError("n", f"n is {quoted(choices)}. Allowed: 1 to {MOST_CHOICES}")
    return choices


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise FieldError(name, f"{name} is {quoted(value)}. Allowed: an object")
    return value or {}
