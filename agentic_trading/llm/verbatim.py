"""Requests of format `verbatim`: a client's own request to an API of a vendor, passed on unchanged, and its answers."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, Self, get_args

from orjson import Fragment, dumps

from agentic_trading.canonical import members_of, quoted

Api = Literal["chat_completions", "responses", "messages"]
"""An API that a request may be written for: two of OpenAI's form, and Anthropic's Messages."""

APIS: Final[tuple[Api, ...]] = get_args(Api)

_OPENAI: Final = ("tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "top_logprobs")

ASKED: Final[Mapping[Api, frozenset[str]]] = {
    "chat_completions": frozenset({
        *_OPENAI, "messages", "response_format", "stop", "seed", "frequency_penalty", "presence_penalty",
        "logit_bias", "logprobs", "n", "reasoning_effort", "verbosity", "functions", "function_call",
    }),
    "responses": frozenset({
        *_OPENAI, "input", "instructions", "text", "reasoning", "truncation", "include", "max_tool_calls",
    }),
    "messages": frozenset({
        "messages", "system", "tools", "tool_choice", "stop_sequences", "temperature", "top_k", "top_p",
        "thinking", "output_config", "output_format", "cache_control",
    }),
}  # fmt: skip
"""The fields that a body may have. The model, the cap and the tier are added from the envelope.

A field that is not listed could cost money that no reservation bounds.
"""

MOST_CHOICES: Final = 8
"""The maximum of `n`, the number of answers to one request of chat completions."""

_CONTEXT: Final = frozenset({"api", "body", "version", "betas"})
_MAY_OMIT: Final = frozenset({"version", "betas"})


@dataclass(frozen=True, slots=True)
class VerbatimRequest:
    """The request in the context of an envelope.

    Attributes:
        body: The JSON text of its fields, in the order and the spelling of the client.
        version: The `anthropic-version` of the client. Empty without one.
        betas: The `anthropic-beta` of the client. Empty without one.

    """

    api: Api
    body: str
    version: str = ""
    betas: str = ""

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> Self:
        """Return the request in a context. It is not checked: see `verbatim_problems`."""
        return cls(**{name: context[name] for name in _CONTEXT if name in context})

    @property
    def context(self) -> dict[str, str]:
        """The context of an envelope with this request."""
        fields = {"api": self.api, "body": self.body, "version": self.version, "betas": self.betas}
        return {name: value for name, value in fields.items() if value or name not in _MAY_OMIT}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the body, parsed."""
        fields: dict[str, Any] = json.loads(self.body)
        return fields

    @property
    def choices(self) -> int:
        """The number of answers that the body asks for (`n`)."""
        top = _top_level(self.body)
        return (top and top.choices) or 1

    def only(self, names: frozenset[str]) -> Self:
        """Return the request with these fields of its body only."""
        return replace(self, body=members_text(self.body, names))

    def with_fields(self, fields: Mapping[str, Any]) -> bytes:
        """Return the body with `fields` before its own. Its own text stays unchanged."""
        ours = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        own = self.body.strip()[1:].lstrip()
        return f"{ours[:-1]}{'' if own.startswith('}') else ','}{own}".encode()


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object in order, also those of equal names."""


@dataclass(frozen=True, slots=True)
class _TopLevel:
    """The names of a body's members, and its `n`."""

    names: tuple[str, ...]
    choices: Any


# Cached, because the rules of the client and of the worker, the price and the adapter of one call each need it.
@lru_cache(maxsize=16)
def _top_level(body: str) -> _TopLevel | None:
    """Return the top level of a body, or None if it is not an object. Raises the errors of `json.loads`."""
    members = json.loads(body, object_pairs_hook=_Members, parse_constant=_no_constant)
    if not isinstance(members, _Members):
        return None
    return _TopLevel(tuple(name for name, _ in members), dict(members).get("n"))


def members_text(text: str, names: Collection[str]) -> str:
    """Return the members of a JSON object that have these names, as they are written and in their order."""
    members = (f"{json.dumps(name)}:{value}" for name, value in members_of(text) if name in names)
    return f"{{{','.join(members)}}}"


_INDEX_DIGITS: Final = 9

_ESCAPED: Final = re.compile(r"\\[^u]|((?:\\u(?!00[0-7])[0-9a-fA-F]{4})+)")


def unescaped(text: str) -> str:
    r"""Return a JSON text with the characters that its `\u` escapes stand for, without those of ASCII.

    The text stays JSON and means the same. Quotes and control characters are ASCII.
    """
    if "\\u" not in text:
        return text
    return _ESCAPED.sub(lambda found: json.loads(f'"{found[1]}"') if found[1] else found[0], text)


def verbatim_problems(context: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why a context is not a request of format `verbatim`."""
    if unknown := sorted(context.keys() - _CONTEXT):
        yield f"context has {', '.join(unknown)}. Allowed: {', '.join(sorted(_CONTEXT))}"
    if wrong := sorted(name for name in _CONTEXT & context.keys() if not isinstance(context[name], str)):
        yield f"context: {', '.join(wrong)} must be text"
        return
    if context.get("api") not in APIS:
        yield f"context.api is {quoted(context.get('api'))}. Allowed: {', '.join(APIS)}"
        return
    yield from _body_problems(ASKED[context["api"]], context.get("body", ""))


def _body_problems(asked: frozenset[str], body: str) -> Iterator[str]:
    try:
        top = _top_level(body)
    except (ValueError, RecursionError) as e:
        yield f"context.body is not JSON: {e}"
        return
    if top is None:
        yield "context.body is not a JSON object"
        return
    names, choices = top.names, top.choices
    if unknown := sorted({name for name in names if name not in asked}):
        yield f"context.body has {', '.join(map(quoted, unknown))}. Allowed: {', '.join(sorted(asked))}"
    if len(names) > len(set(names)):
        yield f"context.body has {', '.join(sorted({n for n in names if names.count(n) > 1}))} twice"
    if choices is not None and not (type(choices) is int and 1 <= choices <= MOST_CHOICES):
        yield f"context.body has n = {quoted(choices)}. Allowed: 1 to {MOST_CHOICES}"


def decoded_answer(body: bytes) -> Any:
    """Decode the body or an event of an answer. No digit of its numbers is lost: most become `Fragment`s.

    Raises:
        ValueError: If it is not JSON.
        RecursionError: If it is nested too deeply.

    """
    return json.loads(
        body.decode(), parse_int=_whole_number, parse_float=Fragment, parse_constant=_no_constant
    )


def _whole_number(digits: str) -> Any:
    # Places and counts are read, so that they are numbers. Others keep their spelling.
    return int(digits) if len(digits) <= _INDEX_DIGITS and digits != "-0" else Fragment(digits)


def event_json(value: Any) -> bytes:
    """Serialize an event. Equal events have equal bytes.

    Raises:
        RecursionError: If it is nested too deeply.

    """
    try:
        return dumps(value)
    except TypeError:
        # A model that is cut off may end in half a surrogate pair, which orjson does not write.
        return _escaped(value).encode()


def _escaped(value: Any) -> str:
    """Serialize a value with all characters beyond ASCII as escapes."""
    match value:
        case dict():
            return (
                "{" + ",".join(f"{json.dumps(name)}:{_escaped(item)}" for name, item in value.items()) + "}"
            )
        case list():
            return "[" + ",".join(map(_escaped, value)) + "]"
        case Fragment():
            return dumps(value).decode()
        case _:
            return json.dumps(value)


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
