"""A script answers as it is written."""

import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.offline import ScriptedProvider
from tests.build import response
from tests.structured.asking import request


async def test_scripted_lines_come_in_order() -> None:
    whole, error = response("whole"), ProviderError(FailureKind.RATE_LIMIT, "slow down", sent=False)
    provider = ScriptedProvider(["text", whole, error])
    first, second, third = request(), request(), request()

    text = await provider.complete(first)
    assert (text.text, text.stop_reason, text.model) == ("text", "end_turn", "claude-sonnet-5-5")
    assert text.usage.output_tokens == 1
    assert await provider.complete(second) is whole
    with pytest.raises(ProviderError, match="slow down"):
        await provider.complete(third)
    assert provider.requests == [first, second, third]


async def test_function_answers_by_request() -> None:
    provider = ScriptedProvider(lambda request: f"attempt {request.attempt}")

    assert (await provider.complete(request())).text == "attempt 1"


async def test_exhausted_script_raises_error() -> None:
    with pytest.raises(ProviderError, match="the script has 0 lines, and all are used") as over:
        await ScriptedProvider([]).complete(request())

    assert (over.value.kind, over.value.sent) == (FailureKind.INVALID_REQUEST, False)


async def test_missing_model_defaults_to_scripted() -> None:
    assert (await ScriptedProvider(["x"]).complete(request(model=""))).model == "scripted-1"
