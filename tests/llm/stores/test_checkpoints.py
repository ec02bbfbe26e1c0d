"""Checkpoints of a log: when they are written, and what `audit verify` finds with them."""

import asyncio
from contextlib import aclosing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from agentic_trading.clock import SimClock
from agentic_trading.llm import Durability, JsonFileInteractionStore, StoreError
from agentic_trading.llm.store import GENESIS, ChainHead
from agentic_trading.llm.stores.jsonl.checkpoints import CheckpointWriter, read_checkpoints
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.segments import LogFiles, read_seals
from agentic_trading.llm.stores.record_codec import identity_of
from agentic_trading.operate.log_check import KnownEnd, LogCheck, audit_log
from tests.build import event
from tests.llm.stores.jsonl_logs import HastyDisk, change_line


def write(
    path: Path, count: int, *, checkpoint_file: Path, name: str = "e", segment_bytes: int = 1 << 20
) -> None:
    """Write a log with so many records, each synced."""
    file = LogFile(path, HastyDisk(), checkpoint_file=checkpoint_file, segment_bytes=segment_bytes)
    for number in range(count):
        one = event(id=f"{name}-{number}", trace_id="t")
        file.append([(identity_of(one), one.wire)], sync=True)
    file.close()


def hashes(path: Path) -> list[str]:
    """Return the hashes of all lines of a log without sealed segments."""
    return [orjson.loads(line)["hash"] for line in path.read_bytes().splitlines()]


