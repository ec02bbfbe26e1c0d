"""The adapter for local models: llama.cpp in this process, on its own thread."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from types import ModuleType
from typing import Any

import orjson

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.models import WEIGHTS, WeightsError, verify_weights
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import Usage

SEED = 1
PROOF = "~"
"""The answer to `proof_body` if the server holds the grammar."""

_START = "start: "
_TOO_LONG = "exceed_context_size_error"

Chunk = Mapping[str, Any]

BATCH_TOKENS = 256
"""Prompt tokens in one batch: 2 to 4 s on a busy core.

A stopped call uses the model for at most so long.
"""

_MOST_PROVEN = 256

MODEL = "smollm2-135m"


class LocalProvider:
    """Answer with the model at `weights`, through llama.cpp in this process.

    Calls wait in one queue, first in, first out, and run on one thread, so that the event loop stays free.
    The first call checks and loads the weights. A call that is cancelled or times out stops at its next
    token. While its prompt is read, it stops after the current batch of 256 tokens (2 to 4 s on a busy core),
    and blocks the queue until then. Equal requests get equal answers on the same machine and build: greedily
    at temperature 0, otherwise with a fixed seed.

    Schemas are enforced by the grammar engine LLGuidance, including bounds, lengths and patterns.

    Args:
        weights: The GGUF file.
        model: The name of the model.
        context_tokens: The limit of prompt and answer together. A longer prompt is refused unread.

    """

    def __init__(self, weights: Path, *, model: str = MODEL, context_tokens: int = 8192) -> None:
        self._weights = weights
        self._model = model
        self._context_tokens = context_tokens
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-model")
        self._closing = Event()
        self._server: LlamaServer | None = None

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the answer to `request`.

        Raises:
            ProviderError: Of kind `invalid_request` if weights or llama.cpp are missing or the prompt is too
                long, `schema_refused` if the grammar cannot be held, `shutdown` after `aclose`,
                `server_error` if the model fails.

        """
        given_up = Event()
        if self._closing.is_set():
            raise _closed(sent=False)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, self._answer, request, given_up)
        finally:
            given_up.set()

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: llama.cpp counts a prompt only while it answers it."""
        return None

    async def aclose(self) -> None:
        """Stop the current call and the server. It takes at most 4 s on a busy core."""
        self._closing.set()
        await asyncio.to_thread(self._end)

    def _answer(self, request: ModelRequest, given_up: Event) -> ModelResponse:
        if self._closing.is_set():
            raise _closed(sent=False)
        if self._server is None:
            self._server = LlamaServer(self._weights, self._model, self._context_tokens)
        answer = self._server.chat(
            local_chat_body(request), lambda: given_up.is_set() or self._closing.is_set()
        )
        return _response(answer)

    def _end(self) -> None:
        self._executor.shutdown()
        server, self._server = self._server, None
        if server is not None:
            server.close()


@dataclass(slots=True)
class StreamedCompletion:
    """An answer that arrives in chunks. `stop` is called before each chunk."""

    stop: Callable[[], bool]
    text: list[str] = field(default_factory=list)
    stop_reason: str = ""
    model: str = ""
    usage: Usage | None = None
    error: Mapping[str, Any] | None = None

    def take(self, chunk: Chunk) -> bool:
        """Take the next chunk. Return whether the server must stop."""
        if self.stop():
            return True
        self.error = chunk.get("error", self.error)
        self.model = chunk.get("model", self.model)
        for choice in chunk.get("choices", []):
            self.text.append(choice["delta"].get("content") or "")
            self.stop_reason = choice["finish_reason"] or self.stop_reason
        if "usage" in chunk:
            self.usage = _usage(chunk["usage"])
        return False


class LlamaServer:
    """One model with one slot and one thread, called by functions.

    No port is opened, and no file is left if the process is killed.
    """

    def __init__(self, weights: Path, model: str, context_tokens: int) -> None:
        """Check and load the weights, in about 0.5 s for 100 MB.

        Raises:
            ProviderError: Of kind `invalid_request`, not sent, if weights or llama.cpp are missing or wrong.

        """
        self._proven: set[str] = set()
        llama = _llama()
        _check_weights(weights, model)
        with TemporaryDirectory(prefix="agentic-trading-") as folder:
            params = _params(llama, weights, model, context_tokens)
            # A socket in a private folder, which is removed at once, because a port would be open to other
            # programs and to pages in a browser.
            params.hostnames = [f"{folder}/llama.sock"]
            try:
                self._server: Any = llama.Server(params)
            except (RuntimeError, ValueError) as e:
                raise _unusable(f"llama.cpp cannot load {weights} ({e})") from e

    def chat(self, body: Mapping[str, Any], stop: Callable[[], bool]) -> StreamedCompletion:
        """Return the answer to `body`, or the part of it before `stop` returned True.

        Each new grammar is first tried with a request of one token, in some tenths of a second.

        Raises:
            ProviderError: Of kind `schema_refused`, not sent, if the server cannot hold the grammar. Of other
                kinds if the model fails.

        """
        grammar = body.get("grammar", "")
        if grammar and grammar not in self._proven:
            proof = self._complete(proof_body(body), stop)
            if proof.usage is None:  # stopped
                return proof
            # Refused, because llama.cpp would otherwise answer without the grammar, and report no error.
            if "".join(proof.text) != PROOF:
                message = "llama.cpp cannot hold an answer to this schema: look for patterns and bounds that nothing fits"
                raise ProviderError(FailureKind.SCHEMA_REFUSED, message, sent=False)
            if len(self._proven) == _MOST_PROVEN:
                self._proven.clear()
            self._proven.add(grammar)
        return self._complete(body, stop)

    def close(self) -> None:
        """Stop the server's threads and free the weights, in about 0.05 s.

        You may call it twice.
        """
        self._server = None

    def _complete(self, body: Mapping[str, Any], stop: Callable[[], bool]) -> StreamedCompletion:
        answer = StreamedCompletion(stop)
        try:
            self._server.handle_chat_completions(dict(body), answer.take)
        except ValueError as e:  # raised by the server for a body that it refuses
            raise _unusable(str(e)) from e
        if answer.error is not None:
            raise server_error(answer.error)
        return answer


def _params(llama: ModuleType, weights: Path, model: str, context_tokens: int) -> Any:
    params = llama.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {model}
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    # One thread, because two are slower if another program uses the machine.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = 0
    params.n_threads_http = 1
    params.ui = params.endpoint_slots = params.warmup = False
    params.verbosity = -1
    return params


def _llama() -> ModuleType:
    try:
        return import_module("xllamacpp")
    except ImportError as e:
        message = f"llama.cpp cannot be loaded ({e}); run pip install 'agentic-trading[local]'"
        raise _unusable(message) from e


def _check_weights(weights: Path, model: str) -> None:
    """Verify known weights by their checksum. For other models, the file must exist."""
    if model not in WEIGHTS:
        if not weights.is_file():
            raise _unusable(f"{weights}: this file does not exist. Allowed: the GGUF weights of {model}")
        return
    try:
        verify_weights(weights, WEIGHTS[model])
    except WeightsError as e:
        raise _unusable(str(e)) from e


def _unusable(message: str) -> ProviderError:
    return ProviderError(FailureKind.INVALID_REQUEST, message, sent=False)


def local_chat_body(request: ModelRequest) -> dict[str, Any]:
    """Return the body of a request. Equal requests have equal bodies.

    Without a temperature, the answer is greedy.
    """
    body: dict[str, Any] = {
        "messages": chat_messages(request),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature or 0.0,
        "seed": SEED,
        # Off, because a prompt that is cached in part may round, and so answer, differently (decision 11).
        "cache_prompt": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
    }
    if request.response_schema is not None:
        body["grammar"] = grammar(request.response_schema)
    return body


def chat_messages(request: ModelRequest) -> list[dict[str, str]]:
    """Return the system message and the user message."""
    return [{"role": "system", "content": request.system}, {"role": "user", "content": request.user}]


def grammar(schema: Mapping[str, Any]) -> str:
    """Return the LLGuidance grammar of a schema: JSON without white space.

    Properties have the order of the schema. White space costs tokens, and a small model may write only white
    space until its cap.
    """
    compact = {**schema, "x-guidance": {"whitespace_flexible": False}}
    return f"%llguidance {{}}\n{_START}%json {orjson.dumps(compact).decode()}"


def proof_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request that shows whether the server can hold the grammar of `body`.

    If it cannot (an unknown pattern, or bounds that no value fits), it answers without the grammar and
    reports no error. With one character in front of the grammar, the first token of the answer must be this
    character.
    """
    proof = body["grammar"].replace(_START, f'{_START}"{PROOF}" ', 1)
    return {**body, "messages": [{"role": "user", "content": "."}], "max_tokens": 1, "grammar": proof}


