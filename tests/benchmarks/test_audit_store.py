"""The benchmark of the log writes real records, compares equal answers, and judges every bound."""

import asyncio
from itertools import islice
from pathlib import Path

import pytest

from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from benchmarks.audit_store import LEFT_OUT, SEALED, Report, Sizes, run
from benchmarks.audit_store_log import Records, check, write_log

SMALL = Sizes(600, 24 << 10, traces=10, rounds=1, appended=64, calls=20)


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_small_run_judges_each_bound_on_equal_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, SMALL, alone=True)

    printed = capsys.readouterr().out
    judged = printed.partition("at most")[2].splitlines()[1:]
    assert f"opening with {SEALED} sealed segments / with 1" in printed
    assert len(judged) == 7
    assert sum(line.endswith(("holds", "MISSED")) for line in judged) == 5
    assert sum(line.endswith(f"not judged: {LEFT_OUT}") for line in judged) == 2


async def test_written_log_is_whole_and_has_the_counted_lines(tmp_path: Path) -> None:
    written = await asyncio.to_thread(write_log, tmp_path / "log", 200, 100_000)

    store = JsonFileInteractionStore(written.path)
    found = await store.verify()
    trace, count = written.traces[0]
    records = await store.records.trace(trace)
    await store.aclose()

    assert found.is_intact
    assert found.lines == written.lines
    assert len(records) == count


def test_log_of_another_size_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 20, segment_bytes=100_000)

    with pytest.raises(ValueError, match="has a log of 20 attempts"):
        write_log(tmp_path / "log", 30, segment_bytes=100_000)


def test_generated_records_are_those_of_the_package() -> None:
    records = [made.raw for made in islice(Records(300), 300)]

    assert len(records) == 300
    for raw in records:
        check(raw)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [(b'":', b'": ', "other bytes"), (b'"step":"1h"', b'"step":"2h"', "checksum")],
)
def test_changed_record_is_refused(old: bytes, new: bytes, reason: str) -> None:
    raw = next(made.raw for made in Records(50) if b'"interaction_id":' in made.raw[:20])

    with pytest.raises(ValueError, match=reason):
        check(raw.replace(old, new))


@pytest.mark.parametrize(
    ("figure", "answers", "verdict"),
    [(1.0, (1, 1), True), (1.2, (1, 1), False), (None, (1, 1), True), (1.0, (1, 2), False)],
)
def test_missed_bound_or_different_answer_fails(
    figure: float | None, answers: tuple[int, int], *, verdict: bool
) -> None:
    report = Report()

    report.judge("a trace", 1.0, figure, "not installed")
    report.check_equal("records", *answers)

    assert report.verdict() is verdict
