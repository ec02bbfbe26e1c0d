"""A file that a user names is read in time and in bounds, whatever it is."""

import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from agentic_trading.files import (
    UnreadableFileError,
    locked,
    read_file,
    read_utf8,
    read_within,
    replace_file,
    whole_number,
)

pytestmark = pytest.mark.timeout(30)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "a FIFO, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "a device, not a regular file"),
        (make_socket, "a socket, not a regular file"),
        (Path.mkdir, "a folder, not a regular file"),
        (lambda path: path.symlink_to("gone"), "a link to gone, which is missing"),
        (make_sparse, "more than 16777216 bytes"),
    ],
)
def test_read_file_names_unusable_file_kind(
    make: Callable[[Path], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket has a short path
    path = Path("named")
    make(path)

    with pytest.raises(UnreadableFileError) as refused:
        read_file(path)

    assert (refused.value.strerror, refused.value.filename) == (reason, "named")
    assert str(refused.value) == f"named cannot be read ({reason})"


def test_read_file_keeps_missing_and_loop_errors(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        read_file(tmp_path / "loop")
    with pytest.raises(UnreadableFileError, match="its name holds a NUL byte"):
        read_file(Path("a\0b"))


def test_read_file_enforces_the_size_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)

    assert read_file(path, most_bytes=100) == b"x" * 100
    with pytest.raises(UnreadableFileError, match="more than 99 bytes"):
        read_file(path, most_bytes=99)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xef\xbb\xbfkey", "a byte order mark: save it as UTF-8 without one"),
        ("key".encode("utf-16"), "not UTF-8: byte 1"),
        (b"key\nk\0y", "a NUL byte in line 2"),
    ],
)
def test_read_utf8_refuses_invalid_text(raw: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(raw)

    with pytest.raises(UnreadableFileError) as refused:
        read_utf8(path)

    assert refused.value.strerror == reason


def test_unresponsive_disk_fails_later_reads_immediately() -> None:
    path, answered, ended = Path("on-a-dead-mount"), Event(), Event()

    def read() -> str:
        answered.wait()
        ended.set()
        return "late"

    with pytest.raises(UnreadableFileError, match=r"did not answer within 0\.05 s"):
        read_within(path, read, within_s=0.05)
    with pytest.raises(UnreadableFileError, match="has not answered an earlier read"):
        read_within(path, read, within_s=30)
    answered.set()
    ended.wait()

    assert read_within(path, lambda: "again", within_s=30) == "again"


def test_timeout_of_disk_is_raised_unchanged() -> None:
    def read() -> str:
        raise TimeoutError("of a network mount")

    with pytest.raises(TimeoutError, match="of a network mount"):
        read_within(Path("file"), read)


def test_overlong_integer_text_is_refused() -> None:
    assert whole_number("-12") == -12
    with pytest.raises(ValueError, match="has 641 digits, at most 640 are allowed"):
        whole_number("9" * 641)


def test_replaced_file_has_its_new_content_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    (tmp_path / "state.json.new").write_bytes(b"of a dead writer")
    for content in (b"first", b""):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_private_replacement_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path, dead = tmp_path / "keys.toml", tmp_path / "keys.toml.new"
    for each in (path, dead):
        each.write_bytes(b"of another writer")
        each.chmod(0o666)

    replace_file(path, b"first", private=True)

    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600


def test_lock_is_created_and_excludes_other_writers(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "folder" / "lock"

    with locked(lock, private=True), lock.open("rb") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert lock.stat().st_mode & 0o777 == 0o600
    with lock.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_failed_replacement_keeps_the_former_content(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"first", sync=False)
    (tmp_path / "state.json.new").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"second")
    assert path.read_bytes() == b"first"
