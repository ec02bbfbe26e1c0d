"""A server of aiohttp at an address: its start, its connections, and its TLS."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web
from typing_extensions import override

from agentic_trading.files import read_within
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.status_pages import ListenError

MOST_CONNECTIONS: Final = 1024
"""Open connections. One more ends the one that has waited longest for a request."""

REQUEST_WITHIN_S: Final = 10.0
"""Seconds in which a new connection must send the headers of its first request. TLS has as many before it."""

IDLE_WITHIN_S: Final = 75.0
"""Seconds in which a used connection must take its answer and send the headers of its next request."""


@dataclass(slots=True)
class Connections:
    """The open connections of a server, and their limits.

    Attributes:
        most: The most open connections. If all have a request under way, a new one is refused.
        request_within_s: Time limit of the first request's headers, in seconds.
        idle_within_s: The same for later requests.

    """

    most: int = MOST_CONNECTIONS
    request_within_s: float = REQUEST_WITHIN_S
    idle_within_s: float = IDLE_WITHIN_S
    # Those without a request under way, in the order of their waiting, and whether they have had one.
    _waiting: dict[web.RequestHandler, tuple[asyncio.TimerHandle, bool]] = field(default_factory=dict)
    _tidy_at: int = 0

    def accepts(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """Return the factory of the protocols of new connections."""

        def accept() -> asyncio.Protocol:
            if len(server.connections) >= self.most:
                oldest = next((one for one in self._waiting if one.transport is not None), None)
                if oldest is None:
                    return _Refused()
                self._end(oldest)
            connection = server()
            self._wait(connection, self.request_within_s, is_used=False)
            return connection

        return accept

    @web.middleware
    async def counted(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that a connection has a request under way."""
        connection = request.protocol
        if (waiting := self._waiting.pop(connection, None)) is not None:
            waiting[0].cancel()
        try:
            return await handler(request)
        finally:
            self._wait(connection, self.idle_within_s, is_used=True)

    def close(self) -> None:
        """Forget all connections."""
        for timer, _ in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _wait(self, connection: web.RequestHandler, within_s: float, *, is_used: bool) -> None:
        if len(self._waiting) >= max(self._tidy_at, 2 * self.most):
            self._forget_ended()
            self._tidy_at = 2 * len(self._waiting)
        loop = asyncio.get_running_loop()
        self._waiting[connection] = loop.call_later(within_s, self._end, connection), is_used

    def _forget_ended(self) -> None:
        """Forget connections that their clients have ended: a client that opens one for each request would fill the memory.

        An unused one without a transport may be in its handshake, so its timer forgets it.
        """
        for one in [one for one, (_, is_used) in self._waiting.items() if is_used and one.transport is None]:
            self._waiting.pop(one)[0].cancel()

    def _end(self, connection: web.RequestHandler) -> None:
        self._waiting.pop(connection)[0].cancel()
        transport = connection.transport
        connection.force_close()
        if transport is not None:
            # Aborted, because a close waits until a client that does not read has taken all bytes.
            transport.abort()


class _Refused(asyncio.Protocol):
    """Ends its connection at once."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


@asynccontextmanager
async def listening(
    app: web.Application,
    host: str,
    port: int,
    *,
    end_within_s: float,
    tls: ssl.SSLContext | None = None,
    connections: Connections | None = None,
) -> AsyncGenerator[str]:
    """Serve an application while the block runs. Yields its URL.

    Args:
        app: The application.
        host: The host.
        port: The port. 0 selects a free port.
        end_within_s: Seconds for the requests under way at the end.
        tls: The certificate of the server. None serves without TLS.
        connections: Its connections, with their limits.

    Raises:
        ListenError: If the address cannot be used.

    """
    known = Connections() if connections is None else connections
    app.middlewares.insert(0, known.counted)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=end_within_s)
    await runner.setup()
    try:
        if runner.server is None:
            raise RuntimeError("the runner has no server after its setup")
        server = await _started(known.accepts(runner.server), host, port, tls, known.request_within_s)
        try:
            shown = f"[{host}]" if ":" in host else host
            yield f"{'http' if tls is None else 'https'}://{shown}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
    finally:
        await runner.cleanup()
        known.close()


async def _started(
    accept: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    handshake_s: float,
) -> asyncio.Server:
    within_s = None if tls is None else handshake_s
    try:
        return await asyncio.get_running_loop().create_server(
            accept, host, port, ssl=tls, ssl_handshake_timeout=within_s
        )
    except OSError as e:
        raise ListenError(f"{host}:{port}", f"which cannot be used ({e.strerror})") from e


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS of a server. Blocks, because it reads files.

    Args:
        certificate: The certificate in PEM, then those of its authorities.
        key: Its private key in PEM, without a password.

    Raises:
        OptionError: If a file cannot be read, the key is of another certificate, or the certificate is not valid now.

    """
    for option, file in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            read_within(file, file.read_bytes)
        except OSError as e:
            allowed = "a readable file in PEM"
            raise OptionError(option, f"{file}, an unreadable file ({e.strerror})", allowed) from e
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def no_password() -> str:
        raise OptionError("--tls-key", f"{key}, a key with a password", "a key without a password")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except ssl.SSLError as e:
        found = f"{certificate}, not usable with {key} ({e.reason or e})"
        raise OptionError("--tls-cert", found, "a certificate in PEM, and --tls-key with its own key") from e
    try:
        _try_handshake(context, certificate)
    except ssl.SSLCertVerificationError as e:
        found = f"{certificate}, refused by clients ({e.verify_message})"
        raise OptionError("--tls-cert", found, "a certificate that is valid now") from e
    return context


def _try_handshake(context: ssl.SSLContext, certificate: Path) -> None:
    """Raise `SSLCertVerificationError` if a client that trusts the certificate refuses it, such as after its end."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be signed by itself
    trusting.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        trusting.wrap_bio(to_client, to_server),
        context.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in tuple(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
