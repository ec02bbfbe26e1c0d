"""Check an export against the seals of its logs, without the logs."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import orjson
from pydantic import BaseModel

from agentic_trading.audit import export_files
from agentic_trading.audit.columns import COLUMNS
from agentic_trading.audit.export import RecordTable
from agentic_trading.audit.export_files import (
    STATE_NAME,
    ExportedFile,
    ExportedSegment,
    ExportState,
)
from agentic_trading.errors import extra_named
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.log_line import BrokenRecordError, read_line
from agentic_trading.llm.merkle import merkle_root, root_of_proof
from agentic_trading.llm.store import Seal

with extra_named():
    import duckdb

MOST_LINES: Final = 20
"""The most lines that each check of a file names."""

_AT_ONCE: Final = 1000


class ExportFinding(BaseModel, frozen=True):
    """A problem of an export: the file in its folder, the line of the log or 0, and the reason."""

    file: str
    line: int = 0
    reason: str


class ExportCheck(BaseModel, frozen=True):
    """The result of checking an export.

    Attributes:
        path: Its folder.
        records: The number of its records.
        segments: The number of sealed segments.
        findings: The problems.
        notes: Checks that were not possible.

    """

    path: Path
    records: int
    segments: int
    findings: tuple[ExportFinding, ...] = ()
    notes: tuple[str, ...] = ()


def check_export(folder: Path, seals: Sequence[Seal] | None = None) -> ExportCheck:
    """Check that an export is complete, in order and unchanged.

    Numbers must be without a gap, and the hashes must have the root of each seal. With proofs, each record is
    also checked alone. With lines, the hash of each line, its link to the line before it and all columns are
    computed again. An export of one tenant has gaps, so only its files, proofs and lines are checked.

    Args:
        folder: The folder of the export.
        seals: The seals of the log from a trusted copy. None uses the seals in the export.

    Raises:
        StoreError: If `folder` has no export.

    """
    state = export_files.read_export_state(folder)
    if state is None:
        raise StoreError(folder / STATE_NAME, "is missing. Name the folder of an export")
    findings = [*_wrong_files(folder, state)]
    with (
        export_files.duckdb_errors(folder),
        TemporaryDirectory() as temporary,
        export_files.connected(Path(temporary)) as db,
    ):
        for log, segments in state.logs.items():
            findings += _unlinked(log, segments)
            for segment in segments:
                findings += _SegmentCheck(db, folder, Path(temporary), state, log, segment).findings()
    each = [segment for segments in state.logs.values() for segment in segments]
    if seals is not None:
        findings += _unlike_seals(each, seals)
    return ExportCheck(
        path=folder,
        records=sum(file.records for segment in each for file in segment.files),
        segments=sum(segment.seal is not None for segment in each),
        findings=tuple(findings),
        notes=tuple(_notes(state, each, has_seals=seals is not None)),
    )


def _notes(state: ExportState, segments: Sequence[ExportedSegment], *, has_seals: bool) -> Iterator[str]:
    if not has_seals:
        yield "the seals are those in the export. Use --seals FILE to check it against a copy of your own"
    if state.options.tenant is not None:
        yield f"it has only the records of tenant {state.options.tenant!r}, so missing records do not show"
    if not state.options.with_lines:
        yield "it has no lines, so only the hashes of records were checked against the seals, not their columns"
    for log, segments in state.logs.items():
        yield from (
            f"lines {each.first} to {each.last} of {log} have no seal yet"
            for each in segments
            if each.seal is None
        )
        if segments and segments[0].first > 1:
            yield f"lines before {segments[0].first} of {log} are not in the export"


def _wrong_files(folder: Path, state: ExportState) -> Iterator[ExportFinding]:
    """Yield a finding for each missing, changed and unknown file."""
    known = set()
    for segments in state.logs.values():
        for file in (file for segment in segments for file in (*segment.files, *segment.proofs)):
            known.add(file.path)
            try:
                with (folder / file.path).open("rb") as opened:
                    digest = file_digest(opened, "sha256").hexdigest()
            except OSError as e:
                yield ExportFinding(file=file.path, reason=f"cannot be read ({e.strerror})")
                continue
            if digest != file.sha256:
                yield ExportFinding(
                    file=file.path, reason=f"was changed: its SHA-256 is not that in {STATE_NAME}"
                )
    for path in export_files.files_in(folder, state.options.format):
        if path not in known:
            yield ExportFinding(
                file=path, reason=f"is not a file of this export: {STATE_NAME} does not name it"
            )


def _unlinked(log: str, segments: Sequence[ExportedSegment]) -> Iterator[ExportFinding]:
    """Yield a finding for each segment whose seal does not continue the one before it."""
    for segment in segments:
        seal = segment.seal
        if seal and (segment.first, segment.last, segment.root) != (seal.first, seal.last, seal.root):
            yield ExportFinding(
                file=STATE_NAME, line=segment.first, reason=f"the segment of {log} is not that of its seal"
            )
    for before, after in pairwise(segments):
        if after.first != before.last + 1:
            reason = f"lines {before.last + 1} to {after.first - 1} of {log} are missing"
            yield ExportFinding(file=STATE_NAME, line=before.last + 1, reason=reason)
        elif before.seal and (
            after.prev != before.seal.head or (after.seal and after.seal.prev != before.seal.hash)
        ):
            reason = f"the segment of {log} does not continue the segment before it"
            yield ExportFinding(file=STATE_NAME, line=after.first, reason=reason)


def _unlike_seals(segments: Sequence[ExportedSegment], seals: Sequence[Seal]) -> Iterator[ExportFinding]:
    """Yield a finding for each difference between the seals of an export and those of a trusted copy."""
    exported = {segment.seal.hash for segment in segments if segment.seal}
    for seal in seals:
        if seal.hash not in exported:
            reason = (
                f"the sealed lines {seal.first} to {seal.last} are not in the export, or with another seal"
            )
            yield ExportFinding(file=STATE_NAME, line=seal.first, reason=reason)


@dataclass(slots=True)
class _Row:
    seq: int
    hash: str
    file: str


class _SegmentCheck:
    """The check of the records of one segment."""

    def __init__(
        self,
        db: "duckdb.DuckDBPyConnection",
        folder: Path,
        temporary: Path,
        state: ExportState,
        log: str,
        segment: ExportedSegment,
    ) -> None:
        self._db = db
        self._folder = folder
        self._options = state.options
        self._segment = segment
        self._copy = temporary / "lines"
        self._table = RecordTable(db, temporary, log, with_lines=self._options.with_lines)
        self._rows: list[_Row] = []

    def findings(self) -> Iterator[ExportFinding]:
        """Yield the problems of the segment."""
        are_readable = True
        for file in self._segment.files:
            try:
                yield from self._in_file(file)
            except duckdb.Error as e:
                are_readable = False
                yield ExportFinding(file=file.path, reason=f"cannot be read ({str(e).splitlines()[0]})")
        self._rows.sort(key=lambda row: row.seq)
        if are_readable:
            yield from islice(self._misplaced(), MOST_LINES)
        if self._options.with_proofs and self._segment.seal is not None:
            yield from islice(self._unproved(), MOST_LINES)

    def _in_file(self, file: ExportedFile) -> Iterator[ExportFinding]:
        """Yield the problems inside a file, and keep its rows."""
        source = export_files.source_of(self._folder / file.path, self._options)
        rows = [
            _Row(seq, digest, file.path)
            for seq, digest in self._db.execute(f"SELECT seq, hash FROM {source}").fetchall()
        ]
        self._rows += rows
        swapped = ((before, after) for before, after in pairwise(rows) if after.seq < before.seq)
        for before, after in islice(swapped, MOST_LINES):
            reason = f"it comes after line {before.seq}"
            yield ExportFinding(file=file.path, line=after.seq, reason=reason)
        if (tenant := self._options.tenant) is not None:
            others = self._db.execute(
                f"SELECT seq FROM {source} WHERE tenant IS DISTINCT FROM ? ORDER BY seq", [tenant]
            ).fetchmany(MOST_LINES)
            for (seq,) in others:
                yield ExportFinding(file=file.path, line=seq, reason="it is of another tenant")
        if self._options.with_lines:
            yield from self._wrong_lines(file, source)
            yield from self._wrong_columns(file, source)

    def _wrong_lines(self, file: ExportedFile, source: str) -> Iterator[ExportFinding]:
        """Yield each line whose hash or link is wrong, and copy the lines to a file."""
        found = self._db.cursor().execute(f"SELECT seq, hash, line FROM {source} ORDER BY seq")
        before, hash_, named = self._segment.first - 1, self._segment.prev, 0
        # Copied, because DuckDB reads JSON with types only from a file.
        with self._copy.open("wb") as copy:
            while rows := found.fetchmany(_AT_ONCE):
                for seq, digest, text in rows:
                    line = (text or "").encode()
                    copy.write(line + b"\n")
                    reason, own = _checked_line(line, seq, digest, hash_ if seq == before + 1 else "")
                    if reason and (named := named + 1) <= MOST_LINES:
                        yield ExportFinding(file=file.path, line=seq, reason=reason)
                    before, hash_ = seq, own

    def _wrong_columns(self, file: ExportedFile, source: str) -> Iterator[ExportFinding]:
        """Yield each record with another value than its line."""
        try:
            self._table.load(lambda: self._copy, lambda: self._copy.open("rb"))
        except (StoreError, duckdb.Error):
            return  # because a line is no record, which was found before
        names = ", ".join(name for name, _ in COLUMNS)
        different = f"SELECT {names} FROM {source} EXCEPT ALL SELECT {names} FROM records"
        for (seq,) in self._db.execute(f"SELECT seq FROM ({different}) ORDER BY seq").fetchmany(MOST_LINES):
            yield ExportFinding(file=file.path, line=seq, reason="its columns are not those of its line")

    def _misplaced(self) -> Iterator[ExportFinding]:
        """Yield missing, repeated and foreign records, or a wrong root."""
        segment, count = self._segment, 0
        place = self._rows[0].file if self._rows else STATE_NAME
        expected = segment.first
        for row in self._rows:
            if not segment.first <= row.seq <= segment.last:
                yield ExportFinding(file=row.file, line=row.seq, reason="it is not of this segment")
            elif row.seq < expected:
                yield ExportFinding(file=row.file, line=row.seq, reason="it is there twice")
            else:
                if self._options.tenant is None and row.seq > expected:
                    yield _missing(row.file, expected, row.seq - 1)
                count += 1
                expected = row.seq + 1
        if self._options.tenant is not None:
            return
        if expected <= segment.last:
            yield _missing(place, expected, segment.last)
        elif count == len(self._rows) == segment.last - segment.first + 1 and self._root() != segment.root:
            reason = (
                f"the hashes of lines {segment.first} to {segment.last} do not have the root of their seal"
            )
            yield ExportFinding(file=place, line=segment.first, reason=reason)

    def _root(self) -> str:
        try:
            return merkle_root(bytes.fromhex("".join(row.hash or "-" for row in self._rows)))
        except ValueError:
            return ""

    def _unproved(self) -> Iterator[ExportFinding]:
        """Yield each record without a right proof."""
        proofs: dict[int, Sequence[str]] = {}
        for file in self._segment.proofs:
            try:
                lines = gzip.decompress((self._folder / file.path).read_bytes()).splitlines()
                proofs.update((proof["seq"], proof["proof"]) for proof in map(orjson.loads, lines))
            except (OSError, ValueError, LookupError, TypeError, EOFError, zlib.error) as e:
                yield ExportFinding(file=file.path, reason=f"cannot be read ({e})")
        seal = self._segment.seal
        for row in self._rows:
            proof = proofs.pop(row.seq, None)
            if proof is None:
                yield ExportFinding(file=row.file, line=row.seq, reason="it has no proof")
            elif seal is not None and not _is_proved(row, seal, proof):
                yield ExportFinding(
                    file=row.file, line=row.seq, reason="its proof does not lead to the root of its seal"
                )
        for seq in proofs:
            yield ExportFinding(
                file=self._segment.proofs[0].path, line=seq, reason="it has a proof and no record"
            )


def _missing(file: str, first: int, last: int) -> ExportFinding:
    reason = "it is missing" if first == last else f"lines {first} to {last} are missing"
    return ExportFinding(file=file, line=first, reason=reason)


def _is_proved(row: _Row, seal: Seal, proof: Sequence[str]) -> bool:
    try:
        digest = bytes.fromhex(row.hash)
        return root_of_proof(digest, row.seq - seal.first, seal.count, proof) == seal.root
    except (ValueError, TypeError):
        return False


def _checked_line(line: bytes, seq: int, digest: str, prev: str) -> tuple[str, str]:
    """Return the problem of an exported line or an empty text, and the hash of the line.

    Without `prev`, its link is not checked.
    """
    if not line:
        return "it has no text here, because it is not UTF-8. Check it in the log", digest
    try:
        found = read_line(line)
    except BrokenRecordError as e:
        return e.reason, digest
    if (found.seq, found.hash) != (seq, digest):
        return f"its text is that of line {found.seq}, or its hash is another one", found.hash
    is_linked = prev in {"", found.prev}
    return "" if is_linked else "it does not continue the line before it", found.hash
