"""Platforms that share a ledger on a real server: what they spend is one sum, and operators reach all of them."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from agentic_trading.clock import SimClock, SystemClock
from agentic_trading.governance.commands import AddHalt, execute_command
from agentic_trading.governance.control_stores.redis import RedisControlStore
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.errors import (
    LedgerRolledBackError,
    LedgerSettingsError,
    LedgerUnavailableError,
)
from agentic_trading.governance.events import AttemptDispatched
from agentic_trading.governance.ledger import ReservationRequest
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.ledgers.redis import ALWAYS, RedisLedger
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.llm import FailureKind, JsonFileInteractionStore, StoreError, StoreLockedError
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.operate.budget_log import rebuild_ledger
from agentic_trading.platform import LedgerConfig, Platform, PlatformConfig, Ports, TenantConfig
from agentic_trading.worker.active_claim import RecoveryReport, key_of
from agentic_trading.worker.claim import Claim
from agentic_trading.worker.claims.redis import RedisClaimStore
from tests import redis_server
from tests.build import event
from tests.gateway import START
from tests.platform.calls import SMALL_USD, asked, envelope, scripted, spent_nusd
from tests.redis_server import RealServer

ONE_FOLDER: Mapping[str, str] = {"desk-a": "desks", "desk-b": "desks"}
TWO_FOLDERS: Mapping[str, str] = {"desk-a": "here", "desk-b": "there"}


def config(folder: Path, name: str, url: str | None) -> PlatformConfig:
    tenants = {"default": TenantConfig(budget_usd=SMALL_USD)}
    return PlatformConfig(folder=folder, name=name, ledger=LedgerConfig(url=url), tenants=tenants)


def made(folder: Path, name: str, url: str | None) -> Platform:
    return Platform(config(folder, name, url), Ports(providers={"scripted": scripted()}))


@asynccontextmanager
async def opened(
    root: Path, url: str, places: Mapping[str, str] = ONE_FOLDER
) -> AsyncGenerator[Sequence[Platform]]:
    """Open a platform of each name in its folder."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(made(root / folder, name, url)) for name, folder in places.items()
        ]


