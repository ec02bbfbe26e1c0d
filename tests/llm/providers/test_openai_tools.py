"""The answer tool of chat completions: the body that is sent, and what comes back."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.openai.provider import Dialect, completion_body
from agentic_trading.llm.result import LLMResult
from agentic_trading.structured.engine import select
from tests.llm.providers.openai_calls import CAPABILITY, asking, desk
from tests.llm.providers.over import over
from tests.structured.asking import ANSWER, ORDER, request
from tests.stubs.chat_api import ANSWER as SAID
from tests.stubs.running import page_of, serving

BESIDE = '{"action":"sell","size":9}'


BECOMES = {
    "answer-call": "strict_tool",
    "demanded-call": "strict_tool",
    "call-beside-text": "strict_tool",
    "answer": "strict_tool",
    "two-calls,answer-call": "strict_tool",
    "two-calls": "parsing_error",
    "other-call": "parsing_error",
    "lost-call": "parsing_error",
    "cut-call": "truncated",
    "refusal": "refusal",
    "no-tools,answer": "prompted",
}
"""What becomes of a call that is answered so: the transport of its answer, or the kind of its failure.

The one whose schema is refused comes last: that is remembered.
"""


@pytest.fixture(scope="module")
def stub() -> Iterator[str]:
    """Return the address of a server of chat completions."""
    with serving("tests.stubs.chat_api") as address:
        yield address


def _became(result: LLMResult) -> str:
    return result.failure.category if result.failure else str(result.reading and result.reading.transport)


def made(outcome: str) -> ModelRequest:
    """Return a request over the answer tool that the stub answers with `outcome`."""
    envelope = asking(outcome).build()
    return over(
        "strict_tool", select(CAPABILITY, envelope).request(envelope, CAPABILITY, attempt=1, answer=1)
    )


async def answered(stub: str, outcome: str) -> ModelResponse:
    async with desk(f"{stub}/v1") as one:
        return await one.provider.complete(made(outcome))


def sent(dialect: Dialect = "compatible", *, forced: bool = False, **changes: Any) -> dict[str, Any]:
    """Return the body over the answer tool; `changes` are fields of `LLMEnvelope`."""
    return completion_body(
        over("strict_tool", request(**changes), forced_tool=forced), dialect, logprobs=False
    )


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
def test_strict_function_is_offered_without_format(dialect: Dialect) -> None:
    body = sent(dialect)

    function = body["tools"][0]["function"]
    assert (len(body["tools"]), body["tools"][0]["type"]) == (1, "function")
    assert (function["name"], function["strict"], function["parameters"]) == ("answer", True, ANSWER)
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("auto", False)
    assert "response_format" not in body


def test_function_call_forced_if_model_allows() -> None:
    assert sent(forced=True)["tool_choice"] == {"type": "function", "function": {"name": "answer"}}


def test_non_strict_schema_is_sent_unenforced() -> None:
    assert sent(expected_output_schema=ORDER)["tools"][0]["function"]["strict"] is False


@pytest.mark.parametrize("transport", ["native_schema", "json_mode", "prompted", "text"])
def test_other_transports_offer_no_tool(transport: Any) -> None:
    body = completion_body(over(transport, request()), "openai", logprobs=False)

    assert {"tools", "tool_choice", "parallel_tool_calls"}.isdisjoint(body)


@pytest.mark.parametrize(("outcome", "reason"), [("answer-call", "tool_calls"), ("demanded-call", "stop")])
async def test_call_arguments_are_the_answer(stub: str, outcome: str, reason: str) -> None:
    answer = await answered(stub, outcome)

    assert (answer.text, answer.stop_reason, answer.beside) == (SAID, reason, "")
    assert answer.usage.output_tokens == 20


async def test_object_arguments_are_answer_as_written(stub: str) -> None:
    answer = await answered(stub, "call-without-text")

    assert (answer.text, answer.tool_called) == ('{"action": "buy", "size": 1}', "")


async def test_text_with_function_call_is_separate(stub: str) -> None:
    answer = await answered(stub, "call-beside-text")

    assert (answer.text, answer.beside) == (SAID, BESIDE)


async def test_text_is_answer_without_function_call(stub: str) -> None:
    assert (await answered(stub, "answer")).text == SAID


async def test_missing_function_call_leaves_empty_answer(stub: str) -> None:
    answer = await answered(stub, "lost-call")

    assert (answer.text, answer.beside) == ("", BESIDE)


@pytest.mark.parametrize(
    ("outcome", "called"),
    [("two-calls", "(answer, answer)"), ("other-call", "buy")],
)
async def test_other_function_calls_are_named(stub: str, outcome: str, called: str) -> None:
    assert (await answered(stub, outcome)).tool_called == called


async def test_cut_function_call_keeps_partial_text(stub: str) -> None:
    answer = await answered(stub, "cut-call")

    assert (answer.text, answer.stop_reason) == ('{"action":"buy","si', "length")


async def test_refusal_over_tool_is_refusal(stub: str) -> None:
    answer = await answered(stub, "refusal")

    assert (answer.text, answer.stop_reason) == ("I cannot help with that.", "refusal")


async def test_openai_tool_ledger_matches_invoice(stub: str) -> None:
    by_tool = CAPABILITY.model_copy(update={"native_schema": False, "strict_tool": True})
    async with desk(f"{stub}/v1", None, by_tool) as one:
        finals = {
            words: (await one.runner.run(asking(f"{words} metered").build())).result for words in BECOMES
        }

    lines = (await asyncio.to_thread(page_of, stub, "/invoice"))["lines"]
    billed = sum(line["nusd"] for line in lines if line["call"].endswith(" metered"))
    assert {words: _became(result) for words, result in finals.items()} == BECOMES
    assert one.ledger.statistics().charged_nusd == billed > 0


@pytest.mark.parametrize("outcome", ["no-tools", "tool-too-large"])
async def test_rejected_function_is_schema_refusal(stub: str, outcome: str) -> None:
    with pytest.raises(ProviderError) as failed:
        await answered(stub, outcome)

    assert (failed.value.kind, failed.value.sent) == (FailureKind.SCHEMA_REFUSED, False)
