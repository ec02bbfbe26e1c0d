"""Answers from public bug reports: accepted in one call, or refused by their words, and charged as the server bills."""

import json
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from agentic_trading.clock import SimClock
from agentic_trading.llm import LLMInteraction
from tests.cases.answering import Reply, attempts_at, order
from tests.gateway import START

PAID = 400_000
"""The price of 200 tokens in and 50 out, which the good answers report."""

ORDER = {"side": "BUY", "qty": 1}
GOOD: dict[str, Any] = {
    "id": "c-1",
    "model": "quant-7b",
    "choices": [{"message": {"content": json.dumps(ORDER)}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 200, "completion_tokens": 50, "total_tokens": 250},
}


def good(**changes: Any) -> bytes:
    """Return a good answer with other fields; one that is None is left out."""
    page = {**GOOD, **changes}
    return json.dumps({name: value for name, value in page.items() if value is not None}).encode()


def says(text: Any, reason: Any = "stop", **message: Any) -> list[Any]:
    return [{"message": {"content": text, **message}, "finish_reason": reason}]


class Seen(NamedTuple):
    """What is on record of an attempt: the kind of its failure or nothing, its charge, and whether that is in doubt."""

    kind: str
    cost_nusd: int
    in_doubt: bool = False


def seen(attempt: LLMInteraction) -> Seen:
    result = attempt.result
    return Seen(result.failure.category if result.failure else "", result.cost_nusd, result.in_doubt)


@pytest.mark.parametrize(
    ("file", "row"),
    [
        ("o04_content_in_parts.json", {}),
        ("o11_two_members.json.gz", {}),
        ("o13_arguments_as_an_object.json", {"strict_tool": True, "forced_tool": True}),
        ("o17_id_is_a_number.json", {}),
    ],
)
async def test_unusual_answer_accepted_in_one_call(file: str, row: dict[str, Any]) -> None:
    made = await attempts_at(order(), Reply.of_file(file), **row)

    assert [seen(one) for one in made] == [Seen("", PAID)]
    assert made[0].result.parsed_output == ORDER


async def test_uppercase_stop_reason_raises_cap_once() -> None:
    made = await attempts_at(order(cap=1000), Reply.of_file("o02_stop_reason_in_capitals.json"))

    assert [seen(one) for one in made] == [Seen("truncated", PAID)] * 2
    assert [one.result.next_step for one in made] == ["raise_cap", "final"]


async def test_status_200_error_is_retried() -> None:
    made = await attempts_at(order(), Reply.of_file("o03_error_with_status_200.json"), good())

    assert [seen(one) for one in made] == [Seen("rate_limit", 0), Seen("", PAID)]
    assert "Provider returned error" in str(made[0].result.error)
    assert "too many requests" in str(made[0].result.error)


class NotingClock(SimClock):
    """A simulated clock that notes how long it is asked to wait."""

    def __init__(self) -> None:
        super().__init__(START)
        self.waits: list[float] = []

    @override
    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await super().sleep(seconds)


async def waits_after(reply: Reply) -> list[float]:
    """Return the waits of a call that is turned away once as a rate limit, charged nothing, and then answered."""
    clock = NotingClock()
    made = await attempts_at(order(), reply, good(), clock=clock)
    assert [seen(one) for one in made] == [Seen("rate_limit", 0), Seen("", PAID)]
    return clock.waits


@pytest.mark.parametrize(
    ("reply", "wait_s"),
    [
        (Reply.of_file("o10_wait_in_the_body.json")._replace(status=429), 3),
        (Reply.of_file("o10_wait_in_the_body.json"), 3),
        (Reply.of_file("o15_refusal_that_is_not_packed.http"), 1),
    ],
    ids=["o10", "o10 with status 200", "o15"],
)
async def test_rate_limit_wait_is_kept(reply: Reply, wait_s: float) -> None:
    (waited,) = await waits_after(reply)

    assert waited >= wait_s


RESERVED = -1
"""Stands for the amount that was set aside."""

USED = {"prompt_tokens": 200, "completion_tokens": 0, "total_tokens": 200}


@pytest.mark.parametrize(
    ("error", "kind", "cost_nusd", "requests"),
    [
        ({"code": 400, "message": "m"}, "invalid_request", 0, 1),
        ({"code": 401, "message": "m"}, "auth_error", 0, 1),
        ({"code": "402", "message": "m"}, "billing", 0, 1),
        ({"code": 403, "message": "m"}, "auth_error", 0, 1),
        ({"code": 404, "message": "m"}, "invalid_request", 0, 1),
        ({"code": 429, "message": "m"}, "rate_limit", 0, 4),
        ({"status": "RESOURCE_EXHAUSTED", "message": "m"}, "rate_limit", 0, 4),
        ({"code": 429, "message": "m: monthly spend limit reached"}, "billing", 0, 1),
        ({"code": 429, "message": "m", "type": "insufficient_quota"}, "billing", 0, 1),
        ({"code": 500, "message": "m"}, "server_error", RESERVED, 4),
        ({"code": 503, "message": "m"}, "server_error", RESERVED, 4),
        ({"code": 529, "message": "m"}, "server_error", RESERVED, 4),
        ({"code": 422, "message": "m"}, "invalid_request", RESERVED, 1),
        ({"code": 7001, "message": "m"}, "server_error", RESERVED, 4),
        ({"message": "m"}, "server_error", RESERVED, 4),
        ("m", "server_error", RESERVED, 4),
    ],
)
@pytest.mark.parametrize("place", ["body", "choice", "root"])
async def test_error_in_answer_follows_error_table(
    place: str, error: Any, kind: str, cost_nusd: int, requests: int
) -> None:
    choice = {"message": {"content": ""}, "finish_reason": "error"}
    page = {
        "body": {"error": error, "choices": None, "usage": None},
        "choice": {"choices": [{**choice, "error": error}]},
        "root": {"object": "error", **(error if isinstance(error, dict) else {"message": error})},
    }[place]

    made = await attempts_at(order(), json.dumps(page).encode())

    reserved = made[0].result.reserved_nusd
    expected = Seen(kind, reserved if cost_nusd == RESERVED else cost_nusd, cost_nusd == RESERVED)
    assert [seen(one) for one in made] == [expected] * requests
    assert str(made[0].result.error).endswith(": m") or "m: monthly" in str(made[0].result.error)


@pytest.mark.parametrize(("code", "requests"), [(400, 1), (429, 4), (500, 4), (None, 4)])
async def test_usage_of_an_error_is_charged(code: int | None, requests: int) -> None:
    page = {"error": {"code": code, "message": "m"}, "usage": USED}

    made = await attempts_at(order(), json.dumps(page).encode())

    assert {seen(one)[1:] for one in made} == {(200 * 1000, False)}
    assert [one.result.input_tokens for one in made] == [200] * requests


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": "many"}, {"prompt_tokens": -1, "completion_tokens": 1}, {"cost": 0.001}]
)
async def test_unreadable_error_usage_is_in_doubt(usage: Any) -> None:
    page = {"error": {"code": 400, "message": "m"}, "usage": usage}

    (made,) = await attempts_at(order(), json.dumps(page).encode())

    assert seen(made) == Seen("invalid_request", made.result.reserved_nusd, in_doubt=True)


