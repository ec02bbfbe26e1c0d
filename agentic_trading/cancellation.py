"""Work that finishes although its caller is cancelled, shared tasks, and signals."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_S = 30.0
"""Time limit of shielded work, so that a process can always end."""


async def run_shielded(work: Coroutine[Any, Any, T], *, longest_s: float = LONGEST_S) -> T:
    """Run `work` to its end, even if the caller is cancelled meanwhile, once or repeatedly.

    `work` has ended when this function returns or raises. If the caller was cancelled and `work` succeeded,
    the result is lost unless `work` stored it. If `work` failed, the cancellation is raised at the caller's
    next wait.

    Args:
        work: The coroutine to run.
        longest_s: Time limit in seconds, restarted by each cancellation.

    Raises:
        CancelledError: If the caller was cancelled and `work` succeeded.
        TimeoutError: If `work` takes longer than `longest_s`. It is cancelled.
        Exception: The error of `work`.

    """
    task = asyncio.Task(work)  # outside any group, which would cancel it with the caller
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
            raise TimeoutError(f"not done within {longest_s:g} s")
    if task.cancelled() or task.exception() is not None:
        _cancel_later(cancelled)
        return task.result()
    if cancelled is not None:
        raise cancelled
    return task.result()


def _cancel_later(cancelled: asyncio.CancelledError | None) -> None:
    """Raise a held-back cancellation at the caller's next wait."""
    caller = asyncio.current_task()
    if cancelled is not None and caller is not None:
        caller.uncancel()  # because `cancel` counts it again
        caller.cancel()


class OwnedTasks:
    """Tasks of an object with many callers. Cancelling a caller does not cancel them.

    Use it in place of a `TaskGroup`, which would belong to its first caller: an error in any task would
    cancel that caller.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._errors: list[BaseException] = []

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task. Its error is raised by `aclose`."""
        task = asyncio.Task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def aclose(self) -> None:
        """Wait until all tasks have ended, and raise the first of their errors. Calling it twice is harmless.

        If the caller is cancelled meanwhile, the tasks are cancelled too.
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
    """Wait for `event` for at most `seconds`. Does not raise at the end of this time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def end_wait(limit: asyncio.Timeout) -> None:
    """End a wait now by expiring its timeout. Harmless if it has expired."""
    if not limit.expired():
        limit.reschedule(0)


@contextmanager
def on_first_signal(act: Callable[[], None]) -> Generator[None]:
    """Call `act` on the first SIGINT or SIGTERM. A second signal has the effect that it had before the block.

    The event loop calls `act` between two of its steps. Outside the main thread, this has no effect, because
    signals reach only the main thread.
    """
    loop = asyncio.get_running_loop()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    heard = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()

    def restore(number: signal.Signals) -> None:
        if loop.remove_signal_handler(number) and number == signal.SIGTERM:
            signal.signal(number, on_sigterm)  # because the loop restores only the system's default

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
    """Run `work` as `asyncio.run` does, but do not wait for threads of the executor.

    Python still waits for them at the end of the process, unless it is ended otherwise.
    """
    # `asyncio.run` would wait for a thread that reads from a dead disk, without limit.
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
