"""What a power cut may leave of a log: every such file opens, and holds every record that was acknowledged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.ids import fraction
from agentic_trading.llm import Event, StoreError
from agentic_trading.llm.event import TailSetAside
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import event
from tests.llm.stores.jsonl_logs import records_in, verified

PAGE = 256
"""Bytes that reach the disk together: smaller than a real page, so that a short log has many."""


@dataclass
class Chance:
    """Chance that repeats itself, by its `seed`."""

    seed: int
    drawn: int = 0

    def below(self, share: float) -> bool:
        """Whether something happens that does in this share of cases."""
        self.drawn += 1
        return fraction(str(self.seed), str(self.drawn)) < share

    def between(self, least: int, most: int) -> int:
        """Return a whole number between two, both included."""
        self.drawn += 1
        return least + int(fraction(str(self.seed), str(self.drawn)) * (most - least + 1))


Files = dict[str, bytes]


class RecordingDisk(Disk):
    """A disk that lists every change of a folder. A sync named in `without` is left out.

    A file is known by the name that it had first, because a rename does not change its bytes.
    """

    def __init__(self, files: Files, without: str = "") -> None:
        self.changes: list[Any] = []
        self._without = without
        self._file_of = {name: name for name in files}
        self._of_fd: dict[int, str] = {}

    def open(self, path: Path, *, must_be_new: bool = False) -> int:
        fd = super().open(path, must_be_new=must_be_new)
        if path.name not in self._file_of:
            self._file_of[path.name] = f"{path.name}#{len(self.changes)}"
            self.changes.append(("create", path.name, self._file_of[path.name]))
        self._of_fd[fd] = self._file_of[path.name]
        return fd

    def append(self, fd: int, data: bytes) -> None:
        super().append(fd, data)
        self.changes.append(("write", self._of_fd[fd], bytes(data)))

    def sync(self, fd: int) -> None:
        if not self._without or self._without not in self._of_fd[fd]:
            self.changes.append(("sync", self._of_fd[fd]))

    def sync_folder(self, folder: Path) -> None:
        if self._without != "folder":
            self.changes.append(("sync folder",))

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self.changes.append(("truncate", self._of_fd[fd], size))

    def rename(self, path: Path, name: Path) -> None:
        super().rename(path, name)
        self._file_of[name.name] = self._file_of.pop(path.name)
        self.changes.append(("rename", path.name, name.name))

    def unlink(self, path: Path) -> None:
        if path.exists():
            super().unlink(path)
            del self._file_of[path.name]
            self.changes.append(("unlink", path.name))


def after_power_cut(files: Files, changes: Sequence[Any], chance: Chance) -> Files:
    """Return files that a power cut after these changes may leave.

    Of the names that were not synced, the first ones survive. Of the bytes, a part does, with pages of zeros
    anywhere in it.
    """
    safe = {name: bytearray(content) for name, content in files.items()}
    unsynced: dict[str, list[Any]] = {name: [] for name in files}
    names, renamed = {name: name for name in files}, list[Any]()
    for change in changes:
        match change:
            case ("create", _, file):
                safe[file], unsynced[file] = bytearray(), []
                renamed.append(change)
            case ("rename" | "unlink", *_):
                renamed.append(change)
            case ("sync", file):
                safe[file] = with_changes(safe[file], unsynced[file])
                unsynced[file] = []
            case ("sync folder",):
                names, renamed = with_names(names, renamed), []
            case _:
                unsynced[change[1]].append(change)
    kept = renamed[: len(renamed) if chance.below(0.4) else chance.between(0, len(renamed))]
    return {
        name: left_of(safe[file], unsynced[file], chance) for name, file in with_names(names, kept).items()
    }


def with_names(names: dict[str, str], changes: Sequence[Any]) -> dict[str, str]:
    found = dict(names)
    for change in changes:
        match change:
            case ("create", name, file):
                found[name] = file
            case ("rename", before, after):
                found[after] = found.pop(before)
            case _:
                del found[change[1]]
    return found


def with_changes(content: bytearray, changes: Sequence[Any]) -> bytearray:
    found = bytearray(content)
    for kind, _, value in changes:
        if kind == "write":
            found += value
        else:
            del found[value:]
    return found


def left_of(safe: bytearray, changes: Sequence[Any], chance: Chance) -> bytes:
    """Return what a power cut leaves of a file: synced bytes, and a part of the others with pages of zeros."""
    if any(kind == "truncate" for kind, *_ in changes):  # cut, and not synced
        return bytes(safe if chance.below(0.5) else with_changes(safe, changes))
    new = with_changes(safe, changes)
    left = new[: chance.between(len(safe), len(new))]
    if len(new) > len(safe) and chance.below(0.3):  # the size reached the disk, the bytes did not
        left += bytes(chance.between(0, 3 * PAGE))
    if chance.below(0.6):
        for at in range(len(safe) // PAGE * PAGE, len(left), PAGE):
            begin, end = max(at, len(safe)), min(at + PAGE, len(left))
            if chance.below(0.3):
                left[begin:end] = bytes(end - begin)
    return bytes(left)


@dataclass
class Life:
    """A life of a log: the files at its begin, their changes, and the ids that were acknowledged after so many."""

    files: Files
    changes: list[Any]
    acknowledged: list[tuple[int, frozenset[str]]]

    def promised(self, changes: int) -> frozenset[str]:
        """Return the ids that were acknowledged before the power was cut after so many changes."""
        return next(ids for count, ids in reversed(self.acknowledged) if count <= changes)


SEGMENT_BYTES = 1_500


def life(path: Path, chance: Chance, name: str, promised: frozenset[str], *, without: str = "") -> Life:
    """Open the log, write some groups across several segments, and list every change on the way."""
    files = contents(path.parent)
    disk = RecordingDisk(files, without)
    log = LogFile(path, disk, segment_bytes=SEGMENT_BYTES, compress=chance.below(0.5))
    acknowledged = [(0, promised)]
    written: set[str] = set()
    for group in range(chance.between(1, 8)):
        events = [
            event(id=f"{name}-{group}-{n}", body={"text": "x" * chance.between(1, 700)})
            for n in range(chance.between(1, 4))
        ]
        is_synced = chance.below(0.7)
        log.append([(identity_of(one), one.wire) for one in events], sync=is_synced)
        written |= {one.id for one in events}
        if is_synced:
            acknowledged.append((len(disk.changes), promised | written))
        log._sealed._worker.submit(lambda: None).result()  # its changes come at a certain place
    log.close()
    return Life(files, disk.changes, acknowledged)


def contents(folder: Path) -> Files:
    """Return the files of a log, without its databases."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if ".sqlite" not in file.name}


