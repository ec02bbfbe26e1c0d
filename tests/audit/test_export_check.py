"""An export is checked against the seals: missing, changed, swapped and foreign records are named."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from agentic_trading.audit.columns import typed_columns
from agentic_trading.audit.export_check import ExportCheck, check_export
from agentic_trading.audit.export_files import ExportOptions, copy_options, source_of
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.merkle import MerkleTree, merkle_root, root_of_proof
from agentic_trading.llm.store import Seal
from agentic_trading.platform.log_segments import seals_in, trusted_seals
from tests.audit.exporting import export, records_of_every_kind, some_events, write_log

FORMATS = ("parquet", "jsonl", "csv")
FIRST = "l-00000000000000000001"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of two sealed segments with 20 lines each, and an active one."""
    records = records_of_every_kind("acme", "b")
    return write_log(tmp_path / "l" / "interactions.jsonl", [records[:20], records[20:40], records[40:]])


def seals_of(log: Path) -> list[Seal]:
    return [*seals_in(log.with_name("interactions.seals.jsonl"))]


def reasons(check: ExportCheck) -> set[tuple[str, int, str]]:
    """Return the findings about records."""
    return {(each.file, each.line, each.reason) for each in check.findings if each.line}


def rewrite(path: Path, query: str, **options: Any) -> None:
    """Replace a file by the result of a query over its rows, named `r`."""
    chosen = ExportOptions(**options)
    new = path.with_suffix(".new")
    duckdb.execute(
        f"COPY (WITH r AS (SELECT *, row_number() OVER () AS n FROM {source_of(path, chosen)})"
        f" SELECT {', '.join(typed_columns(with_lines=chosen.with_lines))} FROM ({query}) ORDER BY n)"
        f" TO '{new}' {copy_options(chosen, {'schema': 'records.v1'})}"
    )
    new.replace(path)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("partition", [(), ("tenant",)])
