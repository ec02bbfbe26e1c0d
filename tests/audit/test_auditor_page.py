"""Every block of the auditor's page works with DuckDB alone, and finds changed exports."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from agentic_trading.audit.columns import typed_columns
from agentic_trading.audit.export_files import ExportOptions, copy_options, source_of
from benchmarks.house import ROOT
from tests.audit.exporting import export, records_of_every_kind, write_log
from tests.pages import BLOCKS, write_files

PAGE = "docs/how-to/answer-an-auditor.md"

WITHOUT_OURS = "import sys; sys.modules['agentic_trading'] = None\n"  # an import of it raises

# A program that has DuckDB and nothing of ours. It runs statements, and prints the rows of each.
RUN_SQL = """
import json, sys
import duckdb
db = duckdb.connect()
found = []
for text in json.load(sys.stdin):
    for statement in duckdb.extract_statements(text):
        found.append([[str(value) for value in row] for row in db.execute(statement).fetchall()])
print(json.dumps(found))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an export, the seals, and the programs of the page."""
    records = records_of_every_kind("acme", "b")
    log = write_log(tmp_path / "l" / "interactions.jsonl", [records[:15], records[15:], records[:1]])
    (tmp_path / "interactions.seals.jsonl").write_bytes(
        log.with_name("interactions.seals.jsonl").read_bytes()
    )
    export(log, tmp_path / "audit", with_lines=True, with_proofs=True, partition_by=("day", "tenant"))
    write_files(PAGE, tmp_path)
    return tmp_path


def change(folder: Path, query: str) -> None:
    """Change the rows of the first file of an export."""
    path, options = next(iter(sorted((folder / "audit").rglob("*.parquet")))), ExportOptions(with_lines=True)
    columns = ", ".join(typed_columns(with_lines=True))
    new = path.with_suffix(".new")
    duckdb.execute(
        f"COPY (SELECT {columns} FROM ({query.replace('FROM r', f'FROM {source_of(path, options)}')})) TO '{new}'"
        f" {copy_options(options, {'schema': 'records.v1'})}"
    )
    new.replace(path)


def run_sql(folder: Path) -> list[Any]:
    """Return the rows of each statement of the page."""
    texts = [block.text for block in BLOCKS if block.page == PAGE and block.language == "sql"]
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_OURS + RUN_SQL],
        cwd=folder, input=json.dumps(texts), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def run_program(folder: Path, name: str) -> tuple[int, str]:
    """Return exit code and output of a program of the page."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_OURS}import runpy; runpy.run_path({name!r}, run_name='__main__')"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.timeout(60)
def test_sql_of_the_page_confirms_an_export(folder: Path) -> None:
    _, _, counts, failed, costs, _, trace, contents, links, columns, proofs = run_sql(folder)

    count = int(counts[0][1])
    assert counts == [["l", str(count), str(count), "1", str(count)]]
    assert [row[4] for row in failed] == ["refusal"]
    assert sum(int(row[3]) for row in costs) == 4
    assert len(trace) > 10
    assert contents == [[str(count)] * 3]
    assert (links, columns) == ([], [])
    assert proofs == [[str(count), "0"]]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("FROM r WHERE seq <> 3", 2),
        ("SELECT * REPLACE (replace(line, 'BTCUSDT', 'ETHUSDT') AS line) FROM r", 7),
        ("SELECT * REPLACE (CASE seq WHEN 1 THEN repeat('0', 64) ELSE hash END AS hash) FROM r", 8),
    ],
)
def test_sql_of_the_page_finds_changes(query: str, place: int, folder: Path) -> None:
    before = run_sql(folder)
    change(folder, query)

    assert run_sql(folder)[place] != before[place]


@pytest.mark.timeout(60)
def test_programs_of_the_page_confirm_and_find(folder: Path) -> None:
    assert run_program(folder, "check_roots.py")[0] == 0
    assert run_program(folder, "check_proofs.py")[0] == 0

    change(folder, "FROM r WHERE seq <> 3")
    assert run_program(folder, "check_roots.py") == (1, "lines 1 to 15 are not complete\n")

    seals = folder / "interactions.seals.jsonl"
    seals.write_bytes(seals.read_bytes().replace(b'"root":"', b'"root":"0', 1))
    assert run_program(folder, "check_roots.py") == (1, "the seal of line 1 was changed\n")
    code, text = run_program(folder, "check_proofs.py")
    assert (code, "is not proved" in text) == (1, True)


def test_columns_are_documented_with_their_types() -> None:
    page = (ROOT / "docs" / "reference" / "records.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| `")]
    documented = [(name.strip("| `"), kind) for name, kind in rows]

    assert documented[: len(typed_columns(with_lines=True))] == [*typed_columns(with_lines=True).items()]
