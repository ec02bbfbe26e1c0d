"""What a power cut may leave of a log: every such file opens, and holds every record that was acknowledged."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentic_trading.ids import fraction
from agentic_trading.llm import StoreError
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


@dataclass
class State:
    """A moment: the bytes that are on disk, those of the file, and the ids that were acknowledged."""

    on_disk: bytes
    in_file: bytes
    acknowledged: frozenset[str]


@dataclass
class RecordingDisk(Disk):
    """A disk that lists every state of the file at `path`; with `syncs=False` a sync does nothing."""

    path: Path
    on_disk: bytes
    acknowledged: set[str]
    syncs: bool = True
    states: list[State] = field(default_factory=list)

    def append(self, fd: int, data: bytes) -> None:
        self._see()
        super().append(fd, data)
        self._see()

    def sync(self, fd: int) -> None:
        self._see()
        if self.syncs:
            self.on_disk = self.path.read_bytes()
        self._see()

    def _see(self) -> None:
        self.states.append(State(self.on_disk, self.path.read_bytes(), frozenset(self.acknowledged)))


def after_power_cut(state: State, chance: Chance) -> bytes:
    """Return what a power cut leaves: the synced bytes, and of the others a part, with pages of zeros anywhere in it."""
    safe, new = state.on_disk, state.in_file
    if len(new) < len(safe):  # cut, and not synced
        return safe if chance.below(0.5) else new
    left = bytearray(new[: chance.between(len(safe), len(new))])
    if chance.below(0.3):  # the size reached the disk, the bytes did not
        left += bytes(chance.between(0, 3 * PAGE))
    if chance.below(0.6):
        for at in range(len(safe) // PAGE * PAGE, len(left), PAGE):
            begin, end = max(at, len(safe)), min(at + PAGE, len(left))
            if chance.below(0.3):
                left[begin:end] = bytes(end - begin)
    return bytes(left)


def life(path: Path, chance: Chance, name: str, promised: frozenset[str], *, syncs: bool) -> list[State]:
    """Open the log, write some groups, and return every state on the way."""
    disk = RecordingDisk(path, path.read_bytes(), set(promised), syncs)
    log = LogFile(path, disk)
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
            disk.acknowledged |= written
        disk._see()
    log.close()
    return disk.states


def wrong_in(path: Path, left: bytes, acknowledged: frozenset[str]) -> str:
    """Return what is wrong with a log that a power cut has left; empty if it opens and has lost no promise."""
    path.write_bytes(left)
    try:
        log = LogFile(path, NoDisk())
    except StoreError as e:
        return f"does not open: {e.reason}"
    log.append([(identity_of(AFTER), AFTER.wire)], sync=True)
    log.close()
    if not verified(path).is_intact:
        return "its chain is broken"
    lost = acknowledged - {record.id for record in records_in(path) if hasattr(record, "id")}
    return f"lost {sorted(lost)}" if lost else ""


class NoDisk(Disk):
    """A disk that does not wait."""

    def sync(self, fd: int) -> None:
        """Return at once."""


AFTER = event(id="after")


def lives(tmp_path: Path, seeds: range, *, syncs: bool = True) -> tuple[int, list[str]]:
    """Return how many states were tried, and what is wrong in them; each seed has three lives, ended by power cuts."""
    tried, wrong = 0, []
    for seed in seeds:
        chance, path, trial = Chance(seed), tmp_path / f"{seed}.jsonl", tmp_path / f"{seed}-trial.jsonl"
        path.touch()
        promised: frozenset[str] = frozenset()
        for number in range(3):
            states = life(path, chance, f"{seed}-{number}", promised, syncs=syncs)
            for state in states:
                for _ in range(2):
                    tried += 1
                    found = wrong_in(trial, after_power_cut(state, chance), state.acknowledged)
                    wrong += [f"seed {seed}, life {number}: {found}"] if found else []
            last = states[chance.between(0, len(states) - 1)]
            path.write_bytes(after_power_cut(last, chance))
            if wrong:
                break
            promised = last.acknowledged
    return tried, wrong


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 12), marks=pytest.mark.soak)])
def test_acknowledged_records_survive_power_cut(seeds: range, tmp_path: Path) -> None:
    tried, wrong = lives(tmp_path, seeds)

    assert tried > 60 * len(seeds)
    assert wrong == []


def test_power_loss_model_detects_missing_sync(tmp_path: Path) -> None:
    _, wrong = lives(tmp_path, range(3), syncs=False)

    assert any("lost" in one for one in wrong)


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
