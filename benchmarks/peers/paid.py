"""The stub provider: a process of its own that serves calls on a loopback socket and writes the invoice.

A call is one line, `LOAD ID`, and is answered with the tokens that it used. It is billed between the two, whether or
not anybody is still there to hear the answer. The first line of the output is the port. It ends with its input.

Run: python -m benchmarks.peers.paid INVOICE LATENCY_MS
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import BinaryIO

from benchmarks.peers.load import LOADS, NUSD_PER_TOKEN


async def serve(invoice: BinaryIO, latency_s: float) -> None:
    """Serve until the input ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # who asked is gone; what was billed is billed
            await answer_all(reader, writer)
        writer.close()

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            load, call = line.decode().split()
            tokens = LOADS[load].used(call)
            pause_s = latency_s * Random(f"pause:{line!r}").uniform(0.2, 1.8) / 2  # noqa: S311 - no secret
            await asyncio.sleep(pause_s)
            invoice.write(
                f"{load} {call} {tokens * NUSD_PER_TOKEN}\n".encode()
            )  # unbuffered: one write, one line
            await asyncio.sleep(pause_s)
            writer.write(b"%d\n" % tokens)

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


class Provider:
    """Who is called: one connection for each call at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, load: str, call: str) -> int:
        """Make a call; return the tokens that it used. Raises `ConnectionError`."""
        reader, writer = (
            self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        )
        writer.write(f"{load} {call}\n".encode())
        answer = await reader.readline()
        if not answer:
            raise ConnectionResetError(call)
        self._idle.append((reader, writer))
        return int(answer)

    def close(self) -> None:
        """Close the connections that are not in use."""
        for _, writer in self._idle:
            writer.close()


if __name__ == "__main__":
    with Path(sys.argv[1]).open("ab", buffering=0) as opened:
        asyncio.run(serve(opened, float(sys.argv[2]) / 1000))
