"""Every board for the statuses of workers keeps every promise, and the suite finds those that break one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentic_trading.governance.control_stores.redis import RedisStatusFeed
from agentic_trading.governance.status_feed import BudgetStatus, FileStatusFeed, MemoryStatusFeed
from tests.contracts import status_promises as promises
from tests.contracts.control_store_opening import opening
from tests.contracts.status_promises import PROMISES, Promise
from tests.governance.reporting import told
from tests.redis_server import namespace

Place = dict[tuple[str, str], BudgetStatus]

each_promise = pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)


@each_promise
async def test_memory_status_feed_keeps_promise(promise: Promise) -> None:
    board = MemoryStatusFeed()
    async with opening(lambda: board) as opens:
        await promise(opens)


@each_promise
async def test_file_status_feed_keeps_promise(promise: Promise, tmp_path: Path) -> None:
    async with opening(lambda: FileStatusFeed(tmp_path)) as opens:
        await promise(opens)


@each_promise
async def test_redis_status_feed_keeps_promise(promise: Promise, redis_url: str) -> None:
    name = namespace()
    async with opening(lambda: RedisStatusFeed(redis_url, namespace=name)) as opens:
        await promise(opens)


class Whole:
    """A board that keeps its promises; each broken one below changes one thing."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def key(self, status: BudgetStatus) -> tuple[str, str]:
        return status.tenant, status.worker

    async def publish(self, status: BudgetStatus) -> None:
        await asyncio.sleep(0)
        self.place[self.key(status)] = status

    async def read(self, tenant: str) -> list[BudgetStatus]:
        return [self.place[key] for key in sorted(self.place) if key[0] == tenant]

    async def tenants(self) -> list[str]:
        return sorted({tenant for tenant, _ in self.place})

    async def aclose(self) -> None:
        """Do nothing."""


class MakesOneUp(Whole):
    async def read(self, tenant: str) -> list[BudgetStatus]:
        return await super().read(tenant) or [told(tenant=tenant)]


class LeavesOutCounters(Whole):
    async def publish(self, status: BudgetStatus) -> None:
        await super().publish(status.model_copy(update={"counters": ()}))


class KeepsTheFirst(Whole):
    async def publish(self, status: BudgetStatus) -> None:
        self.place.setdefault(self.key(status), status)


class KeepsTheOrderOfTelling(Whole):
    async def read(self, tenant: str) -> list[BudgetStatus]:
        return [status for key, status in self.place.items() if key[0] == tenant]


class TellsOthersToo(Whole):
    async def read(self, tenant: str) -> list[BudgetStatus]:
        return [self.place[key] for key in sorted(self.place) if key[0].lower() == tenant.lower()]


class KeepsItToItself(Whole):
    def __init__(self, place: Place) -> None:
        super().__init__({})
        self.below = place

    async def publish(self, status: BudgetStatus) -> None:
        await super().publish(status)
        self.below[self.key(status)] = status

    async def read(self, tenant: str) -> list[BudgetStatus]:
        return await super().read(tenant) or [
            self.below[key] for key in sorted(self.below) if key[0] == tenant
        ]


class EndsWithItsWriter(Whole):
    async def aclose(self) -> None:
        self.place.clear()


class ReadsThenWrites(Whole):
    async def publish(self, status: BudgetStatus) -> None:
        before = dict(self.place)
        await asyncio.sleep(0)
        self.place.clear()
        self.place.update({**before, self.key(status): status})


class ListsEachWorker(Whole):
    async def tenants(self) -> list[str]:
        return sorted(tenant for tenant, _ in self.place)


BROKEN: tuple[tuple[type[Whole], Promise], ...] = (
    (MakesOneUp, promises.of_whom_nobody_has_told_nothing_is_known),
    (LeavesOutCounters, promises.what_was_told_is_read_as_it_was),
    (KeepsTheFirst, promises.the_last_thing_told_takes_the_place_of_what_was_told_before),
    (KeepsTheOrderOfTelling, promises.each_worker_is_read_in_the_order_of_their_names),
    (TellsOthersToo, promises.tenants_share_nothing),
    (KeepsItToItself, promises.every_board_over_a_place_reads_the_same),
    (EndsWithItsWriter, promises.what_was_told_is_there_when_who_told_it_is_gone),
    (ReadsThenWrites, promises.of_many_who_tell_at_once_each_is_heard),
    (ListsEachWorker, promises.every_tenant_with_a_status_is_listed_once),
)


