"""Read a message of the Messages API as a `ModelResponse`, or say why it is none."""

from anthropic.types import Message
from anthropic.types import Usage as Billed
from pydantic import ValidationError

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.providers.anthropic.raw_json import calls_in
from agentic_trading.llm.providers.tool_calls import text_of
from agentic_trading.llm.result import Usage


def read_message(message: object, *, body: bytes | None = None) -> ModelResponse:
    """Return the answer that `message` is: all its text, the thinking left out.

    `body` is the message as it came, given where the answer tool was offered: the input of a call is cut out of it, for
    in `message` it has lost digits. An answer that says that it calls a tool, and holds no call, has no text.
    Refusals and answers cut at the cap are answers too, with the stop reason that says so. Raises `ProviderError`,
    sent, for an answer that was cut on its way, that waits for something that was not offered, or that is no message;
    the SDK itself does not check what it reads.
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
    calls_tool = message.stop_reason == "tool_use" or "tool_use" in kinds
    if message.stop_reason == "pause_turn" or (calls_tool and body is None):
        raise _unusable(
            f"the answer waits for a tool ({message.stop_reason}), and none was offered", request_id
        )
    beside = ""
    if calls_tool and body is not None and message.stop_reason != "refusal":
        text, beside = _input(body, request_id), text
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
        beside=beside,
    )


def _input(body: bytes, request_id: str) -> str:
    """Return the text of the message's calls; nothing where it holds none."""
    try:
        calls = calls_in(body)
    except (ValueError, RecursionError) as e:
        raise _unusable(f"the answer's tool call cannot be read: {e}", request_id) from e
    return text_of(calls) if calls else ""


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
