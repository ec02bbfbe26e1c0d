"""Let a small model on this machine answer, without a key, a network or a price."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.local.chat import StreamedCompletion, local_chat_body
from agentic_trading.llm.providers.local.server import LlamaServer

MODEL = "smollm2-135m"


class LocalProvider:
    """Answer with the model whose weights lie at `weights`, through llama.cpp in this process.

    Calls wait in one lane, first come first served: the model has one slot and one thread of its own, and the event
    loop stays free. The weights are checked and loaded by the first call. A call that is cancelled or times out
    stops at its next token, or, while its prompt is read, after the 256 prompt tokens under way (2 to 4 s on a
    busy core); so long it keeps the lane. Equal requests get equal answers on the same machine and build: greedy where
    the temperature is 0, a fixed seed elsewhere.

    `context_tokens` bounds prompt and answer together; a longer prompt is refused unread. Schemas are held by the
    grammar engine LLGuidance, bounds, lengths and patterns included.
    """

    def __init__(self, weights: Path, *, model: str = MODEL, context_tokens: int = 8192) -> None:
        self._weights = weights
        self._model = model
        self._context_tokens = context_tokens
        self._lane = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-model")
        self._closing = Event()
        self._server: LlamaServer | None = None

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the answer to `request`.

        Raises `ProviderError`: `invalid_request` where weights or llama.cpp are missing or the prompt is too long,
        `shutdown` once this is closed, `server_error` for anything that fails in the model.
        """
        given_up = Event()
        if self._closing.is_set():
            raise _closed(sent=False)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._lane, self._answer, request, given_up)
        finally:
            given_up.set()

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: llama.cpp counts a prompt only while it answers it."""
        return None

    async def aclose(self) -> None:
        """End the call under way, then the server; 4 s at most on a busy core."""
        self._closing.set()
        await asyncio.to_thread(self._end)

    def _answer(self, request: ModelRequest, given_up: Event) -> ModelResponse:
        if self._closing.is_set():
            raise _closed(sent=False)
        if self._server is None:
            self._server = LlamaServer(self._weights, self._model, self._context_tokens)
        answer = self._server.chat(local_chat_body(request), lambda: given_up.is_set() or self._closing.is_set())
        return _response(answer)

    def _end(self) -> None:
        self._lane.shutdown()
        server, self._server = self._server, None
        if server is not None:
            server.close()


def _response(answer: StreamedCompletion) -> ModelResponse:
    """Return a whole answer; one that was stopped on the way has no usage."""
    if answer.usage is None:
        raise _closed(sent=True)
    return ModelResponse(
        text="".join(answer.text),
        stop_reason=answer.stop_reason,
        usage=answer.usage,
        model=answer.model,
    )


def _closed(*, sent: bool) -> ProviderError:
    message = "the local model was ended before it had answered; start it anew for further calls"
    return ProviderError(FailureKind.SHUTDOWN, message, sent=sent)
