"""Who waits together is written together; who is answered is safe; who is not answered gets an error."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from agentic_trading.llm import Durability, Event, JsonFileInteractionStore, StoreError, StoreLockedError
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.record_codec import record_of
from tests.build import event, interaction
from tests.llm.stores.jsonl_logs import kept, lines_in, records_in, reopened

PATIENCE_S = 3.0


class GatedDisk(Disk):
    """Reach the disk only when `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Event()

    def sync(self, fd: int) -> None:
        self.waiting.set()
        assert self.gate.wait(PATIENCE_S)
        super().sync(fd)


class BrokenDisk(Disk):
    """Fail each wait for the disk from some time on."""

    is_broken = False

    def sync(self, fd: int) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


class FullDisk(Disk):
    """Take the first half of what is written, from some time on."""

    is_full = False

    def append(self, fd: int, data: bytes) -> None:
        if self.is_full:
            os.write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().append(fd, data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


async def record_all(store: JsonFileInteractionStore, events: list[Event]) -> list[BaseException | None]:
    """Record all at once; return what each call raised."""
    outcomes: dict[str, BaseException | None] = {}

    async def call(recorded: Event) -> None:
        try:
            await store.record(recorded)
            outcomes[recorded.id] = None
        except StoreError as e:
            outcomes[recorded.id] = e

    async with asyncio.TaskGroup() as group:
        for recorded in events:
            group.create_task(call(recorded))
    return [outcomes[recorded.id] for recorded in events]


async def test_concurrent_records_share_few_syncs(path: Path) -> None:
    async with aclosing(JsonFileInteractionStore(path)) as store:
        for _ in range(3):
            await record_all(store, [event() for _ in range(64)])

        done = store.statistics()

    assert (done.records, done.largest_commit) == (192, 64)
    assert done.syncs <= 6
    assert done.bytes_written == len(b"".join(lines_in(path)))


async def test_record_returns_only_after_sync(path: Path) -> None:
    disk = GatedDisk()
    disk.gate.set()
    store = JsonFileInteractionStore(path, disk=disk)
    await store.record(event())
    disk.gate.clear()
    disk.waiting.clear()

    async with asyncio.TaskGroup() as group:
        call = group.create_task(store.record(event()))
        assert await asyncio.to_thread(disk.waiting.wait, PATIENCE_S)
        assert len(lines_in(path)) == 2
        assert not call.done()
        disk.gate.set()

    await store.aclose()


async def test_records_queued_during_sync_commit_together(path: Path) -> None:
    disk = GatedDisk()
    store = JsonFileInteractionStore(path, disk=disk)

    async with asyncio.TaskGroup() as group:
        group.create_task(store.record(event()))
        assert await asyncio.to_thread(disk.waiting.wait, PATIENCE_S)
        for _ in range(50):
            group.create_task(store.record(event()))
        await asyncio.sleep(0)
        disk.gate.set()

    assert (store.statistics().commits, store.statistics().largest_commit) == (2, 50)
    await store.aclose()


async def test_duplicate_waits_for_original_sync(path: Path) -> None:
    disk = GatedDisk()
    disk.gate.set()
    store = JsonFileInteractionStore(path, disk=disk)
    await store.record(event())
    disk.gate.clear()
    disk.waiting.clear()
    recorded = event()

    async with asyncio.TaskGroup() as group:
        first = group.create_task(store.record(recorded))
        assert await asyncio.to_thread(disk.waiting.wait, PATIENCE_S)
        again = group.create_task(store.record(recorded))
        await asyncio.sleep(0)
        assert not first.done()
        assert not again.done()
        disk.gate.set()

    assert store.statistics().duplicates == 1
    await store.aclose()


async def test_failed_sync_is_final_and_unacknowledged(path: Path) -> None:
    disk = BrokenDisk()
    store = JsonFileInteractionStore(path, disk=disk)
    safe = event()
    await store.record(safe)
    disk.is_broken = True

    outcomes = await record_all(store, [event() for _ in range(8)])
    disk.is_broken = False
    later = await record_all(store, [event(), safe])

    assert all(isinstance(e, StoreError) and "Input/output error" in e.reason for e in [*outcomes, *later])
    with pytest.raises(StoreError, match="cannot be written"):
        await store.recent()
    with pytest.raises(StoreError, match="cannot be written"):
        await store.aclose()
    await store.aclose()


@pytest.mark.parametrize("kind", [RuntimeError, GeneratorExit])
async def test_unexpected_disk_error_is_final(path: Path, kind: type[BaseException]) -> None:
    class Cursed(Disk):
        """Fail in a way that no disk does."""

        def append(self, fd: int, data: bytes) -> None:
            raise kind("a bug")

    store = JsonFileInteractionStore(path, disk=Cursed())

    for _ in range(2):
        with pytest.raises(StoreError, match=rf"cannot be written \({kind.__name__}\('a bug'\)\)"):
            await store.record(event())

    with pytest.raises(StoreError):
        await store.aclose()


async def test_each_waiter_gets_separate_error(path: Path) -> None:
    disk = BrokenDisk()
    store = JsonFileInteractionStore(path, disk=disk)
    await store.record(event())
    disk.is_broken = True

    outcomes = await record_all(store, [event() for _ in range(3)])

    assert len({id(e) for e in outcomes}) == 3
    with pytest.raises(StoreError):
        await store.aclose()


async def test_log_reopens_after_full_disk(path: Path) -> None:
    disk = FullDisk()
    store = JsonFileInteractionStore(path, disk=disk)
    safe, lost = event(), event()
    await store.record(safe)
    disk.is_full = True

    with pytest.raises(StoreError, match="No space left on device"):
        await store.record(lost)
    with pytest.raises(StoreError, match="No space left on device"):
        await store.aclose()

    async with aclosing(JsonFileInteractionStore(path)) as again:
        await again.record(lost)
        assert again.recovered is not None
        before, noted, after = await kept(again)
        assert (before, after) == (safe, lost)
        assert isinstance(noted, Event)
        assert noted.kind == "log.tail_set_aside"


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_the_middle_of_a_line(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10)


def rotate_with_copytruncate(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".1"))
    os.truncate(path, 0)


def append_bytes(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"not a record\n")


def delete(path: Path) -> None:
    path.unlink()


def delete_with_a_hard_link(path: Path) -> None:
    os.link(path, path.with_suffix(".link"))
    path.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_suffix(".1"))


def rename_and_create(path: Path) -> None:
    rename(path)
    path.touch()


def replace_by_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


def delete_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


async def record_on_disk(store: JsonFileInteractionStore) -> None:
    await store.record(event())
    await store.flush()


CHANGES = [
    (cut_to_nothing, "another program has cut the file, which has [0-9]+ bytes instead of [0-9]+"),
    (cut_in_the_middle_of_a_line, "another program has cut the file"),
    (rotate_with_copytruncate, "another program has cut the file"),
    (append_bytes, "another program has written to the file"),
    (delete, "the file was deleted or moved"),
    (delete_with_a_hard_link, "the file was deleted or moved"),
    (rename, "the file was deleted or moved"),
    (rename_and_create, "another file was put in its place"),
    (replace_by_a_copy, "another file was put in its place"),
    (delete_the_folder, "the file was deleted or moved"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
@pytest.mark.parametrize("durability", Durability)
async def test_externally_changed_log_fails_next_commit(
    tmp_path: Path, durability: Durability, change: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "worker" / "log.jsonl"
    store = JsonFileInteractionStore(path, durability=durability)
    await store.record(event())
    await store.flush()
    change(path)

    with pytest.raises(StoreError, match=reason):
        await record_on_disk(store)
    with pytest.raises(StoreError, match=reason):
        await store.record(event())
    with pytest.raises(StoreError):
        await store.aclose()


async def test_log_cut_during_commit_raises(path: Path) -> None:
    class CutDisk(Disk):
        """Cut the file when the bytes of a commit are on the disk."""

        cuts = False

        def sync(self, fd: int) -> None:
            super().sync(fd)
            if self.cuts:
                os.ftruncate(fd, 0)

    disk = CutDisk()
    store = JsonFileInteractionStore(path, disk=disk)
    await store.record(event())
    disk.cuts = True

    with pytest.raises(StoreError, match="another program has cut the file"):
        await store.record(event())
    with pytest.raises(StoreError):
        await store.aclose()


async def test_cancelled_caller_does_not_affect_others(path: Path) -> None:
    disk = GatedDisk()
    store = JsonFileInteractionStore(path, disk=disk)
    events = [event() for _ in range(3)]

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(store.record(recorded)) for recorded in events]
        assert await asyncio.to_thread(disk.waiting.wait, PATIENCE_S)
        calls[0].cancel()
        disk.gate.set()

    assert calls[0].cancelled()
    assert await kept(store) == events
    await store.aclose()


async def test_second_writer_refused_until_first_closes(path: Path) -> None:
    first, second = JsonFileInteractionStore(path), JsonFileInteractionStore(path)
    await first.record(event())
    recorded = event()

    with pytest.raises(
        StoreLockedError, match=r"another process writes to it\. Stop that process or choose another path"
    ):
        await second.record(recorded)
    assert len(await kept(second)) == 1
    await first.aclose()
    await second.record(recorded)

    assert (await kept(second))[-1] == recorded
    await second.aclose()


async def test_relaxed_records_are_written_on_flush(path: Path) -> None:
    store = JsonFileInteractionStore(path, durability=Durability.RELAXED)
    first, rest = event(), [event() for _ in range(20)]
    await store.record(first)

    for recorded in rest:
        await store.record(recorded)
    assert len(lines_in(path)) == 1
    assert await kept(store) == [first, *rest]
    assert store.statistics().syncs == 0
    await store.flush()

    assert len(lines_in(path)) == 21
    assert store.statistics().syncs == 1
    await store.aclose()
    assert store.statistics().syncs == 1


async def test_relaxed_records_are_batched_by_megabyte(path: Path) -> None:
    store = JsonFileInteractionStore(path, durability=Durability.RELAXED)
    large = [event(body={"text": "x" * 100_000}) for _ in range(100)]

    for recorded in large:
        await store.record(recorded)
    commits = store.statistics().commits
    await store.aclose()

    assert 1 < commits <= 12
    assert await asyncio.to_thread(records_in, path) == large


async def test_unopenable_relaxed_log_raises_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = JsonFileInteractionStore(tmp_path / "file" / "log.jsonl", durability=Durability.RELAXED)

    with pytest.raises(StoreError, match="cannot be opened for writing"):
        await store.record(event())

    await store.aclose()


async def test_relaxed_write_failure_raises_on_flush(
    path: Path,
) -> None:
    disk = FullDisk()
    store = JsonFileInteractionStore(path, durability=Durability.RELAXED, disk=disk)
    await store.record(event())
    disk.is_full = True
    await store.record(event())

    with pytest.raises(StoreError, match="No space left on device"):
        await store.flush()
    with pytest.raises(StoreError, match="No space left on device"):
        await store.record(event())
    with pytest.raises(StoreError, match="No space left on device"):
        await store.aclose()


async def test_close_syncs_relaxed_records(path: Path) -> None:
    store = JsonFileInteractionStore(path, durability=Durability.RELAXED)
    events = [event() for _ in range(10)]
    for recorded in events:
        await store.record(recorded)

    await store.aclose()

    assert await asyncio.to_thread(records_in, path) == events
    assert store.statistics().syncs == 1


async def test_cancelled_close_writes_and_unlocks_log(path: Path) -> None:
    disk = GatedDisk()
    disk.gate.set()
    store = JsonFileInteractionStore(path, durability=Durability.RELAXED, disk=disk)
    events = [event() for _ in range(5)]
    for recorded in events:
        await store.record(recorded)
    disk.gate.clear()
    disk.waiting.clear()

    async with asyncio.TaskGroup() as group:
        closing = group.create_task(store.aclose())
        assert await asyncio.to_thread(disk.waiting.wait, PATIENCE_S)
        closing.cancel()
    disk.gate.set()
    await asyncio.to_thread(store._writer._thread.shutdown, wait=True)

    assert await asyncio.to_thread(lambda: reopened(path).set_aside) is None
    assert await asyncio.to_thread(records_in, path) == events


async def test_store_serves_successive_event_loops(path: Path) -> None:
    store = JsonFileInteractionStore(path)
    first, second = interaction(), interaction()

    def in_a_loop_of_its_own() -> None:
        asyncio.run(store.store(first))
        asyncio.run(store.store(second))

    await asyncio.to_thread(in_a_loop_of_its_own)

    assert await kept(store) == [first, second]
    await store.aclose()


async def test_follower_resumes_without_rereading_lines(path: Path) -> None:
    def damage() -> None:
        path.write_bytes(path.read_bytes().replace(b'"number":0', b'"number":9'))

    async with aclosing(JsonFileInteractionStore(path)) as store, aclosing(store.follow()) as batches:
        for number in range(3):
            recorded = event(body={"number": number})
            await store.record(recorded)
            assert [record_of(line.record) for line in await anext(batches)] == [recorded]

            await asyncio.to_thread(damage)

        assert (await store.verify()).broken_line == 1
