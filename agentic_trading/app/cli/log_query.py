"""Asking a log, as a command does it: open, one question, close."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from agentic_trading.app.wire import records_of
from agentic_trading.llm.records import Records

T = TypeVar("T")


def ask_log(log: Path, question: Callable[[Records], Awaitable[T]]) -> T:
    """Return what `question` finds in a log; raises `StoreError` for one that cannot be read."""

    async def asked() -> T:
        async with aclosing(records_of(log)) as records:
            return await question(records)

    return asyncio.run(asked())
