"""The fields of each API: passed on, answered here, dropped, or refused by name; every field of the official SDKs has its place."""

import json
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from agentic_trading.llm.verbatim import ASKED, verbatim_problems
from agentic_trading.server.calls import TABLES
from agentic_trading.server.fields import ClientRequest, FieldError, FieldTable, _members, read_request

OF_SDK: dict[str, list[Any]] = {
    "chat_completions": [
        completion_create_params.CompletionCreateParamsStreaming,
        completion_create_params.CompletionCreateParamsNonStreaming,
    ],
    "responses": [
        response_create_params.ResponseCreateParamsStreaming,
        response_create_params.ResponseCreateParamsNonStreaming,
    ],
    "messages": [
        message_create_params.MessageCreateParamsStreaming,
        message_create_params.MessageCreateParamsNonStreaming,
    ],
}
CHAT, RESPONSES, MESSAGES = (TABLES[api] for api in ("chat_completions", "responses", "messages"))


def read(table: FieldTable, **fields: Any) -> ClientRequest:
    return read_request(table, json.dumps({"model": "m", **fields}).encode())


def refused(table: FieldTable, raw: str | bytes) -> FieldError:
    with pytest.raises(FieldError) as e:
        read_request(table, raw if isinstance(raw, bytes) else raw.encode())
    return e.value


@pytest.mark.parametrize("api", OF_SDK)
def test_every_field_of_the_sdk_has_one_place(api: str) -> None:
    table = TABLES[api]  # type: ignore[index]
    known = {name for params in OF_SDK[api] for name in get_type_hints(params)}
    places = [ASKED[table.api], table.ours, table.dropped, frozenset(table.refused)]

    assert known - frozenset().union(*places) == set(), "give the new field of the SDK a place"
    assert sum(map(len, places)) == len(frozenset().union(*places))


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.api)
def test_refused_field_is_named_with_its_reason(table: FieldTable) -> None:
    for name, why in table.refused.items():
        # An empty object counts: for `web_search_options` it switches the search on.
        values: tuple[Any, ...] = ("x", {})
        for value in values:
            error = refused(table, json.dumps({"model": "m", name: value}))
            assert (error.param, str(error)) == (name, f"{name} is refused: {why}")
        assert name not in read(table, **{name: None}).fields


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.api)
def test_unknown_field_is_named_with_the_known_ones(table: FieldTable) -> None:
    error = refused(table, '{"model":"m","best_off":2}')

    assert error.param == "best_off"
    assert str(error) == f"'best_off' is not a known field. Allowed: {', '.join(sorted(table.known))}"


def test_body_has_the_asked_fields_in_the_clients_order_and_spelling() -> None:
    raw = '{"user":"u","temperature":0.70,"model":"m","input": [ {"content":"\\u00e9"} ],"store":true,"top_p":1e0}'

    request = read_request(RESPONSES, raw.encode())

    assert request.body == '{"temperature":0.70,"input":[ {"content":"\\u00e9"} ],"top_p":1e0}'
    assert [*verbatim_problems({"api": "responses", "body": request.body})] == []


def test_request_has_the_fields_of_the_server() -> None:
    request = read(
        CHAT, messages=[], n=3, stream=True, stream_options={"include_usage": True}, metadata={"a": "b"},
        max_tokens=7, max_completion_tokens=9,
    )  # fmt: skip

    assert (request.cap, request.choices, request.stream, request.include_usage) == (9, 3, True, True)
    assert (request.model, request.metadata, request.fields) == ("m", {"a": "b"}, {"messages": [], "n": 3})
    assert read(CHAT, messages=[], max_tokens=7).cap == 7
    assert read(CHAT, messages=[], stream=None, n=None, tools=None).cap is None


