"""While a replay is under way nothing leaves the process, whatever tries; afterwards everything may again."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from agentic_trading.errors import TradingError
from agentic_trading.replay import NetworkBlockedError, no_network

NOWHERE = ("127.0.0.1", 9)


def connect() -> None:
    with socket.socket() as opened:
        opened.connect(NOWHERE)


def send() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as opened:
        opened.sendto(b"", NOWHERE)


def send_message() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as opened:
        opened.sendmsg([b""], [], 0, NOWHERE)


def listen() -> None:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))


def look_up() -> None:
    socket.getaddrinfo("localhost", 80)


def look_up_by_name() -> None:
    socket.gethostbyname("localhost")


@pytest.mark.parametrize(
    "reach",
    [connect, send, send_message, listen, look_up, look_up_by_name],
    ids=lambda reach: str(reach.__name__),
)
def test_every_network_call_is_blocked(reach: Callable[[], None]) -> None:
    with no_network(), pytest.raises(NetworkBlockedError, match="during a replay") as blocked:
        reach()

    assert blocked.value.event.startswith("socket.")
    assert isinstance(blocked.value, TradingError)


async def test_asyncio_connection_is_blocked() -> None:
    with no_network(), pytest.raises(NetworkBlockedError):
        await asyncio.open_connection(*NOWHERE)


def test_network_returns_after_last_replay() -> None:
    with no_network():
        with no_network():
            pass
        with pytest.raises(NetworkBlockedError):
            listen()

    listen()


def test_network_returns_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), no_network():
        _ = 1 / 0

    listen()
