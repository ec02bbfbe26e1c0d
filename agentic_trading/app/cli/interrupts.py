"""SIGTERM as another Ctrl-C, for a command that has something to take away or to say before it ends."""

import select
import signal
from collections.abc import Generator
from contextlib import contextmanager
from socket import socketpair
from typing import NoReturn, TextIO


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


def wait_for_input(stream: TextIO) -> None:
    """Wait until `stream` has something to read or has ended; whatever a signal raises, it raises here, at once.

    A reading is not broken off by a signal that comes just before it begins, nor by one that another thread takes:
    it would be heard only after the next line. This wait is ended by the signal's own mark, which every signal sets.
    For the main thread.
    """
    marked, mark = socketpair()
    mark.settimeout(0)
    awaited = [stream.fileno(), marked.fileno()]
    with marked, mark:
        before = signal.set_wakeup_fd(mark.fileno(), warn_on_full_buffer=False)
        try:
            while stream.fileno() not in select.select(awaited, [], [])[0]:
                marked.recv(1)
        finally:
            signal.set_wakeup_fd(before)
