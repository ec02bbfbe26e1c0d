"""A store under test, and how its contract looks into it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from agentic_trading.llm import InteractionStore, LLMInteraction
from agentic_trading.llm.store import LogEntry, Record


@dataclass
class Subject:
    """A store under test, and what only its kind knows: what another process finds, how its bytes are damaged."""

    store: InteractionStore
    found_by_others: Callable[[], Awaitable[list[Record]]]
    damage: Callable[[int], None]
    acknowledged: Callable[[], Awaitable[None]] = field(default=lambda: asyncio.sleep(0))


async def all_of(entries: AsyncGenerator[LogEntry]) -> list[LogEntry]:
    return [entry async for entry in entries]


async def kept(store: InteractionStore) -> list[Record]:
    return [entry.record for entry in await all_of(store.scan())]


async def put(store: InteractionStore, record: Record) -> None:
    if isinstance(record, LLMInteraction):
        await store.store(record)
    else:
        await store.record(record)


Promise = Callable[[Subject], Awaitable[None]]
