"""Read a message of the Messages API as a `ModelResponse`, or say why it is none."""

from anthropic.types import Message
from anthropic.types import Usage as Billed
from pydantic import ValidationError

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Usage

_UNFINISHED = frozenset({"tool_use", "pause_turn"})


def response_of(message: object) -> ModelResponse:
    """Return the answer that `message` is: all its text, the thinking left out.

    Refusals and answers cut at the cap are answers too, with the stop reason that says so. Raises `ProviderError`,
    sent, for an answer that was cut on its way, that waits for a tool (none was offered), or that is no message; the
    SDK itself does not check what it reads.
    """
    if not isinstance(message, Message) or not isinstance(message.content, list):
        raise _unusable("the answer is no message; is this the address of the Messages API?")
    request_id = message._request_id or ""  # noqa: SLF001 - the SDK's documented way to it
    if not _word(message.stop_reason):
        raise _unusable("the answer was cut: it has no stop reason", request_id)
    try:
        kinds = {block.type for block in message.content}
        text = "".join(block.text for block in message.content if block.type == "text")
    except (AttributeError, TypeError) as e:
        raise _unusable("the answer is made of other blocks than those of the API", request_id) from e
    if message.stop_reason in _UNFINISHED or "tool_use" in kinds:
        raise _unusable(
            f"the answer waits for a tool ({message.stop_reason}), and none was offered", request_id
        )
    try:
        usage = usage_of(message.usage)
    except (AttributeError, TypeError, ValidationError) as e:
        raise _unusable("the answer does not say what it used", request_id) from e
    return ModelResponse(
        text=text,
        stop_reason=_word(message.stop_reason),
        usage=usage,
        model=_word(message.model),
        provider_request_id=request_id,
        provider_response_id=_word(message.id),
    )


def usage_of(billed: Billed) -> Usage:
    """Return the tokens by class of price; thinking is part of the output.

    Tokens written to the cache of which nobody says for how long count as the dearer kind. What is no whole number
    counts nothing: it raises `ValidationError`.
    """
    for_5m, for_1h = _written(billed)
    details = billed.output_tokens_details
    counted = {
        "input_tokens": billed.input_tokens,
        "output_tokens": billed.output_tokens,
        "thinking_tokens": (details.thinking_tokens or 0) if details else 0,
        "cache_read_tokens": billed.cache_read_input_tokens or 0,
        "cache_write_5m_tokens": for_5m,
        "cache_write_1h_tokens": for_1h,
        "service_tier": billed.service_tier or "",
        "speed": billed.speed or "",
        "inference_geo": billed.inference_geo or "",
    }
    return Usage.model_validate(counted, strict=True)


def _written(billed: Billed) -> tuple[int, int]:
    """Return the tokens written to the cache for five minutes and for an hour; the sum may be told, or the parts."""
    written = billed.cache_creation_input_tokens or 0
    if billed.cache_creation is None:
        return 0, written
    for_5m = billed.cache_creation.ephemeral_5m_input_tokens or 0
    return for_5m, max(written - for_5m, billed.cache_creation.ephemeral_1h_input_tokens or 0)


def _word(told: object) -> str:
    """Return a text of the answer; the SDK hands on whatever stands in its place."""
    return told if isinstance(told, str) else ""


def _unusable(why: str, request_id: str = "") -> ProviderError:
    return ProviderError(FailureKind.SERVER_ERROR, why, sent=True, provider_request_id=request_id)
