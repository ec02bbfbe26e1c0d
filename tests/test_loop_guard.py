"""The guard sees a blocking call from our package, and lets the rest pass."""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from blockbuster import BlockingError

import agentic_trading

PACKAGE = Path(agentic_trading.__file__).parent


def planted(source: str, path: Path) -> Callable[[], None]:
    """Return the function `work` of `source`, as if it stood in the file `path`."""
    names: dict[str, Callable[[], None]] = {}
    exec(compile(source, str(path), "exec"), names)  # noqa: S102 - the source is three lines above its use
    return names["work"]


NAP = "import time\ndef work():\n    time.sleep(0)\n"
SYNC = "import os, tempfile\ndef work():\n    with tempfile.TemporaryFile() as f:\n        os.fsync(f.fileno())\n"


@pytest.mark.parametrize("source", [NAP, SYNC], ids=["sleep", "fsync"])
async def test_own_code_must_not_block_loop(source: str) -> None:
    work = planted(source, PACKAGE / "planted.py")

    with pytest.raises(BlockingError):
        work()


@pytest.mark.parametrize("source", [NAP, SYNC], ids=["sleep", "fsync"])
async def test_blocking_call_is_allowed_in_thread(source: str) -> None:
    work = planted(source, PACKAGE / "planted.py")

    await asyncio.to_thread(work)


@pytest.mark.parametrize("source", [NAP, SYNC], ids=["sleep", "fsync"])
def test_blocking_call_is_allowed_without_loop(source: str) -> None:
    planted(source, PACKAGE / "planted.py")()


async def test_foreign_code_is_not_watched() -> None:
    time.sleep(0)  # noqa: ASYNC251 - this is what is tested
    with tempfile.TemporaryFile() as f:
        os.fsync(f.fileno())
