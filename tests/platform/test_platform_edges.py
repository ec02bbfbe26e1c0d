"""What surrounds a platform does not weaken it: ports handed in, neighbours in a folder, cancellation, names, restarts."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from typing_extensions import override

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.governance.commands import AddHalt, RemoveHalt, execute_command
from agentic_trading.governance.control_stores.file import FileControlStore, MemoryControlStore
from agentic_trading.governance.controls_document import KEPT_ACTIONS, HaltScope
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.llm import Event, FailureKind
from agentic_trading.llm.errors import RecordError, StoreError
from agentic_trading.llm.provider import Provider, Providers
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.store import InteractionStore
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore, JsonlRecords
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import (
    ConfigError,
    Platform,
    PlatformConfig,
    Ports,
    ProviderConfig,
    TenantConfig,
    local_gateway,
)
from agentic_trading.platform.adapters import ProviderContext
from agentic_trading.platform.port_adapters import records_in
from tests.build import NOW, event
from tests.platform.calls import BUDGET_USD, SMALL_USD, asked, envelope, scripted

EXHAUSTED = FailureKind.BUDGET_EXHAUSTED


def config(folder: Path | None = None, usd: Decimal | None = SMALL_USD, **row: object) -> PlatformConfig:
    """Return a configuration whose tenant may make three calls."""
    return PlatformConfig(
        folder=folder, tenants={"default": TenantConfig.model_validate({"budget_usd": usd, **row})}
    )


def platform(settings: PlatformConfig, **ports: object) -> Platform:
    return Platform(settings, Ports(**{"providers": {"scripted": scripted()}, **ports}))  # type: ignore[arg-type]


def fact(n: int) -> Event:
    return Event(
        kind="venue.filled", id=f"fill-{n}", trace_id="t", tenant_id="default", causation_id="o",
        time=NOW, body={"n": n},
    )  # fmt: skip


async def kinds_in(log: Path) -> list[str]:
    records = JsonlRecords(log)
    kinds = [getattr(entry.record, "kind", "interaction") async for entry in records.scan()]
    await records.aclose()
    return kinds


async def test_limit_holds_with_given_controls() -> None:
    async with platform(config(), controls=MemoryControlStore()) as opened:
        failures = await asked(opened, *(envelope(n) for n in range(6)))

    assert failures == [None] * 3 + [EXHAUSTED] * 3


async def test_given_log_locks_the_folder(tmp_path: Path) -> None:
    one, other = (JsonFileInteractionStore(tmp_path / name) for name in ("a.jsonl", "b.jsonl"))
    async with AsyncExitStack() as stack:
        for store in (one, other):
            await store.open()
            stack.push_async_callback(store.aclose)
        async with platform(config(), store=one) as first:
            with pytest.raises(StoreError, match="another platform is open in it"):
                await platform(config(usd=Decimal(5)), store=other).__aenter__()
            failures = await asked(first, *(envelope(n) for n in range(4)))
        async with platform(config(usd=Decimal(5)), store=other) as second:
            assert await asked(second, envelope(9)) == [None]

    assert failures == [None] * 3 + [EXHAUSTED]


async def test_log_serves_single_platform_at_a_time() -> None:
    store = MemoryInteractionStore()
    async with platform(config(), store=store) as first:
        with pytest.raises(StoreError, match="another platform is open on it"):
            await platform(config(), store=store).__aenter__()
        await asked(first, envelope(0), envelope(1))
    async with platform(config(), store=store) as second:
        failures = await asked(second, envelope(2), envelope(3))

    assert failures == [None, EXHAUSTED]


async def test_folder_with_given_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"folder is .*, but Ports.store is given too. Allowed: only one of them"
    ):
        await platform(config(tmp_path), store=MemoryInteractionStore()).__aenter__()


async def test_given_ledger_is_not_restored_from_log(tmp_path: Path) -> None:
    failures = []
    for start in range(2):
        async with platform(config(tmp_path), ledger=MemoryLedger()) as opened:
            failures += await asked(opened, *(envelope(4 * start + n) for n in range(4)))

    assert failures == ([None] * 3 + [EXHAUSTED]) * 2


async def test_removed_limit_is_removed_from_folder(tmp_path: Path) -> None:
    async with platform(config(tmp_path, window="day")) as opened:
        await asked(opened, envelope(0), envelope(1), envelope(2))
    async with platform(config(tmp_path, Decimal(100), window="month")) as opened:
        monthly = await asked(opened, envelope(3))
    async with platform(config(tmp_path, None)) as opened:
        unlimited = await asked(opened, envelope(4))

    assert monthly + unlimited == [None, None]
    assert (await FileControlStore(tmp_path).read("default")).limits == ()


async def test_configured_limit_stays_replaceable_after_many_commands(
    tmp_path: Path,
) -> None:
    async with platform(config(tmp_path, Decimal(100))):
        pass
    controls = FileControlStore(tmp_path)
    for number in range(KEPT_ACTIONS // 2 + 1):
        for command in (AddHalt(HaltScope.AGENT, "a"), RemoveHalt(HaltScope.AGENT, "a")):
            await execute_command(controls, "default", command, by="op", why=str(number), at=NOW)

    async with platform(config(tmp_path)) as opened:
        failures = await asked(opened, *(envelope(n) for n in range(4)))

    assert failures == [None] * 3 + [EXHAUSTED]


async def test_client_name_must_be_unique() -> None:
    async with platform(config()) as opened:
        async with opened.client("desk"):
            for name in ("desk", "platform"):
                with pytest.raises(ConfigError, match=f"client is '{name}', which another open client has"):
                    await opened.client(name).__aenter__()
        async with opened.client("desk") as again:
            assert (await again.ask(envelope())).failure is None


@pytest.mark.parametrize("ending", ["clean", "error", "cancelled"])
async def test_events_are_kept_on_every_exit(ending: str, tmp_path: Path) -> None:
    async def use() -> None:
        async with platform(config(tmp_path)) as opened:
            for n in range(50):
                await opened.record(fact(n))
            if ending == "error":
                raise ValueError(ending)
            if ending == "cancelled":
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                await asyncio.sleep(0)

    task = asyncio.Task(use())
    await asyncio.wait([task])

    ended = "cancelled" if task.cancelled() else "error" if task.exception() else "clean"
    assert ended == ending
    kinds = await kinds_in(tmp_path / "interactions.jsonl")
    assert kinds.count("venue.filled") == 50
    assert kinds[-1] == "run.ended"


async def test_block_error_is_raised_unchanged() -> None:
    mine = ExceptionGroup("mine", [ValueError("a"), KeyError("b")])
    with pytest.raises(ExceptionGroup) as several:
        async with platform(config()):
            raise mine
    cause = KeyError("cause")
    with pytest.raises(ValueError, match="one") as single:
        async with platform(config()):
            raise ValueError("one") from cause

    assert several.value is mine
    assert single.value.__cause__ is cause


async def test_cancelled_opening_releases_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, go_on = threading.Event(), threading.Event()

    def slow(folder: Path, *, parents: bool, exist_ok: bool) -> None:
        del parents, exist_ok
        under_way.set()
        assert go_on.wait(10), folder

    monkeypatch.setattr(Path, "mkdir", slow)
    opening = asyncio.Task(platform(config(tmp_path)).__aenter__())
    await asyncio.to_thread(under_way.wait)
    opening.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    monkeypatch.undo()

    async with platform(config(tmp_path)) as opened:
        assert await asked(opened, envelope()) == [None]


class Closing(ScriptedProvider):
    """Says how many of its kind are open."""

    opened = 0

    def __init__(self, made: Callable[[], object]) -> None:
        super().__init__(["{}"])
        Closing.opened += 1
        made()

    @override
    async def aclose(self) -> None:
        Closing.opened -= 1


_MADE = threading.Event()
_MAY_GO_ON = threading.Event()


def slowly_made(_context: ProviderContext) -> Provider:
    def wait() -> None:
        _MADE.set()
        assert _MAY_GO_ON.wait(10)

    return Closing(wait)


async def test_cancelled_opening_closes_the_provider() -> None:
    settings = PlatformConfig(
        providers={"house": ProviderConfig(adapter="tests.platform.test_platform_edges:slowly_made")}
    )
    opening = asyncio.Task(Platform(settings).__aenter__())
    await asyncio.to_thread(_MADE.wait)
    opening.cancel()
    _MAY_GO_ON.set()
    with pytest.raises(asyncio.CancelledError):
        await opening

    assert Closing.opened == 0


async def test_closed_platform_refuses_calls_and_reopens(
    tmp_path: Path,
) -> None:
    gateway = platform(config(tmp_path))
    with pytest.raises(RuntimeError, match="is not open"):
        await gateway.client("desk").__aenter__()
    async with gateway:
        with pytest.raises(RuntimeError, match="open already"):
            await gateway.__aenter__()
        gateway.stop()
    with pytest.raises(RuntimeError, match="is not open"):
        await gateway.ask(envelope())

    async with gateway as again:
        served = asyncio.Task(again.serve())
        assert await asked(again, envelope()) == [None]
        assert not served.done()
        again.stop()
        await served


async def test_given_providers_replace_configured_providers() -> None:
    settings = PlatformConfig(providers={"house": ProviderConfig(adapter="nobody:offers_this")})
    async with Platform(settings, Ports(providers=Providers({"scripted": scripted()}))) as opened:
        assert await asked(opened, envelope()) == [None]


async def test_failed_opening_closes_the_given_provider() -> None:
    provider = Closing(lambda: None)
    with pytest.raises(ConfigError, match=r"concurrency is 0\. Allowed: 1 to 256"):
        await local_gateway(provider, budget_usd=BUDGET_USD, workers=0).__aenter__()

    assert Closing.opened == 0


@pytest.mark.parametrize("place", ["folder", "policy", "models_file", "secrets_folder"])
def test_empty_path_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match=rf"{place} is ''. Allowed: a path"):
        PlatformConfig.model_validate({place: ""})


def test_raw_key_as_secret_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the key itself") as refused:
        PlatformConfig.model_validate({"providers": {"house": {"secret": "sk-ant-api03-sesame"}}})

    assert "sesame" not in str(refused.value)


async def test_client_name_is_limited_to_256_bytes() -> None:
    async with platform(config()) as opened:
        with pytest.raises(
            ConfigError, match=r"client is a name of 257 bytes\. Allowed: a name of up to 256 bytes"
        ):
            async with opened.client("n" * 257):
                pass


@pytest.mark.parametrize(
    ("size", "allowed"),
    [
        (65_536, "1024 to 65536, or a bus with larger messages"),
        (1000, "a bus with messages of 1024 bytes or more"),
    ],
)
async def test_answer_limit_over_bus_limit_is_refused(size: int, allowed: str) -> None:
    narrow = MemoryBroker(max_message_bytes=size)
    settings = PlatformConfig(providers={"openai": ProviderConfig(max_answer_bytes=70_000)})
    row = "providers.openai.max_answer_bytes is 70000, but messages of the bus have at most"

    with pytest.raises(ConfigError, match=f"{row} {size} bytes. Allowed: {allowed}"):
        async with Platform(settings, Ports(broker=narrow)):
            pass


async def test_kept_event_is_in_the_log_without_secrets(tmp_path: Path) -> None:
    given = config(tmp_path)
    given.redaction.add("sk-secret-of-the-test")
    async with platform(given) as gateway:
        kept = event(body={"note": "sk-secret-of-the-test"})
        await gateway.keep(kept)
        found = await gateway.records.find(kept.id, tenant=kept.tenant_id)
        with pytest.raises(RecordError):
            await gateway.keep(event(id="x" * 300))
    with pytest.raises(RuntimeError, match="is not open"):
        await gateway.keep(kept)

    assert isinstance(found, Event)
    assert "secret" not in str(found.body)


def test_log_of_another_package_has_no_queries() -> None:
    class Foreign:
        pass

    with pytest.raises(TypeError, match="Foreign has no queries"):
        records_in(cast("InteractionStore", Foreign()))
