"""Four writers, a follower and an asker, each in a process of its own, while segments are sealed and compressed.

A log has one writer at a time, so the four writers have logs of their own in one folder, as the workers of a host
have. Each writer closes its log and opens it again on the way.
"""

from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from agentic_trading.llm.stores.jsonl.reader import LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles, read_seals
from agentic_trading.llm.stores.record_codec import id_of
from tests.forked import FORKS
from tests.llm.stores.jsonl_logs import records_in, verified
from tests.llm.stores.log_writers import TRACE, ask_logs, event_of, follow_logs, started, write_in_lives

NAMES = ("interactions", "interactions-2", "w", "w.b")
"""Names of which one begins with another one: the files of one log are not those of the other one."""

LIVES = 3
WITHIN_S = 60.0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [100, pytest.param(1_500, marks=pytest.mark.soak)])
def test_readers_see_each_line_once_in_order(tmp_path: Path, count: int) -> None:
    logs = [tmp_path / "logs" / f"{name}.jsonl" for name in NAMES]
    followed, answers = ({log: tmp_path / f"{log.stem}.{kind}" for log in logs} for kind in ("lines", "ids"))
    ids = [f"n-{life}-{number}" for life in range(LIVES) for number in range(count)]
    in_trace = [record_id for record_id in ids if event_of(record_id).trace_id == TRACE]

    begins, seen = [FORKS.Event(), FORKS.Event()], FORKS.Event()
    readers = [
        started(follow_logs, begins[0], followed, len(ids)),
        started(ask_logs, begins[1], seen, answers, len(in_trace)),
    ]
    assert [each.wait(WITHIN_S) for each in begins] == [True, True]
    writers = [
        started(
            write_in_lives, seen, log, LIVES, count, {"segment_bytes": 5_000, "compress": number % 2 == 1}
        )
        for number, log in enumerate(logs)
    ]
    for process in [*writers, *readers]:
        process.join()

    assert [process.exitcode for process in [*writers, *readers]] == [0] * 6
    for log in logs:
        records = [id_of(record) for record in records_in(log)]
        assert sorted(records) == sorted(ids)
        assert verified(log).is_intact
        assert len(read_seals(LogFiles(log).seals).each) > 10
        lines = [line.line for line, _ in LogReader(log).walk()]
        assert followed[log].read_bytes().splitlines() == lines
        trace = [record_id for record_id in records if event_of(record_id).trace_id == TRACE]
        given = [orjson.loads(line) for line in answers[log].read_bytes().splitlines()]
        assert [answer for answer in given if answer != trace[: len(answer)]] == []
        assert all(len(before) <= len(after) for before, after in pairwise(given))
        assert len({len(answer) for answer in given}) > 1  # it asked while the log grew
