"""What a platform has open: closed in reverse, each once, whatever fails; and which error comes out."""

import asyncio
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Protocol, Self, TypeVar

from agentic_trading.cancellation import run_shielded
from agentic_trading.errors import TradingError
from agentic_trading.logger import get_logger

log = get_logger()

T = TypeVar("T")


class Closable(Protocol):
    """A port that holds something open."""

    async def aclose(self) -> None:
        """Close it; harmless twice."""
        ...


ClosablePort = TypeVar("ClosablePort", bound=Closable)


class PortStack:
    """Ports and contexts that are open; leaving the block closes them in the reverse of the order of opening.

    One that fails to close keeps no other one open, and a cancellation interrupts none. Of several errors one comes
    out: the end that was demanded of the task or of the process (a cancellation, Ctrl-C), else the first
    `TradingError`, as a user can do something about it, else the first one. The others are its notes, and are logged.
    An error of the block is first among them, and comes out as it was raised, a group as well.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._unclosed: list[BaseException] = []
        self._cancellations = 0

    async def __aenter__(self) -> Self:
        """Begin with nothing open."""
        self._cancellations = _cancellations()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything, and raise the error that comes out if it is not `e`."""
        try:
            await self._stack.__aexit__(kind, e, trace)
        except BaseException as raised:  # noqa: BLE001 - it is raised again, or one of those in it
            errors = [*_leaves(raised, without=e), *self._unclosed]
        else:
            errors = [*self._unclosed]
        errors = errors if e is None else [e, *errors]
        if errors and (useful := self._useful(errors)) is not e:
            raise useful

    def keep(self, port: ClosablePort) -> ClosablePort:
        """Return a port that is closed when its turn has come."""
        self._stack.push_async_callback(self._close, port)
        return port

    async def make(self, make: Callable[[], ClosablePort]) -> ClosablePort:
        """Return what `make` gives in a thread; it is kept also if the caller is cancelled before it is there."""

        async def made() -> ClosablePort:
            return self.keep(await asyncio.to_thread(make))

        return await run_shielded(made(), longest_s=math.inf)  # a thread cannot be given up

    async def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter a context that is left when its turn has come."""
        return await self._stack.enter_async_context(context)

    async def _close(self, port: Closable) -> None:
        async def close() -> None:
            await port.aclose()

        try:
            await run_shielded(close())
        except Exception as e:  # noqa: BLE001 - adapters of others are closed here, and may raise anything
            e.add_note(f"while {type(port).__name__} was closed")
            self._unclosed.append(e)

    def _useful(self, errors: Sequence[BaseException]) -> BaseException:
        """Return the error that comes out, with the others as its notes."""
        each = list({id(error): error for error in errors}.values())
        if _cancellations() <= self._cancellations:  # a failed task of ours has cancelled the block
            each = [one for one in each if not isinstance(one, asyncio.CancelledError)] or each
        demanded = [one for one in each if not isinstance(one, Exception)]
        useful = next(iter([*demanded, *(one for one in each if isinstance(one, TradingError)), *each]))
        for other in each:
            if other is not useful and not isinstance(other, asyncio.CancelledError):
                text = f"{type(other).__name__}: {other}"
                log.error("platform_close_failed", error=text)
                useful.add_note(f"beside it: {text}")
        return useful


def first_useful(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error of a group that a user can do something about, the first `TradingError`, else the first one."""
    errors = list(_leaves(group, without=None))
    return next((error for error in errors if isinstance(error, TradingError)), errors[0])


def _leaves(error: BaseException, *, without: BaseException | None) -> Generator[BaseException]:
    """Yield the errors of a group and of the groups in it, but for one of the block."""
    if error is without:
        return
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each, without=without)
    else:
        yield error


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
