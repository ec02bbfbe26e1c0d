"""jq, zstd, DuckDB and polars read active and sealed segments, plain and compressed, next to the writer."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.reader import LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.record_codec import id_of, identity_of, record_of
from tests.audit.exporting import records_of_every_kind
from tests.llm.stores.jsonl_logs import HastyDisk

REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up

Row = tuple[int, str, str]
"""The number, the hash and the id of a line."""


@pytest.fixture(params=[False, True], ids=["plain", "compressed"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return a log with a record of every kind in several segments. Its writer still has it open."""
    path = tmp_path / "interactions.jsonl"
    records = [(identity_of(record_of(wire)), wire) for wire in records_of_every_kind("acme", "b")]
    LogFile(path, HastyDisk(), segment_bytes=8_000, compress=request.param).close()
    file = LogFile(path, HastyDisk(), segment_bytes=8_000, compress=request.param)
    file.append(records, sync=True)
    file._sealed._worker.submit(lambda: None).result()
    yield path
    file.close()


def segments_of(log: Path) -> list[Path]:
    """Return the files of a log's segments, in order."""
    files = LogFiles(log)
    found = [files.find_sealed(first) for first in files.sealed_firsts()]
    return [*filter(None, found), log]


def rows_of(log: Path) -> list[Row]:
    """Return the rows that another program must read."""
    reader = LogReader(log)
    return [(line.seq, line.hash, id_of(reader.record(line))) for line, _ in reader.walk()]


def program(name: str) -> str:
    """Return the path of a program. Without it, skip the test, or fail it if services are required."""
    path = shutil.which(name)
    reason = f"{name} is not installed (Debian: apt-get install {name})"
    if path is None and REQUIRED:
        pytest.fail(reason)
    if path is None:
        pytest.skip(reason)
    return path


def test_jq_reads_every_segment(log: Path) -> None:
    jq, zstd = program("jq"), program("zstd")
    found: list[Row] = []

    for file in segments_of(log):
        is_packed = file.suffix == ".zst"
        plain = (
            subprocess.run([zstd, "-dc", file], capture_output=True, check=True).stdout if is_packed else b""
        )
        given: list[str | Path] = [jq, "-c", "[.seq, .hash, (.interaction_id // .id)]"]
        ended = subprocess.run(
            given if is_packed else [*given, file], input=plain, capture_output=True, check=True
        )
        found += [tuple(orjson.loads(line)) for line in ended.stdout.splitlines()]

    assert found == rows_of(log)


def test_duckdb_reads_all_segments_at_once(log: Path) -> None:
    files = [str(file) for file in segments_of(log)]

    found = duckdb.execute(
        """
        SELECT seq, hash, coalesce(interaction_id, id)
        FROM read_json($files, format = 'newline_delimited', columns = {
            seq: 'BIGINT', hash: 'VARCHAR', interaction_id: 'VARCHAR', id: 'VARCHAR'
        })
        ORDER BY seq
        """,
        {"files": files},
    ).fetchall()

    assert found == rows_of(log)


@pytest.mark.skipif(not find_spec("polars"), reason="polars is not installed: it takes 180 MB")
def test_polars_reads_every_segment(log: Path) -> None:
    polars: Any = import_module("polars")
    found: list[Row] = []

    for file in segments_of(log):
        frame = polars.read_ndjson(file, infer_schema_length=None)
        ids = [name for name in ("interaction_id", "id") if name in frame.columns]
        found += frame.select("seq", "hash", polars.coalesce(ids).alias("id")).rows()

    assert found == rows_of(log)
