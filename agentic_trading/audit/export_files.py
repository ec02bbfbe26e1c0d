"""The files of an export: the state file, names of files, and how DuckDB opens them."""

import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, Literal, assert_never
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from agentic_trading.audit.columns import SCHEMA, typed_columns
from agentic_trading.canonical import sha256_hex
from agentic_trading.errors import extra_named
from agentic_trading.files import read_file, sync_folder
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import Seal

with extra_named():
    import duckdb

ExportFormat = Literal["parquet", "jsonl", "csv"]
PartitionKey = Literal["day", "tenant"]

STATE_NAME: Final = "export.json"
"""The file with the state of an export."""

TEMPORARY_NAME: Final = "export.tmp"
"""The folder with unfinished files of an export."""

LINE_BYTES: Final = 16 << 20
"""The longest line that DuckDB reads. Longer ones are read in Python."""

_MEMORY: Final = "1GB"
_MOST_STATE_BYTES: Final = 1 << 30
_LONGEST_NAME: Final = 200
_ROW_GROUP: Final = 60_000


class ExportOptions(BaseModel, frozen=True):
    """The options that all runs into one folder share.

    Attributes:
        partition_by: The keys of the folders, in order.
        tenant: Only records of this tenant. None for all records.
        with_lines: With the column `line`.
        with_proofs: With a file of inclusion proofs next to each file of a sealed segment.

    """

    format: ExportFormat = "parquet"
    partition_by: tuple[PartitionKey, ...] = ()
    tenant: str | None = None
    with_lines: bool = False
    with_proofs: bool = False


class ExportedFile(BaseModel, frozen=True):
    """A file of an export: its path in the folder, its checksum and its number of records."""

    path: str
    sha256: str
    bytes: int
    records: int


class ExportedSegment(BaseModel, frozen=True):
    """An exported segment.

    Attributes:
        first: The number of its first line.
        last: The number of its last line when it was exported.
        root: The root over the hashes of its lines.
        prev: The hash of the line before it.
        seal: Its seal, None for the active segment.
        files: Its files with records.
        proofs: Its files with inclusion proofs.

    """

    first: int
    last: int
    root: str
    prev: str
    seal: Seal | None = None
    files: tuple[ExportedFile, ...] = ()
    proofs: tuple[ExportedFile, ...] = ()


class ExportState(BaseModel):
    """The state of an export. `logs` has the segments of each log by name, in order."""

    schema_version: str = SCHEMA
    options: ExportOptions
    logs: dict[str, list[ExportedSegment]] = {}


