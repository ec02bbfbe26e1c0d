"""`audit export` and `audit verify --export` in a terminal and as JSON."""

import json
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.audit.exporting import records_of_every_kind, write_log
from tests.build import event
from tests.cli.conftest import Command


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the folder of a log with one sealed segment of ten lines."""
    records = records_of_every_kind("acme", "b")
    return write_log(tmp_path / "w1" / "interactions.jsonl", [records[:10], records[10:15]]).parent


def test_export_is_made_and_verified(log: Path, command: Command) -> None:
    made = command("audit", "export", log, "--to", "out", "--with-lines", "--partition-by", "day,tenant")
    again = command(
        "audit", "export", log, "--to", "out", "--with-lines", "--partition-by", "day,tenant", "--json"
    )
    checked = command("audit", "verify", "--export", "out", "--seals", log / "interactions.seals.jsonl")

    assert made.out == "Exported 1 segment (10 records, 2 files) to out. 0 exported before.\n"
    assert json.loads(again.out) == {
        "folder": "out", "segments": 0, "known": 1, "records": 0, "files": 0, "notes": [],
    }  # fmt: skip
    assert (checked.code, checked.out) == (0, "whole\n10 records of 1 sealed segment verified in out\n")


def test_changed_export_is_broken(log: Path, command: Command) -> None:
    command("audit", "export", log, "--to", "out", "--format", "csv")
    file = Path("out/w1-00000000000000000001.csv")
    file.write_bytes(
        b"".join(line for line in file.read_bytes().splitlines(keepends=True) if b",7," not in line)
    )

    checked = command("audit", "verify", "--export", "out")
    as_json = command("audit", "verify", "--export", "out", "--json")

    assert checked.code == as_json.code == ExitCode.FOUND_WRONG
    assert f"{file.name}: line 7: it is missing\n" in checked.out
    found = json.loads(as_json.out)
    assert found["verdict"] == "broken"
    assert {"file": file.name, "line": 7, "reason": "it is missing"} in found["findings"]


def test_refused_segment_is_named(tmp_path: Path, command: Command) -> None:
    bad = event(body={"symbol": "HERE"}).wire.replace(b"HERE", b"\\ud800")
    write_log(tmp_path / "w1" / "interactions.jsonl", [[bad], []])

    made = command("audit", "export", "w1", "--to", "out")

    note = (
        "Note: DuckDB cannot read interactions-00000000000000000001.jsonl, so its lines were read one by one."
    )
    assert note in made.out
    assert "line 1: subject; line 1: body" in made.out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("w1",), "--to is missing. Allowed: the folder of the export"),
        (("w1", "--to", "out", "--format", "xml"), "--format is 'xml'. Allowed: parquet, jsonl, csv"),
        (
            ("w1", "--to", "out", "--partition-by", "day,agent"),
            "--partition-by is 'agent'. Allowed: day, tenant",
        ),
    ],
)
def test_wrong_option_is_named(words: tuple[str, ...], error: str, log: Path, command: Command) -> None:
    ended = command("audit", "export", *words)

    assert (ended.code, ended.err) == (ExitCode.BAD_INPUT, f"Error: {error}\n")


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ((), ExitCode.BAD_INPUT, "PATH is missing"),
        (("--export", "out"), ExitCode.LOG_UNUSABLE, "export.json: is missing. Name the folder of an export"),
    ],
)
def test_verify_without_subject_is_refused(
    words: tuple[str, ...], code: ExitCode, error: str, command: Command
) -> None:
    ended = command("audit", "verify", *words)

    assert ended.code == code
    assert error in ended.err
