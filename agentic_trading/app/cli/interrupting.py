"""SIGTERM as another Ctrl-C, for a command that has something to take away or to say before it ends."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def ended_as_by_ctrl_c() -> Generator[None]:
    """Let SIGTERM raise `KeyboardInterrupt`, as Ctrl-C does, for as long as the block lasts; for the main thread."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
