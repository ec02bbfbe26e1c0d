"""The adapter for OpenAI's chat completions, and for any server that speaks them."""

from urllib.parse import urlsplit

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import MAX_ANSWER_BYTES, ModelRequest, ModelResponse, check_address
from agentic_trading.llm.providers.bills import BillUnit, unit_at
from agentic_trading.llm.providers.http import HttpSession
from agentic_trading.llm.providers.keys import Keys
from agentic_trading.llm.providers.openai.chat import ERRORS, Dialect, completion_body, model_response
from agentic_trading.llm.redaction import Redaction

OPENAI_URL = "https://api.openai.com/v1"

_system_clock = SystemClock()


class OpenAIProvider:
    """Call a model over chat completions: at OpenAI, or at the server (llama.cpp, vLLM, …) behind `base_url`.

    A server that wants no key gets any (`OneKey("none")`). Logprobs are requested where `capabilities` say that the
    model offers them, and nowhere without. `clock` shows real time: a server may name the hour of the next try.
    `bill_unit` is how a server's own bill is read, by default as its host is known to report it.
    An answer is read up to `max_answer_bytes`, after decompression; a longer one fails, charged. `proxy` is the only one that is used.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        base_url: str | None = None,
        capabilities: Capabilities | None = None,
        clock: Clock = _system_clock,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        proxy: str | None = None,
        bill_unit: BillUnit | None = None,
    ) -> None:
        """Raise `ValueError` for a base URL, or a proxy, that is no plain http or https address."""
        address = OPENAI_URL if base_url is None else check_address(base_url)
        self._dialect = _dialect_of(address)
        self._bill_unit = bill_unit or unit_at(urlsplit(address).hostname or "")
        self._capabilities = capabilities
        self._redaction = Redaction()
        self._session = HttpSession(
            keys,
            address,
            ERRORS,
            redaction=self._redaction,
            clock=clock,
            max_answer_bytes=max_answer_bytes,
            proxy=proxy,
        )

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion, which does not repeat the key; raises `ProviderError` for anything that fails."""
        return await self._redaction.guard(self._complete(request))

    async def _complete(self, request: ModelRequest) -> ModelResponse:
        body = completion_body(request, self._dialect, logprobs=self._offers_logprobs(request))
        has_schema = not body.keys().isdisjoint(("response_format", "tools"))
        reply = await self._session.post(request, "/chat/completions", body, with_schema=has_schema)
        return model_response(reply, offers_tools="tools" in body, bill_unit=self._bill_unit)

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: chat completions have no count to give."""
        return None

    async def aclose(self) -> None:
        """Close the connections; harmless twice."""
        await self._session.aclose()

    def _offers_logprobs(self, request: ModelRequest) -> bool:
        if self._capabilities is None:
            return False
        try:
            return self._capabilities.of(request.envelope.provider, request.envelope.model).logprobs
        except UnknownModelError:
            return False


def _dialect_of(base_url: str) -> Dialect:
    """Return `openai` for the vendor's own hosts (a region has one of its own), else `compatible`."""
    host = urlsplit(base_url).hostname or ""
    return "openai" if host == "openai.com" or host.endswith(".openai.com") else "compatible"
