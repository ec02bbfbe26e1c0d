"""The integration guide that users follow: build an envelope, capture the result, store it, query it later."""

import json
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentic_trading.llm import (
    EnvelopeBuilder,
    InteractionStore,
    JsonFileInteractionStore,
    LLMEnvelope,
    LLMInteraction,
    LLMProvider,
    LLMResult,
    MemoryInteractionStore,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of an answer, as the caller's own client returns it."""

    text: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the answer used."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, as the caller's own client returns it."""

    content: list[Block]
    usage: Tokens


RESPONSE = Response([Block('{"bias": "bullish", "confidence": 0.72}')], Tokens(812, 96))


def build() -> LLMEnvelope:
    """Build an envelope, as step 1 does."""
    return (
        EnvelopeBuilder()
        .for_analysis()
        .with_instructions("Your prompt here")
        .with_context({"key": "value"})
        .with_provider(LLMProvider.ANTHROPIC, "claude-sonnet-4-5-20250929")
        .with_trace(trace_id="signal-trace-abc")
        .build()
    )


def capture(envelope: LLMEnvelope, response: Response, latency_ms: float) -> LLMResult:
    """Make a result of the caller's own response, as step 3 does."""
    return LLMResult(
        envelope_id=envelope.envelope_id,
        raw_output=response.content[0].text,
        parsed_output=json.loads(response.content[0].text),
        validation_passed=True,
        latency_ms=latency_ms,
        input_tokens=response.usage.input_tokens,
        output_tokens=response.usage.output_tokens,
        provider=envelope.provider,
        model=envelope.model,
    )


@pytest.mark.parametrize("new_store", [MemoryInteractionStore, JsonFileInteractionStore])
async def test_printed_guide_code_works(
    new_store: Callable[[], InteractionStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()  # noqa: TID251 - the guide's own line

    envelope = build()
    latency_ms = (time.monotonic() - start) * 1000  # noqa: TID251 - the guide's own line
    result = capture(envelope, RESPONSE, latency_ms)
    async with aclosing(new_store()) as store:
        interaction = LLMInteraction(envelope=envelope, result=result)
        await store.store(interaction)

        assert await store.get_by_envelope_id(envelope.envelope_id) == interaction
        assert await store.get_by_trace_id(trace_id="signal-trace-abc") == [interaction]
        assert await store.recent(limit=10) == [interaction]


async def test_default_store_path_matches_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    envelope = build()

    async with aclosing(JsonFileInteractionStore()) as store:
        await store.store(
            LLMInteraction(envelope=envelope, result=capture(envelope, RESPONSE, latency_ms=1.0))
        )

    (line,) = Path("data/llm_interactions.jsonl").read_text(encoding="utf-8").splitlines()  # noqa: ASYNC240 - after the act
    fields = json.loads(line)
    assert list(fields)[:4] == ["interaction_id", "envelope", "result", "stored_at"]
    assert fields["envelope"]["envelope_id"] == envelope.envelope_id
    assert fields["result"]["parsed_output"] == {"bias": "bullish", "confidence": 0.72}