def server_error(error: Mapping[str, Any]) -> ProviderError:
    """Return the `ProviderError` of a server error.

    A refused request was never processed.
    """
    message = str(error.get("message", "the server gave no reason"))
    if error.get("type") == _TOO_LONG:
        message = f"{message}; shorten the request, or give the model a larger context"
    refused = 400 <= int(error.get("code", 500)) < 500
    kind = FailureKind.INVALID_REQUEST if refused else FailureKind.SERVER_ERROR
    return ProviderError(kind, message, sent=not refused)


def _usage(reported: Mapping[str, Any]) -> Usage:
    cached = (reported.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(
        input_tokens=reported["prompt_tokens"] - cached,
        cache_read_tokens=cached,
        output_tokens=reported["completion_tokens"],
    )


def _response(answer: StreamedCompletion) -> ModelResponse:
    """Return a complete answer.

    An answer that was stopped has no usage, and raises `ProviderError`.
    """
    if answer.usage is None:
        raise _closed(sent=True)
    return ModelResponse(
        text="".join(answer.text),
        stop_reason=answer.stop_reason,
        usage=answer.usage,
        model=answer.model,
    )


def _closed(*, sent: bool) -> ProviderError:
    message = "the local model was ended before it had answered; make a new provider for further calls"
    return ProviderError(FailureKind.SHUTDOWN, message, sent=sent)
