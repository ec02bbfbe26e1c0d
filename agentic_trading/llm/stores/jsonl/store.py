"""The log as a store: what it is given is written in order, and can be asked for."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import LogEntry, Record, Verification
from agentic_trading.llm.stores.jsonl.file import Disk
from agentic_trading.llm.stores.jsonl.reader import START
from agentic_trading.llm.stores.jsonl.records import JsonlRecords
from agentic_trading.llm.stores.jsonl.writer import Durability, LogStatistics, LogWriter
from agentic_trading.llm.stores.record_codec import identity_of, interactions, wire_of

DEFAULT_PATH = Path("data/llm_interactions.jsonl")


class JsonFileInteractionStore:
    """Keep interactions and events in a file of JSON lines, one record a line, chained by hashes.

    With `Durability.GROUP`, `store` and `record` return when the record is on disk; with `RELAXED`, when it is
    accepted (see `Durability`). The file and its folders are made with the first record; one process writes to a
    file at a time, and a second one gets `StoreLockedError`. Questions need no lock. What a writer that died left of
    its last line (bytes without a newline) is moved to `<path>.torn-<number>`, and the log goes on with an event
    `log.tail_set_aside` that says so; a broken whole line is a `StoreError`, and nothing is written.
    A failed write is final: this store acknowledges nothing after it.
    """

    def __init__(
        self,
        path: Path = DEFAULT_PATH,
        *,
        durability: Durability = Durability.GROUP,
        disk: Disk | None = None,
    ) -> None:
        self.path = Path(path)
        self._writer = LogWriter(self.path, durability, disk or Disk())
        self._records = JsonlRecords(self.path, writer=self._writer)
        self._followers: set[asyncio.Event] = set()
        self._is_closed = False

    @property
    def records(self) -> JsonlRecords:
        """What the log knows, with all that was accepted so far: the port `Records`."""
        return self._records

    @property
    def recovered(self) -> Path | None:
        """Where a torn last line was kept when the log was opened for writing; None if there was none."""
        return self._writer.set_aside

    def statistics(self) -> LogStatistics:
        """Return what was written so far, and in how many commits."""
        return self._writer.statistics

    async def open(self) -> None:
        """Take the file and its lock now instead of with the first record; harmless twice.

        Raises `StoreLockedError` if another process has it, and `StoreError` for a log that cannot be gone on with.
        """
        await self._writer.open()

    async def store(self, interaction: LLMInteraction) -> None:
        """Keep one attempt."""
        await self._keep(interaction)

    async def record(self, event: Event) -> None:
        """Keep one event."""
        await self._keep(event)

    async def flush(self) -> None:
        """Return when all that was accepted is on disk; raises `StoreError` if it is not."""
        await self._writer.settle(sync=True)

    async def get_by_envelope_id(self, envelope_id: str) -> LLMInteraction | None:
        """Return the last attempt at an envelope, or None."""
        attempts = await self._records.by_envelope(envelope_id)
        return attempts[-1] if attempts else None

    async def get_by_trace_id(self, trace_id: str) -> list[LLMInteraction]:
        """Return all attempts of a decision chain, oldest first."""
        return interactions(await self._records.trace(trace_id))

    async def recent(self, limit: int = 10) -> list[LLMInteraction]:
        """Return the newest attempts, newest first."""
        return await self._records.recent(limit)

    def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        """Give every entry with a number above `after`, in order, and end."""
        return self._records.scan(after)

    async def follow(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        """Give every entry with a number above `after`, in order, and wait for what this store is given next.

        Ends when the store is closed, after the last entry.
        """
        news = asyncio.Event()
        self._followers.add(news)
        position = START
        try:
            while True:
                news.clear()
                is_last_round = self._is_closed
                async with aclosing(self._records.read_on(position, after)) as batches:
                    async for entries, reached in batches:
                        position = reached
                        for entry in entries:
                            yield entry
                if is_last_round:
                    return
                await news.wait()
        finally:
            self._followers.discard(news)

    async def verify(self) -> Verification:
        """Read the log again and recompute every hash."""
        return await self._records.verify()

    async def aclose(self) -> None:
        """Bring everything onto the disk and give the log back; harmless twice.

        Raises `StoreError` if something that was accepted could not be written.
        """
        try:
            await self._writer.aclose()
        finally:
            self._is_closed = True
            self._tell_followers()
            await self._records.aclose()

    async def _keep(self, record: Record) -> None:
        identity, wire = identity_of(record), wire_of(record)
        self._tell_followers()
        await self._writer.write(identity, wire)

    def _tell_followers(self) -> None:
        for news in self._followers:
            news.set()