async def test_bill_of_an_error_is_charged() -> None:
    bill = {"cost": 0.0031, "is_byok": False, "cost_details": {"upstream_inference_cost": None}}
    page = {"error": {"code": 429, "message": "m"}, "usage": {**USED, **bill}}

    made = await attempts_at(order(), json.dumps(page).encode(), good())

    assert [seen(one) for one in made] == [Seen("rate_limit", 3_100_000), Seen("", PAID)]


async def test_order_error_retried_only_if_free() -> None:
    limited = {"error": {"code": 429, "message": "m"}}
    pages = [limited, {**limited, "usage": USED}]

    made = await attempts_at(order(workflow="execution"), *(json.dumps(page).encode() for page in pages))

    assert [seen(one) for one in made] == [Seen("rate_limit", 0), Seen("rate_limit", 200 * 1000)]


EMPTY: tuple[Any, ...] = ("", {}, False, [], None)


async def test_empty_error_field_is_ignored() -> None:
    for empty in EMPTY:
        made = await attempts_at(order(), good(error=empty))
        assert [seen(one) for one in made] == [Seen("", PAID)]


REASONS_THAT_ARE_NOT_COMPLETE = [
    ("MAX_TOKENS", "truncated"),
    ("Length", "truncated"),
    ("model_length", "truncated"),
    ("OTHER", "truncated"),
    ("MALFORMED_FUNCTION_CALL", "truncated"),
    ("a new word", "truncated"),
    (7, "truncated"),
    ("SAFETY", "refusal"),
    ("content_filter", "refusal"),
    ("Content_Filter", "refusal"),
    ("error", "server_error"),
    ("ERROR", "server_error"),
    ("insufficient_system_resource", "server_error"),
]


