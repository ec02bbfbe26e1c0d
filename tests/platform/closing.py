"""What opens and closes in tests of a platform: adapters of a third party, and cancellations at each wait."""

import asyncio
import errno
from collections.abc import Awaitable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from typing_extensions import override

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.topic import Subscription, Topic
from agentic_trading.errors import TradingError
from agentic_trading.llm.event import RunStarted
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import PlatformConfig, ProviderConfig, ProviderContext, TenantConfig
from tests.platform.calls import BUDGET_USD


@dataclass
class Adapters:
    """What the third party's adapters below have made and closed, in order."""

    made: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


SEEN = Adapters()


class HouseProvider:
    """An adapter of a third party: `close` among its options says what it fails with when it is closed."""

    def __init__(self, context: ProviderContext) -> None:
        self._name = context.name
        self._close = str(context.config.options.get("close", ""))
        SEEN.made.append(self._name)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse("{}", "end_turn", Usage(input_tokens=1, output_tokens=1), request.envelope.model)

    async def count_tokens(self, _request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None:
        await asyncio.sleep(0)  # a wait in which it may be cancelled
        SEEN.closed.append(self._name)
        if self._close:
            raise OSError(self._close)


def broken(_context: ProviderContext) -> HouseProvider:
    """An adapter that cannot be made."""
    raise OSError("no such device")


def house(*, close: str = "", make: str = "HouseProvider") -> ProviderConfig:
    return ProviderConfig(adapter=f"{__name__}:{make}", options={"close": close} if close else {})


class DeafBroker(MemoryBroker):
    """A bus that takes so many readers and no more."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most
        self.opened: list[Subscription] = []

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        if not self._left:
            raise TradingError("the bus takes no more readers")
        self._left -= 1
        self.opened.append(await super().subscribe(topics, group))
        return self.opened[-1]


class FullDisk(Disk):
    """Takes nothing that is appended once it is full."""

    def __init__(self, *, is_full: bool = True) -> None:
        self.is_full = is_full

    @override
    def append(self, fd: int, data: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left")
        super().append(fd, data)


@dataclass(frozen=True)
class Cancellation:
    """A task is cancelled at `times` of its waits; with `threads`, when they have done what it waits for."""

    times: int = 1
    threads: ThreadPoolExecutor | None = None

    async def ends(self, work: Awaitable[object], *, at: int) -> bool:
        """Cancel `work` at its wait number `at`, counted from 0; returns whether that ended it."""

        async def cancelled() -> None:
            await CancelledWork(self, work, at)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(cancelled())
        return task.cancelled()


@dataclass(frozen=True)
class CancelledWork:
    """Work whose own task is cancelled while it waits."""

    by: Cancellation
    work: Awaitable[object]
    at: int

    def __await__(self) -> Generator[Any, Any, None]:
        steps: Any = self.work.__await__()
        error: BaseException | None = None
        for number in count():
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration:
                return
            task = asyncio.current_task()
            if number in range(self.at, self.at + self.by.times) and task is not None:
                if self.by.threads is not None:
                    self.by.threads.submit(int).result()
                task.cancel()
            error = None
            try:
                yield waits_for
            except BaseException as e:  # noqa: BLE001 - handed on
                error = e


async def left_open(folder: Path) -> list[str]:
    """Return the tasks, and the files below `folder`, that are still open.

    With one thread, what it still does for steps that were cancelled, a read or an atomic write, is over by then.
    """
    files = await asyncio.to_thread(_open_files, folder)
    return files + [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]


def _open_files(folder: Path) -> list[str]:
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(descriptor.readlink()))
    return [target for target in targets if target.startswith(str(folder))]


async def unended_runs(log: Path) -> list[str]:
    """Return the starts of runs, by id, that no end is on record for."""
    records = JsonlRecords(log)
    verified = await records.verify()
    await records.aclose()
    starts = [run.event.id for run in verified.runs if run.event.kind == RunStarted.KIND]
    ended = {run.event.causation_id for run in verified.runs}
    return [start for start in starts if start not in ended]


def everything(folder: Path) -> PlatformConfig:
    """A platform with one of every step of opening: a folder, a limit, providers of a third party."""
    return PlatformConfig(
        folder=folder,
        tenants={"default": TenantConfig(budget_usd=BUDGET_USD)},
        providers={"house-a": house(), "house-b": house()},
    )
