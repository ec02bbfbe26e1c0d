"""The bytes of files with bars: CSV and JSON lines, plain or packed, and Parquet."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import IO, Final
from zipfile import BadZipFile, ZipFile

from agentic_trading.desk.market.errors import FeedUnavailableError
from agentic_trading.errors import extra_named

PACKED: Final = (".gz", ".zip", ".parquet")
"""The endings of files that are unpacked."""


def open_packed(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Return the text of a packed file, as bytes in memory or unpacked during reading. Reads the file.

    Raises:
        FeedUnavailableError: If the file cannot be read or unpacked, a ZIP archive has not exactly one file,
            or Parquet cannot be read as a table.
        MissingExtraError: If the package for Parquet is missing.

    """
    with readable(path):
        packed = BytesIO(path.read_bytes())
        if path.suffix == ".gz":
            return gzip.GzipFile(fileobj=packed)
        return _open_zip(path, packed) if path.suffix == ".zip" else _open_parquet(path, packed)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn the errors of reading and unpacking into `FeedUnavailableError`."""
    try:
        yield
    except (OSError, EOFError, zlib.error, BadZipFile, RuntimeError) as e:
        raise FeedUnavailableError(str(path), str(e)) from e


def _open_zip(path: Path, packed: IO[bytes]) -> IO[bytes]:
    archive = ZipFile(packed)
    names = [
        each.filename
        for each in archive.infolist()
        # Because macOS adds files of its own to archives.
        if not each.is_dir() and not each.filename.startswith("__MACOSX/")
    ]
    if len(names) != 1:
        listed = ", ".join(names[:4]) or "no file"
        raise FeedUnavailableError(str(path), f"it has {listed}, and must have exactly one file")
    return archive.open(names[0])


def _open_parquet(path: Path, packed: IO[bytes]) -> IO[bytes]:
    with extra_named():
        polars = import_module("polars")
    try:
        text = polars.read_parquet(packed).write_csv()
    except Exception as e:  # because polars raises classes of its own, which would need its import
        raise FeedUnavailableError(str(path), f"{type(e).__name__}: {e}") from e
    return BytesIO(text.encode())