def test_checkpoint_is_written_on_closing(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"

    write(path, 3, checkpoint_file=file)
    write(path, 3, checkpoint_file=file)  # nothing new

    lines = hashes(path)
    (found,) = {(one.log, one.seq, one.head, one.seals) for one in read_checkpoints(file)}
    assert found == (lines[0], 3, lines[2], "0" * 64)


def test_checkpoint_is_written_at_every_seal(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"

    write(path, 4, checkpoint_file=file, segment_bytes=1)

    seals = [seal.hash for seal in read_seals(LogFiles(path).seals).each]
    # At the first record after a seal.
    assert [(one.seq, one.seals) for one in read_checkpoints(file)] == [
        (2, seals[0]),
        (3, seals[1]),
        (4, seals[2]),
    ]


class Watch(SimClock):
    """A simulated clock that also measures simulated time."""

    def monotonic(self) -> float:
        return self.now().timestamp()


def test_checkpoint_is_due_every_minute(tmp_path: Path) -> None:
    file, clock = tmp_path / "checkpoints.jsonl", Watch(START)
    writer = CheckpointWriter(file, clock)
    due = []

    for seq, seconds in enumerate((0, 59, 60, 61, 119, 119, 120), start=1):
        clock.advance_to(START + timedelta(seconds=seconds))
        head = ChainHead(seq, "a" * 64)
        if writer.is_due(head):
            due.append(seconds)
            writer.put("b" * 64, head, GENESIS)
        assert writer.is_due(head, now=True) == (seconds not in due)

    assert due == [60, 120]
    assert [one.time for one in read_checkpoints(file)] == ["2026-01-02T00:01:00Z", "2026-01-02T00:02:00Z"]


START = datetime(2026, 1, 2, tzinfo=UTC)


async def test_relaxed_store_writes_checkpoint_of_synced_lines(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"
    store = JsonFileInteractionStore(path, durability=Durability.RELAXED, checkpoint_file=file)
    async with aclosing(store):
        for _ in range(3):
            await store.record(event())

    assert [one.seq for one in await asyncio.to_thread(read_checkpoints, file)] == [3]


def test_unwritable_checkpoint_does_not_stop_the_log(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "missing" / "checkpoints.jsonl"

    with capture_logs() as logs:
        write(path, 4, checkpoint_file=file, segment_bytes=1)

    assert [entry["event"] for entry in logs] == ["log_checkpoint_not_written"]
    assert len(read_seals(LogFiles(path).seals).each) == 3


def test_damaged_first_segment_does_not_stop_the_log(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"
    write(path, 3, checkpoint_file=tmp_path / "others.jsonl", segment_bytes=1)
    change_line(path, 1, lambda line: line.replace(b"e-0", b"e-X"))

    with capture_logs() as logs:
        write(path, 2, checkpoint_file=file, name="more")

    assert {entry["event"] for entry in logs} == {"log_checkpoint_not_written"}
    assert len(path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize("cut", [b"{", b'{"log":', bytes(50)])
def test_unfinished_checkpoint_is_left_out(tmp_path: Path, cut: bytes) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"
    write(path, 2, checkpoint_file=file)
    file.write_bytes(file.read_bytes() + cut)

    assert [one.seq for one in read_checkpoints(file)] == [2]

    write(path, 2, checkpoint_file=file, name="more")

    assert [one.seq for one in read_checkpoints(file)] == [2, 4]
    assert problems(audited(path, file)) == []


@pytest.mark.parametrize("content", [b"no json\n", b'{"log":"x"}\n'])
def test_file_without_checkpoints_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "checkpoints.jsonl"
    file.write_bytes(content)

    with pytest.raises(StoreError, match=r"checkpoints\.jsonl:1: it is not a checkpoint"):
        read_checkpoints(file)
    with pytest.raises(StoreError, match="cannot be read"):
        read_checkpoints(tmp_path / "missing")


def audited(path: Path, checkpoint_file: Path | None = None, *ends: KnownEnd) -> LogCheck:
    return asyncio.run(audit_log(path, checkpoint_file=checkpoint_file, ends=ends))


def problems(found: LogCheck) -> list[tuple[str, int, str]]:
    return [(one.verdict, one.line, one.reason) for one in found.findings]


def test_log_with_all_checkpoints_is_whole(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"
    write(tmp_path / "other.jsonl", 9, checkpoint_file=file, name="other")
    write(path, 3, checkpoint_file=file, segment_bytes=1)
    write(path, 6, checkpoint_file=file, segment_bytes=1)

    assert problems(audited(path, file)) == []


def test_cut_end_is_found_by_checkpoint(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"
    write(path, 5, checkpoint_file=file)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))

    assert audited(path).findings == ()
    ((verdict, line, reason),) = problems(audited(path, file))

    (made,) = read_checkpoints(file)
    assert (verdict, line) == ("cut off", 3)
    assert reason == f"the log ends here, and had 5 lines by the checkpoint of {made.time}"


def test_log_written_again_is_found_by_checkpoint(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"
    write(path, 5, checkpoint_file=file)
    path.unlink()
    write(path, 5, checkpoint_file=tmp_path / "others.jsonl", name="another")

    ((verdict, line, reason),) = problems(audited(path, file))

    assert (verdict, line) == ("broken", 0)
    assert reason == f"{file} has no checkpoint of it: it was replaced, or the file is of other logs"


def test_end_written_again_is_found_by_checkpoint(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"
    write(path, 5, checkpoint_file=file)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    write(path, 4, checkpoint_file=tmp_path / "others.jsonl", name="another")

    ((verdict, line, reason),) = problems(audited(path, file))

    (made,) = read_checkpoints(file)
    assert (verdict, line) == ("broken", 5)
    assert reason.startswith(f"the line is not the one of the checkpoint of {made.time}")


def test_seals_written_again_are_found_by_checkpoint(tmp_path: Path) -> None:
    path, file = tmp_path / "log.jsonl", tmp_path / "checkpoints.jsonl"
    write(path, 4, checkpoint_file=file, segment_bytes=1)
    last = replace(read_checkpoints(file)[-1], seals="a" * 64)
    file.write_bytes(orjson.dumps(asdict(last)) + b"\n")

    ((verdict, _, reason),) = problems(audited(path, file))

    assert (verdict, reason) == ("broken", f"it lacks the last seal of the checkpoint of {last.time}")


@pytest.mark.parametrize(
    ("line", "digits", "expected"), [(3, 64, []), (2, 16, []), (3, 0, ["broken"]), (9, 64, ["cut off"])]
)
def test_known_head_is_compared_with_its_line(
    tmp_path: Path, line: int, digits: int, expected: list[str]
) -> None:
    path = tmp_path / "log.jsonl"
    write(path, 3, checkpoint_file=tmp_path / "checkpoints.jsonl")
    lines = hashes(path)
    known = lines[min(line, 3) - 1][:digits] or "0" * 64

    found = audited(path, None, KnownEnd(line, known, "--head"))

    assert [one.verdict for one in found.findings] == expected
