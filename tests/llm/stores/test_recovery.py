"""A log is opened again: what a dead writer left half done is set aside, what was changed is refused."""

from contextlib import aclosing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from agentic_trading.canonical import sha256_hex
from agentic_trading.llm import (
    Event,
    JsonFileInteractionStore,
    LLMInteraction,
    LLMResult,
    RecordConflictError,
    StoreError,
)
from agentic_trading.llm.store import GENESIS
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.record_codec import Identity, identity_of
from tests.build import NOW, event, interaction
from tests.llm.stores.jsonl_logs import HastyDisk, kept, lines_in, records_in, reopened, verified, written


@pytest.mark.parametrize("number", [2, 3, 4])
def test_last_line_cut_loses_only_tail(tmp_path: Path, number: int) -> None:
    path = tmp_path / "log.jsonl"
    events = written(path, count=4)[:number]
    *whole, last = lines_in(path)[:number]
    after = event()

    for length in range(len(last)):
        path.write_bytes(b"".join([*whole, last[:length]]))

        set_aside = reopened(path, after).set_aside

        noted = [record for record in records_in(path) if record not in [*events, after]]
        assert records_in(path) == [*events[:-1], *noted, after]
        assert verified(path).is_intact
        assert (set_aside is not None) == bool(length) == (len(noted) == 1)
        if set_aside is not None:
            assert set_aside.name == f"log.jsonl.torn-{number}"
            assert set_aside.read_bytes() == last[:length]
            set_aside.unlink()


async def test_set_aside_tail_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"kind":"half')
    recorded = event()

    with capture_logs([merge_contextvars]) as logs, bound_contextvars(run="r-17"):
        async with aclosing(JsonFileInteractionStore(path)) as store:
            assert store.recovered is None
            await store.record(recorded)
            assert store.recovered == tmp_path / "log.jsonl.torn-1"
            noted, after = await kept(store)

    assert after == recorded
    assert isinstance(noted, Event)
    assert (noted.kind, noted.body) == (
        "log.tail_set_aside",
        {"bytes": 13, "kept_as": "log.jsonl.torn-1", "sha256": sha256_hex(b'{"kind":"half')},
    )
    assert [(entry["event"], entry["log_level"], entry["run"]) for entry in logs] == [
        ("log_tail_set_aside", "warning", "r-17")
    ]
    assert store.recovered.read_bytes() == b'{"kind":"half'


async def test_intact_log_reports_no_recovery(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with aclosing(JsonFileInteractionStore(tmp_path / "log.jsonl")) as store:
            await store.record(event())

    assert (store.recovered, logs) == (None, [])


def test_repeated_torn_tails_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, count=1)
    whole = path.read_bytes()

    for half in (b"one", b"two", b"three"):
        path.write_bytes(whole + half)
        reopened(path)

    assert {torn.name: torn.read_bytes() for torn in tmp_path.glob("*.torn-*")} == {
        "log.jsonl.torn-2": b"one",
        "log.jsonl.torn-2~2": b"two",
        "log.jsonl.torn-2~3": b"three",
    }


@pytest.mark.parametrize("number", [1, 2, 3])
def test_broken_line_refuses_log_without_writing(tmp_path: Path, number: int) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    broken = path.read_bytes().replace(b'"number":%d' % (number - 1), b'"number":9')
    path.write_bytes(broken)

    with pytest.raises(
        StoreError,
        match=rf"log\.jsonl:{number}: its hash is not that of its bytes\. The log was not modified",
    ) as e:
        reopened(path, event())

    assert e.value.line == number
    assert path.read_bytes() == broken
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize("joint", [b"", b" "])
def test_joined_lines_are_not_set_aside(tmp_path: Path, joint: bytes) -> None:
    path = tmp_path / "log.jsonl"
    written(path, count=2)
    first, second = lines_in(path)
    path.write_bytes(first[:-1] + joint + second)

    with pytest.raises(StoreError, match="The log was not modified") as e:
        reopened(path, event())

    assert e.value.line == 1


