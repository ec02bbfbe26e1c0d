"""A log is exported as Parquet, JSON Lines and CSV: the same values, and the same files each time."""

import asyncio
import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.audit.columns import COLUMNS, RECORD_COLUMNS, row_of
from agentic_trading.audit.export import log_name
from agentic_trading.audit.export_files import ExportOptions, file_name, read_export_state
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from tests.audit.exporting import (
    checksums,
    expected_row,
    export,
    lines_of,
    records_of_every_kind,
    rows_of,
    some_events,
    write_log,
)
from tests.build import NOW, event, interaction

BAD_TEXTS = {
    "nul": b'"x\\u0000y"',
    "lone surrogate": b'"x\\ud800y"',
    "pair": b'"\\ud83d\\ude00"',
    "u2028": '"x\u2028y"'.encode(),
    "x85": '"x\x85y"'.encode(),
    "5 MB": b'"%b"' % (b"z" * 5_000_000),
    "int 2**63": b"9223372036854775808",
    "int 2**70": b"1180591620717411303424",
    "raw surrogate": b'"x\xed\xa0\x80y"',
    "bad utf8": b'"x\xffy"',
    "cr": b'"x\\ry"',
    "exact number": b"1.50",
}
"""JSON values that readers of JSON disagree on."""

REFUSED = {"lone surrogate", "raw surrogate", "bad utf8"}
NOT_UTF8 = {"raw surrogate", "bad utf8"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of two sealed segments and an active one, with records of every kind of two tenants."""
    records = records_of_every_kind("acme", "b/c")
    return write_log(
        tmp_path / "worker-1" / "interactions.jsonl", [records[:20], records[20:40], records[40:]]
    )


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("compressed", [False, True])
def test_exported_values_equal_those_of_lines(form: Any, *, compressed: bool, tmp_path: Path) -> None:
    records = records_of_every_kind("acme", "b/c")
    plain = write_log(tmp_path / "worker-1" / "interactions.jsonl", [records, records[:5]])
    lines = lines_of(plain)
    log = write_log(
        tmp_path / "worker-1" / "interactions.jsonl", [records, records[:5]], compressed=compressed
    )

    done = export(log, tmp_path / "out", format=form, include_active=True)

    assert rows_of(tmp_path / "out", format=form) == [expected_row(line, "worker-1") for line in lines]
    assert (done.segments, done.records, done.notes) == (2, len(lines), [])


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_exported_lines_have_the_bytes_of_the_log(form: Any, log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", format=form, with_lines=True, include_active=True)

    rows = rows_of(tmp_path / "out", format=form, with_lines=True)
    assert [row["line"].encode() + b"\n" for row in rows] == lines_of(log)


def test_python_rows_equal_those_of_duckdb(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", include_active=True)

    projected = [row_of(line, "worker-1") for line in lines_of(log)]
    assert [changed for _, changed in projected if changed] == []
    for (values, _), row in zip(projected, rows_of(tmp_path / "out"), strict=True):
        for name, kind in COLUMNS:
            if kind not in {"TIMESTAMPTZ", "DATE"} and name != "body":
                assert values[name] == row[name], name
        assert values["day"] == row["day"].isoformat()
        assert (values["body"] and orjson.loads(values["body"])) == row["body"]


@pytest.mark.parametrize("place", ["body", "answer"])
@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_text_is_exported_or_named(name: str, place: str, tmp_path: Path) -> None:
    raw = BAD_TEXTS[name]
    good = event(id="good", body={"symbol": "X"}).wire
    if place == "body":
        bad = event(id="bad", body={"symbol": "HERE"}).wire.replace(b'"HERE"', raw)
    else:
        bad = interaction(raw_output="HERE").wire.replace(b'"HERE"', raw)
    log = write_log(tmp_path / "l" / "interactions.jsonl", [[good, bad], []])

    done = export(log, tmp_path / "out", with_lines=True)

    first, second = rows_of(tmp_path / "out", with_lines=True)
    text = raw.decode("utf-8", "replace").replace("\\ud800", "\ufffd")
    value = json.loads(text)
    assert first["id"] == "good"
    if place == "answer":
        assert second["answer"] == (value if isinstance(value, str) else f"{value}")
    else:
        assert second["body"] == {"symbol": value}
    assert second["line"] == (None if name in NOT_UTF8 else lines_of(log)[1].decode().rstrip("\n"))
    assert len(done.notes) == (name in REFUSED)
    if name in REFUSED:
        assert "l-00000000000000000001" not in done.notes[0]
        assert "interactions-00000000000000000001.jsonl" in done.notes[0]
        assert "line 2: " in done.notes[0]


def test_repeated_member_and_huge_count_are_named(tmp_path: Path) -> None:
    twice = event(id="twice").wire.replace(b'"id":', b'"id":"other","id":')
    huge = interaction(cost_nusd=7).wire.replace(b'"cost_nusd":7', b'"cost_nusd":1180591620717411303424')
    log = write_log(tmp_path / "l" / "interactions.jsonl", [[twice, *some_events(3)], [huge], []])

    done = export(log, tmp_path / "out")

    rows = rows_of(tmp_path / "out")
    assert (rows[0]["id"], rows[4]["cost_nusd"]) == ("twice", None)
    assert len(done.notes) == 2
    assert done.notes[1].endswith("Values that were replaced: line 5: cost_nusd")


def test_line_above_limit_is_read_in_python(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "l" / "interactions.jsonl", [[event(body={"text": "z" * (40 << 20)}).wire], []]
    )

    done = export(log, tmp_path / "out")

    assert len(rows_of(tmp_path / "out")[0]["body"]["text"]) == 40 << 20
    assert len(done.notes) == 1


def test_second_export_writes_only_new_segments(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(log, folder, with_proofs=True, partition_by=("day", "tenant"))
    before, times = checksums(folder), {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}

    done = export(log, folder, with_proofs=True, partition_by=("day", "tenant"))

    assert (done.segments, done.known, done.files) == (0, 2, 0)
    assert checksums(folder) == before
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")} == times


@pytest.mark.timeout(60)
def test_interrupted_export_is_completed_with_same_files(log: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"with_lines": True, "with_proofs": True, "partition_by": ("tenant", "day")}
    export(log, tmp_path / "whole", **options)
    whole = checksums(tmp_path / "whole")
    names = [name for name in whole if name != "export.json"]

    for kept in range(len(names)):
        folder = tmp_path / f"out-{kept}"
        for name in names[:kept]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((tmp_path / "whole" / name).read_bytes())
        (folder / "export.tmp").mkdir(parents=True)
        (folder / "export.tmp" / "file").write_bytes(b"half a file")
        export(log, folder, **options)
        assert checksums(folder) == whole


def test_missing_file_is_exported_again(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(log, folder)
    before = checksums(folder)
    next(folder.glob("*.parquet")).unlink()

    assert export(log, folder).segments == 1
    assert checksums(folder) == before


@pytest.mark.timeout(60)
async def test_active_export_is_replaced_by_sealed(tmp_path: Path) -> None:
    log, folder = tmp_path / "l" / "interactions.jsonl", tmp_path / "out"
    store = JsonFileInteractionStore(log, segment_bytes=1000, compress=True)
    for number in range(15):
        await store.record(event(time=NOW + timedelta(days=number // 7), tenant_id="ab"[number % 2]))
        await asyncio.to_thread(export, log, folder, include_active=True, partition_by=("day", "tenant"))
        rows = await asyncio.to_thread(rows_of, folder)
        assert [row["seq"] for row in rows] == [*range(1, number + 2)]
    await store.aclose()

    await asyncio.to_thread(export, log, folder, partition_by=("day", "tenant"))
    firsts = await asyncio.to_thread(LogFiles(log).sealed_firsts)
    segments = await asyncio.to_thread(read_state_of, folder)
    assert [each.first for each in segments if each.seal] == firsts
    assert len(firsts) > 2


def read_state_of(folder: Path) -> Any:
    state = read_export_state(folder)
    assert state is not None
    return state.logs["l"]


def test_unfinished_line_of_active_segment_is_left_out(log: Path, tmp_path: Path) -> None:
    lines = lines_of(log)
    log.write_bytes(log.read_bytes() + b'{"half":')

    export(log, tmp_path / "out", include_active=True)

    assert len(rows_of(tmp_path / "out")) == len(lines)


def test_changed_segment_is_not_exported(log: Path, tmp_path: Path) -> None:
    sealed = LogFiles(log).sealed(21)
    sealed.write_bytes(sealed.read_bytes().replace(b"BTCUSDT", b"ETHUSDT", 1))

    with pytest.raises(
        StoreError, match=r"interactions-00000000000000000021\.jsonl: is not as it was sealed"
    ):
        export(log, tmp_path / "out")


def test_other_options_are_refused(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out", tenant="acme")

    with pytest.raises(StoreError, match=r"other options \(--format parquet --tenant 'acme'\)"):
        export(log, tmp_path / "out")


def test_other_log_with_the_same_name_is_refused(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out")
    other = write_log(tmp_path / "other" / "worker-1" / "interactions.jsonl", [some_events(3), []])

    with pytest.raises(StoreError, match="another log with the name worker-1"):
        export(other, tmp_path / "out")


def test_several_logs_share_a_folder(log: Path, tmp_path: Path) -> None:
    other = write_log(tmp_path / "worker-2" / "interactions.jsonl", [some_events(3), []])
    export(log, tmp_path / "out")
    export(other, tmp_path / "out")

    assert {row["log"] for row in rows_of(tmp_path / "out")} == {"worker-1", "worker-2"}
    assert (log_name(other), log_name(Path("/a/b c.jsonl"))) == ("worker-2", "b_c")


def test_parquet_metadata_names_segment_and_schema(log: Path, tmp_path: Path) -> None:
    export(log, tmp_path / "out")

    path = tmp_path / "out" / "worker-1-00000000000000000021.parquet"
    found = duckdb.execute(f"SELECT decode(key), decode(value) FROM parquet_kv_metadata('{path}')").fetchall()
    seal = read_export_state(tmp_path / "out").logs["worker-1"][1].seal  # type: ignore[union-attr]
    assert seal is not None
    assert dict(found) == {
        "log": "worker-1", "first": "21", "last": "40", "seal": seal.hash, "root": seal.root, "schema": "records.v1",
    }  # fmt: skip


def test_partition_folders_escape_names() -> None:
    options = ExportOptions(partition_by=("tenant", "day"))

    assert file_name(options, ("../*", None), "l", 1) == (
        "tenant=..%2F%2A/day=__HIVE_DEFAULT_PARTITION__/l-00000000000000000001.parquet"
    )
    assert file_name(options, ("t" * 256, "2026-01-02"), "l", 1).startswith("tenant=sha256-")


def test_path_with_pattern_characters_is_one_file(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a[1]*'?" / "interactions.jsonl", [some_events(2), some_events(1)])

    export(log, tmp_path / "out[x]*'", include_active=True)

    assert len(list((tmp_path / "out[x]*'").glob("*.parquet"))) == 2


TENANT = st.sampled_from(["acme", "acme ", "", "*", "b/c", "a'b", "tenant=acme", "%", "é\0"])


@pytest.mark.timeout(120)
@settings(deadline=None, max_examples=25)
@given(
    records=st.lists(st.tuples(TENANT, st.booleans()), min_size=1, max_size=12), tenant=TENANT, data=st.data()
)
def test_tenant_export_has_no_foreign_record(
    records: list[tuple[str, bool]],
    tenant: str,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("tenants")
    cut = data.draw(st.integers(0, len(records)))
    partition = data.draw(st.sampled_from([(), ("tenant",), ("day", "tenant")]))
    wires = [
        interaction(tenant_id=of, raw_output=f"secret-{number}").wire
        if is_call
        else event(tenant_id=of, body={"text": f"secret-{number}"}).wire
        for number, (of, is_call) in enumerate(records)
    ]
    segments = [part for part in (wires[:cut], wires[cut:]) if part]
    log = write_log(folder / "l" / "interactions.jsonl", [*segments[:-1], segments[-1]])
    options: dict[str, Any] = {"tenant": tenant, "with_lines": True, "with_proofs": True}

    export(log, folder / "out", include_active=True, partition_by=partition, **options)

    own = [number for number, (of, _) in enumerate(records, 1) if of == tenant]
    assert [row["seq"] for row in rows_of(folder / "out", with_lines=True)] == own
    proofs = [gzip.decompress(path.read_bytes()) for path in (folder / "out").rglob("*.proofs.json.gz")]
    proved = {orjson.loads(line)["seq"] for file in proofs for line in file.splitlines()}
    assert proved <= set(own)
    lines = "".join(row["line"] for row in rows_of(folder / "out", with_lines=True))
    state = (folder / "out" / "export.json").read_text(encoding="utf-8")
    for number, (of, _) in enumerate(records):
        assert (f'secret-{number}"' in lines) == (of == tenant)
        assert f'secret-{number}"' not in state


def test_columns_have_unique_names_and_places() -> None:
    names = [name for name, _ in COLUMNS]

    assert len(set(names)) == len(names) == len(RECORD_COLUMNS) + 4