async def asked_of_all(
    platforms: Sequence[Platform], calls: int, *, first: int = 0
) -> list[FailureKind | None]:
    """Ask all at once, `calls` of each, and return how each call failed; their numbers are of one length, and one price."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(asked(platform, envelope(first + 1000 * (at + 1) + n)))
            for at, platform in enumerate(platforms)
            for n in range(calls)
        ]
    return [kind for task in tasks for kind in task.result()]


@pytest.mark.parametrize("places", [ONE_FOLDER, TWO_FOLDERS], ids=["one folder", "two folders"])
async def test_tenant_limit_spans_platforms_and_starts(
    tmp_path: Path, own_redis: RealServer, places: Mapping[str, str]
) -> None:
    answered = []
    for start in range(2):
        async with opened(tmp_path, own_redis.url, places) as platforms:
            kinds = await asked_of_all(platforms, 8, first=100 * start)
            answered.append(Counter(kinds))

    exhausted = FailureKind.BUDGET_EXHAUSTED
    assert answered == [{None: 3, exhausted: 13}, {exhausted: 16}]
    logs = [tmp_path / folder / name / "interactions.jsonl" for name, folder in places.items()]
    assert sum([await spent_nusd(log) for log in logs]) == 3 * 214_000 <= int(SMALL_USD * NANO)


async def test_paper_day_follows_the_server_clock(tmp_path: Path, own_redis: RealServer) -> None:
    limited = {"default": TenantConfig(calls=3, window=Window.DAY)}
    reading, kinds = LedgerRebuild("default", "paper"), []
    for days, name in enumerate(ONE_FOLDER):
        market, store = SimClock(START + timedelta(days=days)), MemoryInteractionStore()
        on_paper = config(tmp_path, name, own_redis.url).model_copy(
            update={"tenants": limited, "folder": None}
        )
        async with Platform(
            on_paper, Ports(providers={"scripted": scripted()}, clock=market, store=store)
        ) as one:
            kinds += await asked(one, *map(envelope, range(10 * days, 10 * days + 2)))
        async for entry in store.scan():
            reading.read(entry.record)

    assert kinds == [None, None, None, FailureKind.BUDGET_EXHAUSTED]
    server, rebuilt = await asyncio.to_thread(RedisLedger, own_redis.url), MemoryLedger(counted=ALWAYS)
    await rebuilt.restore("default", reading.entries())
    async with aclosing(server):
        counted = [
            {
                (each.scope, each.window_id, each.spent)
                for each in await ledger.balances("default")
                if each.window == "day"
            }
            for ledger in (server, rebuilt)
        ]
    assert counted[0] == counted[1]
    assert len({window_id for _, window_id, _ in counted[0]} - {f"{START:%Y-%m-%d}"}) == 1


async def test_halt_reaches_all_platforms_within_second(tmp_path: Path, own_redis: RealServer) -> None:
    controls = await asyncio.to_thread(RedisControlStore, own_redis.url)

    async with opened(tmp_path, own_redis.url) as platforms, aclosing(controls):
        await asked_of_all(platforms, 1)
        halt = AddHalt(HaltScope.TENANT, "default")
        await execute_command(controls, "default", halt, by="ann", why="", at=START)
        async with asyncio.timeout(1):
            for platform in platforms:
                n = 10
                while await asked(platform, envelope(n)) != [FailureKind.HALTED]:
                    n += 1

    async with opened(tmp_path, own_redis.url) as platforms:
        assert await asked_of_all(platforms, 1, first=50) == [FailureKind.HALTED] * 2


async def test_emptied_server_is_refused_on_opening(tmp_path: Path, own_redis: RealServer) -> None:
    async with opened(tmp_path, own_redis.url) as platforms:
        assert await asked_of_all(platforms, 1) == [None] * 2
    own_redis.kill()
    await asyncio.to_thread(shutil.rmtree, own_redis.append_only_files)
    await asyncio.to_thread(own_redis.start)

    for name in ONE_FOLDER:
        with pytest.raises(LedgerRolledBackError, match="budget rebuild"):
            async with made(tmp_path / "desks", name, own_redis.url):
                pass


@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
async def test_rebuild_names_log_with_wrong_snapshot(
    tmp_path: Path, own_redis: RealServer, *, is_wrong: bool
) -> None:
    log = tmp_path / "desk-a" / "interactions.jsonl"
    async with made(tmp_path, "desk-a", own_redis.url) as platform:
        await asked_of_all([platform], 1)
    async with aclosing(JsonFileInteractionStore(log)) as store:
        line, head = await store.head()
        fields = {"version": 1, "line": line, "head": head, "mode": "paper", "zone": "UTC"}
        if is_wrong:
            body = {"generation": 0, "mark": "", "sequence": 0, "snapshot": fields}
            await store.record(event("ledger.checkpointed", body=body))

    report = await rebuild_ledger([log], own_redis.url, "default")

    assert report.differing == ((str(log),) if is_wrong else ())
    assert report.charged_nusd > 0


async def test_platform_reports_emptied_server_until_rebuild(tmp_path: Path, own_redis: RealServer) -> None:
    async with made(tmp_path, "desk-a", own_redis.url) as platform:
        await asked_of_all([platform], 1)
        before = await platform.problems()
        async with Redis.from_url(own_redis.url) as client:
            await client.flushall()
        gone = [await platform.problems(), await platform.problems()]
        await rebuild_ledger([tmp_path / "desk-a" / "interactions.jsonl"], own_redis.url, "default")
        after = await platform.problems()

    assert (before, after) == ({}, {})
    assert [set(each) for each in gone] == [{"ledger"}] * 2
    assert all("has gone back: it had come to epoch 1" in each["ledger"] for each in gone)


async def test_unreachable_server_is_refused_on_opening(tmp_path: Path, own_redis: RealServer) -> None:
    await asyncio.to_thread(own_redis.kill)
    without_a_limit = config(tmp_path, "desk-a", own_redis.url).model_copy(update={"tenants": {}})

    with pytest.raises(LedgerUnavailableError, match=r"reached: no Redis answers at .*\. Check that it runs"):
        async with Platform(without_a_limit):
            pass


async def test_unsafe_server_is_refused_on_opening(tmp_path: Path) -> None:
    with (
        redis_server.own_server("valkey", options=("--appendonly", "no", "--save", "")) as server,
        pytest.raises(LedgerSettingsError, match=r"appendonly = 'no'\. Allowed: yes"),
    ):
        async with made(tmp_path, "desk-a", server.url):
            pass


async def test_killed_server_does_not_block_closing(tmp_path: Path, own_redis: RealServer) -> None:
    async with asyncio.timeout(10):
        async with opened(tmp_path, own_redis.url) as platforms:
            assert await asked_of_all(platforms, 1) == [None] * 2
            await asyncio.to_thread(own_redis.kill)

    await asyncio.to_thread(own_redis.start)
    async with opened(tmp_path, own_redis.url) as platforms:
        kinds = await asked_of_all(platforms, 8, first=100)
    assert (kinds.count(None), kinds.count(FailureKind.BUDGET_EXHAUSTED)) == (1, 15)


async def test_duplicate_platform_name_is_refused(tmp_path: Path, own_redis: RealServer) -> None:
    async with made(tmp_path, "desk-a", own_redis.url):
        with pytest.raises(StoreLockedError, match=r"desk-a/interactions\.jsonl"):
            async with made(tmp_path, "desk-a", own_redis.url):
                pass
        async with made(tmp_path, "desk-b", own_redis.url) as other:
            assert await asked(other, envelope()) == [None]


@pytest.mark.parametrize("shared", [0, 1])
async def test_platform_without_shared_ledger_needs_own_folder(
    tmp_path: Path, own_redis: RealServer, shared: int
) -> None:
    urls = [None, own_redis.url]

    async with made(tmp_path, "desk-a", urls[shared]):
        with pytest.raises(StoreError, match=r"another platform is open in it. .*same \[ledger\] url"):
            async with made(tmp_path, "desk-b", urls[1 - shared]):
                pass


async def test_killed_start_leaves_calls_in_doubt(tmp_path: Path, own_redis: RealServer) -> None:
    call, scopes = envelope(), {ScopeKind.TENANT: "default"}
    wanted = ReservationRequest(
        call.idempotency_key, 1, {ScopeKind.CALL: call.idempotency_key, **scopes}, Amount(46_904_000, 5_000)
    )
    ledger = await asyncio.to_thread(RedisLedger, own_redis.url)
    async with aclosing(ledger):
        await ledger.reserve(wanted)
        await ledger.dispatch(wanted.reservation_id)
    killed = await asyncio.to_thread(RedisClaimStore, own_redis.url, lease_s=0.001)
    assert isinstance(await killed.claim(key_of(call), call.envelope_hash), Claim)
    folder = tmp_path / "desk-a"
    folder.mkdir()
    log = JsonFileInteractionStore(folder / "interactions.jsonl")
    sent = AttemptDispatched(
        attempt=1, request_hash=call.request_hash, provider="scripted", model="scripted-1",
        reservation_id=wanted.reservation_id, scopes=wanted.scope_ids, reserved_nusd=46_904_000, reserved_tokens=5_000,
    )  # fmt: skip
    await log.record(
        sent.as_event(event_id="d-1", trace_id=call.trace_id, tenant_id="default", time=SystemClock().now())
    )
    await log.aclose()

    claims = await asyncio.to_thread(RedisClaimStore, own_redis.url, name="desk-a", lease_s=0.001)
    ports = Ports(providers={"scripted": scripted()}, claims=claims)
    async with Platform(config(tmp_path, "desk-a", own_redis.url), ports) as platform:
        assert platform.recovery == RecoveryReport(1, 1, 46_904_000, {"claimed": 1})
    await claims.aclose()
    await killed.aclose()
