"""Restate in the table of `fleet.py`: a handler of three steps, served to its server.

Run: python -m benchmarks.peers.restate.peer PORT. It serves until its input ends.
"""

import asyncio
import sys
from functools import partial

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from benchmarks.peers.durable import ANSWER, NUSD_PER_TOKEN, TOKENS

decisions = restate.Service("decisions")


async def intend() -> dict[str, int]:
    """Note which attempt is about to be sent, and the most that it can cost."""
    return {"attempt": 1, "most_nusd": 64 * NUSD_PER_TOKEN}


async def call() -> dict[str, object]:
    """Ask the provider, which answers at once; what it used is recorded with its answer."""
    return {"text": ANSWER, "tokens": TOKENS}


async def settle(tokens: int) -> int:
    """Note what the attempt cost."""
    return tokens * NUSD_PER_TOKEN


@decisions.handler()
async def decide(context: restate.Context, _question: str) -> str:
    """Make the call; the server has noted that it began, and notes what it came to."""
    await context.run_typed("intend", intend)
    answer = await context.run_typed("call", call)
    await context.run_typed("settle", settle, restate.RunOptions(), answer["tokens"])
    return str(answer["text"])


async def main(port: str) -> None:
    """Serve until the input ends."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.h2_max_concurrent_streams = config.keep_alive_max_requests = 2**31 - 1  # as its manual has it
    await serve(
        restate.app(services=[decisions]), config, shutdown_trigger=partial(asyncio.to_thread, sys.stdin.read)
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
