"""A writer is killed again and again while it seals and compresses: its log stays whole, and so does an export of it."""

import asyncio
import signal
from pathlib import Path

import pytest

from agentic_trading.audit.export_check import check_export
from agentic_trading.ids import fraction
from agentic_trading.llm.stores.jsonl.checkpoints import read_checkpoints
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.segments import LogFiles, read_seals
from agentic_trading.llm.stores.record_codec import id_of, identity_of
from agentic_trading.operate.log_check import audit_log
from agentic_trading.platform.log_segments import seals_in
from tests.audit.exporting import export
from tests.build import event
from tests.forked import FORKS
from tests.llm.stores.jsonl_logs import HastyDisk, records_in, verified
from tests.llm.stores.log_writers import event_of, started, write_until_killed

KILLS = 20
"""Kills of one log in the soak run: ten logs make 200."""

SEGMENT_BYTES = 12_000
MOST_RECORDS = 150
"""Records of a writer before it is killed, at most."""

WITHIN_S = 30.0


def killed_writer(path: Path, noted: Path, name: str, chance: float, *, compress: bool) -> None:
    """Run a writer, and kill it by chance: in a third of cases while it opens the log, else after so many records."""
    options = {
        "segment_bytes": SEGMENT_BYTES,
        "compress": compress,
        "checkpoint_file": path.with_name("heads"),
    }
    opens = FORKS.Event()
    writer = started(write_until_killed, opens, path, noted, name, options)
    assert opens.wait(WITHIN_S)
    if chance < 1 / 3:
        writer.join(0.06 * chance)
    else:
        until = len(noted_in(noted)) + int(chance * MOST_RECORDS)
        while len(noted_in(noted)) < until:
            writer.join(0.001)
            assert writer.is_alive()
    writer.kill()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL


def noted_in(path: Path) -> list[str]:
    """Return the ids of all acknowledged records."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def check_reading(path: Path, acknowledged: list[str]) -> None:
    """Check the log as the kill has left it, before a process opens it for writing."""
    found = verified(path)
    assert found.is_intact or found.is_unfinished, found.reason
    ids = [id_of(record) for record in records_in(path)]
    assert len({*ids}) == len(ids)
    assert {*ids} >= {*acknowledged}


def check_opening(path: Path, acknowledged: list[str], name: str) -> None:
    """Open the log and write to it. Check that each acknowledged record is known, and that nothing is left over."""
    log = LogFile(path, HastyDisk(), segment_bytes=SEGMENT_BYTES)
    records = [event(id=name), *map(event_of, acknowledged)]
    appended = log.append([(identity_of(one), one.wire) for one in records], sync=True)
    log.close()

    assert (appended.lines, appended.duplicates) == (1, len(acknowledged))
    assert verified(path).is_intact
    files = LogFiles(path)
    seals = read_seals(files.seals)
    assert not seals.problem
    assert [seal.first for seal in seals.each] == files.sealed_firsts()
    assert [file for file in files.unneeded() if file.exists()] == []


def check_ends(path: Path, folder: Path) -> None:
    """Compare an export and the checkpoints with the log."""
    checked = check_export(folder, seals_in(LogFiles(path).seals))
    assert checked.findings == ()
    assert checked.records == len(records_in(path))
    heads = path.with_name("heads")
    is_noted = heads.exists() and bool(read_checkpoints(heads))  # not before the first seal
    assert asyncio.run(audit_log(path, checkpoint_file=heads if is_noted else None)).findings == ()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 3), *(pytest.param(n, KILLS, marks=pytest.mark.soak) for n in range(1, 6))]
)
def test_log_is_whole_after_each_kill(tmp_path: Path, seed: int, kills: int, *, compress: bool) -> None:
    path, noted, folder = tmp_path / "log.jsonl", tmp_path / "noted", tmp_path / "export"

    for number in range(kills):
        name = f"{seed}-{number}"
        killed_writer(path, noted, name, fraction("kill", name, str(compress)), compress=compress)
        acknowledged = noted_in(noted)
        assert len({*acknowledged}) == len(acknowledged)
        if LogFiles(path).exist():
            check_reading(path, acknowledged)
        check_opening(path, acknowledged, f"after-{name}")
        export(path, folder, include_active=True, with_lines=True, with_proofs=True)

    check_ends(path, folder)
    assert len(read_seals(LogFiles(path).seals).each) >= kills
