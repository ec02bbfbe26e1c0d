"""The decision log: one line for each trigger, call, intent and fill, to be compared byte for byte."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

from agentic_trading.llm.errors import StoreError


class DecisionLog:
    """Append lines to a file that `open` starts anew, and know their digest.

    The digest is the SHA-256 over all lines with their newlines. Raises `StoreError` where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = sha256()

    @property
    def digest(self) -> str:
        """The digest of what has been written, in 64 hexadecimal digits."""
        return self._digest.hexdigest()

    async def open(self) -> None:
        """Start the file anew."""
        await asyncio.to_thread(self._write, b"", mode="wb")

    async def append(self, lines: Sequence[bytes]) -> None:
        """Add lines; they are in the file when this returns."""
        if not lines:
            return
        block = b"".join(line + b"\n" for line in lines)
        self._digest.update(block)
        await asyncio.to_thread(self._write, block)

    def _write(self, block: bytes, *, mode: Literal["ab", "wb"] = "ab") -> None:
        try:
            with self.path.open(mode) as file:
                file.write(block)
        except OSError as e:
            raise StoreError(self.path, f"cannot be written ({e.strerror}); free it or the disk") from e
