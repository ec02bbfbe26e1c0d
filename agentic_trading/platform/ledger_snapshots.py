"""The ledgers of a platform, as its log gives them: the newest snapshot, the lines after it, and new snapshots."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self
from zoneinfo import ZoneInfo

from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import SystemClock
from agentic_trading.governance.events import KINDS, LedgerCheckpointed
from agentic_trading.governance.ledger import LedgerCheckpoint
from agentic_trading.governance.ledger_snapshot import LedgerSnapshot, place_of, read_snapshot
from agentic_trading.governance.limits import Windows
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.governance.rules import SIMULATED, ClockMode
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import EventError, StoreError
from agentic_trading.llm.event import Event
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import ChainedRecord, InteractionStore, Record
from agentic_trading.logger import get_logger
from agentic_trading.platform.port_adapters import LOG_START, LogRecords, file_log_of, log_position

log = get_logger()

READ_EVERY_S: Final = 1.0
"""The interval at which new lines are read, so that a snapshot at the end has few of them to read."""

MOST_KEPT: Final = 4_096
"""The maximum number of records of this process that are kept until their lines are read."""


class LedgerRebuilds:
    """The rebuilt ledger of each tenant, by the lines of a log up to a position.

    A snapshot is used if all its parts are in the log, if the log has the line that it names, and if it has
    the same time zone and the same time, simulated or not. Without one, the log is read from its first line.

    Args:
        path: The path of the log.
        records: Its records.
        tenants: The tenants.
        mode: The mode of the platform.
        zone: The time zone of the windows.

    """

    def __init__(
        self,
        path: Path,
        records: LogRecords,
        tenants: Iterable[str],
        mode: ClockMode,
        zone: str,
    ) -> None:
        self._path = path
        self._records = records
        self._zone = zone
        self._windows = Windows()
        self._mode = mode
        self._by_tenant = {tenant: LedgerRebuild(tenant, mode) for tenant in tenants}
        self._known_to: dict[str, int] = {}
        self._kept: dict[int, tuple[Record, bytes]] = {}
        self._position = LOG_START
        self._segment = LOG_START.first
        self._snapshot_bytes = 0
        self._bytes_since = 0

    @property
    def by_tenant(self) -> Mapping[str, LedgerRebuild]:
        """The ledgers by tenant."""
        return self._by_tenant

    @property
    def read_from(self) -> int:
        """The number of the last line that a snapshot covers for every tenant, 0 without one."""
        return min((self._known_to.get(tenant, 0) for tenant in self._by_tenant), default=0)

    async def open(self) -> Self:
        """Load the newest snapshots, and read the lines after them.

        Raises:
            StoreError: If the log cannot be read.
            UnknownKindError: If a newer release has recorded an unknown kind about money.

        """
        await self.load()
        self._position = await asyncio.to_thread(log_position, self._path, self.read_from)
        self._segment = self._position.first
        await self.read_on()
        return self

    async def load(self) -> None:
        """Load the newest whole snapshot of every tenant, if it can be used. Read no line after it.

        Raises `StoreError` if the log cannot be read.
        """
        self._windows = Windows(await asyncio.to_thread(ZoneInfo, self._zone))
        for tenant, bodies in (await self._newest()).items():
            parts = [part for body in bodies if (part := read_snapshot(body.snapshot)) is not None]
            if await self._is_usable(parts[0]):
                last = bodies[-1]
                known = LedgerCheckpoint(last.generation, last.mark, last.sequence) if last.mark else None
                self._by_tenant[tenant] = LedgerRebuild.from_snapshot(tenant, parts, known)
                self._known_to[tenant] = parts[0].line
        if not self._known_to:
            return
        for tenant in self._by_tenant.keys() - self._known_to.keys():
            # A tenant that is new in the configuration has no record in the lines before.
            if not await self._records.count(RecordQuery(tenant=(tenant,))):
                self._known_to[tenant] = max(self._known_to.values())

    def keep(self, number: int, record: Record, raw: bytes) -> None:
        """Keep a record, with its bytes, until its line is read. To parse it again would cost a quarter of a call."""
        if number > self._position.head.seq and len(self._kept) < MOST_KEPT:
            self._kept[number] = record, raw

    async def read_on(self) -> None:
        """Read the lines that were added."""
        lines = self._records.read_on(self._position, self.read_from, self._read)
        async with aclosing(lines) as batches:
            async for _, reached in batches:
                self._position = reached
                for rebuild in self._by_tenant.values():
                    if rebuild.is_long:
                        await asyncio.to_thread(rebuild.compact, self._windows)

    async def record_in(self, store: InteractionStore) -> None:
        """Read the lines that were added, and record a snapshot of every tenant.

        Nothing is recorded if no tenant has a new record about money.
        """
        await self.read_on()
        if not any(rebuild.is_changed for rebuild in self._by_tenant.values()):
            self._segment = self._position.first
            return
        self._snapshot_bytes = self._bytes_since = 0
        head = self._position.head
        for tenant, rebuild in self._by_tenant.items():
            parts = await asyncio.to_thread(rebuild.snapshot, head.seq, head.hash, self._windows)
            for number, body in enumerate(parts, start=1):
                id_ = derived_id("ledger.snapshot", tenant, head.seq, head.hash, number)
                await store.record(
                    body.as_event(event_id=id_, trace_id="budget", tenant_id=tenant, time=SystemClock().now())
                )
        # The snapshot itself may end a segment, which must not ask for the next one.
        await self.read_on()
        self._segment = self._position.first

    async def index_lines(self) -> None:
        """Bring the index of the log up to date, so that the next start has at most a segment to index."""
        await self._records.count(RecordQuery(kind=(LedgerCheckpointed.KIND,), after=self._position.head.seq))

    @property
    def is_due(self) -> bool:
        """Whether a segment was sealed since the last snapshot, and the snapshot is outgrown."""
        return self._position.first != self._segment and self.is_outgrown

    @property
    def is_outgrown(self) -> bool:
        """Whether more bytes of other records were read since the last snapshot than it took."""
        return self._bytes_since > self._snapshot_bytes

    def _read(self, line: ChainedRecord) -> None:
        record, raw = self._kept.pop(line.seq, (None, b""))
        if record is None or raw != line.record:
            record = self._records.entry(line).record
        if isinstance(record, Event) and record.kind == LedgerCheckpointed.KIND:
            self._snapshot_bytes += len(line.record)
        else:
            self._bytes_since += len(line.record)
        tenant = tenant_of_record(record)
        rebuild = self._by_tenant.get(tenant)
        if rebuild is not None and line.seq > self._known_to.get(tenant, 0):
            rebuild.read(record)

    async def _is_usable(self, part: LedgerSnapshot) -> bool:
        """Whether a snapshot is of this log, and of the same terms."""
        is_of_same_time = (part.mode in SIMULATED) == (self._mode in SIMULATED) and part.zone == self._zone
        if not is_of_same_time:
            return False
        return any(line.hash == part.head for line in await self._records.lines([part.line]))

    async def _newest(self) -> dict[str, list[LedgerCheckpointed]]:
        """Return the parts of the newest whole snapshot of each tenant, in order."""
        found: dict[str, list[LedgerCheckpointed]] = {}
        groups: dict[object, dict[int, LedgerCheckpointed]] = {}
        query = RecordQuery(kind=(LedgerCheckpointed.KIND,))
        async with aclosing(self._records.select(query, newest_first=True)) as facts:
            async for fact in facts:
                if fact.tenant not in self._by_tenant or fact.tenant in found:
                    continue
                body = await self._body(fact.seq)
                part = None if body is None else read_snapshot(body.snapshot)
                if body is None or part is None:
                    continue  # a shared ledger also records its progress alone
                group = groups.setdefault((fact.tenant, place_of(part)), {})
                group[part.part] = body
                if len(group) == part.parts:
                    found[fact.tenant] = [group[number] for number in sorted(group)]
                    if len(found) == len(self._by_tenant):
                        break
        return found

    async def _body(self, seq: int) -> LedgerCheckpointed | None:
        [line] = await self._records.lines([seq])
        record = self._records.entry(line).record
        body = KINDS.must(record) if isinstance(record, Event) else None
        return body if isinstance(body, LedgerCheckpointed) else None


@asynccontextmanager
async def snapshots_on_record(rebuilds: LedgerRebuilds, store: InteractionStore) -> AsyncGenerator[None]:
    """Follow a log while the block runs, and record snapshots: after a sealed segment, and at the end.

    If the log cannot be read or written, this is logged, and the next start reads more lines.
    """
    stopping = asyncio.Event()
    log_file = file_log_of(store)
    if log_file is not None:
        log_file.on_kept = rebuilds.keep
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_follow(rebuilds, store, stopping), name="ledger-snapshots")
        try:
            yield
        finally:
            stopping.set()
            await run_shielded(asyncio.wait([task]))


async def _follow(rebuilds: LedgerRebuilds, store: InteractionStore, stopping: asyncio.Event) -> None:
    try:
        while not stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_EVERY_S):
                    await stopping.wait()
            await rebuilds.read_on()
            if rebuilds.is_due:
                await rebuilds.record_in(store)
                await rebuilds.index_lines()
        await rebuilds.read_on()
        # Otherwise a gateway that is opened for each call would write more snapshots than records.
        if rebuilds.is_outgrown:
            await rebuilds.record_in(store)
    except (StoreError, EventError) as e:
        log.warning("ledger_snapshot_missing", reason=str(e))
    finally:
        if (log_file := file_log_of(store)) is not None:
            log_file.on_kept = None


def tenant_of_record(record: Record) -> str:
    """Return the tenant of a record."""
    return record.envelope.tenant_id if isinstance(record, LLMInteraction) else record.tenant_id
