"""The segments of a log, for exports and their checks."""

from collections.abc import Iterator, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import cast, get_args

from agentic_trading.audit.export import Exported, LogSegments, SealedSegment, export_log
from agentic_trading.audit.export_files import ExportFormat, ExportOptions, PartitionKey
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import ChainedRecord, ChainHead, Seal
from agentic_trading.llm.stores.jsonl.frames import open_compressed
from agentic_trading.llm.stores.jsonl.reader import LogPosition, LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles, read_seals
from agentic_trading.platform.errors import OptionError


def options_of(
    format_: str, partition_by: str, tenant: str | None, *, with_lines: bool, with_proofs: bool
) -> ExportOptions:
    """Return the options of an export. Raises `OptionError` for an unknown format or key."""
    if format_ not in get_args(ExportFormat):
        raise OptionError("--format", repr(format_), ", ".join(get_args(ExportFormat)))
    keys = tuple(dict.fromkeys(key.strip() for key in partition_by.split(",") if key.strip()))
    if unknown := [key for key in keys if key not in get_args(PartitionKey)]:
        raise OptionError("--partition-by", repr(unknown[0]), ", ".join(get_args(PartitionKey)))
    return ExportOptions(
        format=cast(ExportFormat, format_),
        partition_by=cast(tuple[PartitionKey, ...], keys),
        tenant=tenant,
        with_lines=with_lines,
        with_proofs=with_proofs,
    )


def export_at(log: Path, folder: Path, options: ExportOptions, *, include_active: bool) -> Exported:
    """Export the log at `log`. Raises `StoreError`."""
    return export_log(segments_of(log), folder, options, include_active=include_active)


def trusted_seals(path: Path) -> Sequence[Seal]:
    """Return the seals in a file. Raises `OptionError` if it is missing, `StoreError` if it was changed."""
    if not path.is_file():
        raise OptionError("--seals", f"{path}, where there is no file", "a copy of the log's file of seals")
    return seals_in(path)


def segments_of(path: Path) -> LogSegments:
    """Return the segments of the log at `path`. Raises `StoreError` if it cannot be read."""
    reader = LogReader(path)
    reader.exists()
    seals = seals_in(reader.files.seals)
    sealed = [
        SealedSegment(
            seal, partial(_file, reader.files, seal.first), partial(_open, reader.files, seal.first)
        )
        for seal in seals
    ]
    end = seals[-1].end if seals else ChainHead()

    def active() -> Iterator[ChainedRecord]:
        return (line for line, _ in reader.walk(LogPosition(end).in_next_segment))

    return LogSegments(path, sealed, active)


def seals_in(path: Path) -> Sequence[Seal]:
    """Return the seals in a file, none if it is missing. Raises `StoreError` if one of them was changed."""
    seals = read_seals(path)
    if seals.problem and not seals.is_torn:
        raise StoreError(path, f"{seals.problem}. Restore it from a copy")
    return seals.each


def _file(files: LogFiles, first: int) -> Path:
    found = files.find_sealed(first)
    if found is None:
        raise StoreError(files.sealed(first), "is missing. Restore it")
    return found


def _open(files: LogFiles, first: int) -> BufferedReader:
    path = _file(files, first)
    try:
        return open_compressed(path) if path.suffix == ".zst" else path.open("rb")
    except OSError as e:
        raise StoreError(path, f"cannot be read ({e.strerror}). Allow reading it, or repair the disk") from e
