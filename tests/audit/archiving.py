"""Two workers' logs on a bus, and an archive of them, for tests."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentic_trading.audit.archive import Archiver, ArchiveSummary, opened_archive
from agentic_trading.audit.verify import ArchiveCheck, check_archive
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import read_dead_letter
from agentic_trading.bus.log_stream import LogHead, StreamedLine
from agentic_trading.bus.topic import DEAD_LETTERS, HEADS, RECORDS, Broker, DeadLetter
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import ChainedRecord, ChainHead, Record
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.jsonl.writer import Durability
from agentic_trading.llm.stores.record_codec import write_line


@dataclass
class WorkerLog:
    """The log of a worker, line by line as it would be on disk."""

    log_id: str
    lines: list[ChainedRecord] = field(default_factory=list)

    def add(self, *records: Record) -> list[ChainedRecord]:
        for record in records:
            head = self.lines[-1].head if self.lines else ChainHead()
            line, _ = write_line(record.wire, head)
            self.lines.append(read_line(line))
        return self.lines[-len(records) :]

    async def send(self, broker: Broker, *numbers: int) -> None:
        """Send lines by their numbers; all if none is named."""
        chosen = [self.lines[number - 1] for number in numbers] if numbers else self.lines
        await broker.publish_all(RECORDS, [StreamedLine(line, self.log_id).message() for line in chosen])


@asynccontextmanager
async def archiver(folder: Path, broker: Broker, *, clock: Clock | None = None) -> AsyncGenerator[Archiver]:
    log = JsonFileInteractionStore(folder / "interactions.jsonl", durability=Durability.RELAXED)
    async with aclosing(log):
        yield await opened_archive(log, folder, broker, clock or SystemClock())


async def archive(folder: Path, broker: Broker) -> ArchiveSummary:
    """Archive what the bus has now."""
    async with archiver(folder, broker) as one:
        return await one.run(until_end=True)


async def checked(folder: Path, broker: MemoryBroker | None = None) -> ArchiveCheck:
    """Check an archive, with a bus against the heads on it."""
    heads = None
    if broker is not None:
        heads = [LogHead.from_wire(each.message.value) async for each in broker.scan(HEADS)]
    async with aclosing(JsonlRecords(folder / "interactions.jsonl")) as records:
        return await check_archive(records, folder, heads)


def reasons(check: ArchiveCheck) -> Sequence[str]:
    return [f"{found.log_id}: {found.reason}" for found in check.findings]


async def letters(broker: MemoryBroker) -> list[DeadLetter]:
    return [read_dead_letter(each.message) async for each in broker.scan(DEAD_LETTERS)]
