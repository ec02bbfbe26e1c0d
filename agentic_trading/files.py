"""Read files that a user names, within limits of size and time, and replace files durably.

A path that a user names may be a FIFO, a device, a huge file, or a file on a disk that does not answer. All of them end in
one clear error here.
"""

import errno
import fcntl
import os
import re
import stat
import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO, Final, TypeVar

from typing_extensions import override

from agentic_trading.errors import TradingError

T = TypeVar("T")

MOST_BYTES: Final = 16 << 20
"""Size limit of a configuration, a policy or a table. A table of 10,000 models has 4 MB."""

MOST_SECRET_BYTES: Final = 64 << 10
"""Size limit of a key, a token or a password."""

ANSWERED_WITHIN_S: Final = 10.0

MOST_DEPTH: Final = 32
"""Nesting limit of tables and arrays. A configuration needs six levels."""

_TOO_DEEP: Final = f"nested too deep: at most {MOST_DEPTH} levels of tables and arrays are allowed"
_LONG_KEY: Final = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{8 * MOST_DEPTH}}}"""
)
"""Dotted keys with many parts. `tomllib` needs quadratic time for them (20,000 parts: 16 s)."""

_MOST_DIGITS: Final = 640
"""Digits that `int` converts under every setting of the interpreter."""

_CHUNK_BYTES: Final = 64 << 10
_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}

_waiting: Final = dict[Path, Thread]()
"""Threads that still wait for a disk. Another thread for the same path would wait too."""


class UnreadableFileError(TradingError, OSError):
    """A file cannot be used. `strerror` is the reason, as in errors of the operating system."""

    def __init__(self, number: int, reason: str, path: Path) -> None:
        super().__init__(number, reason, str(path))

    @override
    def __str__(self) -> str:
        """Return the path and the reason."""
        return f"{self.filename} cannot be read ({self.strerror})"


class NoTomlError(TradingError, ValueError):
    """A text is not TOML, or its tables are nested too deep."""


def read_file(path: Path, *, most_bytes: int = MOST_BYTES, within_s: float = ANSWERED_WITHIN_S) -> bytes:
    """Return the bytes of a regular file. Blocks for at most `within_s` seconds.

    Raises:
        OSError: If the file is missing or not permitted.
        UnreadableFileError: If it is not a regular file, is a link to a missing file, has more than
            `most_bytes` bytes, or its disk does not answer in time.

    """
    return read_within(path, lambda: _bytes_of(path, most_bytes), within_s=within_s)


def read_utf8(path: Path, *, most_bytes: int = MOST_BYTES, within_s: float = ANSWERED_WITHIN_S) -> str:
    """Return the text of a regular UTF-8 file. Blocks and raises as `read_file` does.

    Raises:
        UnreadableFileError: Also if it contains invalid UTF-8, a byte order mark or a NUL byte.

    """
    raw = read_file(path, most_bytes=most_bytes, within_s=within_s)
    check_unmarked(path, raw)
    try:
        text = raw.decode()
    except UnicodeDecodeError as e:
        raise _unreadable(path, errno.EILSEQ, f"not UTF-8: byte {e.start + 1}") from None
    if (place := text.find("\0")) >= 0:
        line = text.count("\n", 0, place) + 1
        raise _unreadable(path, errno.EILSEQ, f"a NUL byte in line {line}")
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Blocks and raises as `read_utf8` does.

    Raises:
        NoTomlError: If the file is not TOML, or its tables are nested too deep.

    """
    text = read_utf8(path)
    if _LONG_KEY.search(text):
        raise NoTomlError(_TOO_DEEP)
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise NoTomlError(_TOO_DEEP) from None
    except tomllib.TOMLDecodeError as e:
        raise NoTomlError(str(e)) from None
    except ValueError:  # of `int`, because it does not convert longer numbers
        raise NoTomlError("a whole number has too many digits: at most 64 bits are allowed") from None
    if _is_deeper(tables, MOST_DEPTH):
        raise NoTomlError(_TOO_DEEP)
    return tables


