"""How a suite opens the boards that it holds to a promise."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar

PATIENCE_S = 10.0


class Closable(Protocol):
    """What is closed by who opened it."""

    async def aclose(self) -> None: ...


Board = TypeVar("Board", bound=Closable)


@asynccontextmanager
async def opening(make: Callable[[], Board]) -> AsyncIterator[Callable[[], Awaitable[Board]]]:
    """Hand out a way to open boards, off the loop, and close them in the end."""
    async with AsyncExitStack() as boards, asyncio.timeout(PATIENCE_S):

        async def opens() -> Board:
            board = await asyncio.to_thread(make)
            boards.push_async_callback(board.aclose)
            return board

        yield opens
