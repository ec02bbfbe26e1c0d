"""Segments of a log: sealing, the chain of seals, ids of sealed segments, compression, and damage."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import aclosing, closing
from datetime import timedelta
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import cramjam
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agentic_trading.canonical import sha256_hex
from agentic_trading.llm import Event, JsonFileInteractionStore, LLMResult, RecordConflictError, StoreError
from agentic_trading.llm.errors import StoreLockedError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.merkle import merkle_root
from agentic_trading.llm.store import GENESIS, Seal
from agentic_trading.llm.stores.jsonl import segments as segments_module
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.frames import FRAME_BYTES, compressed_frames, open_compressed
from agentic_trading.llm.stores.jsonl.reader import LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles, read_seals
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import NOW, event, interaction
from tests.llm.stores.jsonl_logs import HastyDisk, change_line, kept, plain_bytes, records_in, verified

LINES = 12
PER_SEGMENT = 3


def log_in_segments(path: Path, *, compress: bool = False, count: int = LINES) -> list[Event]:
    """Write a log with three records a segment, and return its events."""
    events = [event(id=f"e-{number:03}", trace_id="t", body={"number": number}) for number in range(count)]
    size = 2 * len(events[0].wire) + 400  # reached by the third line
    file = LogFile(path, HastyDisk(), segment_bytes=size, compress=compress)
    for one in events:
        file.append([(identity_of(one), one.wire)], sync=True)
    file.close()
    return events


def opened(path: Path, *, compress: bool = False) -> LogFile:
    """Open a log for writing."""
    return LogFile(path, HastyDisk(), compress=compress)


def test_full_segment_is_sealed_before_next_record(tmp_path: Path) -> None:
    path = tmp_path / "interactions.jsonl"

    events = log_in_segments(path)

    firsts = LogFiles(path).sealed_firsts()
    assert firsts == [1, 4, 7]
    assert (tmp_path / "interactions-00000000000000000004.jsonl").is_file()
    assert records_in(path) == events
    assert verified(path).is_intact
    assert [line.seq for line, _ in LogReader(path).walk()] == [*range(1, LINES + 1)]


def test_seal_describes_its_segment(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path)

    seals = read_seals(LogFiles(path).seals).each

    for number, seal in enumerate(seals):
        plain = LogFiles(path).sealed(seal.first).read_bytes()
        lines = [orjson.loads(line) for line in plain.splitlines()]
        assert (seal.first, seal.last, seal.count) == (3 * number + 1, 3 * number + 3, 3)
        assert (seal.bytes, seal.sha256) == (len(plain), sha256(plain).hexdigest())
        assert (seal.first_time, seal.last_time) == (lines[0]["time"], lines[-1]["time"])
        assert seal.head == lines[-1]["hash"]
        assert seal.root == rfc_6962_root([bytes.fromhex(line["hash"]) for line in lines])
        assert seal.prev == (seals[number - 1].hash if number else GENESIS)
    raw = LogFiles(path).seals.read_bytes().splitlines()[0]
    assert sha256_hex(b"agentic/seal/v1\0", raw[: raw.rindex(b',"hash":')]) == seals[0].hash


def rfc_6962_root(leaves: Sequence[bytes]) -> str:
    """Return the root as section 2.1 of RFC 6962 defines it: split at the largest power of two."""

    def root(part: Sequence[bytes]) -> bytes:
        if len(part) == 1:
            return sha256(b"\0" + part[0]).digest()
        split = 1
        while split * 2 < len(part):
            split *= 2
        return sha256(b"\1" + root(part[:split]) + root(part[split:])).digest()

    return root(leaves).hex()


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=70))
def test_merkle_root_follows_rfc_6962(leaves: list[bytes]) -> None:
    assert merkle_root(b"".join(leaves)) == rfc_6962_root(leaves)


def test_segment_without_lines_has_no_root() -> None:
    with pytest.raises(ValueError, match="a segment without lines has no root"):
        merkle_root(b"")


def test_new_day_seals_segment_of_four_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentic_trading.llm.stores.jsonl.file.DAY_BYTES", 900)
    path = tmp_path / "log.jsonl"
    file = opened(path)
    late = NOW.replace(hour=23, minute=59)

    for minutes in (0, 0, 0, 2, 1, 3):  # one record comes late, with a time of the same day
        one = event(id=f"e-{file.position.head.seq}", time=late + timedelta(minutes=minutes))
        file.append([(identity_of(one), one.wire)], sync=True)
    file.close()

    assert LogFiles(path).sealed_firsts() == [1]
    (seal,) = read_seals(LogFiles(path).seals).each
    assert seal.last == 3
    assert seal.last_time.startswith(f"{late:%Y-%m-%dT23:59}")


def test_same_records_give_same_segments(tmp_path: Path) -> None:
    events = [event(id=f"e-{number}", body={"text": "x" * number}) for number in range(60)]

    for name, at_once in (("a", 1), ("b", 7), ("c", 60)):
        file = LogFile(tmp_path / name / "log.jsonl", HastyDisk(), segment_bytes=2_000)
        for begin in range(0, len(events), at_once):
            file.append([(identity_of(one), one.wire) for one in events[begin : begin + at_once]], sync=False)
        file.close()

    a, b, c = ({file.name: file.read_bytes() for file in (tmp_path / name).glob("*.jsonl")} for name in "abc")
    assert len(a) > 5
    assert a == b == c


@pytest.mark.parametrize("compress", [False, True])
def test_duplicate_in_sealed_segment_is_detected(tmp_path: Path, *, compress: bool) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path, compress=compress)
    new = event()

    file = opened(path, compress=compress)
    appended = file.append([(identity_of(one), one.wire) for one in [*events, new, new]], sync=True)
    file.close()

    assert (appended.lines, appended.duplicates) == (1, LINES + 1)
    assert records_in(path) == [*events, new]


async def test_other_record_with_sealed_id_conflicts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = interaction()
    told = event(body={"n": 1})
    async with aclosing(JsonFileInteractionStore(path, segment_bytes=1)) as store:
        await store.store(first)
        await store.record(told)
        await store.record(event())
        # In the process that has written it, another answer is a conflict, as in the active segment.
        result = LLMResult(envelope_id=first.envelope.envelope_id, raw_output="another answer")
        with pytest.raises(RecordConflictError, match="output_hash"):
            await store.store(LLMInteraction(envelope=first.envelope, result=result))

    async with aclosing(JsonFileInteractionStore(path, segment_bytes=1)) as store:
        assert await store.store(LLMInteraction(envelope=first.envelope, result=result)) == 1
        with pytest.raises(RecordConflictError, match="differs in body"):
            await store.record(told.model_copy(update={"body": {"n": 2}}))
        assert await store.record(told) == 2
        assert await store.has_attempt(first.envelope, 1)
        assert not await store.has_attempt(first.envelope, 2)
        assert len(await kept(store)) == 3


def test_keys_with_equal_hashes_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path)
    new = event(id="new")
    file = opened(path)
    file.close()
    with closing(sqlite3.connect(LogFiles(path).ids)) as db, db:
        # The hash of the new key, at the place of another record.
        ids = file._sealed._ids
        db.execute("INSERT INTO ids SELECT ?, seq, offset FROM ids LIMIT 1", (ids._hash("event:new"),))

    file = opened(path)
    appended = file.append([(identity_of(new), new.wire)], sync=True)
    file.close()

    assert appended.lines == 1
    assert records_in(path) == [*events, new]


def damaged(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def emptied(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM segments WHERE first > 1")
        db.execute("DELETE FROM ids WHERE seq > 3")


def of_another_log(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE segments SET seal = 'of another log'")


def of_another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("harm", [Path.unlink, damaged, emptied, of_another_log, of_another_version])
def test_damaged_file_of_ids_is_made_again(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path)
    harm(LogFiles(path).ids)

    file = opened(path)
    appended = file.append([(identity_of(one), one.wire) for one in events], sync=True)
    file.close()

    assert (appended.lines, appended.duplicates) == (0, LINES)


def test_unstored_keys_stay_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    LogFiles(path).ids.mkdir()  # it cannot be opened
    events = [event(id=f"e-{number}") for number in range(9)]

    with capture_logs() as logs:
        file = LogFile(path, HastyDisk(), segment_bytes=1)
        for one in [*events, *events]:
            file.append([(identity_of(one), one.wire)], sync=True)
        file.close()

    assert records_in(path) == events
    assert {entry["event"] for entry in logs} == {"log_ids_not_stored"}


def test_log_without_segments_is_sealed_when_full(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = [event(id=f"e-{number}") for number in range(9)]
    file = opened(path)
    file.append([(identity_of(one), one.wire) for one in events], sync=True)
    file.close()
    before = path.read_bytes()
    new = event(id="new")

    file = LogFile(path, HastyDisk(), segment_bytes=100)
    file.append([(identity_of(new), new.wire)], sync=True)
    file.close()

    assert LogFiles(path).sealed(1).read_bytes() == before
    assert records_in(path) == [*events, new]


def test_sealed_segment_is_compressed_and_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path, compress=True)

    assert sorted(file.name for file in tmp_path.glob("*.zst")) == [
        f"log-{first:020}.jsonl.zst" for first in LogFiles(path).sealed_firsts()
    ]
    assert [file.name for file in tmp_path.glob("log-*.jsonl")] == []
    assert records_in(path) == events
    assert verified(path).is_intact


@given(st.integers(0, 3 * FRAME_BYTES), st.data())
def test_compressed_bytes_are_read_at_any_offset(
    tmp_path_factory: pytest.TempPathFactory, size: int, data: st.DataObject
) -> None:
    plain = (b"%d," * size % (*range(size),))[:size] if size < 1000 else bytes(range(256)) * (size // 256)
    file = tmp_path_factory.mktemp("frames") / "log.jsonl.zst"
    file.write_bytes(b"".join(compressed_frames(BytesIO(plain))))

    with open_compressed(file) as opened_file:
        for _ in range(4):
            begin, length = data.draw(st.integers(0, len(plain))), data.draw(st.integers(0, 300_000))
            opened_file.seek(begin)
            assert opened_file.read(length) == plain[begin : begin + length]
    # A program that does not know the seek table skips it.
    assert bytes(cramjam.zstd.decompress(file.read_bytes())) == plain


def test_compression_failure_keeps_plain_segment(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path)

    class FullDisk(HastyDisk):
        def append(self, fd: int, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    with capture_logs() as logs:
        LogFile(path, FullDisk(), compress=True).close()

    assert {entry["event"] for entry in logs} == {"log_segment_not_compressed"}
    assert sorted(file.suffix for file in tmp_path.iterdir() if file.suffix in {".zst", ".tmp"}) == []
    assert verified(path).is_intact


def flip(line: bytes) -> bytes:
    return line.replace(b'"number":', b'"numbex":')


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("number", [1, 5, LINES])
def test_changed_line_in_any_segment_is_located(tmp_path: Path, number: int, *, compress: bool) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path, compress=compress)

    file = change_line(path, number, flip)

    found = verified(path)
    assert (found.lines, found.broken_line) == (number - 1, number)
    assert found.broken_id == f"e-{number - 1:03}"
    assert ("its hash is not that of its bytes" in found.reason) or "decompressed" in found.reason
    assert (file.name in found.reason) == (number < LINES)


def test_every_flipped_byte_of_segment_is_located(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path)
    file = LogFiles(path).sealed(4)
    plain = file.read_bytes()
    line_of = [4 + plain[:place].count(b"\n") for place in range(len(plain))]

    for place in range(len(plain)):
        changed = bytearray(plain)
        changed[place] ^= 1
        file.write_bytes(changed)

        found = verified(path)

        # A newline that became another character joins two lines.
        assert found.broken_line == line_of[place], place
        assert file.name in found.reason


def test_flipped_byte_of_compressed_segment_is_located(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path, compress=True)
    file = LogFiles(path).compressed(4)
    packed, plain = file.read_bytes(), plain_bytes(file)

    for place in range(len(packed)):
        changed = bytearray(packed)
        changed[place] ^= 1
        file.write_bytes(changed)

        # Some bits of a frame mean nothing: then the content is the same.
        problem = verified(path).reason
        assert file.name in problem if problem else plain_bytes(file) == plain, place


def remove(path: Path) -> None:
    LogFiles(path).sealed(4).unlink()


def cut(path: Path) -> None:
    file = LogFiles(path).sealed(4)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))


def cut_within_line(path: Path) -> None:
    file = LogFiles(path).sealed(4)
    file.write_bytes(file.read_bytes()[:-10])


def empty(path: Path) -> None:
    LogFiles(path).sealed(4).write_bytes(b"")


def exchange(path: Path) -> None:
    first, second = LogFiles(path).sealed(4), LogFiles(path).sealed(7)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def remove_last_with_active(path: Path) -> None:
    LogFiles(path).sealed(7).unlink()
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [remove, cut, cut_within_line, empty, exchange, remove_last_with_active])
def test_damaged_segment_is_located_and_refused(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path)
    harm(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    found = verified(path)

    assert not found.is_intact
    assert 4 <= found.broken_line <= 7
    if harm in {remove, remove_last_with_active}:
        with pytest.raises(StoreError, match=r"is missing.*The log was not modified"):
            opened(path)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def wrong_seal(path: Path, change: Callable[[bytes], bytes]) -> None:
    file = LogFiles(path).seals
    file.write_bytes(change(file.read_bytes()))


SEAL_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "changed": lambda raw: raw.replace(b'"count":3', b'"count":4', 1),
    "removed": lambda raw: b"".join(raw.splitlines(keepends=True)[1:]),
    "exchanged": lambda raw: b"".join(reversed(raw.splitlines(keepends=True))),
    "missing": lambda raw: b"",
}


@pytest.mark.parametrize("change", SEAL_CHANGES.values(), ids=SEAL_CHANGES)
def test_changed_seals_are_found_and_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path)
    wrong_seal(path, change)
    before = LogFiles(path).seals.read_bytes()

    found = verified(path)

    assert found.broken_line == 1
    assert f"the seal of {LogFiles(path).sealed(1).name} is missing" in found.reason
    with pytest.raises(StoreError, match="The log was not modified"):
        opened(path)
    assert LogFiles(path).seals.read_bytes() == before
    assert records_in(path) == events  # reading needs no seals


def test_seal_of_other_content_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path)
    seals = read_seals(LogFiles(path).seals).each
    lines, prev = [], GENESIS
    for seal in seals:
        sealed, line = segments_module.chained_seal(
            Seal(**{name: getattr(seal, name) for name in SEAL_NAMES} | {"root": "0" * 64}), prev
        )
        lines.append(line)
        prev = sealed.hash
    LogFiles(path).seals.write_bytes(b"".join(lines))

    found = verified(path)

    assert (found.broken_line, found.reason) == (
        1,
        f"{LogFiles(path).sealed(1).name} is not as it was sealed",
    )


SEAL_NAMES = ("first", "last", "count", "bytes", "first_time", "last_time", "sha256", "root", "head")


def test_seal_of_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path)
    prev = read_seals(LogFiles(path).seals).head
    body = b'{"drops":1,"prev":"%b"' % prev.encode()
    line = b'%b,"hash":"%b"}\n' % (body, sha256_hex(b"agentic/seal/v1\0", body).encode())
    with LogFiles(path).seals.open("ab") as file:
        file.write(line)

    with pytest.raises(StoreError, match=r"line 4 of log\.seals\.jsonl: .* A newer release may read it"):
        opened(path)


@pytest.mark.parametrize("torn", [b"", b'{"first":10', bytes(50), bytes(50) + b"\n"])
def test_torn_seal_is_made_again(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path)
    whole = LogFiles(path).seals.read_bytes()
    LogFiles(path).seals.write_bytes(whole + torn)

    assert verified(path).is_intact
    opened(path).close()

    assert LogFiles(path).seals.read_bytes() == whole
    assert records_in(path) == events


def test_interrupted_rotation_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path)
    sealed = LogFiles(path).sealed(7)
    path.unlink()
    sealed.rename(path)  # as after a crash between seal and rename

    assert [line.seq for line, _ in LogReader(path).walk()] == [*range(1, 10)]
    opened(path).close()

    assert sealed.is_file()
    assert (path.read_bytes(), records_in(path)) == (b"", events[:9])


def test_missing_active_segment_is_created(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path)
    path.unlink()  # as after a crash between the two names of a rotation
    new = event()

    assert records_in(path) == events[:9]
    assert verified(path).is_intact
    file = opened(path)
    file.append([(identity_of(new), new.wire)], sync=True)
    file.close()

    assert records_in(path) == [*events[:9], new]


def test_leftovers_of_crash_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = log_in_segments(path)
    leftovers = (
        "log-00000000000000000001.jsonl.zst",
        "log-00000000000000000004.jsonl.zst.tmp",
        "log.jsonl.next",
    )
    for name in leftovers:
        (tmp_path / name).write_bytes(b"half of it")
    others = ("log-b.jsonl", "log-b-00000000000000000004.jsonl.zst.tmp", "log-4.jsonl.zst.tmp")
    for name in others:
        (tmp_path / name).write_bytes(b"of another log")

    opened(path).close()

    assert [name for name in leftovers if (tmp_path / name).exists()] == []
    assert [name for name in others if (tmp_path / name).is_file()] == [*others]
    assert records_in(path) == events


def test_second_writer_is_refused_after_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    file = LogFile(path, HastyDisk(), segment_bytes=1)
    for one in (event(), event(), event()):
        file.append([(identity_of(one), one.wire)], sync=True)

    with pytest.raises(StoreError, match="another process writes to it"):
        opened(path)
    file.close()


def test_writer_that_opens_during_rotation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    refused: list[str] = []

    class SomeoneElse(HastyDisk):
        """Let another process open the log before and after each of the two renames."""

        def rename(self, path: Path, name: Path) -> None:
            self.open_log()
            super().rename(path, name)
            self.open_log()

        def open_log(self) -> None:
            with pytest.raises(StoreLockedError) as e:
                opened(path)
            refused.append(str(e.value))

    file = LogFile(path, SomeoneElse(), segment_bytes=1)
    events = [event() for _ in range(3)]
    for one in events:
        file.append([(identity_of(one), one.wire)], sync=True)
    file.close()

    assert len(refused) == 8
    assert records_in(path) == events


def test_lines_are_on_disk_before_their_seal(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    steps: list[str] = []

    class Noted(Disk):
        def sync(self, fd: int) -> None:
            steps.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
            super().sync(fd)

        def sync_folder(self, folder: Path) -> None:
            steps.append("sync folder")
            super().sync_folder(folder)

        def rename(self, path: Path, name: Path) -> None:
            steps.append("rename")
            super().rename(path, name)

    file = LogFile(path, Noted(), segment_bytes=1)
    one, two = event(), event()
    file.append([(identity_of(one), one.wire)], sync=False)
    steps.clear()
    file.append([(identity_of(two), two.wire)], sync=True)
    file.close()

    sealed = ["sync log.jsonl", "sync log.seals.jsonl", "sync folder", "rename", "rename", "sync folder"]
    assert steps == [*sealed, "sync log.jsonl"]


async def test_follower_reads_across_rotations(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    given = [event(id=f"e-{number}") for number in range(300)]
    store = JsonFileInteractionStore(path, segment_bytes=5_000, compress=True)
    followed: list[int] = []

    async def follow() -> None:
        async for lines in store.follow():
            followed.extend(line.seq for line in lines)

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        for begin in range(0, len(given), 20):
            async with asyncio.TaskGroup() as together:
                for one in given[begin : begin + 20]:
                    together.create_task(store.record(one))
        await store.aclose()

    assert followed == [*range(1, len(given) + 1)]
    assert len((await asyncio.to_thread(read_seals, LogFiles(path).seals)).each) > 10
