"""Whatever fails or is cancelled while a platform opens or closes: all of it is closed once, in reverse, and nothing hidden."""

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agentic_trading.app.log_check import check_file
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.topic import Subscription, Topic
from agentic_trading.errors import TradingError
from agentic_trading.governance.errors import ControlsUnreadableError, LedgerUnavailableError, PolicyError
from agentic_trading.llm import JsonFileInteractionStore, StoreError
from agentic_trading.llm.events import RunStarted
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.result import Usage
from agentic_trading.llm.stores.jsonl.file import Disk
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import (
    ConfigError,
    LedgerConfig,
    Platform,
    PlatformConfig,
    Ports,
    ProviderConfig,
    ProviderContext,
    TenantConfig,
    local_gateway,
)
from tests.platform.calls import BUDGET_USD, asked, envelope, scripted


@dataclass
class Adapters:
    """What the third party's adapters below have made and closed, in order."""

    made: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


_seen = Adapters()


@pytest.fixture
def seen() -> Adapters:
    _seen.made.clear()
    _seen.closed.clear()
    return _seen


class HouseProvider:
    """An adapter of a third party: `close` among its options says what it fails with when it is closed."""

    def __init__(self, context: ProviderContext) -> None:
        self._name = context.name
        self._close = str(context.config.options.get("close", ""))
        _seen.made.append(self._name)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse("{}", "end_turn", Usage(input_tokens=1, output_tokens=1), request.envelope.model)

    async def count_tokens(self, _request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None:
        await asyncio.sleep(0)  # a wait in which it may be cancelled
        _seen.closed.append(self._name)
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
    """Takes nothing that is appended."""

    def append(self, _fd: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left")


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


@pytest.fixture(params=["before threads", "after threads", "three times"])
async def cancellation(request: pytest.FixtureRequest) -> AsyncGenerator[Cancellation]:
    """Cancel before threads have begun what a step waits for, when they have done it, and again and again."""
    with ThreadPoolExecutor(max_workers=1) as one_thread:
        asyncio.get_running_loop().set_default_executor(one_thread)
        after = one_thread if request.param == "after threads" else None
        yield Cancellation(3 if request.param == "three times" else 1, after)


def left_open(folder: Path) -> list[str]:
    """Return the tasks, and the files below `folder`, that are still open."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(descriptor.readlink()))
    files = [target for target in targets if target.startswith(str(folder))]
    return files + [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]


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


async def test_an_opening_that_is_cancelled_at_any_wait_leaves_nothing_open(
    tmp_path: Path, seen: Adapters, cancellation: Cancellation
) -> None:
    wait, platform = 0, Platform(everything(tmp_path))
    while await cancellation.ends(platform.__aenter__(), at=wait):
        assert (wait, left_open(tmp_path)) == (wait, [])
        assert (wait, seen.closed) == (wait, seen.made[::-1])
        seen.made.clear()
        seen.closed.clear()
        wait, platform = wait + 1, Platform(everything(tmp_path))
    await platform.__aexit__(None, None, None)

    assert wait > 10
    assert await unended_runs(tmp_path / "interactions.jsonl") == []


async def test_a_closing_that_is_cancelled_at_any_wait_closes_everything(
    tmp_path: Path, seen: Adapters, cancellation: Cancellation
) -> None:
    is_cancelled = True
    for wait in count():
        if not is_cancelled:
            break
        platform = Platform(everything(tmp_path), Ports(providers={"scripted": scripted()}))
        await platform.__aenter__()
        assert await asked(platform, envelope(wait)) == [None]

        is_cancelled = await cancellation.ends(platform.__aexit__(None, None, None), at=wait)

        assert (wait, left_open(tmp_path)) == (wait, [])
        assert (wait, seen.closed) == (wait, ["house-b", "house-a"])
        seen.closed.clear()

    assert wait > 5
    assert await unended_runs(tmp_path / "interactions.jsonl") == []


def policy_that_is_none(folder: Path) -> PlatformConfig:
    (folder / "policy.toml").write_text("[principals.desk-a]\n", encoding="utf-8")
    return everything(folder).model_copy(update={"policy": folder / "policy.toml"})


def folder_that_is_a_file(folder: Path) -> PlatformConfig:
    (folder / "file").write_text("", encoding="utf-8")
    return everything(folder / "file")


def log_that_is_none(folder: Path) -> PlatformConfig:
    (folder / "interactions.jsonl").write_text("{}\n", encoding="utf-8")
    return everything(folder)


def ledger_that_is_away(folder: Path) -> PlatformConfig:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{unused.getsockname()[1]}"
    return everything(folder).model_copy(update={"ledger": LedgerConfig(url=url)})


def controls_that_are_none(folder: Path) -> PlatformConfig:
    (folder / "controls-default.json").write_text("{}", encoding="utf-8")
    return everything(folder)


def provider_that_cannot_be_made(folder: Path) -> PlatformConfig:
    providers = {"house-a": house(), "house-b": house(), "house-c": house(make="broken")}
    return everything(folder).model_copy(update={"providers": providers})


def principal_without_a_key(folder: Path) -> PlatformConfig:
    (folder / "keys").mkdir()
    (folder / "keys" / "desk-a").write_text("k" * 32, encoding="utf-8")
    keys = {"principals_folder": folder / "keys", "sign_as": "desk-b"}
    return everything(folder).model_copy(update=keys)


@pytest.mark.parametrize(
    ("failing", "error", "says", "made"),
    [
        (policy_that_is_none, PolicyError, "policy.toml", 0),
        (folder_that_is_a_file, StoreError, "cannot be used", 0),
        (log_that_is_none, StoreError, "interactions.jsonl", 0),
        (ledger_that_is_away, LedgerUnavailableError, "cannot be reached", 0),
        (controls_that_are_none, ControlsUnreadableError, "controls-default.json", 0),
        (provider_that_cannot_be_made, ConfigError, r"house-c\.adapter is .*OSError: no such device", 2),
        (principal_without_a_key, ConfigError, "sign_as is 'desk-b'; allowed: desk-a", 2),
    ],
)
async def test_a_step_that_fails_closes_what_is_open_and_its_error_comes_out(
    tmp_path: Path,
    seen: Adapters,
    failing: Callable[[Path], PlatformConfig],
    error: type[TradingError],
    says: str,
    made: int,
) -> None:
    with pytest.raises(error, match=says):
        async with asyncio.timeout(10), Platform(failing(tmp_path)):
            pass

    assert (len(seen.made), seen.closed) == (made, seen.made[::-1])
    assert left_open(tmp_path) == []


@pytest.mark.parametrize("readers", [0, 1, 2])
async def test_a_bus_that_takes_no_more_readers_closes_what_is_open(
    tmp_path: Path, seen: Adapters, readers: int
) -> None:
    broker = DeafBroker(readers)

    with pytest.raises(TradingError, match="the bus takes no more readers"):
        async with asyncio.timeout(10), Platform(everything(tmp_path), Ports(broker=broker)):
            await asyncio.Event().wait()

    assert seen.closed == ["house-b", "house-a"]
    assert left_open(tmp_path) == []
    for reader in broker.opened:
        with pytest.raises(BusClosedError):
            await reader.take()


def failing_to_close(folder: Path) -> PlatformConfig:
    providers = {"house-a": house(close="a hangs"), "house-b": house(), "house-c": house(close="c hangs")}
    return everything(folder).model_copy(update={"providers": providers})


async def test_providers_that_fail_to_close_keep_nothing_else_open(tmp_path: Path, seen: Adapters) -> None:
    with pytest.raises(OSError, match="c hangs") as raised, capture_logs() as logged:
        async with Platform(failing_to_close(tmp_path)):
            pass

    assert seen.closed == ["house-c", "house-b", "house-a"]
    assert left_open(tmp_path) == []
    assert raised.value.__notes__ == ["beside it: OSError: a hangs"]
    assert [line["error"] for line in logged] == ["OSError: a hangs"]
    assert (await check_file(tmp_path / "interactions.jsonl")).verdict == "whole"


async def test_an_error_of_the_block_is_not_hidden_by_one_of_closing(tmp_path: Path, seen: Adapters) -> None:
    mistake = LookupError("the caller's own mistake")

    with pytest.raises(LookupError) as raised:
        async with Platform(failing_to_close(tmp_path)):
            raise mistake

    assert raised.value is mistake
    assert mistake.__notes__ == ["beside it: OSError: c hangs", "beside it: OSError: a hangs"]
    assert len(seen.closed) == 3


async def test_an_error_of_opening_is_not_hidden_by_one_of_closing(tmp_path: Path, seen: Adapters) -> None:
    config = failing_to_close(tmp_path)
    providers = {**config.providers, "house-d": house(make="broken")}

    with pytest.raises(ConfigError, match="no such device") as raised:
        async with Platform(config.model_copy(update={"providers": providers})):
            pass

    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__notes__ == ["beside it: OSError: c hangs", "beside it: OSError: a hangs"]
    assert len(seen.closed) == 3


async def test_a_cancellation_is_not_hidden_by_an_error_of_closing(tmp_path: Path, seen: Adapters) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), Platform(failing_to_close(tmp_path)):
            await asyncio.Event().wait()

    assert len(seen.closed) == 3
    assert left_open(tmp_path) == []


async def test_a_log_that_gives_up_comes_out_alone_though_a_provider_fails_to_close(
    tmp_path: Path, seen: Adapters
) -> None:
    log = JsonFileInteractionStore(tmp_path / "log.jsonl", disk=FullDisk())
    ports = Ports(store=log, providers={"scripted": scripted()})

    config = failing_to_close(tmp_path).model_copy(update={"folder": None})
    with pytest.raises(StoreError, match="No space left") as raised:
        async with Platform(config, ports, records_run=False) as platform:
            await platform.ask(envelope())

    assert raised.value.__notes__ == ["beside it: OSError: c hangs", "beside it: OSError: a hangs"]
    assert len(seen.closed) == 3
    with suppress(StoreError):
        await log.aclose()


async def test_providers_of_an_embedded_gateway_are_closed_and_hide_no_error(
    tmp_path: Path, seen: Adapters
) -> None:
    context = ProviderContext("house", house(close="it hangs"), OneKey("k"), Capabilities([]))
    mistake = LookupError("the caller's own mistake")

    with pytest.raises(LookupError) as raised:
        async with local_gateway(HouseProvider(context), folder=tmp_path, budget_usd=BUDGET_USD):
            raise mistake

    assert mistake.__notes__ == ["beside it: OSError: it hangs"]
    assert raised.value is mistake
    assert seen.closed == ["house"]