def read_export_state(folder: Path) -> ExportState | None:
    """Return the state of an export, or None without a file. Raises `StoreError` if it cannot be read."""
    path = folder / STATE_NAME
    try:
        return ExportState.model_validate_json(read_file(path, most_bytes=_MOST_STATE_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not the state of an export"
        raise StoreError(path, f"cannot be read ({why}). Restore it, or export to another folder") from e


def write_export_state(folder: Path, state: ExportState) -> None:
    """Replace the state file atomically, after all files that it names."""
    put_file(folder, STATE_NAME, state.model_dump_json(indent=1).encode() + b"\n")


def put_file(folder: Path, name: str, content: bytes | None = None) -> ExportedFile:
    """Move the unfinished file to its name, durably. With `content`, write it first."""
    unfinished, path = folder / TEMPORARY_NAME / "file", folder / name
    if content is not None:
        unfinished.write_bytes(content)
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
        made = ExportedFile(
            path=name, sha256=file_digest(file, "sha256").hexdigest(), bytes=file.tell(), records=0
        )
    missing = [each for each in path.parents if not each.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished.replace(path)
    for each in {path.parent, *(one.parent for one in missing)}:
        sync_folder(each)
    return made


def safe_name(text: str) -> str:
    """Return a text as a part of a file name. Long ones become their hash."""
    # Shortened, because a file system allows 255 bytes, and a tenant id of 256 bytes has up to 768 when quoted.
    name = quote(text, safe="")
    return name if len(name) <= _LONGEST_NAME else f"sha256-{sha256_hex(text.encode())}"


def file_name(
    options: ExportOptions, values: Sequence[str | None], log: str, first: int, *, are_proofs: bool = False
) -> str:
    """Return the path of a file in the folder of an export.

    Args:
        options: The options of the export.
        values: The value of each key of `options.partition_by`.
        log: The name of the log.
        first: The first line of the segment.
        are_proofs: Name the file of proofs instead.

    """
    folders = [
        f"{key}={'__HIVE_DEFAULT_PARTITION__' if value is None else safe_name(value)}"
        for key, value in zip(options.partition_by, values, strict=True)
    ]
    # Another suffix than that of records, so that a pattern for records does not match it.
    suffix = "proofs.json.gz" if are_proofs else options.format
    return "/".join([*folders, f"{log}-{first:020}.{suffix}"])


def files_in(folder: Path, format_: ExportFormat) -> Iterator[str]:
    """Yield the paths of all files with records or proofs in a folder, sorted."""
    for pattern in (f"*.{format_}", "*.proofs.json.gz"):
        yield from sorted(path.relative_to(folder).as_posix() for path in folder.rglob(pattern))


def connected(temporary: Path) -> "duckdb.DuckDBPyConnection":
    """Return a database in memory that reads and writes files, and never downloads an extension."""
    # One thread, because the files of the same segment are then the same bytes, and take a third of the memory.
    config: dict[str, Any] = {
        "threads": 1,
        "memory_limit": _MEMORY,
        "temp_directory": str(temporary / "spilled"),
        "autoinstall_known_extensions": False,
    }
    db = duckdb.connect(config=config)
    db.execute("SET TimeZone = 'UTC'")
    return db


@contextmanager
def duckdb_errors(folder: Path) -> Generator[None]:
    """Raise `StoreError` for an error of DuckDB, and `KeyboardInterrupt` if a signal interrupted it."""
    try:
        yield
    except duckdb.InterruptException as e:
        raise KeyboardInterrupt from e
    except duckdb.Error as e:
        raise StoreError(folder, f"DuckDB cannot export to it or read it ({e})") from e
    except RuntimeError as e:
        # A signal handler that raises within a query becomes a plain `RuntimeError`.
        if str(e) == "Query interrupted":
            raise KeyboardInterrupt from e
        raise


def sql_text(text: str) -> str:
    """Return a text as an SQL literal."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def path_to_read(path: Path) -> str:
    """Return a path as an SQL literal of exactly this file. DuckDB reads `*`, `?` and `[` as patterns."""
    return sql_text(re.sub(r"([*?[])", r"[\1]", str(path.absolute())))


def copy_options(options: ExportOptions, marks: dict[str, str]) -> str:
    """Return the options of `COPY`. `marks` become the metadata of a Parquet file."""
    match options.format:
        case "parquet":
            pairs = ", ".join(f"{name}: {sql_text(value)}" for name, value in marks.items())
            how = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP}, KV_METADATA {{{pairs}}}"
        case "jsonl":
            how = "FORMAT json"
        case "csv":
            how = "FORMAT csv, HEADER true"
        case _:
            assert_never(options.format)
    return f"({how}, USE_TMP_FILE false)"


def source_of(path: Path, options: ExportOptions) -> str:
    """Return the table function that reads a file of an export."""
    types = typed_columns(with_lines=options.with_lines)
    columns = "{" + ", ".join(f"'{name}': '{type_}'" for name, type_ in types.items()) + "}"
    named = path_to_read(path)
    match options.format:
        case "parquet":
            return f"read_parquet({named}, hive_partitioning = false)"
        case "jsonl":
            most = max(4 * LINE_BYTES, path.stat().st_size if path.exists() else 0)
            return (
                f"read_json({named}, format = 'newline_delimited', columns = {columns},"
                f" maximum_object_size = {min(most, 1 << 30)}, hive_partitioning = false)"
            )
        case "csv":
            return (
                f"read_csv({named}, header = true, columns = {columns}, auto_detect = false, delim = ',',"
                f" quote = '\"', escape = '\"', allow_quoted_nulls = false, max_line_size = {4 * LINE_BYTES}, hive_partitioning = false)"
            )
        case _:
            assert_never(options.format)
