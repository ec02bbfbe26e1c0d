"""A real small model answers on this machine: held to its schema, repeatable, and never in the way.

Runs where llama.cpp and the weights are installed; `REQUIRE_SERVICES=1` makes it a failure that they are not.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.llm.envelope import LLMProvider, ResponseFormat
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.local import MODEL, LocalProvider
from agentic_trading.structured.engine import select
from agentic_trading.structured.outcome import Accepted
from tests.local_model import weights_or_skip
from tests.structured.asking import capability, request

SMALL = capability(
    provider=LLMProvider.LOCAL, model=MODEL, sampling=True, holds_bounds=True, max_output_tokens=800
)


@pytest.fixture(scope="module")
def weights() -> Path:
    return weights_or_skip()


@pytest.fixture(scope="module")
def model(weights: Path) -> Iterator[LocalProvider]:
    provider = LocalProvider(weights, context_tokens=1024)
    yield provider
    asyncio.run(provider.aclose())


@pytest.fixture(scope="module")
def answered(model: LocalProvider) -> ModelResponse:
    """Return one answer for all tests that only look at an answer, because the prompt takes most of the time."""
    return asyncio.run(model.complete(ask("Name an animal.", zebra={"enum": [1]}, ant={"enum": [2]})))


def ask(text: str, *, most: int = 40, **properties: Any) -> ModelRequest:
    """Return a request for an object with `properties`, or for a text where there are none."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return request(
        SMALL,
        model=MODEL,
        instructions=text,
        budget=LLMBudget(max_output_tokens=most),
        expected_output_schema=schema if properties else {},
        response_format=ResponseFormat.JSON if properties else ResponseFormat.TEXT,
    )


def test_answer_has_reason_model_and_usage(answered: ModelResponse) -> None:
    assert (answered.stop_reason, answered.model) == ("stop", MODEL)
    assert answered.usage.input_tokens > 20
    assert 0 < answered.usage.output_tokens < 40


HELD: dict[str, dict[str, Any]] = {
    "minimum": {"type": "integer", "minimum": 12345, "maximum": 12349},
    "number": {"type": "number", "minimum": 0.2, "maximum": 0.25},
    "exclusive": {"type": "integer", "exclusiveMinimum": 6, "exclusiveMaximum": 8},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 50},
    "minLength": {"type": "string", "minLength": 9, "maxLength": 12},
    "pattern": {"type": "string", "pattern": "^(market|[1-9][0-9]{4}\\.[0-9]{2})$"},
    "array": {"type": "array", "minItems": 2, "maxItems": 3, "items": {"enum": ["E1", "E2"]}},
    "anyOf": {"anyOf": [{"const": "zebra"}, {"type": "null"}]},
    "constant": {"const": "zebra"},
    "null": {"type": ["object", "null"], "properties": {}, "additionalProperties": False},
}


async def test_answer_satisfies_schema_and_bounds(model: LocalProvider) -> None:
    made = ask("Tell a story about a cat that counts to a hundred.", most=300, **HELD)

    answer = await model.complete(made)

    read = select(SMALL, made.envelope).read(answer, made)
    assert isinstance(read, Accepted), answer.text


@pytest.mark.parametrize(
    "unfit",
    [
        {"type": "string", "pattern": r"^\cA$"},
        {"type": "number", "minimum": 5, "maximum": 2},
        {"type": "array", "items": {"type": "string"}, "maxItems": 100_000},
    ],
)
async def test_unsupported_schema_is_refused(model: LocalProvider, unfit: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as failed:
        await model.complete(ask("Answer.", one=unfit))

    assert (failed.value.kind, failed.value.sent) == (FailureKind.SCHEMA_REFUSED, False)


def test_properties_are_ordered_without_whitespace(answered: ModelResponse) -> None:
    assert answered.text == '{"zebra":1,"ant":2}'


@pytest.mark.soak
async def test_repeated_request_gets_identical_answer(model: LocalProvider) -> None:
    story, other = ask("Tell a story about a fox."), ask("Tell a story about a fox and a hen.")

    first = await model.complete(story)
    await model.complete(other)

    assert await model.complete(story) == first


async def test_capped_answer_is_reported_as_cut(model: LocalProvider) -> None:
    answer = await model.complete(ask("Tell a long story.", most=8))

    assert (answer.stop_reason, answer.usage.output_tokens) == ("length", 8)


@pytest.mark.soak
async def test_concurrent_requests_get_matching_answers(model: LocalProvider) -> None:
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(model.complete(ask("Answer.", n={"const": n}))) for n in range(3)]

    assert [task.result().text for task in answers] == ['{"n":0}', '{"n":1}', '{"n":2}']


async def test_overlong_prompt_is_refused_unsent(model: LocalProvider) -> None:
    with pytest.raises(ProviderError, match="exceeds the available context size") as failed:
        await model.complete(ask("word " * 2_000))

    assert (failed.value.kind, failed.value.sent) == (FailureKind.INVALID_REQUEST, False)


async def test_timed_out_call_frees_model(model: LocalProvider) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await model.complete(
                ask("Count to a thousand.", most=800, n={"type": "string", "minLength": 4_000})
            )

    async with asyncio.timeout(25):
        assert (await model.complete(ask("Answer.", n={"const": 1}))).text == '{"n":1}'


async def test_close_ends_running_and_waiting_calls(weights: Path) -> None:
    provider = LocalProvider(weights, context_tokens=1024)
    endless = ask("Count to a thousand.", most=800, n={"type": "string", "minLength": 4_000})
    await provider.complete(ask("Answer.", n={"const": 1}))

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(failure_of(provider, endless)) for _ in range(2)]
        await asyncio.sleep(0)
        group.create_task(provider.aclose())

    assert {call.result().kind for call in calls} == {FailureKind.SHUTDOWN}
    assert (await failure_of(provider, endless)).sent is False
    await provider.aclose()


@pytest.mark.usefixtures("answered")
def test_local_model_opens_no_port() -> None:
    assert listening_ports() == []


async def test_missing_weights_error_names_fetch_command(tmp_path: Path) -> None:
    failed = await failure_of(LocalProvider(tmp_path / "none.gguf"), ask("Answer."))

    assert (failed.kind, failed.sent) == (FailureKind.INVALID_REQUEST, False)
    assert "agentic-trading models fetch smollm2-135m" in failed.message


async def test_weights_of_wrong_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(b"GGUF")

    failed = await failure_of(LocalProvider(path), ask("Answer."))

    assert "it has 4 bytes, the published weights have" in failed.message


async def test_missing_custom_weights_are_reported(tmp_path: Path) -> None:
    failed = await failure_of(LocalProvider(tmp_path / "none.gguf", model="mine"), ask("Answer."))

    assert "Allowed: the GGUF weights of mine" in failed.message


@pytest.mark.usefixtures("weights")
async def test_invalid_custom_weights_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(b"GGUF")

    failed = await failure_of(LocalProvider(path, model="mine"), ask("Answer."))

    assert "llama.cpp cannot load" in failed.message


async def test_missing_library_error_names_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    failed = await failure_of(LocalProvider(tmp_path / "none.gguf"), ask("Answer."))

    assert "pip install 'agentic-trading[local]'" in failed.message
    assert failed.sent is False


async def failure_of(provider: LocalProvider, made: ModelRequest) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        await provider.complete(made)
    return failed.value


def listening_ports() -> list[str]:
    """Return the addresses on which this process listens for TCP."""
    ours = {fd.readlink().name for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in ours]
