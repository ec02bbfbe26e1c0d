"""HTTP to a provider's API over a pool of connections.

A body is sent once. A reply is returned, or an error is raised.
"""

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
from agentic_trading.llm.providers import folds
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
"""The time limit in seconds for a connection: name lookup, TCP and TLS."""

GRACE_S: Final = 5.0
"""How many seconds a read waits longer than the caller, who limits the whole call."""

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
"""The failure of an aiohttp error, by its class or the nearest base class.

A request that fails before it is connected was not sent. One that is lost later may have been billed.
"""


class HttpSession:
    """Send requests to the API at `base_url`, each with the key of its tenant.

    Redirects are not followed, so that a prompt is sent to no other server. Proxies and password files of the
    environment are not used, and cookies are not kept. With https, certificates are checked against the
    system's authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.

    Args:
        keys: The keys of the tenants.
        base_url: The URL of the API.
        form: The vendor's format of errors.
        redaction: Gets every key that is used.
        clock: The clock for `Retry-After`.
        max_answer_bytes: The maximum size of a body after decompression.
        proxy: The only proxy that is used.

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
        body: Mapping[str, Any] | bytes,
        headers: Mapping[str, str] = _NONE,
        *,
        with_schema: bool = False,
    ) -> HttpReply:
        """Send `body` once and return the reply. The caller must limit the whole call.

        If the request has a tap and the answer is a stream, its events go to the tap, and the reply has the body
        that they are folded to.

        A refusal of the schema in the body (`with_schema`) has its own kind. Raises `ProviderError`, whose
        message never contains a key, for an answer without a success status.
        """
        key = await self._keys.key_of(request.envelope.tenant_id)
        self._redaction.add(key)
        sent = body if isinstance(body, bytes) else spelled(body)
        read_s = request.envelope.retry_policy.attempt_timeout_s + GRACE_S
        client = self._client or await self._open()
        try:
            async with client.post(
                f"{self._base_url.rstrip('/')}{path}",
                data=sent if len(sent) < _LARGE else io.BytesIO(sent),  # it would block the loop as a whole
                headers={
                    "authorization": f"Bearer {key}",
                    **(_NONE if request.tap is None else folds.HEADERS),
                    **headers,
                },
                timeout=aiohttp.ClientTimeout(connect=CONNECT_S, sock_connect=CONNECT_S, sock_read=read_s),
                allow_redirects=False,
            ) as reply:
                is_answer = 200 <= reply.status < 300
                answer = await self._read(reply, request, is_answer=is_answer)
        except (aiohttp.ClientError, OSError) as e:
            # Without the cause, because aiohttp puts the request's headers with the key into errors about an
            # answer.
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

    async def _read(self, reply: aiohttp.ClientResponse, request: ModelRequest, *, is_answer: bool) -> bytes:
        pieces, most = reply.content.iter_any(), self._max_answer_bytes
        packing = reply.headers.get("content-encoding", "")
        # A server that cannot stream answers as a whole.
        if (
            is_answer
            and request.tap is not None
            and request.verbatim is not None
            and reply.content_type == folds.CONTENT_TYPE
        ):
            request.tap.guard(self._redaction)
            return await folds.read_folded(pieces, packing, most, request.verbatim.api, request.tap)
        return await read_up_to(
            pieces, packing, most, is_answer=is_answer, breaks_off=(aiohttp.ClientError, OSError)
        )

    async def aclose(self) -> None:
        """Close the connections. You may call it twice."""
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
        # In a thread and only for https, because reading the authorities takes longer than a local call.
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
    """Return a body as JSON.

    Raises:
        ProviderError: Not sent, if it cannot be serialized.

    """
    try:
        return orjson.dumps(body)
    except TypeError:  # orjson refuses whole numbers of more than 64 bits, which are valid JSON
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as e:
            message = f"the request cannot be sent: {e}"
            raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from e


def _authorities() -> ssl.SSLContext:
    with nothing_sent():
        return ssl.create_default_context()