@pytest.mark.parametrize(("reason", "kind"), REASONS_THAT_ARE_NOT_COMPLETE)
@pytest.mark.parametrize("workflow", ["planning", "execution"])
async def test_incomplete_stop_reason_gives_no_answer(reason: Any, kind: str, workflow: str) -> None:
    text = json.dumps({**ORDER, "end": "ok"} if workflow == "execution" else ORDER)

    made = await attempts_at(order(workflow=workflow), good(choices=says(text, reason)))

    assert {seen(one) for one in made} == {Seen(kind, PAID)}
    assert not any(one.result.actionable for one in made)


@pytest.mark.parametrize("reason", ["stop", "STOP", "Stop", "end_turn", "eos", "COMPLETE"])
@pytest.mark.parametrize("workflow", ["planning", "execution"])
async def test_complete_stop_reason_ignores_case(reason: str, workflow: str) -> None:
    text = json.dumps({**ORDER, "end": "ok"} if workflow == "execution" else ORDER)

    made = await attempts_at(order(workflow=workflow), good(choices=says(text, reason)))

    assert [seen(one) for one in made] == [Seen("", PAID)]


WHOLE, FENCED = json.dumps(ORDER), f"Here it is:\n```json\n{json.dumps(ORDER)}\n```\n"


@pytest.mark.parametrize("reason", [None, ""])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (WHOLE, ""),
        (FENCED, ""),
        (WHOLE[:-1], "truncated"),
        (WHOLE + "\nWait, on second thought", "truncated"),
        (WHOLE + "\nBetter: {", "truncated"),
    ],
)
async def test_missing_stop_reason_requires_text_end(text: str, kind: str, reason: str | None) -> None:
    made = await attempts_at(order(), good(choices=says(text, reason)))

    assert {seen(one) for one in made} == {Seen(kind, PAID)}


async def test_order_without_stop_reason_is_refused() -> None:
    text = json.dumps({**ORDER, "end": "ok"})

    (made,) = await attempts_at(order(workflow="execution"), good(choices=says(text, None)))

    assert seen(made) == Seen("truncated", PAID)


def call(arguments: Any, name: str = "answer") -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


IN_A_CALL: dict[str, Any] = {"strict_tool": True, "forced_tool": True}
EXACT = '{"side": "BUY", "qty": 1.123456789012345678901}'


