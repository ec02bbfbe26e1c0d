"""A writer is killed: what it acknowledged is there. Two writers meet: one writes."""

import fcntl
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentic_trading.llm import Event
from agentic_trading.llm.errors import StoreLockedError
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import event
from tests.llm.stores.jsonl_logs import records_in, reopened, verified

ROOT = Path(__file__).parents[3]

WRITER = """
import asyncio, sys
from pathlib import Path
from agentic_trading.llm import JsonFileInteractionStore, StoreError
from tests.build import event

async def caller(store, name):
    for number in range(10_000):
        recorded = event(id=f"{name}-{number}", body={"text": "x" * 500})
        await store.record(recorded)
        print(recorded.id, flush=True)

async def main():
    store = JsonFileInteractionStore(Path(sys.argv[1]))
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(caller(store, f"caller-{number}"))

refused = []
try:
    asyncio.run(main())
except* StoreError as errors:
    refused = errors.exceptions
if refused:
    print(refused[0])
    sys.exit(3)
"""


def start_writer(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def killed_after(writer: subprocess.Popen[str], count: int) -> list[str]:
    """Kill a writer that has acknowledged so many records; return all that it had acknowledged by then."""
    with writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(count)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
    return acknowledged


def ids_in(path: Path) -> set[str]:
    return {record.id for record in records_in(path) if isinstance(record, Event)}


@pytest.mark.parametrize("count", [1, 20, 150])
def test_acknowledged_records_survive_killed_writer(tmp_path: Path, count: int) -> None:
    path = tmp_path / "log.jsonl"

    acknowledged = killed_after(start_writer(path), count)

    assert len(acknowledged) >= count
    assert set(acknowledged) <= ids_in(path)
    reopened(path, event(id="after"))
    assert ids_in(path) >= {*acknowledged, "after"}
    assert verified(path).is_intact


def test_second_process_cannot_write_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = LogFile(path, Disk())

    with start_writer(path) as second:
        output, _ = second.communicate()
    mine = event(id="mine")
    first.append([(identity_of(mine), mine.wire)], sync=True)
    first.close()

    assert second.returncode == 3
    assert "another process writes to it" in output
    assert ids_in(path) == {"mine"}


@pytest.mark.parametrize("length", [1, 100, 700])
def test_log_readable_during_partial_write(tmp_path: Path, length: int) -> None:
    path = tmp_path / "log.jsonl"
    reopened(path, event(id="whole"), event(id="half", body={"text": "x" * 1000}))
    whole, half = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole + half[:length])

    assert ids_in(path) == {"whole"}


def test_writer_opens_after_another_process_has_looked(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    reopened(path, event(id="before"))

    with path.open("rb") as looking:  # as `halt` does, to see whether a process writes to the log
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        reopened(path, event(id="after"))

    assert ids_in(path) == {"before", "after"}


def test_shared_lock_that_stays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    with path.open("wb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        with pytest.raises(StoreLockedError, match="another process writes to it"):
            reopened(path)

    assert ids_in(path) == set()
