"""The sealed command: it runs once or more for each sealed segment, in order, and nothing waits for it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import orjson
import pytest
from structlog.testing import capture_logs

from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.sealed_command import SealedCommand
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.segments import LogFiles, read_seals
from agentic_trading.llm.stores.jsonl.shipping import SegmentShipper
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import event
from tests.llm.stores.jsonl_logs import HastyDisk, verified

ROOT = Path(__file__).parents[3]

PROGRAM = """
import os, signal, sys
way, runs, path, log = sys.argv[1:]
with open(runs, "a") as file:
    print(os.getpid(), os.path.basename(path), os.path.isfile(path), log, file=file, flush=True)
count = len(open(runs).readlines()) if os.path.isfile(runs) else 0
if way == "fails twice" and count <= 2:
    sys.exit(f"no connection, token is s3cr3t-t0ken-77 {'x' * 9_000} attempt {count}")
if way == "stays" or way == "stays for ever":
    if way == "stays for ever":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(runs + ".started", "w").write("started")  # a FIFO
    open(runs + ".end").read()  # a FIFO
"""


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry soon, and close without a limit of time: most tests wait for all commands by closing."""
    monkeypatch.setattr("agentic_trading.llm.stores.jsonl.shipping.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("agentic_trading.llm.stores.jsonl.shipping.CLOSES_WITHIN_S", 100.0)


@contextmanager
def fifo(path: Path) -> Iterator[IO[str]]:
    """Create a FIFO, and yield it for reading: it does not end when a writer closes it."""
    os.mkfifo(path)
    with os.fdopen(os.open(path, os.O_RDWR), encoding="utf-8") as file:
        yield file


@dataclass(frozen=True)
class Run:
    """One run of the command."""

    pid: int
    name: str
    was_there: bool
    log: str


@dataclass(frozen=True)
class Shipments:
    """A command whose runs are noted in a file, and that behaves in a certain way."""

    folder: Path
    way: str = "works"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def words(self) -> tuple[str, ...]:
        program = self.folder / "program.py"
        program.write_text(PROGRAM, encoding="utf-8")
        return (sys.executable, "-IS", str(program), self.way, str(self.runs), "{path}", "{log}")

    @property
    def command(self) -> SealedCommand:
        return SealedCommand(self.words, Redaction("s3cr3t-t0ken-77"))

    def each(self) -> list[Run]:
        if not self.runs.exists():
            return []
        rows = [line.rsplit(" ", 2) for line in self.runs.read_text(encoding="utf-8").splitlines()]
        return [
            Run(int(head.split(" ")[0]), head.split(" ", 1)[1], was_there == "True", log)
            for head, was_there, log in rows
        ]

    def names(self) -> list[str]:
        return [run.name for run in self.each()]

    @contextmanager
    def staying(self) -> Iterator[IO[str]]:
        """Yield a file with a line for each run that has started and stays until `let_go`."""
        os.mkfifo(f"{self.runs}.end")
        with fifo(Path(f"{self.runs}.started")) as started:
            yield started

    def let_go(self) -> None:
        """End the run that stays."""
        Path(f"{self.runs}.end").write_text("end", encoding="utf-8")


def write(
    path: Path, numbers: Sequence[int], command: SealedCommand | None, *, compress: bool = False
) -> None:
    """Write records, each in a segment of its own, and close the log."""
    with closing(
        LogFile(path, HastyDisk(), segment_bytes=1, sealed_command=command, compress=compress)
    ) as file:
        append(file, numbers)


def append(file: LogFile, numbers: Sequence[int]) -> None:
    for number in numbers:
        one = event(id=f"e-{number}", body={"text": "x" * 300})
        file.append([(identity_of(one), one.wire)], sync=True)


def segment(first: int, suffix: str = "") -> str:
    return f"log-{first:020}.jsonl{suffix}"


def with_seals(*names: str) -> list[str]:
    return [each for name in names for each in (name, "log.seals.jsonl")]


def state(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(LogFiles(path).shipped.read_bytes())
    return found


def test_sealed_segments_are_shipped_in_order(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)

    write(path, range(5), shipments.command)

    first = read_line(LogFiles(path).sealed(1).read_bytes()).hash
    assert shipments.names() == with_seals(segment(1), segment(2), segment(3), segment(4))
    assert all(run.was_there for run in shipments.each())
    assert {run.log for run in shipments.each()} == {first}
    assert state(path) == {"log": first, "last": 4, "seal": read_seals(LogFiles(path).seals).head}
    assert verified(path).is_intact


def test_restart_continues_after_last_shipped_segment(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(3), shipments.command)
    write(path, range(3, 6), None)
    before = shipments.names()

    write(path, range(6, 8), shipments.command)

    assert before == with_seals(segment(1), segment(2))
    assert shipments.names()[len(before) :] == with_seals(*(segment(first) for first in range(3, 8)))


def test_command_set_later_ships_all_segments(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(4), None)

    write(path, (), shipments.command)

    assert shipments.names() == with_seals(segment(1), segment(2), segment(3))


def test_failed_command_is_retried_until_it_succeeds(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path, "fails twice")
    program = tmp_path / "then.sh"
    program.write_text('"$@" && case "$*" in *seals*) echo "$2" > "$0.done";; esac', encoding="utf-8")
    command = SealedCommand(("sh", str(program), *shipments.words), Redaction("s3cr3t-t0ken-77"))

    with (
        capture_logs() as logged,
        fifo(Path(f"{program}.done")) as ended,
        closing(LogFile(path, HastyDisk(), segment_bytes=1, sealed_command=command)) as file,
    ):
        append(file, range(3))
        ended.readline()  # of the first segment
        ended.readline()

    assert shipments.names() == [segment(1), segment(1), *with_seals(segment(1), segment(2))]
    assert [each["event"] for each in logged] == ["log_segment_not_shipped"] * 2
    assert [(each["exit_code"], each["first"]) for each in logged] == [(1, 1), (1, 1)]
    assert logged[0]["retry_in_s"] * 2 == logged[1]["retry_in_s"]
    assert [each["stderr"][-9:] for each in logged] == ["attempt 1", "attempt 2"]
    assert all(len(each["stderr"]) <= 1000 for each in logged)


def test_output_in_warning_has_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    script = "import sys; sys.exit('no bucket, token s3cr3t-t0ken-77 refused')"
    command = SealedCommand((sys.executable, "-ISc", script), Redaction("s3cr3t-t0ken-77"))

    with capture_logs() as logged:
        write(path, range(2), command)

    assert logged[0]["stderr"] == "no bucket, token *** refused"
    assert (logged[0]["path"], logged[0]["program"]) == (str(LogFiles(path).sealed(1)), sys.executable)


def test_missing_program_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    with capture_logs() as logged:
        write(path, range(2), SealedCommand.parse("/no/such/program {path}"))

    assert "No such file or directory: '/no/such/program'" in logged[0]["error"]
    assert not LogFiles(path).shipped.exists()
    assert verified(path).is_intact


def test_segment_is_shipped_after_compression(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)

    write(path, range(4), shipments.command, compress=True)

    assert shipments.names() == with_seals(*(segment(first, ".zst") for first in (1, 2, 3)))
    assert all(run.was_there for run in shipments.each())


def test_shipped_segment_is_not_shipped_again_when_compressed(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(3), shipments.command)

    for _ in range(3):  # each process compresses at least one
        write(path, (), shipments.command, compress=True)

    assert shipments.names() == with_seals(segment(1), segment(2))
    assert [LogFiles(path).find_sealed(first) for first in (1, 2)] == [
        LogFiles(path).compressed(1),
        LogFiles(path).compressed(2),
    ]


class FullDisk(HastyDisk):
    """A disk without space for the compressed copy of the first segment."""

    def open(self, path: Path, *, must_be_new: bool = False) -> int:
        if path.name == f"{segment(1)}.zst.tmp":
            raise OSError(28, "No space left on device")
        return super().open(path, must_be_new=must_be_new)


def test_segment_that_cannot_be_compressed_is_shipped_plain(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)

    with closing(
        LogFile(path, FullDisk(), segment_bytes=1, sealed_command=shipments.command, compress=True)
    ) as file:
        append(file, range(4))

    assert shipments.names() == with_seals(segment(1), segment(2, ".zst"), segment(3, ".zst"))


def test_old_plain_segment_is_compressed_and_shipped_in_order(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    with closing(LogFile(path, FullDisk(), segment_bytes=1, compress=True)) as file:
        append(file, range(4))
    with closing(LogFile(path, FullDisk(), compress=True, sealed_command=shipments.command)) as file:
        for _ in range(4):  # all three were looked at, which closing does not wait for
            file._sealed._worker.submit(lambda: None).result()

    assert shipments.names() == with_seals(segment(1), segment(2, ".zst"), segment(3, ".zst"))
    assert LogFiles(path).find_sealed(1) == LogFiles(path).sealed(1)


@pytest.mark.parametrize("name", ["two words", "it's", 'a "quoted" name', "$(touch x); {log} %s", "ünï[c]*"])
def test_hostile_names_reach_the_program(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    shipments = Shipments(tmp_path)

    write(folder / f"{name}.jsonl", range(2), shipments.command)

    assert shipments.names() == [f"{name}-{1:020}.jsonl", f"{name}.seals.jsonl"]
    assert all(run.was_there for run in shipments.each())
    assert not list(ROOT.glob("x"))


def test_records_are_acknowledged_while_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentic_trading.llm.stores.jsonl.shipping.CLOSES_WITHIN_S", 0.0)
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path, "stays")

    async def recorded(store: JsonFileInteractionStore) -> tuple[int | None, int | None, int]:
        before = store.unshipped()
        async with aclosing(store):
            for number in range(20):
                await store.record(event(id=f"e-{number}"))
            return before, store.unshipped(), (await store.head())[0]

    with shipments.staying():
        store = JsonFileInteractionStore(path, segment_bytes=1, sealed_command=shipments.command)
        found = asyncio.run(recorded(store))

    assert found == (None, 19, 20)
    assert verified(path).is_intact
    assert len(shipments.each()) <= 1
    assert not LogFiles(path).shipped.exists()


async def test_log_without_command_has_no_count_of_unshipped_segments(tmp_path: Path) -> None:
    async with aclosing(JsonFileInteractionStore(tmp_path / "log.jsonl", segment_bytes=1)) as store:
        await store.open()

        assert store.unshipped() is None


@pytest.mark.parametrize("way", ["stays", "stays for ever"])
def test_closing_stops_command_that_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("agentic_trading.llm.stores.jsonl.shipping.CLOSES_WITHIN_S", 0.0)
    monkeypatch.setattr("agentic_trading.llm.stores.jsonl.shipping.STOPS_WITHIN_S", 10.0)
    if way == "stays for ever":
        monkeypatch.setattr("agentic_trading.llm.stores.jsonl.shipping.STOPS_WITHIN_S", 0.2)
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path, way)

    with shipments.staying() as started, capture_logs() as logged:
        file = LogFile(path, HastyDisk(), segment_bytes=1, sealed_command=shipments.command)
        append(file, range(3))
        started.read(len("started"))
        file.close()
        shipper = file._sealed._shipper
        assert shipper is not None
        shipper._thread.join()  # after SIGKILL, closing waits for a limited time only

    (run,) = shipments.each()
    with pytest.raises(ProcessLookupError):
        os.kill(run.pid, 0)
    assert "stopped, because the log was closed" in logged[0]["error"]
    assert not LogFiles(path).shipped.exists()


def test_stopped_shipper_starts_no_other_command(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(2), None)
    files = LogFiles(path)

    with capture_logs() as logged:
        shipper = SegmentShipper(files, shipments.command, read_seals(files.seals).each)
        shipper._is_stopped = True  # closing has sent its signals, and the command has just ended
        shipper.ready(1)
        shipper.close()

    assert "stopped" in logged[0]["error"]
    assert (shipper.unshipped, shipments.each()) == (1, [])


class LateCommand(SealedCommand):
    """A command that is started at the moment at which closing stops commands."""

    shipper: ClassVar[SegmentShipper]

    def for_file(self, path: Path, log: str) -> list[str]:
        self.shipper._is_stopped = True
        return super().for_file(path, log)


def test_command_that_starts_while_log_closes_is_stopped(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path, "stays")
    write(path, range(2), None)
    files = LogFiles(path)

    with shipments.staying(), capture_logs() as logged:
        command = LateCommand(shipments.words)
        LateCommand.shipper = shipper = SegmentShipper(files, command, read_seals(files.seals).each)
        shipper.ready(1)
        shipper.close()

    assert "stopped" in logged[0]["error"]
    assert shipper.unshipped == 1


def test_signal_after_end_of_command_is_harmless(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(2), None)
    files = LogFiles(path)
    shipper = SegmentShipper(files, shipments.command, read_seals(files.seals).each)

    shipper._signal(signal.SIGKILL)  # before the first command
    shipper.ready(1)
    shipper.close()
    shipper._signal(signal.SIGKILL)

    assert shipper.unshipped == 0


def test_damaged_state_ships_all_segments_again(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(3), shipments.command)

    for content in (b"", b"[]", b"{}", b'{"seal":"of another log"}', b"\xff"):
        LogFiles(path).shipped.write_bytes(content)
        shipments.runs.unlink()
        with capture_logs() as logged:
            write(path, (), shipments.command)
        assert [each["event"] for each in logged] == ["log_shipped_unknown"]
        assert shipments.names() == with_seals(segment(1), segment(2))


def test_segment_is_shipped_again_after_crash_before_its_state(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(3), shipments.command)
    after_first = read_seals(LogFiles(path).seals).each[0].hash
    LogFiles(path).shipped.write_bytes(
        orjson.dumps({"seal": after_first})
    )  # as a crash after the second would
    shipments.runs.unlink()

    write(path, (), shipments.command)

    assert shipments.names() == with_seals(segment(2))


def test_unwritable_state_does_not_stop_shipping(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    Path(f"{LogFiles(path).shipped}.new").mkdir()

    with capture_logs() as logged:
        write(path, range(3), shipments.command)

    assert shipments.names() == with_seals(segment(1), segment(2))
    assert [each["event"] for each in logged] == ["log_shipped_not_stored"] * 2


def test_missing_segment_is_reported(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(2), None)
    files = LogFiles(path)
    seals = read_seals(files.seals).each
    files.sealed(1).unlink()

    with capture_logs() as logged:
        shipper = SegmentShipper(files, shipments.command, seals)
        shipper.ready(1)
        shipper.close()

    assert logged[0]["error"] == "the segment is missing. Restore it"
    assert shipments.each() == []


class OnceUnreadable(LogFiles):
    """The files of a log in a folder that cannot be read at first."""

    failures: ClassVar[list[OSError]] = []

    def find_sealed(self, first: int) -> Path | None:
        if self.failures:
            raise self.failures.pop()
        return super().find_sealed(first)


def test_segment_in_unreadable_folder_is_shipped_later(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(2), None)
    files = OnceUnreadable(path)
    files.failures.append(PermissionError(13, "Permission denied"))
    note = tmp_path / "shipped"
    command = SealedCommand(("sh", "-c", 'basename "$1" > "$0"', str(note), "{path}"))

    with capture_logs() as logged, fifo(note) as shipped:
        shipper = SegmentShipper(files, command, read_seals(files.seals).each)
        shipper.ready(1)
        names = [shipped.readline().strip() for _ in range(2)]
        shipper.close()

    assert names == with_seals(segment(1))
    assert [(each["event"], each["error"]) for each in logged] == [
        ("log_segment_not_shipped", "[Errno 13] Permission denied")
    ]


def test_damaged_first_line_is_reported(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path)
    write(path, range(2), None)
    LogFiles(path).sealed(1).write_bytes(b"{}\n")

    with capture_logs() as logged:
        write(path, (), shipments.command)

    assert logged[-1]["event"] == "log_segment_not_shipped"
    assert shipments.each() == []


WRITER = """
import sys
from pathlib import Path
from agentic_trading.llm.sealed_command import SealedCommand
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import event

file = LogFile(Path(sys.argv[1]), Disk(), segment_bytes=1, sealed_command=SealedCommand(tuple(sys.argv[2:])))
for number in range(3):
    one = event(id=f"e-{number}", body={"text": "x" * 300})
    file.append([(identity_of(one), one.wire)], sync=True)
print("written", flush=True)
sys.stdin.read()
"""


def start_writer(path: Path, shipments: Shipments) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), *shipments.words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_writer_killed_during_command_ships_segment_again(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path, "stays")

    with shipments.staying() as started:
        with start_writer(path, shipments) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "written\n"
            started.read(len("started"))
            writer.send_signal(signal.SIGKILL)
        shipments.let_go()  # the command survives the writer
    before = shipments.names()
    write(path, range(3, 5), Shipments(tmp_path).command)

    assert before == [segment(1)]
    assert shipments.names()[1:] == with_seals(*(segment(first) for first in (1, 2, 3, 4)))
    assert verified(path).is_intact


def test_process_that_forgets_its_log_ends_during_command(tmp_path: Path) -> None:
    path, shipments = tmp_path / "log.jsonl", Shipments(tmp_path, "stays")

    with shipments.staying() as started:
        with start_writer(path, shipments) as writer:
            started.read(len("started"))
            writer.communicate()  # it ends without closing its log
        shipments.let_go()

    assert writer.returncode == 0
    assert verified(path).is_intact
