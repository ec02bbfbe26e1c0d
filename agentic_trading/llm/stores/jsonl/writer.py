"""Group commit: records that come while the disk is busy are written next, all together."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.stores.jsonl.file import START, Appended, Disk, LogFile, LogPosition
from agentic_trading.llm.stores.record_codec import Identity, number_of
from agentic_trading.logger import get_logger

log = get_logger()

_WRITE_AT_BYTES = 1 << 20
_WAIT_AT_BYTES = 8 << 20


class Durability(StrEnum):
    """What has happened to a record when `store` or `record` returns.

    `group`: it is on disk, together with all that came meanwhile. `relaxed`: it is accepted; it is written when
    about a megabyte has come together, and on disk after `flush` or `aclose`.
    """

    GROUP = "group"
    RELAXED = "relaxed"


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """What a writer has done. `syncs` counts waits for the disk, `duplicates` the records that were known before."""

    records: int = 0
    duplicates: int = 0
    bytes_written: int = 0
    commits: int = 0
    syncs: int = 0
    largest_commit: int = 0

    def and_then(self, done: Appended) -> "LogStatistics":
        """Return these figures with one more commit in them."""
        return LogStatistics(
            records=self.records + done.lines,
            duplicates=self.duplicates + done.duplicates,
            bytes_written=self.bytes_written + done.bytes_written,
            commits=self.commits + 1,
            syncs=self.syncs + done.synced,
            largest_commit=max(self.largest_commit, done.lines),
        )


@dataclass(slots=True)
class _Group:
    """Records that are written together. `is_due`: a call waits for the write; `sync`: and for the disk."""

    records: list[tuple[Identity, bytes]] = field(default_factory=list)
    size: int = 0
    is_due: bool = False
    sync: bool = False
    failure: StoreError | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


class LogWriter:
    """Write records to the log at `path`, in the order in which `write` is called.

    No timer: a commit takes all that is there when the one before it has ended. It runs in the writer's one thread,
    which opens the file first. A failed write is fatal, everything after it is refused with the same `StoreError`;
    a file that cannot be opened is tried again with the next commit.
    """

    def __init__(self, path: Path, durability: Durability, disk: Disk) -> None:
        self._path = path
        self._is_relaxed = durability is Durability.RELAXED
        self._disk = disk
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log")
        self._file: LogFile | None = None
        self._group = _Group()
        self._is_committing = False
        self._is_closed = False
        self._failure: StoreError | None = None
        self._unwritten: dict[str, bytes] = {}
        self._next = 0
        self.statistics = LogStatistics()
        self.written: LogPosition | None = None
        """Where the log ends; None until this writer has opened it."""
        self.set_aside: Path | None = None
        """Where a torn last line was moved when the file was opened, if there was one."""

    async def open(self) -> None:
        """Take the file and its lock now; raises `StoreError` if that cannot be, `StoreLockedError` if another has it."""
        if self.written is not None:
            return
        group = self._group
        self._make_due(group, sync=False)
        await self._commit_of(group)

    async def write(self, identity: Identity, record: bytes) -> int:
        """Write one record, once; return the number of its line when it is as durable as promised.

        Raises `RecordConflictError` if another record has its key, `StoreError` if it is not written.
        """
        if self._failure is not None:
            raise _again(self._failure)
        if self._is_closed:
            raise StoreError(self._path, "the store is closed; make a new one to go on")
        if self._check(identity) is None:
            self._unwritten[identity.key] = identity.at(self._next)
            self._next += 1
        group = self._group
        group.records.append((identity, record))
        group.size += len(record)
        is_open = self.written is not None
        may_wait = self._is_relaxed and is_open
        if not may_wait or group.size >= _WRITE_AT_BYTES:
            self._make_due(group, sync=not self._is_relaxed)
        if not may_wait or group.size >= _WAIT_AT_BYTES:
            await self._commit_of(group)
            if not is_open:  # what the file holds is known since then
                self._check(identity)
        return number_of(self._facts_of(identity.key) or b"")

    async def settle(self, *, sync: bool = False) -> None:
        """Return when all that was accepted is in the file, and with `sync` on disk; raises `StoreError` if not."""
        if self._failure is not None:
            raise _again(self._failure)
        if self._is_closed or not (self._has_work or (sync and self.written)):
            return
        group = self._group
        self._make_due(group, sync=sync or not self._is_relaxed)
        await self._commit_of(group)

    async def head(self) -> tuple[int, str]:
        """Return the number and hash of the last line; nothing that was accepted is unwritten when this returns."""
        if self._is_closed:
            raise StoreError(self._path, "the store is closed; make a new one to go on")
        await self.settle()
        while self._has_work:  # until this task went on, others may have given more
            await self.settle()
        head = (self.written or START).head
        return head.seq, head.hash

    async def aclose(self) -> None:
        """Bring all that was accepted onto the disk and give the file back; harmless twice.

        Raises `StoreError` if not all of it could be written; the file is given back nevertheless.
        """
        if self._is_closed:
            return
        self._is_closed = True
        group = self._group
        group.sync = True
        # Before anything is awaited: a cancelled `aclose` writes and closes all the same.
        self._submit(self._commit_and_close)
        self._thread.shutdown(wait=False)
        await self._commit_of(group)

    @property
    def _has_work(self) -> bool:
        return self._is_committing or bool(self._group.records)

    def knows(self, key: str) -> bool:
        """Whether a record with this key was accepted, by this writer or one before it."""
        return self._facts_of(key) is not None

    def _check(self, identity: Identity) -> int | None:
        known = self._facts_of(identity.key)
        return None if known is None else identity.check(known)

    def _facts_of(self, key: str) -> bytes | None:
        known = self._unwritten.get(key)
        return known or (self._file.known.get(key) if self._file else None)

    def _number_waiting(self, after: int) -> None:
        """Give the records that came before the file was open the numbers that they will have."""
        self._next = after + 1
        self._unwritten.clear()
        for identity, _ in self._group.records:
            if self._facts_of(identity.key) is None:
                self._unwritten[identity.key] = identity.at(self._next)
                self._next += 1

    def _make_due(self, group: _Group, *, sync: bool) -> None:
        group.sync |= sync
        if group.is_due:
            return
        group.is_due = True
        if not self._is_committing:
            self._commit_soon()

    def _commit_soon(self) -> None:
        """Commit at the end of this turn of the loop, with all records that come until then.

        At once would be too early: of 256 tasks that were woken together, the first would get a commit of its own,
        and the others would wait for two.
        """
        asyncio.get_running_loop().call_soon(self._start_commit)

    def _start_commit(self) -> None:
        if self._group.is_due and not self._is_committing and not self._is_closed:
            self._submit(self._commit)

    def _submit(self, commit: Callable[[_Group], Appended | None]) -> None:
        group, self._group = self._group, _Group()
        self._is_committing = True
        loop = asyncio.get_running_loop()
        self._thread.submit(self._run_commit, commit, group, loop, copy_context())

    def _run_commit(
        self,
        commit: Callable[[_Group], Appended | None],
        group: _Group,
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        """Commit in the writer's thread, and have the loop go on: a turn of it less than a future between them costs."""
        done, error = None, None
        try:
            done = commit(group)
        except BaseException as e:  # noqa: BLE001 - it is raised where the group is waited for
            error = e
        with suppress(RuntimeError):  # the loop was closed: nothing waits any more
            loop.call_soon_threadsafe(self._finish_commit, group, done, error, context=context)

    def _commit(self, group: _Group) -> Appended:
        if self._file is None:
            self._file = LogFile(self._path, self._disk)
        return self._file.append(group.records, sync=group.sync)

    def _commit_and_close(self, group: _Group) -> Appended | None:
        try:
            return self._commit(group) if self._file or group.records else None
        finally:
            if self._file is not None:
                self._file.close()

    def _finish_commit(self, group: _Group, done: Appended | None, error: BaseException | None) -> None:
        self._is_committing = False
        for identity, _ in group.records:
            self._unwritten.pop(identity.key, None)
        if error is not None:
            self._fail(group, error)
        elif done is not None:
            self._report(done)
        group.done.set()
        if self._group.is_due:
            self._commit_soon()  # after the tasks that were just woken, whose next records then go along

    def _fail(self, group: _Group, error: BaseException) -> None:
        if not isinstance(error, StoreError):
            error = StoreError(self._path, f"cannot be written ({error!r}); report this")
        group.failure = error
        if self._file is not None:
            self._failure = error

    def _report(self, done: Appended) -> None:
        if self.written is None and self._file is not None and self._file.set_aside is not None:
            self.set_aside = self._file.set_aside
            log.warning("log_tail_set_aside", path=str(self._path), kept_as=str(self.set_aside))
        if self.written is None:
            self._number_waiting(done.position.head.seq)
        self.written = done.position
        self.statistics = self.statistics.and_then(done)

    async def _commit_of(self, group: _Group) -> None:
        await group.done.wait()
        if group.failure is not None:
            raise _again(group.failure)


def _again(failure: StoreError) -> StoreError:
    """Return the same failure as an error of its own: one that many raise would collect all their tracebacks."""
    error = type(failure)(failure.path, failure.reason, line=failure.line)
    error.__cause__ = failure
    return error
