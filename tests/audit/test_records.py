"""Records are selected, counted and read from one log or several, with blocking calls."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.audit import records as reading
from agentic_trading.audit.records import (
    FrameLibraryError,
    LoggedFact,
    QueryError,
    RecordReader,
    open_records,
)
from agentic_trading.audit.trace import AmbiguousIdError, UnknownRecordError
from agentic_trading.clock import SimClock
from agentic_trading.llm import Event, LLMInteraction
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.facts import ANY, Fact, RecordQuery
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import Record
from tests.audit.exporting import lines_of
from tests.audit.reading import call, desk, step, write
from tests.build import NOW

NEXT_DAY = SimClock(NOW + timedelta(days=1, hours=1))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log with the records of a desk, and a segment for each of them."""
    return write(tmp_path / "runs/first/interactions.jsonl", *desk(), segment_bytes=1)


@pytest.fixture
def reader(log: Path) -> Iterator[RecordReader]:
    with open_records(log, clock=NEXT_DAY) as opened:
        yield opened


def seqs(facts: Iterator[LoggedFact]) -> list[int]:
    return [fact.seq for fact in facts]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"kind": "interaction"}, [2, 5, 6]),
        ({"kind": ["bar.closed", "order.filled"]}, [1, 4]),
        ({"agent": "analyst"}, [2, 6]),
        ({"agent": ANY}, [2, 5, 6]),
        ({"workflow": "execution"}, [5]),
        ({"provider": "openai"}, [5]),
        ({"model": "m-2"}, [5, 6]),
        ({"model": "m-2", "agent": "analyst"}, [6]),
        ({"subject": ("BTCUSDT", "ETHUSDT")}, [1, 2, 3, 4]),
        ({"verdict": "long"}, [3]),
        ({"failure": "budget_exhausted"}, [5]),
        ({"failure": ANY}, [5]),
        ({"tenant": "fund"}, [1, 2, 3, 4, 5, 6]),
        ({"tenant": "nobody"}, []),
        ({"since": "today"}, [6]),
        ({"until": "today"}, [1, 2, 3, 4, 5]),
        ({"since": "2026-01-02T00:02Z", "until": NOW + timedelta(minutes=4)}, [3, 4]),
        ({"since": datetime(2026, 1, 2, 0, 4)}, [5, 6]),  # noqa: DTZ001 - without a zone on purpose
        ({"since": None, "until": None, "kind": ()}, [1, 2, 3, 4, 5, 6]),
        ({"trace_id": "chain-of-fund"}, [1, 2, 3, 4]),
        ({"trace_id": "chain-of"}, [1, 2, 3, 4]),
        ({"after": 4}, [5, 6]),
        ({"where": "latency_ms > 200 AND attempt > 0"}, [6]),
    ],
    ids=str,
)
def test_filters_select_records(filters: dict[str, Any], found: list[int], reader: RecordReader) -> None:
    assert seqs(reader.select(**filters)) == found
    assert seqs(reader.select(reader.query(**filters), newest_first=True)) == found[::-1]
    assert seqs(reader.select(newest_first=True, limit=2, **filters)) == found[::-1][:2]
    assert reader.count(**filters) == len(found)
    assert sum(row.records for row in reader.sums("agent", **filters)) == len(found)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"colour": "red"}, r"'colour' is not a filter\. Allowed: kind, tenant, agent"),
        ({"since": "soon"}, r"since: 'soon' is not a time\. Allowed: 2026-06-20"),
        ({"since": "today", "until": "yesterday"}, "is not after since"),
        ({"query": RecordQuery(), "agent": "analyst"}, "a query and filters are given"),
    ],
    ids=str,
)
def test_wrong_filter_is_refused(filters: dict[str, Any], message: str, reader: RecordReader) -> None:
    with pytest.raises(QueryError, match=message):
        reader.count(**filters)


def test_wrong_condition_is_refused(reader: RecordReader) -> None:
    with pytest.raises(ValueError, match="latency_ms"):
        next(reader.select(where="colour = 'red'"))


