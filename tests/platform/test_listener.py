"""The connections of a server of aiohttp, from raw sockets, and its certificates."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.listener import Connections, listening, server_tls
from tests.certificates import make_certificates, openssl

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ASK = b"GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = 16 << 20


class Pages:
    """An application with a page at once, a page that waits, and a page larger than all buffers."""

    def __init__(self) -> None:
        self.asked, self.answered = asyncio.Event(), asyncio.Event()
        self.transports: list[asyncio.Transport] = []

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application()
        app.router.add_get("/now", self._now)
        app.router.add_get("/later", self._later)
        app.router.add_get("/long", self._long)
        return app

    async def _now(self, _: web.Request) -> web.Response:
        return web.Response(text="now")

    async def _later(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.answered.wait()
        return web.Response(text="later")

    async def _long(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self.transports.append(request.transport)
        self.asked.set()
        return web.Response(body=bytes(LONG))


@asynccontextmanager
async def served(limits: Connections, tls: ssl.SSLContext | None = None) -> AsyncGenerator[tuple[Pages, int]]:
    """Serve the pages. Yields them and the port."""
    pages = Pages()
    async with listening(
        pages.application(), "127.0.0.1", 0, end_within_s=5, tls=tls, connections=limits
    ) as url:
        yield pages, int(url.rpartition(":")[2])


@asynccontextmanager
async def connected(port: int) -> AsyncGenerator[Connection]:
    """Open a raw connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_ended(connection: Connection) -> bool:
    """Wait until the server ends a connection. Returns False if it sends anything instead."""
    with suppress(ConnectionError):
        return await connection[0].read(1) == b""
    return True


async def answer_on(connection: Connection, text: bytes = ASK) -> bytes:
    """Send a request, and return the last line of its short answer."""
    connection[1].write(text)
    head = await connection[0].readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    return await connection[0].readexactly(int(length.partition(b":")[2]))


async def test_silent_connection_is_ended() -> None:
    async with served(Connections(request_within_s=0.1)) as (_, port), connected(port) as silent:
        assert await is_ended(silent)


async def test_headers_drop_by_drop_do_not_extend_the_limit() -> None:
    async with served(Connections(request_within_s=0.3)) as (_, port), connected(port) as slow:
        slow[1].write(b"GET /now HTTP/1.1\r\nx-slow: ")
        drops, has_ended = 0, False
        while not has_ended:
            slow[1].write(b"a")
            drops += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    has_ended = await is_ended(slow)

        assert drops > 3


async def test_used_connection_is_ended_when_it_stays_idle() -> None:
    async with (
        served(Connections(request_within_s=60, idle_within_s=0.1)) as (_, port),
        connected(port) as used,
    ):
        assert await answer_on(used) == b"now"
        assert await is_ended(used)


async def test_client_that_does_not_take_its_answer_is_ended() -> None:
    async with served(Connections(idle_within_s=0.2)) as (pages, port), connected(port) as deaf:
        deaf[1].write(ASK.replace(b"/now", b"/long"))
        await pages.asked.wait()
        async with asyncio.timeout(10):
            while not pages.transports[0].is_closing():  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0)
        taken = bytearray()
        with suppress(ConnectionError):
            while part := await deaf[0].read(1 << 20):
                taken += part

        assert 0 < len(taken) < LONG


async def test_request_under_way_outlives_the_limits() -> None:
    limits = Connections(request_within_s=0.05, idle_within_s=0.05)
    async with (
        served(limits) as (pages, port),
        connected(port) as busy,
        connected(port) as silent,
        asyncio.TaskGroup() as group,
    ):
        asking = group.create_task(answer_on(busy, ASK.replace(b"/now", b"/later")))
        assert await is_ended(silent)
        pages.answered.set()

        assert await asking == b"later"


async def test_one_connection_too_many_ends_the_one_that_has_waited_longest() -> None:
    async with (
        served(Connections(most=2)) as (_, port),
        connected(port) as first,
        connected(port) as second,
    ):
        assert [await answer_on(second), await answer_on(first)] == [b"now", b"now"]
        async with connected(port) as third:
            assert await answer_on(third) == b"now"
            assert await is_ended(second)
            assert await answer_on(first) == b"now"


async def test_connection_is_refused_while_all_others_have_requests() -> None:
    async with (
        served(Connections(most=1)) as (pages, port),
        connected(port) as busy,
        asyncio.TaskGroup() as group,
    ):
        asking = group.create_task(answer_on(busy, ASK.replace(b"/now", b"/later")))
        await pages.asked.wait()
        async with connected(port) as more:
            assert await is_ended(more)
        pages.answered.set()

        assert await asking == b"later"


async def test_ended_connections_are_forgotten_before_their_time() -> None:
    limits = Connections(most=4)
    async with served(limits) as (_, port), connected(port) as kept:
        await answer_on(kept)
        for _ in range(20):
            async with connected(port) as one:
                await answer_on(one, ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        remembered = len(limits._waiting)
        still = await answer_on(kept)

    assert (remembered <= 2 * limits.most + 1, still) == (True, b"now")


async def test_end_leaves_no_timer() -> None:
    limits = Connections()
    async with served(limits) as (_, port), connected(port) as used:
        await answer_on(used)

    assert not limits._waiting


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of certificates: `server.pem`, `old.pem` that has expired, and `locked.key` with a password."""
    folder = make_certificates(tmp_path_factory.mktemp("certificates"))
    openssl(
        folder,
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-signkey",
        "server.key",
        "-days",
        "-1",
        "-out",
        "old.pem",
    )
    openssl(folder, "rsa", "-aes256", "-passout", "pass:word", "-in", "server.key", "-out", "locked.key")
    (folder / "nothing.pem").write_text("no certificate")
    return folder


async def test_tls_serves_and_ends_a_handshake_that_does_not_begin(certificates: Path) -> None:
    tls = await asyncio.to_thread(server_tls, certificates / "server.pem", certificates / "server.key")
    trusting = ssl.create_default_context(cafile=certificates / "ca.pem")
    async with served(Connections(request_within_s=0.5), tls) as (_, port):
        async with connected(port) as silent:
            assert await is_ended(silent)
        secured = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        assert await answer_on(secured) == b"now"
        secured[1].transport.abort()


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("none.pem", "server.key", r"--tls-cert is .*none.pem, an unreadable file"),
        ("server.pem", "none.key", r"--tls-key is .*none.key, an unreadable file"),
        ("nothing.pem", "server.key", r"--tls-cert is .*nothing.pem, not usable with .*server.key"),
        ("server.pem", "client.key", r"not usable with .*client.key \(KEY_VALUES_MISMATCH\)"),
        ("server.pem", "locked.key", r"--tls-key is .*locked.key, a key with a password"),
        ("old.pem", "server.key", r"old.pem, refused by clients \(certificate has expired\)"),
    ],
)
def test_unusable_certificate_is_refused(certificates: Path, certificate: str, key: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        server_tls(certificates / certificate, certificates / key)
