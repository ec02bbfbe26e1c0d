"""Whatever fails or is cancelled while a platform opens or closes: all of it is closed once, in reverse, and nothing hidden."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.errors import BusClosedError
from agentic_trading.errors import TradingError
from agentic_trading.governance.errors import ControlsUnreadableError, LedgerUnavailableError, PolicyError
from agentic_trading.llm import JsonFileInteractionStore, StoreError
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.operate.log_check import check_file
from agentic_trading.platform import (
    ConfigError,
    LedgerConfig,
    Platform,
    PlatformConfig,
    Ports,
    ProviderContext,
    local_gateway,
)
from tests.platform.calls import BUDGET_USD, asked, envelope, scripted
from tests.platform.closing import (
    SEEN,
    Adapters,
    Cancellation,
    DeafBroker,
    FullDisk,
    HouseProvider,
    everything,
    house,
    left_open,
    unended_runs,
)


@pytest.fixture
def seen() -> Adapters:
    SEEN.made.clear()
    SEEN.closed.clear()
    return SEEN


@pytest.fixture(params=["before threads", "after threads", "three times"])
async def cancellation(request: pytest.FixtureRequest) -> AsyncGenerator[Cancellation]:
    """Cancel before threads have begun what a step waits for, when they have done it, and again and again."""
    with ThreadPoolExecutor(max_workers=1) as one_thread:
        asyncio.get_running_loop().set_default_executor(one_thread)
        after = one_thread if request.param == "after threads" else None
        yield Cancellation(3 if request.param == "three times" else 1, after)


async def test_cancelled_opening_leaves_no_resource_open(
    tmp_path: Path, seen: Adapters, cancellation: Cancellation
) -> None:
    wait, platform = 0, Platform(everything(tmp_path))
    while await cancellation.ends(platform.__aenter__(), at=wait):
        assert (wait, await left_open(tmp_path)) == (wait, [])
        assert (wait, seen.closed) == (wait, seen.made[::-1])
        seen.made.clear()
        seen.closed.clear()
        wait, platform = wait + 1, Platform(everything(tmp_path))
    await platform.__aexit__(None, None, None)

    assert wait > 10
    assert await unended_runs(tmp_path / "interactions.jsonl") == []


async def test_cancelled_closing_closes_every_resource(
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

        assert (wait, await left_open(tmp_path)) == (wait, [])
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
        (principal_without_a_key, ConfigError, "sign_as is 'desk-b'. Allowed: desk-a", 2),
    ],
)
async def test_failing_step_closes_opened_resources(
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
    assert await left_open(tmp_path) == []


async def test_broken_log_is_not_continued(tmp_path: Path, seen: Adapters) -> None:
    async with Platform(everything(tmp_path), Ports(providers={"scripted": scripted()})) as platform:
        assert await asked(platform, envelope()) == [None]
    log = tmp_path / "interactions.jsonl"
    log.write_text(log.read_text(encoding="utf-8").replace("Advise.", "Advice."), encoding="utf-8")
    seen.made.clear()

    with pytest.raises(StoreError, match=r"interactions\.jsonl:4: its hash is not that of its bytes"):
        async with Platform(everything(tmp_path)):
            pass

    assert seen.made == []
    assert await left_open(tmp_path) == []


@pytest.mark.parametrize("readers", [0, 1, 2])
async def test_bus_without_readers_closes_opened_resources(
    tmp_path: Path, seen: Adapters, readers: int
) -> None:
    broker = DeafBroker(readers)

    with pytest.raises(TradingError, match="the bus takes no more readers"):
        async with asyncio.timeout(10), Platform(everything(tmp_path), Ports(broker=broker)):
            await asyncio.Event().wait()

    assert seen.closed == ["house-b", "house-a"]
    assert await left_open(tmp_path) == []
    for reader in broker.opened:
        with pytest.raises(BusClosedError):
            await reader.take()


def failing_to_close(folder: Path) -> PlatformConfig:
    providers = {"house-a": house(close="a hangs"), "house-b": house(), "house-c": house(close="c hangs")}
    return everything(folder).model_copy(update={"providers": providers})


async def test_failing_provider_close_closes_the_others(tmp_path: Path, seen: Adapters) -> None:
    with pytest.raises(OSError, match="c hangs") as raised, capture_logs() as logged:
        async with Platform(failing_to_close(tmp_path)):
            pass

    assert seen.closed == ["house-c", "house-b", "house-a"]
    assert await left_open(tmp_path) == []
    assert raised.value.__notes__ == ["while HouseProvider was closed", "another error: OSError: a hangs"]
    assert [line["error"] for line in logged] == ["OSError: a hangs"]
    assert (await check_file(tmp_path / "interactions.jsonl")).verdict == "whole"


async def test_block_error_precedes_closing_errors(tmp_path: Path, seen: Adapters) -> None:
    mistake = LookupError("the caller's own mistake")

    with pytest.raises(LookupError) as raised:
        async with Platform(failing_to_close(tmp_path)):
            raise mistake

    assert raised.value is mistake
    assert mistake.__notes__ == ["another error: OSError: c hangs", "another error: OSError: a hangs"]
    assert len(seen.closed) == 3


async def test_opening_error_precedes_closing_errors(tmp_path: Path, seen: Adapters) -> None:
    config = failing_to_close(tmp_path)
    providers = {**config.providers, "house-d": house(make="broken")}

    with pytest.raises(ConfigError, match="no such device") as raised:
        async with Platform(config.model_copy(update={"providers": providers})):
            pass

    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__notes__ == ["another error: OSError: c hangs", "another error: OSError: a hangs"]
    assert len(seen.closed) == 3


async def test_cancellation_precedes_closing_errors(tmp_path: Path, seen: Adapters) -> None:
    is_open = asyncio.Event()

    async def serving() -> None:
        async with Platform(failing_to_close(tmp_path)):
            is_open.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        task = group.create_task(serving())
        await is_open.wait()
        task.cancel()

    assert task.cancelled()
    assert len(seen.closed) == 3
    assert await left_open(tmp_path) == []


async def test_log_error_precedes_closing_errors(tmp_path: Path, seen: Adapters) -> None:
    log = JsonFileInteractionStore(tmp_path / "log.jsonl", disk=FullDisk())
    ports = Ports(store=log, providers={"scripted": scripted()})

    config = failing_to_close(tmp_path).model_copy(update={"folder": None})
    with pytest.raises(StoreError, match="No space left") as raised:
        async with Platform(config, ports, records_run=False) as platform:
            await platform.ask(envelope())

    assert raised.value.__notes__ == ["another error: OSError: c hangs", "another error: OSError: a hangs"]
    assert len(seen.closed) == 3
    with suppress(StoreError):
        await log.aclose()


async def test_unwritable_log_end_releases_all_resources(tmp_path: Path, seen: Adapters) -> None:
    disk = FullDisk(is_full=False)
    log = JsonFileInteractionStore(tmp_path / "interactions.jsonl", disk=disk)
    await log.open()
    config = everything(tmp_path).model_copy(update={"folder": None})

    with pytest.raises(StoreError, match="No space left"):
        async with Platform(config, Ports(store=log)):
            disk.is_full = True
    with suppress(StoreError):
        await log.aclose()

    assert seen.closed == ["house-b", "house-a"]
    assert await left_open(tmp_path) == []
    assert len(await unended_runs(log.path)) == 1


async def test_embedded_providers_are_closed_without_hiding_error(tmp_path: Path, seen: Adapters) -> None:
    context = ProviderContext("house", house(close="it hangs"), OneKey("k"), Capabilities([]))
    mistake = LookupError("the caller's own mistake")

    with pytest.raises(LookupError) as raised:
        async with local_gateway(HouseProvider(context), folder=tmp_path, budget_usd=BUDGET_USD):
            raise mistake

    assert mistake.__notes__ == ["another error: OSError: it hangs"]
    assert raised.value is mistake
    assert seen.closed == ["house"]


async def test_unopened_embedded_gateway_closes_providers(tmp_path: Path, seen: Adapters) -> None:
    context = ProviderContext("house", house(), OneKey("k"), Capabilities([]))
    gateway = local_gateway(
        HouseProvider(context), folder=tmp_path, budget_usd=BUDGET_USD, policy=tmp_path / "none.toml"
    )

    with pytest.raises(PolicyError, match=r"none\.toml"):
        async with gateway:
            pass

    assert seen.closed == ["house"]
    assert await left_open(tmp_path) == []


async def test_given_ports_stay_open(tmp_path: Path, seen: Adapters) -> None:
    context = ProviderContext("scripted", house(), OneKey("k"), Capabilities([]))
    store, broker = JsonFileInteractionStore(tmp_path / "log.jsonl"), MemoryBroker()
    ports = Ports(providers={"scripted": HouseProvider(context)}, store=store, broker=broker)
    limited = everything(tmp_path).model_copy(update={"folder": None})

    for number in range(2):
        async with Platform(limited, ports) as platform:
            assert await asked(platform, envelope(number)) == [None]

    assert seen.closed == ["house-b", "house-a"] * 2
    assert len(await store.recent()) == 2
    await store.aclose()
    await broker.aclose()