@pytest.mark.parametrize(
    ("table", "raw", "param", "why"),
    [
        (CHAT, b"\xff", "", "the body is not UTF-8"),
        (CHAT, "", "", "the body is not JSON: Expecting value"),
        (CHAT, "[]", "", "the body is not a JSON object"),
        (CHAT, "[" * 100_000, "", "the body is nested too deeply"),
        (CHAT, '{"model":"m","stop":"\\ud800"}', "", "the body has half of a surrogate pair"),
        (CHAT, f'{{"model":"m","seed":{"9" * 30}}}', "", "the body is not JSON: a number of 30 digits"),
        (CHAT, f'{{"model":"m","seed":{"9" * 5000}}}', "", "the body is not JSON: Exceeds the limit"),
        (CHAT, '{"model":"m","seed":1e999}', "", "the body is not JSON: a number that is too large"),
        (CHAT, '{"model":"m","seed":NaN}', "", "the body is not JSON: NaN is no JSON"),
        (CHAT, '{"model":"m","stop":{"a":1,"a":2}}', "", "the body is not JSON: 'a' appears twice"),
        (CHAT, "{}", "model", "model is None"),
        (CHAT, '{"model":""}', "model", "model is ''"),
        (CHAT, '{"model":"m","n":9}', "n", "n is 9. Allowed: 1 to 8"),
        (CHAT, '{"model":"m","n":true}', "n", "n is True"),
        (CHAT, '{"model":"m","max_tokens":0}', "max_tokens", "max_tokens is 0. Allowed: a whole number from 1"),
        (CHAT, '{"model":"m","max_tokens":1.5}', "max_tokens", "max_tokens is 1.5"),
        (CHAT, '{"model":"m","stream_options":1}', "stream_options", "stream_options is 1. Allowed: an object"),
        (CHAT, '{"model":"m","tools":1}', "tools", "tools is 1. Allowed: a list"),
        (CHAT, '{"model":"m","tools":[1]}', "tools[0]", "the tool 1 is refused"),
        (CHAT, '{"model":"m","tools":[{"type":["function"]}]}', "tools[0]", "the tool ['function'] is refused"),
        (RESPONSES, '{"model":"m","tools":[{"type":"web_search"}]}', "tools[0]", "the tool 'web_search' is refused: a tool that runs"),
        (MESSAGES, '{"model":"m","tools":[{"type":"bash_20250124"}]}', "tools[0]", "the tool 'bash_20250124' is refused"),
        (CHAT, '{"model":"m","messages":{}}', "messages", "messages is {}. Allowed: a list"),
        (CHAT, '{"model":"m","messages":["x"]}', "messages[0]", "messages[0] is 'x'. Allowed: an object"),
        (CHAT, '{"model":"m","messages":[{"audio":{"id":"1"}}]}', "messages[0]", "audio is refused"),
        (CHAT, '{"model":"m","messages":[{"content":{}}]}', "messages[0].content", "messages[0].content is an object"),
        (CHAT, '{"model":"m","messages":[{"content":[{"type":"image_url"}]}]}', "messages[0].content[0]", "a part of type 'image_url' is refused"),
        (CHAT, '{"model":"m","messages":[{"content":[5]}]}', "messages[0].content[0]", "a part of type None is refused"),
        (RESPONSES, '{"model":"m","input":[{"type":"item_reference"}]}', "input[0]", "an item of type 'item_reference' is refused"),
        (RESPONSES, '{"model":"m","input":[{"type":"function_call_output","output":[{"type":"input_image"}]}]}', "input[0].output[0]", "a part of type 'input_image'"),
        (MESSAGES, '{"model":"m","system":[{"type":"document"}]}', "system[0]", "a part of type 'document'"),
        (MESSAGES, '{"model":"m","messages":[{"content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}', "messages[0].content[0].content[0]", "a part of type 'image'"),
    ],
)  # fmt: skip
def test_request_that_cannot_be_bounded_is_refused_with_its_place(
    table: FieldTable, raw: str | bytes, param: str, why: str
) -> None:
    error = refused(table, raw)

    assert (error.param, str(error)[: len(why)]) == (param, why)


class _Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        _Name.compared += 1
        return str.__eq__(self, other)


def test_name_that_appears_twice_among_many_is_found_in_one_pass() -> None:
    names = [*(_Name(f"field_{n}") for n in range(3000)), _Name("field_2999")]
    _Name.compared = 0

    with pytest.raises(ValueError, match="'field_2999' appears twice"):
        _members([(name, 1) for name in names])
    assert _Name.compared < 100

    body = ",".join(f'"{n}":1' for n in range(100_000))
    assert str(refused(CHAT, f'{{{body},"99999":2}}')) == "the body is not JSON: '99999' appears twice"


def test_surrogate_pairs_and_plain_parts_are_allowed() -> None:
    raw = '{"model":"m","system":[{"type":"text","text":"\\uD83D\\uDE00"}],"messages":[{"content":[{"type":"tool_result","content":"x"}]}]}'

    assert read_request(MESSAGES, raw.encode()).fields["messages"]