def test_fact_leads_to_its_record_and_its_line(log: Path, reader: RecordReader) -> None:
    facts = list(reader.select())

    assert [line + b"\n" for _, line in reader.lines(facts)] == lines_of(log)
    assert [fact for fact, _ in reader.lines(reversed(facts), at_once=4)] == facts[::-1]
    read = [reader.read(fact) for fact in facts]
    assert [type(record) for record in read] == [
        Event,
        LLMInteraction,
        Event,
        Event,
        LLMInteraction,
        LLMInteraction,
    ]
    assert [fact.log for fact in facts] == [log] * 6
    assert [fact.kind for fact in facts][2:4] == ["analysis.assessed", "order.filled"]


def test_unknown_line_is_an_error(log: Path, reader: RecordReader) -> None:
    fact = next(reader.select(after=5))
    write(log.parent / "other.jsonl", *desk()[:2])

    with RecordReader([log.parent / "other.jsonl"]) as other:
        gone = replace(fact, log=other.logs[0])
        with pytest.raises(StoreError, match=r"other\.jsonl:6: it is not there"):
            list(other.lines([gone]))


def test_more_records_than_a_batch_are_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", 4)
    log = write(tmp_path / "interactions.jsonl", *(step("bar.closed", number) for number in range(11)))

    with open_records(log) as reader:
        facts = reader.select()
        first = list(islice(facts, 5))
        rest = list(facts)

        assert [fact.seq for fact in (*first, *rest)] == list(range(1, 12))
        assert seqs(reader.select(limit=8)) == list(range(1, 9))


def test_ids_are_found_by_their_beginning(reader: RecordReader) -> None:
    found = reader.find("assessed-f")

    assert isinstance(found, Event)
    assert found.id == "assessed-fund"
    assert isinstance(reader.find("envelope-fund"), LLMInteraction)
    assert reader.find("nothing") is None


def test_tree_has_causes_and_effects(reader: RecordReader) -> None:
    tree = reader.tree("chain-of")

    assert [row.depth for row in tree.rows()] == [0, 1, 2, 3]
    assert [node.id for node in reader.causes("fill-fund")] == ["bar-fund", "envelope-fund", "assessed-fund"]
    assert [node.id for node in reader.effects("bar-fund")] == ["envelope-fund"]
    with pytest.raises(UnknownRecordError):
        reader.causes("nothing")


def test_ambiguous_trace_is_refused(tmp_path: Path) -> None:
    with open_records(two_runs(tmp_path)) as reader, pytest.raises(AmbiguousIdError):
        reader.query(trace_id="chain-of")


def test_records_caused_by_a_model_are_selected(reader: RecordReader) -> None:
    cause = reader.query(model="m-1")

    assert seqs(reader.caused_by(cause)) == [3, 4]
    assert seqs(reader.caused_by(cause, reader.query(kind="order.filled"))) == [4]
    assert seqs(reader.caused_by(reader.query(model="m-2"))) == []


def time_of(record: Record) -> datetime:
    return record.time if isinstance(record, Event) else record.stored_at


def two_runs(folder: Path) -> Path:
    """Return a folder with the logs of two sessions, whose records alternate, and other files."""
    mine, theirs = desk("mine"), desk("theirs")
    write(folder / "runs/a/interactions.jsonl", *mine[:3], segment_bytes=1)
    write(folder / "runs/b/interactions.jsonl", *sorted([*theirs, *mine[3:]], key=time_of))
    (folder / "runs/empty").mkdir()
    (folder / "runs/notes.txt").write_text("no log", encoding="utf-8")
    return folder / "runs"


