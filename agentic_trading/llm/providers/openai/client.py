"""The connections of the OpenAI SDK; it is loaded with this module, which takes most of a second."""

from collections.abc import Mapping
from typing import Any

import openai

from agentic_trading.clock import Clock
from agentic_trading.llm.providers.hosted import ACCEPT_ENCODING, bounded, error_behind
from agentic_trading.llm.providers.openai.chat import CompletionReply
from agentic_trading.llm.providers.openai.errors import provider_error
from agentic_trading.llm.redaction import Redaction

LONGEST_ANSWER_S = 600.0
"""The SDK's own limit on each read; the caller limits the whole call."""

CONNECT_S = 5.0


class OpenAIClient:
    """One pool of connections to `base_url`, and one client of the SDK a key. Redirects are not followed."""

    def __init__(self, base_url: str, clock: Clock, *, max_answer_bytes: int) -> None:
        self._base_url = base_url
        self._clock = clock
        self._timeout = openai.Timeout(LONGEST_ANSWER_S, connect=CONNECT_S)
        # A prompt goes where it was sent, and nowhere else.
        self._http = openai.DefaultAsyncHttpx2Client(
            timeout=self._timeout,
            follow_redirects=False,
            headers={"accept-encoding": ACCEPT_ENCODING},
            event_hooks={"response": [bounded(max_answer_bytes)]},
        )
        self._clients: dict[str, openai.AsyncOpenAI] = {}

    async def ask(self, key: str, body: Mapping[str, Any]) -> CompletionReply:
        """Send `body` once; raises `ProviderError`, which does not repeat the key, for any answer but a good one."""
        try:
            raw = await self._client(key).chat.completions.with_raw_response.create(**body)
        except openai.OpenAIError as e:
            if (ours := error_behind(e)) is not None:
                raise ours from None
            redaction = Redaction(key)
            error = provider_error(
                e,
                base_url=self._base_url,
                redaction=redaction,
                with_schema=not body.keys().isdisjoint(("response_format", "tools")),
                now=self._clock.now(),
            )
            error.__cause__ = e
            raise redaction.error(error) from error.__cause__
        return CompletionReply(raw.content, raw.request_id or "")

    async def aclose(self) -> None:
        """Close the connections; harmless twice."""
        await self._http.aclose()

    def _client(self, key: str) -> openai.AsyncOpenAI:
        if key not in self._clients:
            client = openai.AsyncOpenAI(
                api_key=key,
                base_url=self._base_url,
                timeout=self._timeout,
                max_retries=0,
                http_client=self._http,
            )
            # Read from the environment otherwise, and sent to whatever server this is.
            client.organization = client.project = client.admin_api_key = None
            client._custom_headers = {}  # noqa: SLF001 - likewise, and they would go before the tenant's key
            self._clients[key] = client
        return self._clients[key]