def test_whole_export_has_no_findings(form: Any, partition: Any, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    options: dict[str, Any] = {"with_lines": True, "with_proofs": True, "partition_by": partition}
    export(log, folder, format=form, include_active=True, **options)

    check = check_export(folder, seals_of(log))

    assert check.findings == ()
    last = len(records_of_every_kind("acme", "b"))
    assert (check.segments, check.notes) == (2, (f"lines 41 to {last} of l have no seal yet",))


def test_plain_export_notes_missing_checks(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out")

    check = check_export(tmp_path / "out")

    assert check.findings == ()
    assert [note.split(",")[0].split(".")[0] for note in check.notes] == [
        "the seals are those in the export",
        "it has no lines",
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_missing_record_is_named(form: Any, log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", format=form)
    rewrite(tmp_path / "out" / f"{FIRST}.{form}", "FROM r WHERE seq <> 7", format=form)

    check = check_export(tmp_path / "out", seals_of(log))

    assert reasons(check) == {(f"{FIRST}.{form}", 7, "it is missing")}


@pytest.mark.parametrize("form", FORMATS)
def test_swapped_records_are_named(form: Any, log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", format=form)
    swapped = "SELECT * REPLACE (CASE seq WHEN 7 THEN 8 WHEN 8 THEN 7 ELSE n END AS n) FROM r"
    rewrite(tmp_path / "out" / f"{FIRST}.{form}", swapped, format=form)

    check = check_export(tmp_path / "out", seals_of(log))

    assert reasons(check) == {(f"{FIRST}.{form}", 7, "it comes after line 8")}


def test_swapped_numbers_change_the_root(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out")
    swapped = (
        "SELECT * REPLACE (CASE seq WHEN 7 THEN 8 WHEN 8 THEN 7 ELSE seq END AS seq) FROM r ORDER BY seq"
    )
    rewrite(tmp_path / "out" / f"{FIRST}.parquet", swapped)

    found = {reason for _, _, reason in reasons(check_export(tmp_path / "out", seals_of(log)))}

    assert "the hashes of lines 1 to 20 do not have the root of their seal" in found


def test_repeated_and_foreign_records_are_named(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out")
    more = "FROM r UNION ALL FROM r WHERE seq = 3 UNION ALL SELECT * REPLACE (99 AS seq) FROM r WHERE seq = 4"
    rewrite(tmp_path / "out" / f"{FIRST}.parquet", more)

    found = {(line, reason) for _, line, reason in reasons(check_export(tmp_path / "out", seals_of(log)))}

    assert {(3, "it is there twice"), (99, "it is not of this segment")} <= found


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("repeat('0', 64) AS hash", "its text is that of line 5, or its hash is another one"),
        (
            'replace(line, \'"trace_id":"t"\', \'"trace_id":"u"\') AS line',
            "its hash is not that of its bytes",
        ),
        ("'u' AS trace_id", "its columns are not those of its line"),
        ("DATE '2026-01-03' AS day", "its columns are not those of its line"),
    ],
)
def test_changed_value_is_named(form: Any, change: str, reason: str, log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", format=form, with_lines=True)
    value, _, name = change.rpartition(" AS ")
    query = f"SELECT * REPLACE (CASE WHEN seq = 5 THEN {value} ELSE {name} END AS {name}) FROM r"
    rewrite(tmp_path / "out" / f"{FIRST}.{form}", query, format=form, with_lines=True)

    check = check_export(tmp_path / "out", seals_of(log))

    assert (f"{FIRST}.{form}", 5, reason) in reasons(check)
    assert {line for _, line, text in reasons(check) if "root" not in text} == {5}


def test_changed_hash_is_named_by_proof(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", with_proofs=True)
    changed = "SELECT * REPLACE (CASE seq WHEN 5 THEN repeat('0', 64) ELSE hash END AS hash) FROM r"
    rewrite(tmp_path / "out" / f"{FIRST}.parquet", changed)

    check = check_export(tmp_path / "out", seals_of(log))

    reason = "its proof does not lead to the root of its seal"
    assert (f"{FIRST}.parquet", 5, reason) in reasons(check)


def test_missing_proof_is_named(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", with_proofs=True)
    path = tmp_path / "out" / f"{FIRST}.proofs.json.gz"
    path.write_bytes(gzip.compress(b"\n".join(gzip.decompress(path.read_bytes()).splitlines()[1:])))

    assert (f"{FIRST}.parquet", 1, "it has no proof") in reasons(check_export(tmp_path / "out"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("suffix", ["parquet", "proofs.json.gz"])
def test_changed_byte_names_its_file(suffix: str, tmp_path: Path) -> None:
    log = write_log(tmp_path / "l" / "interactions.jsonl", [some_events(2), []])
    export(log, tmp_path / "out", with_lines=True, with_proofs=True)
    path = tmp_path / "out" / f"{FIRST}.{suffix}"
    content = path.read_bytes()

    for at in range(0, len(content), max(1, len(content) // 8)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        named = {each.file for each in check_export(tmp_path / "out").findings}
        assert path.name in named, at


def test_missing_and_unknown_files_are_named(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(log, folder)
    (folder / f"{FIRST}.parquet").rename(folder / "x.parquet")

    found = {
        (each.file, each.reason.split(":")[0].split("(")[0].strip()) for each in check_export(folder).findings
    }

    assert (f"{FIRST}.parquet", "cannot be read") in found
    assert ("x.parquet", "is not a file of this export") in found


def test_record_of_another_tenant_is_named(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", tenant="acme")
    changed = "SELECT * REPLACE (CASE seq WHEN 5 THEN 'b' ELSE tenant END AS tenant) FROM r"
    rewrite(tmp_path / "out" / f"{FIRST}.parquet", changed, tenant="acme")

    assert (f"{FIRST}.parquet", 5, "it is of another tenant") in reasons(check_export(tmp_path / "out"))


def test_tenant_export_is_checked_by_proofs(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", tenant="acme", with_lines=True, with_proofs=True)

    check = check_export(tmp_path / "out", seals_of(log))

    assert check.findings == ()
    assert "missing records do not show" in check.notes[0]


def test_export_of_another_log_does_not_match_seals(log: Path, tmp_path: Path) -> None:
    other = write_log(tmp_path / "o" / "interactions.jsonl", [some_events(20), []])
    export(other, tmp_path / "out")

    found = reasons(check_export(tmp_path / "out", seals_of(log)))

    assert {line for _, line, _ in found} == {1, 21}


def test_segment_left_out_of_state_is_named(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", include_active=True)
    state = tmp_path / "out" / "export.json"
    content = orjson.loads(state.read_bytes())
    del content["logs"]["l"][1]
    state.write_bytes(orjson.dumps(content))

    found = reasons(check_export(tmp_path / "out"))

    assert ("export.json", 21, "lines 21 to 40 of l are missing") in found


def test_folder_without_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"export\.json: is missing"):
        check_export(tmp_path)


def test_changed_seals_file_is_refused(log: Path) -> None:
    seals = log.with_name("interactions.seals.jsonl")
    seals.write_bytes(seals.read_bytes().replace(b'"count":20', b'"count":21', 1))

    with pytest.raises(StoreError, match="its hash is not that of its bytes"):
        trusted_seals(seals)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_proof_of_every_leaf_leads_to_root(count: int) -> None:
    hashes = [bytes([number]) * 32 for number in range(count)]
    tree = MerkleTree(b"".join(hashes))

    assert tree.root == merkle_root(b"".join(hashes))
    for place, leaf in enumerate(hashes):
        proof = tree.proof(place)
        assert root_of_proof(leaf, place, count, proof) == tree.root
        assert root_of_proof(b"\xff" * 32, place, count, proof) != tree.root
        assert root_of_proof(leaf, place, count, [*proof, proof[0] if proof else "00" * 32]) == ""
        wrong: list[Callable[[], str]] = [
            lambda place=place, leaf=leaf, proof=proof: root_of_proof(leaf, place ^ 1, count, proof)  # type: ignore[misc]
        ]
        assert all(each() != tree.root for each in wrong)
        assert not proof or root_of_proof(leaf, place, count, proof[:-1]) != tree.root
