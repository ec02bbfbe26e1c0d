"""The same questions have the same answers from the index of a log, and from DuckDB over its export."""

from collections.abc import Iterator
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from agentic_trading.audit.records import RecordReader, open_records
from agentic_trading.ids import fraction
from agentic_trading.llm.store import Record
from tests.audit.exporting import export
from tests.audit.reading import REFUSAL, call, step, write

CHAINS = 60


def chain(number: int) -> list[Record]:
    """Return a decision chain: a bar, one or two calls, an assessment and an order."""

    def draw(count: int, name: str) -> int:
        return int(fraction("equal answers", number, name) * count)

    minutes, of = (
        number * 47.0,
        {"trace_id": f"chain-{number}", "tenant_id": ("fund", "desk")[draw(2, "tenant")]},
    )
    asked, is_refused = f"envelope-{number}", draw(4, "refused") == 0
    at = {
        "agent_id": f"agent-{draw(3, 'agent')}",
        "model": f"m-{draw(2, 'model')}",
        "subject": f"S{draw(4, 'subject')}",
    }
    refused = {"success": False, "failure": REFUSAL, "cost_nusd": 0, "dispatched_at": None, "latency_ms": 0.0}
    paid = {"cost_nusd": draw(10**9, "cost"), "latency_ms": 1.0 + fraction("latency", number) * 9_000}
    return [
        step("bar.closed", minutes, id=f"bar-{number}", body={"symbol": at["subject"]}, **of),
        call(minutes, envelope_id=asked, causation_id=f"bar-{number}", **at, **of, **(refused if is_refused else paid)),
        step(
            "analysis.assessed", minutes + 1, id=f"assessed-{number}", causation_id=asked,
            body={"symbol": at["subject"], "verdict": ("long", "short", "stand_aside")[draw(3, "verdict")]}, **of,
        ),
        step("order.submitted", minutes + 2, id=f"order-{number}", causation_id=f"assessed-{number}", **of),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log of several segments and its export."""
    made = tmp_path_factory.mktemp("equal")
    records = [record for number in range(CHAINS) for record in chain(number)]
    log = write(made / "desk/interactions.jsonl", *records, segment_bytes=100_000)
    export(log, made / "export", include_active=True)
    return made


@pytest.fixture
def reader(folder: Path) -> Iterator[RecordReader]:
    with open_records(folder / "desk") as opened:
        yield opened


@pytest.fixture
def asked(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return DuckDB with the export as `records`."""
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(
            f"CREATE VIEW records AS FROM read_parquet('{folder}/export/**/*.parquet', hive_partitioning = false)"
        )
        yield db


def rows(asked: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    found = asked.execute(query).fetchall()
    assert found
    return found


def test_refusals_of_an_agent_on_a_day(reader: RecordReader, asked: duckdb.DuckDBPyConnection) -> None:
    expected = rows(
        asked,
        "SELECT seq, time, model, subject FROM records WHERE agent = 'agent-1' AND failure = 'budget_exhausted' "
        "AND day = '2026-01-02' ORDER BY seq",
    )

    facts = reader.select(agent="agent-1", failure="budget_exhausted", since="2026-01-02", until="2026-01-03")

    assert [(fact.seq, fact.time, fact.model, fact.subject) for fact in facts] == expected


@pytest.mark.parametrize("since", ["2026-01-01", "2026-01-02T12:30"])
@pytest.mark.parametrize("where", ["", "seq > 0"])
def test_cost_by_agent_and_day(
    since: str, where: str, reader: RecordReader, asked: duckdb.DuckDBPyConnection
) -> None:
    """With whole days the sums that the index keeps are used, otherwise the rows."""
    expected = rows(
        asked,
        "SELECT agent, day::VARCHAR, count(*), count(failure), sum(input_tokens), sum(output_tokens), sum(cost_nusd) "
        f"FROM records WHERE kind = 'interaction' AND time >= '{since}' GROUP BY ALL ORDER BY ALL",
    )

    found = reader.sums("agent", "day", kind="interaction", since=since, where=where)

    assert [
        (*row.key, row.records, row.failed, row.input_tokens, row.output_tokens, row.cost_nusd)
        for row in found
    ] == expected


@pytest.mark.parametrize("where", ["", "seq > 0"])
def test_latency_percentiles_by_model(
    where: str, reader: RecordReader, asked: duckdb.DuckDBPyConnection
) -> None:
    expected = rows(
        asked,
        "SELECT model, list(latency_ms ORDER BY latency_ms) FROM records WHERE kind = 'interaction' AND success "
        "GROUP BY model ORDER BY model",
    )

    found = reader.latencies(where=where)

    assert [(one.model, one.attempts) for one in found] == [(model, len(each)) for model, each in expected]
    for one, (_, durations) in zip(found, expected, strict=True):
        for share, value in ((0.5, one.p50_ms), (0.95, one.p95_ms), (0.99, one.p99_ms)):
            assert value == pytest.approx(durations[ceil(len(durations) * share) - 1], rel=0.045)


def test_orders_caused_by_a_model(reader: RecordReader, asked: duckdb.DuckDBPyConnection) -> None:
    expected = rows(
        asked,
        "WITH RECURSIVE effects AS ("
        "  SELECT log, trace_id, id, envelope_id, NULL::BIGINT AS seq, NULL::VARCHAR AS kind FROM records WHERE model = 'm-1'"
        "  UNION SELECT later.log, later.trace_id, later.id, later.envelope_id, later.seq, later.kind"
        "  FROM records AS later JOIN effects ON later.trace_id = effects.trace_id"
        "  AND later.causation_id IN (effects.id, effects.envelope_id)"
        ") SELECT DISTINCT seq FROM effects WHERE kind = 'order.submitted' ORDER BY seq",
    )

    facts = reader.caused_by(reader.query(model="m-1"), reader.query(kind="order.submitted"))

    assert [(fact.seq,) for fact in facts] == expected


def test_last_ten_records(reader: RecordReader, asked: duckdb.DuckDBPyConnection) -> None:
    expected = rows(asked, "SELECT seq, kind, verdict FROM records ORDER BY seq DESC LIMIT 10")

    facts = reader.select(newest_first=True, limit=10)

    assert [(fact.seq, fact.kind, fact.verdict or None) for fact in facts] == expected


def test_trace_with_its_tree(reader: RecordReader, asked: duckdb.DuckDBPyConnection) -> None:
    expected = rows(
        asked,
        "WITH RECURSIVE tree AS ("
        "  SELECT seq, id, envelope_id, 0 AS depth FROM records WHERE trace_id = 'chain-7' AND causation_id = ''"
        "  UNION ALL SELECT later.seq, later.id, later.envelope_id, depth + 1 FROM records AS later JOIN tree"
        "  ON later.trace_id = 'chain-7' AND later.causation_id IN (tree.id, tree.envelope_id)"
        ") SELECT depth, coalesce(envelope_id, id) FROM tree ORDER BY seq",
    )

    assert [(row.depth, row.node.id) for row in reader.tree("chain-7").rows()] == expected


def test_columns_of_facts_equal_those_of_the_export(
    reader: RecordReader, asked: duckdb.DuckDBPyConnection
) -> None:
    names = (
        "seq", "time", "kind", "tenant", "agent", "workflow", "provider", "model", "subject", "verdict", "failure",
        "attempt", "success", "in_doubt", "input_tokens", "output_tokens", "cost_nusd", "latency_ms",
    )  # fmt: skip
    expected = rows(asked, f"SELECT {', '.join(names)} FROM records ORDER BY seq")
    empty = {str: "", int: 0, bool: False, float: 0.0, datetime: datetime.min.replace(tzinfo=UTC)}

    for fact, row in zip(reader.select(), expected, strict=True):
        found = [getattr(fact, name) for name in names]
        assert found == [
            empty[type(value)] if other is None else other for value, other in zip(found, row, strict=True)
        ]
