"""How a log writes: every change of a file goes through `Disk`, so that tests can cut the power at any of them."""

import os
from pathlib import Path
from typing import Final

from agentic_trading.files import sync_folder

_NEW_FILE: Final = 0o644


class Disk:
    """Change files, and wait until the changes survive a power cut."""

    def open(self, path: Path, *, must_be_new: bool = False) -> int:
        """Open a file for appending, create it if it is missing, and return its descriptor."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if must_be_new else 0)
        return os.open(path, flags, _NEW_FILE)

    def append(self, fd: int, data: bytes) -> None:
        """Write all of `data`. If it raises `OSError`, a part of it may be in the file."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def sync(self, fd: int) -> None:
        """Return when all written bytes survive a power cut.

        After an `OSError`, this is unknown.
        """
        getattr(os, "fdatasync", os.fsync)(fd)

    def sync_folder(self, folder: Path) -> None:
        """Return when all names in a folder survive a power cut."""
        sync_folder(folder)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file to `size` bytes."""
        os.ftruncate(fd, size)

    def rename(self, path: Path, name: Path) -> None:
        """Give a file a new name in its folder."""
        path.rename(name)

    def unlink(self, path: Path) -> None:
        """Delete a file, if it is there."""
        path.unlink(missing_ok=True)