def write_folder(folder: Path, files: Files) -> None:
    """Replace the files of a folder. The database of ids stays, and may be ahead or behind."""
    for file in folder.iterdir():
        if ".sqlite" not in file.name:
            file.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def wrong_in(path: Path, left: Files, acknowledged: frozenset[str]) -> str:
    """Return the problem of a log that a power cut has left. Empty if it opens and keeps its promises."""
    write_folder(path.parent, left)
    try:
        log = LogFile(path, NoDisk(), segment_bytes=SEGMENT_BYTES)
    except StoreError as e:
        return f"does not open: {e.reason}"
    log.append([(identity_of(AFTER), AFTER.wire)], sync=True)
    log.close()
    if not verified(path).is_intact:
        return f"is not intact: {verified(path).reason}"
    records = [record for record in records_in(path) if isinstance(record, Event)]
    if len({record.id for record in records}) < len(records):
        return "has a record twice"
    for record in records:
        if record.kind == TailSetAside.KIND and not (path.parent / record.body["kept_as"]).is_file():
            return "has lost a torn end"
    lost = acknowledged - {record.id for record in records}
    return f"lost {sorted(lost)}" if lost else ""


class NoDisk(Disk):
    """A disk that does not wait."""

    def sync(self, fd: int) -> None:
        """Return at once."""

    def sync_folder(self, folder: Path) -> None:
        """Return at once."""