def replace_file(path: Path, content: bytes, *, sync: bool = True, private: bool = False) -> None:
    """Replace a file atomically: after a crash it has its former or its new content. Blocks.

    With `sync`, the new content is on disk when this returns. With `private`, only the owner of the file may read
    and write it, and a former file keeps its owner. Raises `OSError`.
    """
    # A dead writer may have left a file of this name. It is overwritten.
    new = path.with_name(f"{path.name}.new")
    with _opened(new, private=private) as file:
        if private and path.exists():
            # Otherwise a program of the owner could not read the file after a change by root.
            former = path.stat()
            os.fchown(file.fileno(), former.st_uid, former.st_gid)
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    new.replace(path)
    if sync:
        # Otherwise the new name could be lost in a power failure.
        sync_folder(path.parent)


@contextmanager
def locked(path: Path, *, private: bool = False) -> Generator[None]:
    """Let only one process of the machine at a time enter the block. Blocks.

    `path` is the lock, a file that is created with its folder. With `private`, only its owner may open it. Raises
    `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path, private=private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk. Blocks. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def whole_number(digits: str) -> int:
    """Return an integer of a JSON file, for `parse_int` of `json.loads`.

    Raises `ValueError` if it is too long.
    """
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number has {len(digits)} digits, at most {_MOST_DIGITS} are allowed")
    return int(digits)


def check_unmarked(path: Path, raw: bytes) -> None:
    """Raise `UnreadableFileError` if the bytes start with a byte order mark."""
    # Otherwise the mark would become part of the first word.
    if raw.startswith(BOM_UTF8):
        raise _unreadable(path, errno.EILSEQ, "a byte order mark: save it as UTF-8 without one")


def read_within(path: Path, read: Callable[[], T], *, within_s: float = ANSWERED_WITHIN_S) -> T:
    """Return the result of `read`, which reads at `path`. Blocks for at most `within_s` seconds.

    `read` runs in a daemon thread, so that a dead disk blocks neither the caller nor the end of the process.
    Until it answers, further calls for the same path fail immediately.

    Raises:
        UnreadableFileError: If `read` takes too long, or an earlier one for the same path still waits.
        Exception: The error of `read`.

    """
    before = _waiting.get(path)
    if before is not None and before.is_alive():
        raise _unreadable(path, errno.ETIMEDOUT, "its disk has not answered an earlier read")
    _waiting.pop(path, None)
    result = Future[T]()

    def answer() -> None:
        try:
            result.set_result(read())
        except BaseException as e:  # noqa: BLE001 - the caller raises it
            result.set_exception(e)

    thread = Thread(target=answer, name=f"read {path}", daemon=True)
    thread.start()
    try:
        return result.result(within_s)
    except TimeoutError:
        if result.done():  # `read` itself has raised the error
            raise
        _waiting[path] = thread
        raise _unreadable(path, errno.ETIMEDOUT, f"its disk did not answer within {within_s:g} s") from None


def _opened(path: Path, *, private: bool) -> BinaryIO:
    """Open an emptied file for writing. Creates it if it is missing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o600 if private else 0o666), "wb")
    if private:
        os.fchmod(file.fileno(), 0o600)  # because the file may exist with other rights
    return file


def _is_deeper(value: object, most: int) -> bool:
    """Whether tables and arrays are nested deeper than `most`. Does not recurse."""
    level: list[object] = [value]
    for _ in range(most + 1):
        level = [
            each
            for outer in level
            if isinstance(outer, dict | list)
            for each in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _bytes_of(path: Path, most_bytes: int) -> bytes:
    try:
        _check_kind(path, os.stat(path))  # noqa: PTH116 - of the link's target; opening a device may act on it
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if path.is_symlink():
            raise _unreadable(path, errno.ENOENT, f"a link to {path.readlink()}, which is missing") from None
        raise
    except ValueError:
        raise _unreadable(path, errno.EINVAL, "its name holds a NUL byte") from None
    try:
        _check_kind(path, os.fstat(handle))  # again, because the path may have been replaced since then
        raw = bytearray()
        while len(raw) <= most_bytes and (chunk := os.read(handle, _CHUNK_BYTES)):
            raw += chunk
    finally:
        os.close(handle)
    if len(raw) > most_bytes:
        raise _unreadable(path, errno.EFBIG, f"more than {most_bytes} bytes")
    return bytes(raw)


def _check_kind(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
        raise _unreadable(path, errno.EINVAL, f"{kind}, not a regular file")


def _unreadable(path: Path, number: int, reason: str) -> UnreadableFileError:
    return UnreadableFileError(number, reason, path)