def test_records_of_several_logs_are_by_time(tmp_path: Path) -> None:
    with open_records(two_runs(tmp_path)) as reader:
        facts = list(reader.select())
        names = [log.parent.name for log in reader.logs]

        assert names == ["a", "b"]
        assert [(fact.log.parent.name, fact.seq) for fact in facts[:6]] == [
            ("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3),
        ]  # fmt: skip
        assert [fact.seq for fact in facts if fact.log.parent.name == "b"] == list(range(1, 10))
        assert [read_line(line).seq for _, line in reader.lines(facts)] == [fact.seq for fact in facts]
        newest = list(reader.select(newest_first=True, limit=3))
        assert [fact.time for fact in newest] == sorted((fact.time for fact in facts), reverse=True)[:3]


def test_figures_of_several_logs_are_added(tmp_path: Path) -> None:
    folder = two_runs(tmp_path)
    whole = write(tmp_path / "whole/interactions.jsonl", *desk("mine"), *desk("theirs"))

    with open_records(folder) as apart, open_records(whole) as together:
        assert apart.count() == together.count() == 12
        assert apart.sums("tenant", "day", "kind") == together.sums("tenant", "day", "kind")
        assert apart.latencies() == together.latencies()
        assert [row.model for row in apart.latencies()] == ["m-1", "m-2"]


def test_chain_of_several_logs_is_one_tree(tmp_path: Path) -> None:
    with open_records(two_runs(tmp_path)) as reader:
        assert [node.id for node in reader.causes("fill-mine")] == [
            "bar-mine",
            "envelope-mine",
            "assessed-mine",
        ]
        assert len(reader.tree("chain-of-mine").nodes) == 4
        assert isinstance(reader.find("fill-mine"), Event)


@given(
    st.lists(st.sampled_from(["mine", "theirs", ""]), max_size=6),
    st.sampled_from(["mine", "theirs", "", "none"]),
)
@settings(max_examples=20, deadline=None)
def test_tenant_sees_own_records_only(
    tmp_path_factory: pytest.TempPathFactory, tenants: list[str], tenant: str
) -> None:
    folder = tmp_path_factory.mktemp("tenants")
    for number, owner in enumerate(tenants):
        records = [
            step("bar.closed", number, id=f"shared-{number}", tenant_id=owner, trace_id="shared"),
            call(
                number,
                envelope_id=f"shared-envelope-{number}",
                tenant_id=owner,
                trace_id="shared",
                model=f"model of {owner}",
            ),
        ]
        write(folder / f"{number % 2}/interactions.jsonl", *records)
    if not tenants:
        return

    with open_records(folder, tenant) as reader:
        anyone = RecordQuery(where="tenant <> 'x' OR 1")
        selected = [
            *reader.select(), *reader.select(anyone), *reader.select(tenant=["mine", "theirs"]),
            *reader.caused_by(RecordQuery(), anyone),
        ]  # fmt: skip
        assert {fact.tenant for fact in selected} <= {tenant}
        assert reader.count() == reader.count(anyone) == 2 * tenants.count(tenant)
        assert {row.key for row in reader.sums("tenant", query=anyone)} <= {(tenant,)}
        assert {row.model for row in reader.latencies(anyone)} <= {f"model of {tenant}"}
        assert set(reader.tree("shared").tenants) <= {tenant}
        found = reader.find("shared-envelope-0")
        assert (found is None) == (tenant != tenants[0])
        assert not isinstance(found, LLMInteraction) or found.envelope.tenant_id == tenant


def test_line_of_another_tenant_is_not_read(log: Path, reader: RecordReader) -> None:
    [fact] = reader.select(limit=1)

    with open_records(log, "other") as other, pytest.raises(StoreError, match="it is not there"):
        other.read(fact)


WRITER = """
import asyncio, sys
from contextlib import aclosing
from pathlib import Path
from agentic_trading.llm import JsonFileInteractionStore
from tests.audit.reading import step

async def main():
    async with aclosing(JsonFileInteractionStore(Path(sys.argv[1]), segment_bytes=1)) as store:
        await store.open()
        for word in sys.stdin:
            for number in range(int(word)):
                await store.record(step("bar.closed"))
            print("written", flush=True)

asyncio.run(main())
"""


def test_follow_crosses_segments_of_another_process(log: Path, reader: RecordReader) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, log], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin
        assert writer.stdout
        ends = reader.ends()
        facts = reader.follow(kind="bar.closed", ends=ends)
        found: list[LoggedFact] = []
        for number in (1, 7, 2):
            writer.stdin.write(f"{number}\n")
            writer.stdin.flush()
            found += islice(facts, number)  # waits until they are written
            assert writer.stdout.readline() == "written\n"
        writer.stdin.close()

    assert ends == {log: 6}
    assert [fact.seq for fact in found] == list(range(7, 17))


