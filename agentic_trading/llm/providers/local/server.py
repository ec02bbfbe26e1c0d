"""llama.cpp's server within this process: loaded, asked and ended by calls that block."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.providers.local.chat import PROOF, StreamedCompletion, failure, proof_body
from agentic_trading.llm.weights import WEIGHTS, WeightsError, verify

BATCH_TOKENS = 256
"""Prompt tokens worked on at once: 2 to 4 s on a busy core, the longest that a stopped call keeps the model."""

_MOST_PROVEN = 256


class LlamaServer:
    """One model, one slot, one thread: two threads are slower wherever another program uses the machine.

    It is asked by function calls. The server wants an address all the same: it gets a socket file in a folder that
    only this user may enter, and that is removed as soon as it listens. No port is open to other programs, or to
    pages in a browser, and nothing is left behind when the process is killed.
    """

    def __init__(self, weights: Path, model: str, context_tokens: int) -> None:
        """Check and load the weights, about 0.5 s for 100 MB.

        Raises `ProviderError` (`invalid_request`, not sent) where weights or llama.cpp are missing or wrong.
        """
        self._proven: set[str] = set()
        llama = _llama()
        _check(weights, model)
        with TemporaryDirectory(prefix="agentic-trading-") as folder:
            params = _params(llama, weights, model, context_tokens)
            params.hostnames = [f"{folder}/llama.sock"]
            try:
                self._server: Any = llama.Server(params)
            except (RuntimeError, ValueError) as e:
                raise _unusable(f"llama.cpp cannot load {weights} ({e})") from e

    def chat(self, body: Mapping[str, Any], stop: Callable[[], bool]) -> StreamedCompletion:
        """Return the answer to `body`, as far as it came until `stop` said so; raises `ProviderError`.

        A grammar that the server would leave aside without a word is `schema_refused`, and the model is not asked: each
        is tried once with a request of one token, some tenths of a second.
        """
        grammar = body.get("grammar", "")
        if grammar and grammar not in self._proven:
            proof = self._asked(proof_body(body), stop)
            if proof.usage is None:  # stopped
                return proof
            if "".join(proof.text) != PROOF:
                message = "llama.cpp cannot hold an answer to this schema: look for patterns and bounds that nothing fits"
                raise ProviderError(FailureKind.SCHEMA_REFUSED, message, sent=False)
            if len(self._proven) == _MOST_PROVEN:
                self._proven.clear()
            self._proven.add(grammar)
        return self._asked(body, stop)

    def close(self) -> None:
        """Stop the server's threads and free the weights, about 0.05 s; harmless twice."""
        self._server = None

    def _asked(self, body: Mapping[str, Any], stop: Callable[[], bool]) -> StreamedCompletion:
        answer = StreamedCompletion(stop)
        try:
            self._server.handle_chat_completions(dict(body), answer.take)
        except ValueError as e:  # the server's own word for a body that it does not take
            raise _unusable(str(e)) from e
        if answer.error is not None:
            raise failure(answer.error)
        return answer


def _params(llama: ModuleType, weights: Path, model: str, context_tokens: int) -> Any:
    params = llama.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {model}
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = BATCH_TOKENS
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


def _check(weights: Path, model: str) -> None:
    """Hold known weights against their checksum; those of other models must only be there."""
    if model not in WEIGHTS:
        if not weights.is_file():
            raise _unusable(f"{weights}: there is no such file; allowed are the GGUF weights of {model}")
        return
    try:
        verify(weights, WEIGHTS[model])
    except WeightsError as e:
        raise _unusable(str(e)) from e


def _unusable(message: str) -> ProviderError:
    return ProviderError(FailureKind.INVALID_REQUEST, message, sent=False)
