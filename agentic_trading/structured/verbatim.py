"""Answers to clients' own requests: the schema that a request names, the text that must fit it, and the re-ask."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentic_trading.canonical import members_of
from agentic_trading.llm.verbatim import Api, VerbatimRequest


@dataclass(frozen=True, slots=True)
class WantedForm:
    """The form that a request demands of its answer.

    Attributes:
        schema: The JSON Schema.
        tool: The tool that the model is forced to call with such an input. Empty for a text.

    """

    schema: Mapping[str, Any]
    tool: str = ""


@dataclass(frozen=True, slots=True)
class _Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class _Said:
    """A whole answer: its text, its calls, and the messages that stand for it in another request."""

    text: str
    calls: Sequence[_Call]
    turns: Sequence[Mapping[str, Any]]


_SCHEMAS: Final[Mapping[Api, tuple[str, ...]]] = {
    "chat_completions": ("response_format", "json_schema", "schema"),
    "responses": ("text", "format", "schema"),
    "messages": ("output_config", "format", "schema"),
}


def wanted_form(api: Api, fields: Mapping[str, Any]) -> WantedForm | None:
    """Return the form that the fields of a request demand, or None.

    A forced tool takes precedence over a schema, because the answer is then its call.
    """
    tool = _forced_tool(api, fields)
    if tool is not None:
        name, schema = tool
        return WantedForm(schema, name) if isinstance(schema, Mapping) and schema else None
    found: Any = fields
    for name in _SCHEMAS[api]:
        found = found.get(name) if isinstance(found, Mapping) else None
    return WantedForm(found) if isinstance(found, Mapping) and found else None


def _forced_tool(api: Api, fields: Mapping[str, Any]) -> tuple[str, Any] | None:
    choice = fields.get("tool_choice")
    if not isinstance(choice, Mapping):
        return None
    named = choice.get("function") if api == "chat_completions" else choice
    name = named.get("name") if isinstance(named, Mapping) else None
    tools = fields.get("tools")
    if not isinstance(name, str) or not name or not isinstance(tools, list):
        return None
    # The vendor refuses a malformed tool, or takes it. Neither is ours to judge.
    for tool in filter(_is_object, tools):
        function = tool.get("function") if api == "chat_completions" else tool
        if isinstance(function, Mapping) and function.get("name") == name:
            return name, function.get("input_schema" if api == "messages" else "parameters")
    return None


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def judged_text(asked: VerbatimRequest, body: str, form: WantedForm) -> str | None:
    """Return the part of an answer that must fit the form, or None.

    A refusal, an answer that was cut, several answers, and a call that was not demanded are for the client.
    """
    said = _said(asked, body)
    if said is None:
        return None
    if not form.tool:
        return said.text if said.text and not said.calls else None
    named = [call for call in said.calls if call.name == form.tool]
    return named[0].arguments if len(named) == len(said.calls) == 1 else None


def corrected_body(asked: VerbatimRequest, answer: str, errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the body of a request with its last answer and the errors. All else is unchanged."""
    said = _said(asked, answer) or _Said("", (), ())
    why = f"This was not accepted:\n{json.dumps(errors, default=str)}\nAnswer again, whole and in the demanded form."
    turns = json.dumps([*said.turns, *_objection(asked.api, said.calls, why)], ensure_ascii=False)[1:-1]
    place = "input" if asked.api == "responses" else "messages"

    def written(name: str, value: str) -> str:
        if name != place:
            return value
        if value.startswith('"'):
            return f'[{{"role":"user","content":{value}}},{turns}]'
        own = value[:-1].rstrip()
        return f"{own}{'' if own == '[' else ','}{turns}]"

    members = (f"{json.dumps(name)}:{written(name, value)}" for name, value in members_of(asked.body))
    return f"{{{','.join(members)}}}"


def _objection(api: Api, calls: Sequence[_Call], why: str) -> list[dict[str, Any]]:
    """Return the messages behind the last answer: the result of each call, or a message of the user."""
    if not calls:
        return [{"role": "user", "content": why}]
    match api:
        case "chat_completions":
            return [{"role": "tool", "tool_call_id": call.id, "content": why} for call in calls]
        case "responses":
            return [{"type": "function_call_output", "call_id": call.id, "output": why} for call in calls]
        case _:
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": why, "is_error": True}
                for call in calls
            ]
            return [{"role": "user", "content": results}]


def _said(asked: VerbatimRequest, body: str) -> _Said | None:
    """Return a whole answer, or None if it is cut, refused, one of several, or has another form."""
    try:
        answer = json.loads(body)
        return _READ[asked.api](answer, body)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def _chat(answer: Mapping[str, Any], _body: str) -> _Said | None:
    (choice,) = answer["choices"]
    message = choice["message"]
    if message.get("refusal") or choice["finish_reason"] not in {"stop", "tool_calls", "function_call"}:
        return None
    calls = message.get("tool_calls") or ()
    kept = {
        name: message[name] for name in ("role", "content", "tool_calls") if message.get(name) is not None
    }
    return _Said(
        message.get("content") or "",
        [_Call(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls],
        [kept],
    )


def _response(answer: Mapping[str, Any], _body: str) -> _Said | None:
    if answer["status"] != "completed":
        return None
    items = answer["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    if any(part["type"] != "output_text" for part in parts):
        return None
    calls = [item for item in items if item["type"] == "function_call"]
    return _Said(
        "".join(part["text"] for part in parts),
        [_Call(call["call_id"], call["name"], call["arguments"]) for call in calls],
        items,
    )


def _message(answer: Mapping[str, Any], body: str) -> _Said | None:
    if answer["stop_reason"] not in {"end_turn", "tool_use", "stop_sequence"}:
        return None
    blocks = answer["content"]
    # Cut out of the body, because a parsed number has lost digits.
    written = [block for _, block in members_of(dict(members_of(body))["content"])]
    calls = [
        _Call(block["id"], block["name"], dict(members_of(raw))["input"])
        for block, raw in zip(blocks, written, strict=True)
        if block["type"] == "tool_use"
    ]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return _Said(text, calls, [{"role": "assistant", "content": blocks}])


_READ: Final = {"chat_completions": _chat, "responses": _response, "messages": _message}
