"""Work that has to finish though its caller is cancelled, tasks that no single caller owns, waits and signals that end."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_S = 30.0
"""Shielded work that takes longer is given up: a process must be able to end."""


async def run_shielded(work: Coroutine[Any, Any, T], *, longest_s: float = LONGEST_S) -> T:
    """Run `work` to its end, even if the caller is cancelled meanwhile, once or again and again.

    Raises what `work` raises, else `CancelledError` if the caller was cancelled: what `work` gives is then lost unless
    it was stored. After an error of `work` the cancellation comes at the caller's next wait. Nothing is left behind:
    `work` is over when this returns or raises. Raises `TimeoutError` if it takes longer than `longest_s` seconds after
    the last cancellation.
    """
    task = asyncio.Task(work)  # outside any group, which would cancel it together with the caller
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            done, _ = await asyncio.wait([task], timeout=longest_s)
        except asyncio.CancelledError as e:
            cancelled = e
            continue
        if not done:
            task.cancel()
            await asyncio.wait([task])
            _cancel_later(cancelled)
            raise TimeoutError(f"not done within {longest_s:g} s; allowed is less")
    if task.cancelled() or task.exception() is not None:
        _cancel_later(cancelled)
        return task.result()
    if cancelled is not None:
        raise cancelled
    return task.result()


def _cancel_later(cancelled: asyncio.CancelledError | None) -> None:
    """Hand a cancellation that was held back to the caller's next wait; it is counted already."""
    caller = asyncio.current_task()
    if cancelled is not None and caller is not None:
        caller.uncancel()
        caller.cancel()


class OwnedTasks:
    """Tasks of an object with many callers: any of them starts one, none is cancelled with it or by it.

    A `TaskGroup` would belong to the caller that came first: an error of any task would cancel that caller.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._errors: list[BaseException] = []

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task; what it raises is raised by `aclose`."""
        task = asyncio.Task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def aclose(self) -> None:
        """Wait until all have ended, and raise the first of their errors. Harmless twice.

        If the caller is cancelled meanwhile they are cancelled as well.
        """
        try:
            while self._running:
                await asyncio.wait(self._running)
        except asyncio.CancelledError:
            for task in self._running:
                task.cancel()
            while self._running:
                await asyncio.wait(self._running)
            raise
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)


async def set_within(seconds: float, event: asyncio.Event) -> None:
    """Wait for `event`, but not longer than `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def end_wait(limit: asyncio.Timeout) -> None:
    """Have the time limit around a wait run out now; harmless if it has run out."""
    if not limit.expired():
        limit.reschedule(0)


@contextmanager
def on_first_signal(act: Callable[[], None]) -> Generator[None]:
    """Call `act` on the first SIGINT or SIGTERM; a second one does what it did before the block.

    It is called by the loop, between two of its steps. Signals reach the main thread only: on any other one nothing is
    changed, and nothing comes.
    """
    loop = asyncio.get_running_loop()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    heard = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()

    def restore(number: signal.Signals) -> None:
        if loop.remove_signal_handler(number) and number == signal.SIGTERM:
            signal.signal(number, on_sigterm)  # the loop leaves the system's default there

    def first() -> None:
        for number in heard:
            restore(number)
        act()

    for number in heard:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in heard:
            restore(number)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` as `asyncio.run` does, but do not wait for its threads: one may wait for a dead disk for ever.

    Python waits for them when the process ends, unless something ends it before.
    """
    with asyncio.Runner() as runner:
        loop, threads = runner.get_loop(), ThreadPoolExecutor(thread_name_prefix="work")
        loop.set_default_executor(threads)
        try:
            return runner.run(work)
        finally:
            threads.shutdown(wait=False)
            loop.set_default_executor(
                ThreadPoolExecutor(1)
            )  # the runner waits for this one, which has no thread
