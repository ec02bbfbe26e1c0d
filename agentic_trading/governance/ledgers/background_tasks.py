"""Tasks that live as long as a ledger: none outlives it, and none is started before it is needed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """A group that opens with its first task and is closed with its owner; a task in it may not fail."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None

    async def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task."""
        if self._group is None:
            self._group = await asyncio.TaskGroup().__aenter__()
        return self._group.create_task(work, name=name)

    async def aclose(self) -> None:
        """Wait until all have ended; harmless twice."""
        group, self._group = self._group, None
        if group is not None:
            await group.__aexit__(None, None, None)
