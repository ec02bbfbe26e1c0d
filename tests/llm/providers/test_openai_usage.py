"""The usage of an answer is never less than its vendor bills; where it tells no bill, it is none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.providers.hosted import HttpReply
from agentic_trading.llm.providers.openai.provider import UnmeteredError, billed_usage, model_response
from agentic_trading.llm.result import Usage
from benchmarks.usage import ALLOWING_MORE, DOCUMENTED, UNTOLD, Shape

TOKENS = st.integers(0, 3000)
TOKENS_OR_NONE = st.none() | TOKENS


def read(usage: Any, *, has_answer: bool = True) -> Usage:
    return billed_usage(usage, service_tier="", has_answer=has_answer)


@pytest.mark.parametrize("shape", DOCUMENTED, ids=lambda shape: shape.server)
def test_documented_usage_matches_vendor_bill(shape: Shape) -> None:
    usage = read(shape.usage)

    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == shape.billed
    assert usage.cache_write_5m_tokens == shape.written
    assert usage.thinking_tokens <= usage.output_tokens


@pytest.mark.parametrize("shape", ALLOWING_MORE, ids=lambda shape: shape.server)
def test_largest_usage_reading_counts(shape: Shape) -> None:
    usage = read(shape.usage)
    plain, cached, output = shape.billed

    assert usage.output_tokens >= output
    assert usage.input_tokens >= plain
    assert usage.cache_write_5m_tokens >= shape.written
    assert usage.input_tokens + usage.cache_read_tokens >= plain + cached


@pytest.mark.parametrize("shape", UNTOLD, ids=lambda shape: shape.server)
def test_unbillable_usage_is_unmetered(shape: Shape) -> None:
    completion = {"choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}], "usage": shape.usage}

    answer = model_response(HttpReply(json.dumps(completion).encode(), "r-1"))

    assert (answer.text, answer.usage.total_tokens) == ("{}", 0)
    assert answer.usage.unmetered


@pytest.mark.parametrize("place", ["prompt_tokens_details", "input_tokens_details", ""])
@pytest.mark.parametrize(
    ("name", "counted"),
    [
        *((name, (100, 900, 0)) for name in ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_read_tokens", "cache_read_tokens", "cached_input_tokens")),
        *((name, (100, 0, 900)) for name in ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens", "cached_write_tokens", "cached_creation_tokens", "cache_write_input_tokens")),
    ],
)  # fmt: skip
def test_cache_count_read_under_every_name(place: str, name: str, counted: tuple[int, int, int]) -> None:
    count = {name: 900}

    usage = read({"prompt_tokens": 1000, "completion_tokens": 1, **({place: count} if place else count)})

    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_5m_tokens) == counted


def test_hourly_cache_writes_are_counted_apart() -> None:
    lifetimes = {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 300}
    inward = {"cache_creation_tokens": 600, "cache_creation_token_details": lifetimes}

    usage = read({"prompt_tokens": 1000, "completion_tokens": 1, "prompt_tokens_details": inward})

    assert (usage.input_tokens, usage.cache_write_5m_tokens, usage.cache_write_1h_tokens) == (400, 300, 300)


@pytest.mark.parametrize("total", [None, 110, 810])
def test_reasoning_above_output_is_added(total: int | None) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": total, "reasoning_tokens": 700}

    assert read(usage).output_tokens == 710


def test_empty_answer_may_have_zero_output() -> None:
    assert read({"prompt_tokens": 9, "completion_tokens": 0}, has_answer=False).output_tokens == 0


@given(prompt=TOKENS, completion=TOKENS, total=TOKENS_OR_NONE, cached=TOKENS_OR_NONE, hit=TOKENS_OR_NONE,
       missed=TOKENS_OR_NONE, written=TOKENS_OR_NONE, reasoning=TOKENS_OR_NONE)  # fmt: skip
def test_usage_covers_every_reported_count(
    prompt: int,
    completion: int,
    total: int | None,
    cached: int | None,
    hit: int | None,
    missed: int | None,
    written: int | None,
    reasoning: int | None,
) -> None:
    reported = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": total,
        "prompt_cache_hit_tokens": hit,
        "prompt_cache_miss_tokens": missed,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    try:
        usage = read(reported)
    except UnmeteredError:
        return

    assert usage.total_input_tokens >= prompt
    assert usage.output_tokens >= completion
    assert usage.output_tokens >= (total or 0) - prompt
    assert usage.input_tokens + usage.cache_write_5m_tokens >= max(missed or 0, prompt - min(
        one for one in (cached, hit, prompt) if one is not None
    ))  # fmt: skip
    if total != prompt + completion or (reasoning or 0) > completion:
        assert usage.output_tokens >= completion + (reasoning or 0)
