"""The usage of a chat completion, read so that it is never below the bill."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trading.canonical import quoted
from agentic_trading.llm.fields import LARGEST_COUNT
from agentic_trading.llm.providers.bills import NO_BILL, Bill
from agentic_trading.llm.result import Usage

_READS = (
    "cached_tokens",
    "prompt_cache_hit_tokens",
    "cache_read_tokens",
    "cache_read_input_tokens",
    "cached_read_tokens",
    "cached_input_tokens",
    "num_cached_tokens",
)
_WRITES = (
    "cache_write_tokens",
    "cache_write_input_tokens",
    "cache_creation_tokens",
    "cache_creation_input_tokens",
    "cached_write_tokens",
    "cached_creation_tokens",
)
_THOUGHTS = ("reasoning_tokens", "thinking_tokens")
_LIFETIMES = ("cache_creation", "cache_creation_token_details")
"""Objects that split the writes by how long they are kept."""


class UnmeteredError(ValueError):
    """A usage that no bill can be computed from; the text is the reason."""


def billed_usage(reported: Any, *, service_tier: str, has_answer: bool, bill: Bill = NO_BILL) -> Usage:
    """Return the tokens of an answer by class of price; `has_answer` is whether a text or a call came with it.

    `bill` is the server's own bill in it.

    Vendors use the same names for different sums, and different names for the same count. The dearest reading counts:

    - Output is `completion_tokens`. OpenAI, Azure, DeepSeek and Groq count thinking inside it, xAI and Gemini in
      addition. It is inside only if `total_tokens` shows that, and never if it is larger than `completion_tokens`.
      Output is never less than the rest of the total.
    - Of several counts of cache reads the smallest counts, of several counts of cache writes the largest.
    - The rest of the prompt is plain input, and never less than `prompt_cache_miss_tokens`.
    - Writes are priced as five-minute ones, unless the server reports how many are kept for an hour.

    Raises `UnmeteredError` for a usage that is missing, that counts nothing for a call that was answered, a count that
    is not a whole number from 0 to `LARGEST_COUNT`, and sums that contradict their parts.
    """
    if not isinstance(reported, Mapping):
        raise UnmeteredError("the server reports no usage")
    inward = [
        reported,
        *(_part(reported, name) for name in ("prompt_tokens_details", "input_tokens_details")),
    ]
    outward = [
        reported,
        *(_part(reported, name) for name in ("completion_tokens_details", "output_tokens_details")),
    ]
    prompt, completion = _needed(reported, "prompt_tokens"), _needed(reported, "completion_tokens")
    reasoning = max(_counts(outward, _THOUGHTS), default=0)
    output = _output(prompt, completion, reasoning, _counts((reported,), ("total_tokens",)))
    if not prompt or (has_answer and not output):
        raise UnmeteredError(
            f"the server reports {prompt} tokens in and {output} out for a call that it answered"
        )
    read = min(_counts(inward, _READS), default=0)
    for_5m, for_1h = _written(inward)
    rest = prompt - read - for_5m - for_1h
    if rest < 0:
        raise UnmeteredError(
            f"the server reports {prompt - rest} tokens of {prompt} as read from or written to its cache"
        )
    missed = max(_counts(inward, ("prompt_cache_miss_tokens",)), default=0)
    return Usage(
        input_tokens=max(rest, missed - for_5m - for_1h),
        output_tokens=output,
        thinking_tokens=min(reasoning, output),
        cache_read_tokens=read,
        cache_write_5m_tokens=for_5m,
        cache_write_1h_tokens=for_1h,
        service_tier=service_tier,
        bill_nusd=bill.nusd,
        bill_problem=bill.problem,
    )


def _output(prompt: int, completion: int, reasoning: int, totals: Sequence[int]) -> int:
    """Return the most that came out; raises `UnmeteredError` for a total that is less than its parts."""
    if not totals:
        return completion + reasoning
    left = totals[0] - prompt
    if left < completion:
        raise UnmeteredError(
            f"the server reports {totals[0]} tokens in all, of which {prompt} went in and {completion} out"
        )
    is_inside = left == completion and reasoning <= completion
    return completion if is_inside else max(left, completion + reasoning)


def _written(places: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the tokens written to the cache for five minutes and for an hour."""
    parts = [_part(place, name) for place in places for name in _LIFETIMES]
    for_5m = max(_counts(parts, ("ephemeral_5m_input_tokens",)), default=0)
    for_1h = max(_counts(parts, ("ephemeral_1h_input_tokens",)), default=0)
    return max(for_5m, max(_counts(places, _WRITES), default=0) - for_1h), for_1h


def _part(reported: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = reported.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise UnmeteredError(f"usage.{name} is not an object")
    return part


def _needed(reported: Mapping[str, Any], name: str) -> int:
    counts = _counts((reported,), (name,))
    if not counts:
        raise UnmeteredError(f"the server reports no {name}")
    return counts[0]


def _counts(places: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[int]:
    """Return the counts with one of these names, in any of these places; null is not a count."""
    return [
        _count(name, value) for place in places for name in names if (value := place.get(name)) is not None
    ]


def _count(name: str, value: Any) -> int:
    if type(value) is int and 0 <= value <= LARGEST_COUNT:
        return value
    raise UnmeteredError(
        f"usage.{name} is {quoted(value)}; allowed are whole numbers from 0 to {LARGEST_COUNT}"
    )
