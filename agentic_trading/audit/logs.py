"""Find logs in a folder, and read the chains of several logs as if they were one."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import TypeVar

from agentic_trading.audit.spend import reservation_of
from agentic_trading.llm import store
from agentic_trading.llm.event import Event
from agentic_trading.llm.facts import EVERYTHING, RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.log_line import INTERACTION, index_row_of
from agentic_trading.llm.store import IdKind, Record, Records, Spend, SpendKey, TraceSummary
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.record_codec import summary_of
from agentic_trading.llm.stores.record_facts import fact_of


def logs_at(path: Path) -> list[Path]:
    """Return the log at `path`: a log, or the folder of a session. In a folder of such folders, all their logs.

    They are sorted by path. A folder without a log has an empty list.
    """
    try:
        if not path.is_dir():
            return [path] if has_log(path) else []
        folders = [path] if has_log(path / store.LOG_NAME) else sorted(path.iterdir())
        return [folder / store.LOG_NAME for folder in folders if has_log(folder / store.LOG_NAME)]
    except OSError:  # a folder without read permission
        return []


def has_log(path: Path) -> bool:
    """Return whether a log is at `path`: its active segment, or the seals of its other segments."""
    try:
        return not path.is_dir() and LogFiles(path).exist()
    except OSError:  # an invalid file name, or a folder without read permission
        return False


class MergedRecords:
    """Answer queries about the chains of several logs as if they were one log.

    Records are in the order of time, and those of one log in its order. A record that is in several logs is
    returned once.
    """

    def __init__(self, logs: Sequence[Records]) -> None:
        self._logs = logs

    async def find(self, record_id: str, *, tenant: str | None = None) -> Record | None:
        """Return the record with this id from the first log that has it, or None."""
        for log in self._logs:
            if (record := await log.find(record_id, tenant=tenant)) is not None:
                return record
        return None

    async def ids_starting(
        self, prefix: str, *, of: IdKind = "record", limit: int = 20, tenant: str | None = None
    ) -> list[str]:
        """Return the ids that start with `prefix`, sorted, at most `limit`."""
        each = [await log.ids_starting(prefix, of=of, limit=limit, tenant=tenant) for log in self._logs]
        return sorted({one for found in each for one in found})[:limit]

    async def trace(self, trace_id: str, *, tenant: str | None = None) -> list[Record]:
        """Return all records of a decision chain."""
        return merged_records([await log.trace(trace_id, tenant=tenant) for log in self._logs])

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return all attempts at an envelope, oldest first."""
        return merged_records([await log.by_envelope(envelope_id, tenant=tenant) for log in self._logs])

    async def traces(
        self,
        limit: int = 20,
        *,
        query: RecordQuery = EVERYTHING,
        with_calls: bool = False,
        tenant: str | None = None,
    ) -> list[TraceSummary]:
        """Return the newest decision chains with a selected record, newest first. See `Records.traces`.

        Of several logs, the newest chain is the one with the latest record.
        """
        if len(self._logs) == 1:
            return await self._logs[0].traces(limit, query=query, with_calls=with_calls, tenant=tenant)
        newest = [
            await log.traces(limit, query=query, with_calls=with_calls, tenant=tenant) for log in self._logs
        ]
        # Read as a whole, because a chain may have more records in logs where none was selected.
        chains = [
            await self._summary(one, tenant) for one in {one.trace_id for each in newest for one in each}
        ]
        return sorted(chains, key=_last, reverse=True)[:limit]

    async def spend(
        self, *by: SpendKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[Spend]:
        """Return the sums of the selected attempts of each log, one log after the other."""
        return [row for log in self._logs for row in await log.spend(*by, query=query, tenant=tenant)]

    async def unmatched(self, *, tenant: str | None = None) -> list[Record]:
        """Return the records of reservations without exactly one dispatch and one attempt in one of the logs.

        An attempt may be sent by the process of one log, and ended by that of another one. So the records of
        these reservations in all other logs are among them.
        """
        each = [record for log in self._logs for record in await log.unmatched(tenant=tenant)]
        if len(self._logs) == 1:
            return each
        wanted = {_reservation(record) for record in each}
        chains = {record.trace_id for record in each}
        # By keys too, because the end of a lease is not in the trace of its call.
        for reservation in {reservation_of(record) or "" for record in each}:
            key = reservation.partition(":")[2].rpartition(":")[0]
            chains |= {attempt.trace_id for attempt in await self.by_envelope(key, tenant=tenant)}
        found = [
            record for trace_id in sorted(chains) for record in await self.trace(trace_id, tenant=tenant)
        ]
        return sorted((record for record in found if _reservation(record) in wanted), key=_time)

    async def _summary(self, trace_id: str, tenant: str | None) -> TraceSummary:
        chain = await self.trace(trace_id, tenant=tenant)
        return summary_of(trace_id, [fact_of(0, index_row_of(record.wire)) for record in chain])


def _last(chain: TraceSummary) -> tuple[datetime, str]:
    return datetime.fromisoformat(chain.last), chain.trace_id


def _reservation(record: Record) -> int | None:
    """Return the number of the reservation of a sent attempt or of its events."""
    return index_row_of(record.wire).reservation


R = TypeVar("R", LLMInteraction, Record)


def merged_records(logs: Iterable[Iterable[R]]) -> list[R]:
    """Return the records of several logs by time, each id of a tenant once."""
    each: dict[tuple[str, str, str], R] = {}
    for record in merge(*logs, key=_time):
        each.setdefault(record_key(record), record)
    return list(each.values())


def _time(record: Record) -> datetime:
    return record.time if isinstance(record, Event) else record.stored_at


def record_key(record: Record) -> tuple[str, str, str]:
    """Return the kind, the tenant and the id of a record. They are equal in all logs."""
    if isinstance(record, Event):
        return "event", record.tenant_id, record.id
    return INTERACTION, record.envelope.tenant_id, record.interaction_id
