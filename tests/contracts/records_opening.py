"""Every way to ask a log: in memory, beside the writer, and from another process."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

from agentic_trading.llm import Durability, JsonFileInteractionStore, LLMInteraction, MemoryInteractionStore
from agentic_trading.llm.store import Record, Records
from agentic_trading.llm.stores.jsonl.store import JsonlRecords

Opens = Callable[[Sequence[Record], Path], AbstractAsyncContextManager[Records]]
"""Open the answers about a log that holds the given records, in a folder of its own if it needs one."""


async def put(store: MemoryInteractionStore | JsonFileInteractionStore, records: Sequence[Record]) -> None:
    """Store records, one after the other."""
    for record in records:
        await (store.store(record) if isinstance(record, LLMInteraction) else store.record(record))


@asynccontextmanager
async def memory(records: Sequence[Record], folder: Path) -> AsyncGenerator[Records]:
    """Ask a log in memory."""
    store = MemoryInteractionStore()
    await put(store, records)
    yield store.records


@asynccontextmanager
async def live(records: Sequence[Record], folder: Path) -> AsyncGenerator[Records]:
    """Ask the store that writes the log."""
    async with aclosing(JsonFileInteractionStore(folder / "log.jsonl")) as store:
        await put(store, records)
        yield store.records


@asynccontextmanager
async def live_relaxed(records: Sequence[Record], folder: Path) -> AsyncGenerator[Records]:
    """Ask the store that writes the log and has not written all of it."""
    path = folder / "log.jsonl"
    async with aclosing(JsonFileInteractionStore(path, durability=Durability.RELAXED)) as store:
        await put(store, records)
        yield store.records


@asynccontextmanager
async def reader(records: Sequence[Record], folder: Path) -> AsyncGenerator[Records]:
    """Ask as another process does."""
    async with live(records, folder), aclosing(JsonlRecords(folder / "log.jsonl")) as found:
        yield found


@asynccontextmanager
async def segments(records: Sequence[Record], folder: Path) -> AsyncGenerator[Records]:
    """Ask, as another process does, a log with a segment for each record."""
    path = folder / "log.jsonl"
    async with aclosing(JsonFileInteractionStore(path, segment_bytes=1)) as store:
        await put(store, records)
    async with aclosing(JsonlRecords(path)) as found:
        yield found


OPENINGS: tuple[Opens, ...] = (memory, live, live_relaxed, reader, segments)
