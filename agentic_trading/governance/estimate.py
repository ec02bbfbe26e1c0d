"""The most that a request can cost, before it is sent."""

from datetime import datetime
from unicodedata import is_normalized, normalize

from agentic_trading.governance.prices import Amount, PriceBook
from agentic_trading.llm.fields import json_of
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest


def bound(
    request: ModelRequest,
    capability: Capability,
    book: PriceBook,
    *,
    at: datetime,
    input_tokens: int | None = None,
) -> Amount:
    """Return an amount that no usage within the request's caps can pass.

    Input is bounded by the UTF-8 bytes of what is sent (or by `input_tokens`, the provider's own count) and the
    model's overhead, output by the cap that includes thinking; both at the dearest class, tier and multiplier.
    Holds for tokenizers whose tokens cover `capability.min_bytes_per_token` bytes or more. Raises
    `UnknownModelError` for a model without a price.
    """
    inward = (
        input_bound(request, capability)
        if input_tokens is None
        else input_tokens + capability.overhead_tokens
    )
    worst = book.worst(capability.provider, capability.model, at=at, input_tokens=inward)
    return Amount(worst.cost_nusd(inward, request.max_tokens), inward + request.max_tokens)


_TOOL_FRAME_BYTES = 128


def input_bound(request: ModelRequest, capability: Capability) -> int:
    """Return how many input tokens the request can have at most.

    A schema that the provider enforces counts twice: it is sent, as a response format or in the one tool that takes
    the answer, and described to the model in the prompt. Framing and that tool's name are in the model's overhead. Every
    other tool counts twice as well, with `_TOOL_FRAME_BYTES` around it.
    """
    size = _most_bytes(request.system) + _most_bytes(request.user)
    if request.response_schema is not None:
        size += 2 * len(json_of(request.response_schema))
    for tool in request.tools:
        size += 2 * len(json_of(tool.model_dump())) + _TOOL_FRAME_BYTES
    return -(-size // capability.min_bytes_per_token) + capability.overhead_tokens


def _most_bytes(text: str) -> int:
    """Return the UTF-8 bytes of `text`, as it stands or in NFKC, whichever has more.

    Tokenizers may normalize before they count, as the one does that Anthropic has published; U+FDFA then has 33 bytes
    instead of 3.
    """
    if text.isascii():
        return len(text)
    return max(
        _utf8_length(text), 0 if is_normalized("NFKC", text) else _utf8_length(normalize("NFKC", text))
    )


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