AFTER = event(id="after")


def lives(tmp_path: Path, seeds: range, *, without: str = "") -> tuple[int, list[str]]:
    """Return the number of states that were tried, and the problems in them.

    Each seed has three lives, ended by power cuts.
    """
    tried, wrong = 0, []
    for seed in seeds:
        chance, path, trial = (
            Chance(seed),
            tmp_path / f"{seed}/log.jsonl",
            tmp_path / f"{seed}-trial/log.jsonl",
        )
        path.parent.mkdir()
        trial.parent.mkdir()
        promised: frozenset[str] = frozenset()
        for number in range(3):
            lived = life(path, chance, f"{seed}-{number}", promised, without=without)
            for count in range(len(lived.changes) + 1):
                tried += 1
                left = after_power_cut(lived.files, lived.changes[:count], chance)
                found = wrong_in(trial, left, lived.promised(count))
                wrong += [f"seed {seed}, life {number}, change {count}: {found}"] if found else []
            count = chance.between(0, len(lived.changes))
            write_folder(path.parent, after_power_cut(lived.files, lived.changes[:count], chance))
            if wrong:
                break
            promised = lived.promised(count)
    return tried, wrong


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 40), marks=pytest.mark.soak)])
def test_acknowledged_records_survive_power_cut(seeds: range, tmp_path: Path) -> None:
    tried, wrong = lives(tmp_path, seeds)

    assert wrong == []
    assert tried > 60 * len(seeds)


@pytest.mark.parametrize("without", ["log.jsonl", "log.seals.jsonl", "folder", ".zst.tmp"])
def test_power_loss_model_detects_missing_sync(tmp_path: Path, without: str) -> None:
    _, wrong = lives(tmp_path, range(6), without=without)

    assert wrong


@pytest.mark.parametrize("hole", [(0, 4096), (4096, 8192), (-3000, None)])
def test_zeroed_unsynced_commit_is_set_aside(tmp_path: Path, hole: tuple[int, int | None]) -> None:
    path = tmp_path / "log.jsonl"
    synced, lost = [
        [event(id=f"{name}-{n}", body={"text": "x" * 1500}) for n in range(count)]
        for name, count in (("synced", 3), ("lost", 9))
    ]
    log = LogFile(path, Disk())
    log.append([(identity_of(one), one.wire) for one in synced], sync=True)
    safe = log.position.offset
    log.append([(identity_of(one), one.wire) for one in lost], sync=False)
    log.close()
    left = bytearray(path.read_bytes()[safe:])
    left[slice(*hole)] = bytes(len(left[slice(*hole)]))
    path.write_bytes(path.read_bytes()[:safe] + left)
    reread = len([one for one in lost if one.wire[:-1] in left.partition(b"\0")[0]])

    log = LogFile(path, Disk())
    log.close()

    assert [one.id for one in records_in(path)[:-1] if hasattr(one, "id")] == [
        one.id for one in [*synced, *lost[:reread]]
    ]
    noted = records_in(path)[-1]
    assert log.set_aside is not None
    assert left.endswith(log.set_aside.read_bytes())
    assert getattr(noted, "kind", "") == "log.tail_set_aside"
    assert getattr(noted, "body", {})["bytes"] == log.set_aside.stat().st_size
    assert verified(path).is_intact


def test_changed_line_before_torn_tail_raises(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = LogFile(path, NoDisk())
    events = [event(id=f"e-{n}", body={"n": n}) for n in range(3)]
    log.append([(identity_of(one), one.wire) for one in events], sync=True)
    log.close()
    left = path.read_bytes().replace(b'"n":1', b'"n":7') + bytes(100)
    path.write_bytes(left)

    with pytest.raises(StoreError, match="The log was not modified") as e:
        LogFile(path, NoDisk())

    assert e.value.line == 2
    assert path.read_bytes() == left
