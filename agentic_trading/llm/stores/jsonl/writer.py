"""Group commit: records that arrive while the disk is busy are written together."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.stores.jsonl.file import Appended, LogFile
from agentic_trading.llm.stores.jsonl.reader import START, LogPosition
from agentic_trading.llm.stores.record_codec import Identity, number_of
from agentic_trading.logger import get_logger

log = get_logger()

_WRITE_AT_BYTES = 1 << 20
_WAIT_AT_BYTES = 8 << 20


class Durability(StrEnum):
    """The state of a record when `store` or `record` returns.

    Attributes:
        GROUP: It is on disk, together with the records that arrived meanwhile.
        RELAXED: It is accepted. It is written when about a megabyte has been collected, and on disk after
            `flush` or `aclose`.

    """

    GROUP = "group"
    RELAXED = "relaxed"


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """The counts of a writer.

    Attributes:
        duplicates: Records that were known before.
        syncs: Waits for the disk.

    """

    records: int = 0
    duplicates: int = 0
    bytes_written: int = 0
    commits: int = 0
    syncs: int = 0
    largest_commit: int = 0

    def and_then(self, done: Appended) -> "LogStatistics":
        """Return these counts with one more commit."""
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
    """Records that are written together.

    `is_due`: a call waits for the write. `sync`: it also waits for the disk. `entries`: their entries in the log,
    after the write.
    """

    records: list[tuple[Identity, bytes]] = field(default_factory=list)
    size: int = 0
    is_due: bool = False
    sync: bool = False
    failure: StoreError | None = None
    entries: Mapping[str, bytes] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class LogWriter:
    """Write records to the log at `path`, in the order of the calls of `write`.

    There is no timer: a commit takes all records that are there when the previous commit has ended. It runs
    in the writer's only thread, which opens the file first. After a failed write, every call raises the same
    `StoreError`. If the file cannot be opened, the next commit tries again.
    """

    def __init__(self, path: Path, durability: Durability, open_file: Callable[[], LogFile]) -> None:
        self._path = path
        self._is_relaxed = durability is Durability.RELAXED
        self._open_file = open_file
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
        """The end of the log, None until this writer has opened it."""
        self.set_aside: Path | None = None
        """The file with a torn end that was found when the log was opened, if there was one."""

    async def open(self) -> None:
        """Open and lock the file now.

        Raises:
            StoreLockedError: If another process writes to the file.
            StoreError: If it cannot be opened.

        """
        if self.written is not None:
            return
        group = self._group
        self._make_due(group, sync=False)
        await self._commit_of(group)

    async def write(self, identity: Identity, record: bytes) -> int:
        """Write a record once and return the number of its line.

        It returns when the record is as durable as promised.

        Raises:
            RecordConflictError: If another record has its key.
            StoreError: If it is not written.

        """
        if self._failure is not None:
            raise _again(self._failure)
        if self._is_closed:
            raise StoreError(self._path, "the store is closed. Create a new one to continue")
        is_open = self.written is not None
        may_wait = self._is_relaxed and is_open
        known = self._entry_of(identity.key)
        if known is None and may_wait:
            # Its number is returned before it is written. Otherwise it is looked up with its commit.
            known = await self._sealed_entry(identity.key) or self._entry_of(identity.key)
        if known is not None:
            identity.check(known)
        else:
            self._unwritten[identity.key] = identity.at(self._next)
            self._next += 1
        group = self._group
        group.records.append((identity, record))
        group.size += len(record)
        if not may_wait or group.size >= _WRITE_AT_BYTES:
            self._make_due(group, sync=not self._is_relaxed)
        if not may_wait or group.size >= _WAIT_AT_BYTES:
            await self._commit_of(group)
            # Again, because the content of the file, and of sealed segments, is known since then.
            return identity.check(group.entries[identity.key])
        return number_of(known or self._entry_of(identity.key) or b"")

    async def settle(self, *, sync: bool = False) -> None:
        """Return when all accepted records are in the file, and on disk with `sync`.

        Raises:
            StoreError: If they cannot be written.

        """
        if self._failure is not None:
            raise _again(self._failure)
        if self._is_closed or not (self._has_work or (sync and self.written)):
            return
        group = self._group
        self._make_due(group, sync=sync or not self._is_relaxed)
        await self._commit_of(group)

    async def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last line, once accepted records are written."""
        if self._is_closed:
            raise StoreError(self._path, "the store is closed. Create a new one to continue")
        await self.settle()
        # Repeated, because other tasks may add records before this task continues.
        while self._has_work:
            await self.settle()
        head = (self.written or START).head
        return head.seq, head.hash

    async def aclose(self) -> None:
        """Write all accepted records to disk and release the file. You may call it twice.

        Raises:
            StoreError: If a record could not be written. The file is released in any case.

        """
        if self._is_closed:
            return
        self._is_closed = True
        group = self._group
        group.sync = True
        # Before the first `await`, so that a cancelled `aclose` still writes and closes.
        self._submit(self._commit_and_close)
        self._thread.shutdown(wait=False)
        await self._commit_of(group)

    @property
    def unshipped(self) -> int | None:
        """The number of sealed segments that are not shipped yet. None without a command, and until the log is open."""
        return None if self._file is None else self._file.unshipped

    @property
    def _has_work(self) -> bool:
        return self._is_committing or bool(self._group.records)

    async def knows(self, key: str) -> bool:
        """Return whether a record with this key was accepted, by this writer or an earlier one.

        Raises:
            StoreError: If sealed segments cannot be read.

        """
        return self._entry_of(key) is not None or await self._sealed_entry(key) is not None

    async def _sealed_entry(self, key: str) -> bytes | None:
        """Return the entry of a record in a sealed segment. It waits only if there may be one."""
        file = self._file
        if file is None or not file.may_be_sealed(key):
            return None
        return await asyncio.to_thread(file.find, key)

    def _entry_of(self, key: str) -> bytes | None:
        """Return the entry of a record that is kept in memory."""
        return self._unwritten.get(key) or (self._file.known(key) if self._file else None)

    def _number_waiting(self, after: int) -> None:
        """Number the records that wait for the next commit, after it is known where it begins."""
        self._next = after + 1
        self._unwritten.clear()
        for identity, _ in self._group.records:
            if self._entry_of(identity.key) is None:
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
        """Commit at the end of this turn of the loop, with all records that arrive until then."""
        # Of 256 tasks that are woken together, the first would otherwise get its own commit, and the others
        # would wait for two.
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
        """Commit in the writer's thread, then continue in the loop."""
        # Without a future of the executor, because it would take another turn of the loop.
        done, error = None, None
        try:
            done = commit(group)
        except BaseException as e:  # noqa: BLE001 - it is raised where the group is waited for
            error = e
        with suppress(RuntimeError):  # the loop was closed: nothing waits any more
            loop.call_soon_threadsafe(self._finish_commit, group, done, error, context=context)

    def _commit(self, group: _Group) -> Appended:
        if self._file is None:
            self._file = self._open_file()
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
            group.entries = done.entries
            self._report(done)
        group.done.set()
        if self._group.is_due:
            self._commit_soon()  # after the tasks that were just woken, whose next records then go along

    def _fail(self, group: _Group, error: BaseException) -> None:
        if not isinstance(error, StoreError):
            error = StoreError(self._path, f"cannot be written ({error!r}). Report this")
        group.failure = error
        # Final once the file is open, because the content of the disk is unknown after a failed write. Until
        # then, the next commit tries to open it again.
        if self._file is not None:
            self._failure = error

    def _report(self, done: Appended) -> None:
        if self.written is None and self._file is not None and self._file.set_aside is not None:
            self.set_aside = self._file.set_aside
            log.warning("log_tail_set_aside", path=str(self._path), kept_as=str(self.set_aside))
        if self.written is None or done.found_sealed:
            self._number_waiting(done.position.head.seq)
        self.written = done.position
        self.statistics = self.statistics.and_then(done)

    async def _commit_of(self, group: _Group) -> None:
        await group.done.wait()
        if group.failure is not None:
            raise _again(group.failure)


def _again(failure: StoreError) -> StoreError:
    """Return the same failure as a new error: a shared one would collect all tracebacks."""
    error = type(failure)(failure.path, failure.reason, line=failure.line)
    error.__cause__ = failure
    return error