def test_follow_shows_each_log_once(tmp_path: Path) -> None:
    folder = two_runs(tmp_path)

    with open_records(folder) as reader:
        facts = reader.follow(agent="analyst", after=1)
        before = list(islice(facts, 4))
        write(folder / "a/interactions.jsonl", call(3, agent_id="analyst"), segment_bytes=1)
        write(folder / "b/interactions.jsonl", step("bar.closed"), call(9, agent_id="analyst"))
        after = list(islice(facts, 2))

    assert [(fact.log.parent.name, fact.seq) for fact in (*before, *after)] == [
        ("a", 2), ("b", 2), ("b", 8), ("b", 9), ("a", 4), ("b", 11),
    ]  # fmt: skip


def test_follow_selects_effects(log: Path, reader: RecordReader) -> None:
    facts = reader.follow(cause=reader.query(model="m-1"), ends={log: 3})
    first = next(facts)
    write(log, step("order.closed", 5, causation_id="fill-fund", trace_id="chain-of-fund", tenant_id="fund"))

    assert (first.seq, next(facts).seq) == (4, 7)


def test_follow_ends_when_the_reader_is_closed(reader: RecordReader) -> None:
    facts = reader.follow()
    found = [next(facts) for _ in range(6)]
    reader.close()

    assert len(found) == 6
    assert list(facts) == []


def test_closed_reader_is_an_error(reader: RecordReader) -> None:
    facts = reader.select()
    fact = next(facts)
    reader.close()
    reader.close()

    with pytest.raises(StoreError, match="its reader is closed"):
        reader.read(fact)
    with pytest.raises(StoreError, match="its reader is closed"):
        reader.count()


def test_selection_in_progress_ends_with_its_reader(
    reader: RecordReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", 2)
    facts = reader.select()
    found = next(facts)
    reader.close()

    assert found.seq == 1
    with pytest.raises(StoreError, match="its reader is closed"):
        list(facts)


@pytest.mark.parametrize("name", ["nowhere", ".", "n" * 300])
def test_missing_log_error_explains_the_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no log here\. Name a log"):
        open_records(tmp_path / name)


def test_session_folder_is_its_log(log: Path) -> None:
    with open_records(str(log.parent)) as reader:
        assert reader.logs == (log,)


@pytest.mark.parametrize(
    ("library", "package"), [("polars", "polars"), ("pandas", "pandas"), ("arrow", "pyarrow")]
)
def test_frame_has_a_typed_column_for_each_field(
    library: Any, package: str, log: Path, reader: RecordReader
) -> None:
    if find_spec(package) is None:
        with pytest.raises(
            FrameLibraryError, match=rf"{package} is not installed\. Run pip install {package}"
        ):
            reader.frame(library=library)
        return

    full, empty = reader.frame(library=library), reader.frame(library=library, agent="nobody")

    names = [*Fact.__slots__, "log"]
    assert list(full.column_names if library == "arrow" else full.columns) == names
    assert str(full["time"].type if library == "arrow" else full["time"].dtype) != "object"
    for name in names:
        types = [str(one[name].type if library == "arrow" else one[name].dtype) for one in (full, empty)]
        assert types[0] == types[1]
    column = full["seq"]
    assert [int(str(value)) for value in column] == [1, 2, 3, 4, 5, 6]
    assert str(full["log"][0]) == str(log)


def test_unknown_frame_library_is_refused(reader: RecordReader) -> None:
    with pytest.raises(
        QueryError, match=r"'excel' is not a library of frames\. Allowed: polars, pandas, arrow"
    ):
        reader.frame(library="excel")  # type: ignore[arg-type]
