"""The decision log: one line for each trigger, call, intent and fill, to be compared byte for byte."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path


class DecisionLog:
    """Append lines to a file that `open` starts anew, and know their digest.

    The digest is the SHA-256 over all lines with their newlines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = sha256()
        self._lines = 0

    @property
    def digest(self) -> str:
        """The digest of what has been written, in 64 hexadecimal digits."""
        return self._digest.hexdigest()

    @property
    def lines(self) -> int:
        """How many lines have been written."""
        return self._lines

    async def open(self) -> None:
        """Start the file anew; raises `OSError` if it cannot be written."""
        await asyncio.to_thread(self.path.write_bytes, b"")

    async def append(self, lines: Sequence[bytes]) -> None:
        """Add lines; they are in the file when this returns."""
        if not lines:
            return
        block = b"".join(line + b"\n" for line in lines)
        self._digest.update(block)
        self._lines += len(lines)
        await asyncio.to_thread(self._write, block)

    def _write(self, block: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(block)
