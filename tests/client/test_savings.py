"""What the form of an answer saves is counted from usage, and shown whatever it is."""

from typing import Any

from agentic_trading.client.recursion import measure_savings
from agentic_trading.llm.envelope import ResponseFormat
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import ScriptedProvider
from tests.client.trees import asking, says
from tests.gateway import gateway
from tests.worker.running import running


def answering(structured: list[str], text: str) -> Any:
    lines = iter(structured)
    return lambda request: text if request.transport == "text" else next(lines)


async def test_both_forms_share_model_and_cap() -> None:
    provider = ScriptedProvider(answering([says("3.")], "First … then … so it is 3." * 4))
    desk = gateway(provider)

    async with running(desk) as client:
        savings = await measure_savings(client, ["How many?"], asking)

    structured, text = (request.envelope for request in provider.requests)
    assert (text.response_format, text.expected_output_schema) == (ResponseFormat.TEXT, {})
    for name in ("model", "provider", "budget", "context", "temperature"):
        assert getattr(structured, name) == getattr(text, name)
    assert structured.evidence_json == text.evidence_json
    assert savings.structured_tokens < savings.text_tokens
    assert savings.share == 1 - savings.structured_tokens / savings.text_tokens
    assert str(savings).endswith(f"{savings.share:+.1%} saved")


async def test_retries_and_failures_reduce_savings() -> None:
    desk = gateway(answering(["no JSON at all"] * 2, "3."))

    async with running(desk) as client:
        savings = await measure_savings(client, ["How many?"], asking)

    (measured,) = savings.measured
    assert (measured.structured_ok, measured.text_ok) == (False, True)
    assert measured.structured_tokens == 2 * 4
    assert savings.share is not None
    assert savings.share < 0


async def test_savings_without_text_have_no_share() -> None:
    def broken(_request: ModelRequest) -> str:
        return ""

    desk = gateway(broken)

    async with running(desk) as client:
        savings = await measure_savings(client, ["How many?"], asking)

    assert savings.share is None
    assert str(savings).endswith("no text to compare with")