@pytest.mark.parametrize("behind", [b"", b"\n", b"x\n", b"\n{}\n"])
def test_zero_filled_line_is_set_aside(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "log.jsonl"
    written(path, count=2)
    first, second = lines_in(path)
    torn = second[:-1] + bytes(100) + behind
    path.write_bytes(first + torn)

    set_aside = reopened(path, event()).set_aside

    assert set_aside is not None
    assert set_aside.read_bytes() == torn
    assert verified(path).lines == 3


def test_reader_reports_line_of_zeros(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, count=2)
    path.write_bytes(path.read_bytes() + bytes(8) + b"\n")

    found = verified(path)

    assert (found.lines, found.broken_line) == (2, 3)
    assert (
        "The next process that writes to the log moves it and all that follows to another file"
        in found.reason
    )


@pytest.mark.parametrize("number", [1, 2, 3])
def test_flipped_byte_is_located_by_line(tmp_path: Path, number: int) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    lines = lines_in(path)
    before, after = b"".join(lines[: number - 1]), b"".join(lines[number:])

    for place in range(len(lines[number - 1])):
        changed = bytearray(lines[number - 1])
        changed[place] ^= 1
        path.write_bytes(before + changed + after)

        assert verified(path).broken_line == number


async def test_cut_log_fails_verification_and_close(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    store = JsonFileInteractionStore(path)
    for _ in range(3):
        await store.record(event())
    path.write_bytes(b"".join(lines_in(path)[:2]))

    found = await store.verify()

    assert (found.lines, found.broken_line, found.reason) == (
        2,
        3,
        "it is missing or cut: 3 lines were written",
    )
    with pytest.raises(StoreError, match="another program has cut the file"):
        await store.aclose()


def test_unfinished_line_is_not_intact(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, count=1)
    path.write_bytes(path.read_bytes() + b'{"kind"')

    found = verified(path)

    assert (found.lines, found.broken_line) == (1, 2)
    assert "unfinished" in found.reason


def test_empty_file_is_empty_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.touch()

    found = verified(path)

    assert (found.lines, found.head, found.is_intact) == (0, GENESIS, True)


def test_missing_log_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no log here\. Name the \.jsonl file of an earlier run"):
        verified(tmp_path / "log.jsonl")


def test_duplicate_is_detected_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = written(path)
    new = event()

    file = LogFile(path, HastyDisk())
    appended = file.append([(identity_of(recorded), recorded.wire) for recorded in [*events, new]], sync=True)
    file.close()

    assert (appended.lines, appended.duplicates) == (1, 3)
    assert records_in(path) == [*events, new]


async def test_repeated_attempt_keeps_first_record(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.jsonl"
    first = interaction()
    again = first.envelope.model_copy(update={"created_at": first.envelope.created_at + timedelta(hours=1)})
    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.store(first)

    async with aclosing(JsonFileInteractionStore(path)) as store:
        result = LLMResult(envelope_id=again.envelope_id, raw_output="another answer")
        await store.store(LLMInteraction(envelope=again, result=result))

        assert await kept(store) == [first]


async def test_changed_request_with_known_id_conflicts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = interaction()
    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.store(first)
    asked = first.envelope.model_copy(update={"instructions": "Other."})
    other = first.model_copy(update={"envelope": asked})

    async with aclosing(JsonFileInteractionStore(path)) as store:
        assert await store.has_attempt(asked, 1)
        for _ in range(2):
            with pytest.raises(RecordConflictError, match="request_hash"):
                await store.store(other)

        assert await kept(store) == [first]


async def test_changed_event_with_known_id_conflicts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = event(body={"qty": Decimal("1.0"), "n": 2.0}, as_of=NOW)
    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.record(first)

    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.record(first.model_copy(update={"time": NOW + timedelta(hours=1)}))
        with pytest.raises(RecordConflictError, match="differs in body:"):
            await store.record(first.model_copy(update={"body": {"qty": "999"}}))

        assert await kept(store) == [first]


async def test_unknown_record_is_kept_and_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store._writer.write(Identity("checkpoint:1", b"facts"), b'{"checkpoint":1}')

    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.record(event(trace_id="a"))

        assert (await store.verify()).lines == 2
        with pytest.raises(StoreError, match=r"log\.jsonl:1: it holds neither an interaction nor an event"):
            await kept(store)
        with pytest.raises(StoreError, match=r"log\.jsonl:1: it holds neither an interaction nor an event"):
            await store.get_by_trace_id("a")


@pytest.mark.parametrize("blocked", ["file/log.jsonl", "file/deeper/log.jsonl", "folder"])
async def test_unwritable_path_error_suggests_fix(tmp_path: Path, blocked: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    store = JsonFileInteractionStore(tmp_path / blocked)

    with pytest.raises(
        StoreError, match=r"cannot be opened for writing \(.+\)\. Choose a file in a folder that you may"
    ):
        await store.record(event())

    await store.aclose()


async def test_device_is_refused_as_log() -> None:
    store = JsonFileInteractionStore(Path("/dev/null"))

    with pytest.raises(StoreError, match="not a regular file"):
        await store.record(event())

    await store.aclose()


def test_file_removed_while_opening_raises(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)

    class Thief(Disk):
        """Take the file away between opening and reading it."""

        def sync_folder(self, folder: Path) -> None:
            path.unlink(missing_ok=True)

    with pytest.raises(StoreError, match="there is no log here"):
        LogFile(path, Thief())

    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_created(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "log.jsonl"

    written(path)

    assert len(lines_in(path)) == 3


async def test_reading_creates_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "a"

    async with aclosing(JsonFileInteractionStore(folder / "log.jsonl")) as store:
        assert await store.recent() == []
        assert await kept(store) == []
        await store.flush()

    assert not folder.exists()
