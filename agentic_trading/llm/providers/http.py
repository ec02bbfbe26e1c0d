"""HTTP to a provider's API over connections that are kept open: a body is sent once, and a reply is read or an error raised."""

import asyncio
import io
import json
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import aiohttp
import orjson

from agentic_trading import __version__
from agentic_trading.clock import Clock
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, check_address
from agentic_trading.llm.providers.errors import MESSAGE_CHARS, ErrorForm, provider_error
from agentic_trading.llm.providers.hosted import (
    ACCEPT_ENCODING,
    HttpReply,
    StatusMapping,
    nothing_sent,
    read_up_to,
    reply_of,
)
from agentic_trading.llm.providers.keys import Keys
from agentic_trading.llm.redaction import Redaction

CONNECT_S: Final = 5.0
"""How long a connection may take until it is there: the name looked up, connected, and encrypted."""

GRACE_S: Final = 5.0
"""How much longer a read waits than the caller, whose limit is over the whole call and not between two bytes."""

_LARGE: Final = 1 << 20
_NONE: Final[Mapping[str, str]] = MappingProxyType({})

_NO_CONNECTION: Final = StatusMapping(FailureKind.SERVER_ERROR, sent=False)
_NO_ADDRESS: Final = StatusMapping(FailureKind.INVALID_REQUEST, sent=False)
_LOST: Final = StatusMapping(FailureKind.SERVER_ERROR, sent=True)
_TIMED_OUT: Final = StatusMapping(FailureKind.TIMEOUT, sent=True)

MEANINGS: Final[Mapping[type[Exception], StatusMapping]] = {
    aiohttp.ClientConnectorError: _NO_CONNECTION,
    aiohttp.ConnectionTimeoutError: _NO_CONNECTION,
    aiohttp.ClientHttpProxyError: _NO_CONNECTION,  # the proxy does not let us through
    aiohttp.ServerFingerprintMismatch: _NO_CONNECTION,
    aiohttp.InvalidURL: _NO_ADDRESS,
    aiohttp.NonHttpUrlClientError: _NO_ADDRESS,
    aiohttp.ServerTimeoutError: _TIMED_OUT,
    aiohttp.ClientError: _LOST,
    TimeoutError: _TIMED_OUT,
    OSError: _LOST,
}
"""What an error of aiohttp means: the row of its class, or of the nearest class above it.

What fails before there is a connection was not sent. What is lost on one may have been billed.
"""


class HttpSession:
    """Post requests to the API behind `base_url`, each with the key of its tenant, over one pool of connections.

    Redirects are not followed: a prompt goes where it was sent, and nowhere else. No proxy is used but `proxy`, no password
    file of the environment either, and no cookie is kept. Over https the server's certificate is checked with the
    authorities of the system, or those that OpenSSL's own variables name (`SSL_CERT_FILE`, `SSL_CERT_DIR`). A body is
    read up to `max_answer_bytes`, after decompression. `redaction` gets to know every key that is used.
    """

    def __init__(
        self,
        keys: Keys,
        base_url: str,
        form: ErrorForm,
        *,
        redaction: Redaction,
        clock: Clock,
        max_answer_bytes: int,
        proxy: str | None = None,
    ) -> None:
        self._proxy = None if proxy is None else check_address(proxy)
        self._keys = keys
        self._base_url = base_url
        self._form = form
        self._redaction = redaction
        self._clock = clock
        self._max_answer_bytes = max_answer_bytes
        self._opening = asyncio.Lock()
        self._client: aiohttp.ClientSession | None = None

    async def post(
        self,
        request: ModelRequest,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] = _NONE,
        *,
        with_schema: bool = False,
    ) -> HttpReply:
        """Send `body` once; raises `ProviderError`, whose message repeats no key, for any answer but a good one.

        No read waits longer than the attempt may take, and a little; the caller limits the whole call. `with_schema`
        says that the request holds a schema: a refusal of that has a kind of its own.
        """
        key = await self._keys.key_of(request.envelope.tenant_id)
        self._redaction.add(key)
        sent = spelled(body)
        read_s = request.envelope.retry_policy.attempt_timeout_s + GRACE_S
        client = self._client or await self._open()
        try:
            async with client.post(
                f"{self._base_url.rstrip('/')}{path}",
                data=sent if len(sent) < _LARGE else io.BytesIO(sent),  # in pieces: it would hold up the loop
                headers={"authorization": f"Bearer {key}", **headers},
                timeout=aiohttp.ClientTimeout(connect=CONNECT_S, sock_connect=CONNECT_S, sock_read=read_s),
                allow_redirects=False,
            ) as reply:
                is_answer = 200 <= reply.status < 300
                packing = reply.headers.get("content-encoding", "")
                answer = await read_up_to(
                    reply.content.iter_any(),
                    packing,
                    self._max_answer_bytes,
                    is_answer=is_answer,
                    breaks_off=(aiohttp.ClientError, OSError),
                )
        except (aiohttp.ClientError, OSError) as e:
            # aiohttp puts the request's headers, the key among them, into errors about an answer.
            raise self._unanswered(e) from (None if isinstance(e, aiohttp.ClientResponseError) else e)
        if is_answer:
            return reply_of(
                answer,
                reply.headers,
                self._form.request_id,
                with_schema=with_schema,
                redaction=self._redaction,
                now=self._clock.now(),
            )
        raise provider_error(
            self._form,
            reply.status,
            reply.headers,
            answer,
            redaction=self._redaction,
            with_schema=with_schema,
            now=self._clock.now(),
        )

    async def aclose(self) -> None:
        """Close the connections; harmless twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _open(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._client is None:
                self._client = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0, ssl=await self._tls()),
                    headers={
                        "accept": "application/json",
                        "accept-encoding": ACCEPT_ENCODING,
                        "content-type": "application/json",
                        "user-agent": f"agentic-trading/{__version__}",
                    },
                    proxy=self._proxy,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                    trust_env=False,
                )
            return self._client

    async def _tls(self) -> ssl.SSLContext | bool:
        # Reading the authorities takes longer than a call to a server on the same machine, which has no use for them.
        return await asyncio.to_thread(_authorities) if self._base_url.startswith("https:") else True

    def _unanswered(self, e: Exception) -> ProviderError:
        kind, sent = meaning_of_client_error(e)
        cause = e.__cause__ or e
        why = self._redaction.text(f"{type(cause).__name__}: {cause}")[:MESSAGE_CHARS]
        if sent:
            message = f"the connection to {self._base_url} ended without an answer ({why})"
        else:
            message = (
                f"cannot connect to {self._base_url} ({why}); check the base URL and that the server runs"
            )
        return ProviderError(kind, message, sent=sent)


def meaning_of_client_error(e: Exception) -> StatusMapping:
    """Return the row of `e` in `MEANINGS`."""
    return next(MEANINGS[kind] for kind in type(e).__mro__ if kind in MEANINGS)


def spelled(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON; raises `ProviderError`, unsent, for one that has none."""
    try:
        return orjson.dumps(body)
    except TypeError:  # a whole number of more than 64 bits is JSON all the same
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as e:
            message = f"the request cannot be sent: {e}"
            raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from e


def _authorities() -> ssl.SSLContext:
    with nothing_sent():
        return ssl.create_default_context()
