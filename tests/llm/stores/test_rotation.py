"""Rotations of a log that another process reads meanwhile, and seals that are cut at any byte."""

from pathlib import Path

import pytest

from agentic_trading.llm import StoreError
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.reader import LogPosition, LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles, read_seals
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import event
from tests.llm.stores.jsonl_logs import HastyDisk, verified
from tests.llm.stores.test_segments import log_in_segments, opened


@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_last_seal_torn_at_any_byte_is_made_again(tmp_path: Path, step: int) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path)
    files = LogFiles(path)
    sealed, whole, new = files.sealed(7), files.seals.read_bytes(), event()
    content = sealed.read_bytes()

    for size in range(whole.rindex(b"\n", 0, -1) + 1, len(whole), step):
        files.seals.write_bytes(whole[:size])
        sealed.unlink()  # it gets its name after its seal is on disk
        path.write_bytes(content)

        file = LogFile(path, HastyDisk(), segment_bytes=1)
        file.append([(identity_of(new), new.wire)], sync=True)
        file.close()

        assert (files.seals.read_bytes(), sealed.read_bytes()) == (whole, content), size
        assert verified(path).is_intact, size


@pytest.mark.timeout(60)
def test_last_seal_cut_at_any_byte_is_found_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log_in_segments(path)
    files = LogFiles(path)
    whole = files.seals.read_bytes()

    for size in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        files.seals.write_bytes(whole[:size])

        found = verified(path)

        assert found.broken_line == 7, size
        assert f"the seal of {files.sealed(7).name} is missing" in found.reason
        with pytest.raises(StoreError, match="The log was not modified"):
            opened(path)
        assert files.seals.read_bytes() == whole[:size]


def test_reader_of_empty_segment_survives_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    reader = LogReader(path)
    empty: list[LogPosition] = []
    seen: list[list[int]] = []

    class Watched(HastyDisk):
        """Let a reader continue before and after each rename. It has found no line in the active segment."""

        def rename(self, path: Path, name: Path) -> None:
            self.read()
            super().rename(path, name)
            self.read()

        def read(self) -> None:
            for position in empty:
                reader._check_is_last(position)
                seen.append([line.seq for line, _ in reader.walk(position)])

    file = LogFile(path, Watched(), segment_bytes=1)
    events = [event() for _ in range(3)]
    for number, one in enumerate(events):
        if number == 2:
            empty.append(LogPosition(read_seals(LogFiles(path).seals).end).in_next_segment)
        file.append([(identity_of(one), one.wire)], sync=True)
    file.close()

    assert seen == [[2]] * 4


def test_segment_sealed_during_verification_is_intact(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    file = LogFile(path, HastyDisk(), segment_bytes=1_000)
    written: list[LogPosition] = []
    for one in [event() for _ in range(9)]:
        file.append([(identity_of(one), one.wire)], sync=True)
        written.append(file.position)
    file.close()

    found = [LogReader(path).verify(position) for position in written]

    assert len(read_seals(LogFiles(path).seals).each) > 1
    assert [(one.is_intact, one.lines, one.reason) for one in found] == [(True, n, "") for n in range(1, 10)]