@pytest.mark.parametrize(
    ("changes", "row", "cost_nusd"),
    [
        ({"id": None}, {}, PAID),
        ({"id": {"a": 1}}, {}, PAID),
        ({"model": 7}, {}, PAID),
        ({"created": "now", "object": 3}, {}, PAID),
        ({"choices": says(WHOLE, refusal=False)}, {}, PAID),
        ({"choices": says(WHOLE, refusal=[])}, {}, PAID),
        ({"choices": [{**says(WHOLE)[0], "logprobs": []}]}, {}, PAID),
        ({"choices": [{**says(WHOLE)[0], "logprobs": {"content": [{"logprob": "none"}, None, 5]}}]}, {}, PAID),
        ({"choices": says(WHOLE, tool_calls=[])}, {}, PAID),
        ({"choices": says(WHOLE, reasoning_content={"a": [1]})}, {}, PAID),
        ({"choices": says([{"type": "reasoning", "text": "{}"}, {"type": "text", "text": WHOLE}])}, {}, PAID),
        ({"choices": says({"type": "output_text", "text": WHOLE})}, {}, PAID),
        ({"choices": says(None, "tool_calls", tool_calls=[call(WHOLE)])}, IN_A_CALL, PAID),
        ({"choices": says(None, "tool_calls", tool_calls=call(ORDER))}, IN_A_CALL, PAID),
        ({"choices": says(None, "function_call", function_call={"name": "answer", "arguments": WHOLE})}, IN_A_CALL, PAID),
        ({"choices": says("", "stop", function_call={"name": "answer", "arguments": ORDER})}, IN_A_CALL, PAID),
    ],
)  # fmt: skip
async def test_optional_field_does_not_fail_answer(
    changes: dict[str, Any], row: dict[str, Any], cost_nusd: int
) -> None:
    body = json.dumps({**GOOD, **changes}).encode()

    made = await attempts_at(order(), body, **row)

    assert [seen(one) for one in made] == [Seen("", cost_nusd)]
    assert made[0].result.parsed_output == ORDER


async def test_object_arguments_keep_every_digit() -> None:
    choices = says(None, "tool_calls", tool_calls=[call("@")])
    body = good(choices=choices).replace(b'"@"', EXACT.encode())

    (made,) = await attempts_at(order(), body, **IN_A_CALL)

    assert made.result.raw_output == EXACT
    assert str(made.result.parsed_output["qty"]) == "1.123456789012345678901"


@pytest.mark.parametrize(
    "choices",
    [
        says(7),
        says([7]),
        says([{"type": "text"}]),
        says([{"type": "text", "text": 5}]),
        [{"message": None, "finish_reason": "stop"}],
        [],
        None,
        [7],
    ],
)
async def test_unreadable_answer_usage_is_charged(choices: Any) -> None:
    made = await attempts_at(order(), json.dumps({**GOOD, "choices": choices}).encode())

    assert [seen(one) for one in made] == [Seen("server_error", PAID)] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"choices": says("long text", "error")},
        {"choices": says(7)},
        {"choices": says([{"type": "text"}])},
        {"choices": says("", "error", tool_calls=[{"function": {"name": "answer", "arguments": "{}"}}])},
        {"choices": says(None, "error", reasoning_content="long thoughts")},
        {"choices": [{**says("long text", "error")[0], "error": {"code": 429, "message": "m"}}]},
        {"choices": says("long text"), "error": {"code": 502, "message": "m"}},
    ],
)
async def test_text_without_output_usage_charges_reservation(
    changes: dict[str, Any],
) -> None:
    made = await attempts_at(order(), good(usage=USED, **changes))

    assert {seen(one)[1:] for one in made} == {(made[0].result.reserved_nusd, True)}


NO_USAGE: list[Any] = [
    None,
    {},
    [60, 25],
    {"prompt_tokens": 60},
    {"prompt_tokens": 0, "completion_tokens": 0},
]


@pytest.mark.parametrize("usage", NO_USAGE)
@pytest.mark.parametrize("workflow", ["planning", "execution"])
async def test_answer_without_usage_charges_reservation(usage: Any, workflow: str) -> None:
    text = json.dumps({**ORDER, "end": "ok"} if workflow == "execution" else ORDER)

    with capture_logs() as logs:
        (made,) = await attempts_at(order(workflow=workflow), good(usage=usage, choices=says(text)))

    result = made.result
    assert seen(made) == Seen("", result.reserved_nusd)
    assert (result.parsed_output, result.actionable) == (ORDER, True)
    assert (result.unpriced, result.charged_tokens) == ("usage=unknown", result.reserved_tokens)
    assert result.unmetered
    assert LLMInteraction.from_wire(made.wire) == made
    (warned,) = (line for line in logs if line["event"] == "charged_at_reservation")
    assert "report prompt and completion tokens" in warned["add"]


async def test_order_without_usage_and_end_refused() -> None:
    made = await attempts_at(order(workflow="execution"), good(usage=None))

    assert [seen(one) for one in made] == [Seen("truncated", made[0].result.reserved_nusd)]
