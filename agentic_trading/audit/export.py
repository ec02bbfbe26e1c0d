"""Export the records of a log as Parquet, JSON Lines or CSV: a file a segment, by DuckDB."""

import fcntl
import gzip
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path
from typing import Final

import orjson

from agentic_trading.audit import export_files
from agentic_trading.audit.columns import (
    SCHEMA,
    read_columns,
    row_of,
    select_columns,
    typed_columns,
)
from agentic_trading.audit.export_files import (
    LINE_BYTES,
    TEMPORARY_NAME,
    ExportedSegment,
    ExportOptions,
    ExportState,
)
from agentic_trading.errors import extra_named
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.merkle import MerkleTree, merkle_root
from agentic_trading.llm.store import GENESIS, ChainedRecord, Seal

with extra_named():
    import duckdb

MOST_NAMED: Final = 20
"""The most lines of a segment that a note lists."""

_STATE_EVERY: Final = 16
"""Segments after which the state is written, because it is written as a whole."""


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A sealed segment: its seal, where its file is now, and how its uncompressed bytes are read."""

    seal: Seal
    path: Callable[[], Path]
    open: Callable[[], BufferedReader]


@dataclass(frozen=True, slots=True)
class LogSegments:
    """The segments of the log at `path`: the sealed ones, and the lines of the active one."""

    path: Path
    sealed: Sequence[SealedSegment]
    active: Callable[[], Iterator[ChainedRecord]]


@dataclass(slots=True)
class Exported:
    """The result of an export.

    Attributes:
        folder: Its folder.
        segments: The number of segments that were exported.
        known: The number of segments that were exported before.
        records: The number of records in the new files.
        files: The number of new files.
        notes: Segments that DuckDB could not read, and lines with changed values.

    """

    folder: Path
    segments: int = 0
    known: int = 0
    records: int = 0
    files: int = 0
    notes: list[str] = field(default_factory=list)


def export_log(
    log: LogSegments, folder: Path, options: ExportOptions, *, include_active: bool = False
) -> Exported:
    """Export the records of each sealed segment that is not in `folder` yet.

    Every file gets its name when it is complete, and the same log gives the same files. So an interrupted
    export is continued by running it again.

    Args:
        log: The segments of the log.
        folder: The folder of the export. It may have the exports of several logs with the same options.
        options: The format and content of the files.
        include_active: Also export the active segment, and replace its earlier export.

    Raises:
        StoreError: If the log or the folder cannot be used, a segment is not as it was sealed, or the folder
            has an export with other options or of another log with this name.

    """
    try:
        with _locked(folder), export_files.duckdb_errors(folder):
            return _Export(log, folder, options).run(include_active=include_active)
    except OSError as e:
        reason = f"cannot be written ({e.strerror or e}). Free disk space, or allow writing to the folder"
        raise StoreError(folder, reason) from e


def log_name(path: Path) -> str:
    """Return the name of a log in an export: its file name, or that of its folder for `interactions.jsonl`."""
    path = path.absolute()
    name = path.parent.name if path.stem == "interactions" else path.stem
    return re.sub(r"[^A-Za-z0-9._-]", "_", name) or "log"


class RecordTable:
    """A table `records` of a database, with the records of one segment at a time."""

    def __init__(
        self, db: "duckdb.DuckDBPyConnection", temporary: Path, log: str, *, with_lines: bool
    ) -> None:
        self._db = db
        self._temporary = temporary
        self._log = log
        self._with_lines = with_lines
        db.execute("SET VARIABLE log = ?", [log])

    def load(self, path: Callable[[], Path], opened: Callable[[], BufferedReader]) -> list[str] | None:
        """Load a file of lines. Return None, or the changed values if DuckDB cannot read it."""
        while True:
            used = path()
            try:
                self._load(used)
            except duckdb.IOException:
                if path() == used:
                    raise
            except (duckdb.InvalidInputException, duckdb.ConversionException):
                return self._load_in_python(opened)
            else:
                return None

    def hashes(self) -> bytes:
        """Return the hashes of the records, in order. Raises `ValueError` for other texts."""
        found = self._db.execute("SELECT hash FROM records ORDER BY seq").fetchall()
        return bytes.fromhex("".join(value or "-" for (value,) in found))

    def _load(self, path: Path) -> None:
        source = f"read_json({export_files.path_to_read(path)}, format = 'newline_delimited', columns = {read_columns()}, maximum_object_size = {LINE_BYTES}, hive_partitioning = false)"
        query = f"SELECT *, CAST(time AT TIME ZONE 'UTC' AS DATE) AS day FROM (SELECT {select_columns()} FROM {source})"
        if self._with_lines:
            objects = f"read_ndjson_objects({export_files.path_to_read(path)}, maximum_object_size = {LINE_BYTES}, hive_partitioning = false)"
            # By position, because both sides read the same lines in the same order. A join by `seq` loses the order.
            query = f"SELECT * FROM ({query}) POSITIONAL JOIN (SELECT json::VARCHAR AS line FROM {objects})"
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE records AS {query}")

    def _load_in_python(self, opened: Callable[[], BufferedReader]) -> list[str]:
        rows, changed, longest = self._temporary / "rows", [], 0
        with opened() as lines, rows.open("wb") as file:
            for line in lines:
                try:
                    values, other = row_of(line, self._log)
                except ValueError as e:
                    raise StoreError(Path(self._log), f"a line is not a record ({e}). Restore the log") from e
                if not self._with_lines:
                    del values["line"]
                row = orjson.dumps(values)
                longest = max(longest, len(row))
                changed += [f"line {values['seq']}: {name}" for name in other if name in values]
                file.write(row + b"\n")
        types = typed_columns(with_lines=self._with_lines)
        columns = "{" + ", ".join(f"'{name}': '{type_}'" for name, type_ in types.items()) + "}"
        self._db.execute(
            f"CREATE OR REPLACE TEMP TABLE records AS SELECT * FROM read_json({export_files.path_to_read(rows)},"
            f" format = 'newline_delimited', columns = {columns}, maximum_object_size = {max(LINE_BYTES, 2 * longest)})"
        )
        rows.unlink()
        return changed


class _Export:
    """One run of an export."""

    def __init__(self, log: LogSegments, folder: Path, options: ExportOptions) -> None:
        self._log = log
        self._name = log_name(log.path)
        self._folder = folder
        self._options = options
        self._temporary = folder / TEMPORARY_NAME
        self._state = export_files.read_export_state(folder) or ExportState(options=options)
        if self._state.options != options:
            reason = f"has an export with other options ({_spelled(self._state.options)}). Use these, or another folder"
            raise StoreError(folder, reason)
        self._done = Exported(folder)

    def run(self, *, include_active: bool) -> Exported:
        known = {
            segment.seal.hash: segment
            for segment in self._state.logs.get(self._name, [])
            if segment.seal is not None
        }
        if known.keys() - {segment.seal.hash for segment in self._log.sealed}:
            reason = f"has an export of another log with the name {self._name}. Use another folder"
            raise StoreError(self._folder, reason)
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        try:
            with export_files.connected(self._temporary) as db:
                self._export_all(db, known, include_active=include_active)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)
        return self._done

    def _export_all(
        self, db: "duckdb.DuckDBPyConnection", known: dict[str, ExportedSegment], *, include_active: bool
    ) -> None:
        table = RecordTable(db, self._temporary, self._name, with_lines=self._options.with_lines)
        before = [each for each in self._state.logs.get(self._name, []) if each.seal is None]
        done: list[ExportedSegment] = []
        for segment in self._log.sealed:
            exported = known.get(segment.seal.hash)
            if exported is not None and self._has_files(exported):
                self._done.known += 1
            else:
                exported = self._export_sealed(db, table, segment)
            done.append(exported)
            if self._done.segments % _STATE_EVERY == 1:
                self._write_state(done)
        last = self._log.sealed[-1].seal.last if self._log.sealed else 0
        active = [each for each in before if each.first > last]
        if include_active:
            active = self._export_active(db, table, last)
        # Before the state is written, so that no file without an entry is left after a crash.
        kept = {file.path for each in (*done, *active) for file in each.files}
        for file in (file for each in before for file in each.files if file.path not in kept):
            (self._folder / file.path).unlink(missing_ok=True)
        self._write_state([*done, *active])

    def _write_state(self, segments: Sequence[ExportedSegment]) -> None:
        self._state.logs[self._name] = [*segments]
        export_files.write_export_state(self._folder, self._state)

    def _has_files(self, segment: ExportedSegment) -> bool:
        for file in (*segment.files, *segment.proofs):
            path = self._folder / file.path
            if not path.is_file() or path.stat().st_size != file.bytes:
                return False
        return True

    def _export_sealed(
        self, db: "duckdb.DuckDBPyConnection", table: RecordTable, segment: SealedSegment
    ) -> ExportedSegment:
        seal, name = segment.seal, segment.path().name
        if _digest(segment) != seal.sha256:
            raise self._changed(name)
        changed = table.load(segment.path, segment.open)
        if changed is not None:
            self._note(name, changed)
        tree = MerkleTree(table.hashes())
        if tree.root != seal.root:
            raise self._changed(name)
        marks = {"last": str(seal.last), "seal": seal.hash, "root": seal.root}
        prev = GENESIS if seal.first == 1 else self._head_before(seal)
        exported = ExportedSegment(first=seal.first, last=seal.last, root=seal.root, prev=prev, seal=seal)
        return self._written(db, exported, marks, tree if self._options.with_proofs else None)

    def _head_before(self, seal: Seal) -> str:
        return next(each.seal.head for each in self._log.sealed if each.seal.last == seal.first - 1)

    def _changed(self, name: str) -> StoreError:
        reason = "is not as it was sealed. Run `audit verify` on the log, and restore the segment"
        return StoreError(self._log.path.with_name(name), reason)

    def _export_active(
        self, db: "duckdb.DuckDBPyConnection", table: RecordTable, last_sealed: int
    ) -> list[ExportedSegment]:
        # The lines are copied, because the file grows meanwhile and may end with half a line.
        copy = self._temporary / "active.jsonl"
        hashes, prev, last = bytearray(), "", last_sealed
        with copy.open("wb") as file:
            for line in self._log.active():
                prev = prev or line.prev
                hashes += bytes.fromhex(line.hash)
                last = line.seq
                file.write(line.line + b"\n")
        if not hashes:
            return []
        changed = table.load(lambda: copy, lambda: copy.open("rb"))
        if changed is not None:
            self._note(self._log.path.name, changed)
        root = merkle_root(bytes(hashes))
        exported = ExportedSegment(first=last_sealed + 1, last=last, root=root, prev=prev)
        return [self._written(db, exported, {"last": str(last), "seal": "", "root": root}, None)]

    def _note(self, name: str, changed: Sequence[str]) -> None:
        more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
        named = f". Values that were replaced: {'; '.join(changed[:MOST_NAMED])}{more}" if changed else ""
        self._done.notes.append(f"DuckDB cannot read {name}, so its lines were read one by one{named}")

    def _written(
        self,
        db: "duckdb.DuckDBPyConnection",
        exported: ExportedSegment,
        marks: dict[str, str],
        tree: MerkleTree | None,
    ) -> ExportedSegment:
        """Write the files of the segment that is in the table."""
        marks = {"log": self._name, "first": str(exported.first), **marks, "schema": SCHEMA}
        files, proofs = [], []
        for values, condition in self._partitions(db):
            target = export_files.sql_text(str(self._temporary / "file"))
            query = f"COPY (SELECT * FROM records WHERE {condition}) TO {target} {export_files.copy_options(self._options, marks)}"
            records = db.execute(query).fetchall()[0][0]
            name = export_files.file_name(self._options, values, self._name, exported.first)
            files.append(export_files.put_file(self._folder, name).model_copy(update={"records": records}))
            if tree is not None:
                name = export_files.file_name(
                    self._options, values, self._name, exported.first, are_proofs=True
                )
                content = _proofs(db, condition, tree, exported, marks)
                made = export_files.put_file(self._folder, name, content)
                proofs.append(made.model_copy(update={"records": records}))
        self._done.segments += 1
        self._done.files += len(files) + len(proofs)
        self._done.records += sum(file.records for file in files)
        return exported.model_copy(update={"files": tuple(files), "proofs": tuple(proofs)})

    def _partitions(self, db: "duckdb.DuckDBPyConnection") -> Iterator[tuple[Sequence[str | None], str]]:
        """Yield the values and the condition of each file of the segment in the table."""
        condition = "true"
        if self._options.tenant is not None:
            db.execute("SET VARIABLE tenant = ?", [self._options.tenant])
            condition = "tenant = getvariable('tenant')"
        keys = self._options.partition_by
        columns = ", ".join(f"{key}::VARCHAR" for key in keys) or "''"
        each = db.execute(f"SELECT DISTINCT {columns} FROM records WHERE {condition} ORDER BY ALL").fetchall()
        for values in each:
            conditions = [condition]
            for key, value in zip(keys, values, strict=False):
                db.execute(f"SET VARIABLE of_{key} = CAST(? AS VARCHAR)", [value])
                conditions.append(f"{key}::VARCHAR IS NOT DISTINCT FROM getvariable('of_{key}')")
            yield values[: len(keys)], " AND ".join(conditions)


def _digest(segment: SealedSegment) -> str:
    """Return the SHA-256 of the uncompressed bytes of a segment."""
    try:
        with segment.open() as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as e:
        raise StoreError(segment.path(), f"cannot be read ({e.strerror}). Restore it") from e


def _proofs(
    db: "duckdb.DuckDBPyConnection",
    condition: str,
    tree: MerkleTree,
    exported: ExportedSegment,
    marks: dict[str, str],
) -> bytes:
    """Return the compressed lines of a file of proofs."""
    rows = db.execute(f"SELECT seq, hash FROM records WHERE {condition} ORDER BY seq").fetchall()
    place = {"first": exported.first, "last": exported.last, "root": exported.root, "seal": marks["seal"]}
    lines = [
        orjson.dumps({
            "log": marks["log"],
            "seq": seq,
            "hash": digest,
            **place,
            "proof": tree.proof(seq - exported.first),
        })
        for seq, digest in rows
    ]
    # Without the time of now, so that the same records give the same bytes.
    return gzip.compress(b"\n".join([*lines, b""]), compresslevel=4, mtime=0)


def _spelled(options: ExportOptions) -> str:
    """Return options as they are given to the command."""
    words = [f"--format {options.format}"]
    if options.partition_by:
        words.append(f"--partition-by {','.join(options.partition_by)}")
    if options.tenant is not None:
        words.append(f"--tenant {options.tenant!r}")
    words += ["--with-lines"] * options.with_lines + ["--with-proofs"] * options.with_proofs
    return " ".join(words)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Create a folder, and lock it. Raises `StoreError` if another export writes to it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as e:
        raise StoreError(folder, "another export writes to it. Wait for it, or use another folder") from e
    finally:
        os.close(handle)