@pytest.mark.parametrize(("broken", "promise"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_broken_status_feed_is_detected(broken: type[Whole], promise: Promise) -> None:
    place: Place = {}
    async with opening(lambda: broken(place)) as opens:
        with pytest.raises(AssertionError):
            await promise(opens)


@each_promise
async def test_base_of_broken_feeds_keeps_promises(promise: Promise) -> None:
    place: Place = {}
    async with opening(lambda: Whole(place)) as opens:
        await promise(opens)


def test_each_promise_has_broken_status_feed() -> None:
    assert [promise for _, promise in BROKEN] == list(PROMISES)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_missing_folder_is_not_created(tmp_path: Path) -> None:
    board = FileStatusFeed(tmp_path / "gone")

    await board.publish(told())

    assert await board.read("acme") == []
    assert names_in(tmp_path) == []


async def test_publish_to_file_path_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder was", encoding="utf-8")
    board = FileStatusFeed(tmp_path / "file")

    await board.publish(told())

    assert await board.read("acme") == []


async def test_invalid_status_file_is_ignored(tmp_path: Path) -> None:
    board = FileStatusFeed(tmp_path)
    await board.publish(told("w-1"))
    (tmp_path / "budget-acme@w-2.json").write_text("{", encoding="utf-8")
    (tmp_path / "budget-acme@w-3.json").mkdir()

    assert await board.read("acme") == [told("w-1")]
    assert not [name for name in names_in(tmp_path) if name.endswith(".new")]


async def test_unreachable_server_ignores_publish_and_read() -> None:
    board = await asyncio.to_thread(RedisStatusFeed, "redis://127.0.0.1:1/0")

    await board.publish(told())

    assert await board.read("acme") == []
    await board.aclose()


@asynccontextmanager
async def on_server(url: str) -> AsyncIterator[RedisStatusFeed]:
    name = namespace()
    board = await asyncio.to_thread(lambda: RedisStatusFeed(url, namespace=name))
    yield board
    await board.aclose()


async def test_invalid_server_status_is_ignored(redis_url: str) -> None:
    async with on_server(redis_url) as board:
        await board.publish(told("w-1"))
        await board.publish(told("w-2"))
        (statuses, _) = keys = board._keys("acme")
        await board._redis.hset(statuses, "w-2", "{")  # what another release may have written there

        assert await board.read("acme") == [told("w-1")]
        for key in keys:
            assert 0 < await board._redis.pttl(key) <= 60_000


async def test_silent_worker_is_omitted_then_forgotten(
    redis_url: str,
) -> None:
    async with on_server(redis_url) as board:
        for worker in ("w-1", "w-2", "w-3"):
            await board.publish(told(worker))
        statuses, moments = board._keys("acme")
        at = await board._redis.zscore(moments, "w-3")
        await board._redis.zadd(moments, {"w-1": at - 60_001, "w-2": at - 50_000})

        left = await board.read("acme")
        await board.publish(told("w-3"))

        assert left == [told("w-2"), told("w-3")]
        assert sorted(await board._redis.hkeys(statuses)) == [b"w-2", b"w-3"]
        assert await board._redis.zcard(moments) == 2


async def test_tenant_is_forgotten_after_forty_days(redis_url: str) -> None:
    async with on_server(redis_url) as board:
        for tenant in ("acme", "zenith"):
            await board.publish(told(tenant=tenant))
        at = await board._redis.zscore(board._index, "acme")
        await board._redis.zadd(board._index, {"acme": at - 40 * 24 * 3_600_000 - 1})

        await board.publish(told(tenant="zenith"))

        assert await board.tenants() == ["zenith"]


async def test_unreachable_server_has_no_tenants() -> None:
    board = await asyncio.to_thread(RedisStatusFeed, "redis://127.0.0.1:1/0")

    assert await board.tenants() == []
    await board.aclose()
