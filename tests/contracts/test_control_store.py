"""Every board for the orders of operators keeps every promise, and the suite finds those that break one."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.governance.control_stores.file import FileControlStore, MemoryControlStore
from agentic_trading.governance.control_stores.redis import RedisControlStore
from agentic_trading.governance.controls_document import TenantControls
from tests.contracts import control_promises as promises
from tests.contracts.control_promises import PROMISES, Promise
from tests.contracts.control_store_opening import opening
from tests.redis_server import namespace

Place = dict[str, TenantControls]

each_promise = pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)


@each_promise
async def test_memory_control_store_keeps_promise(promise: Promise) -> None:
    board = MemoryControlStore()
    async with opening(lambda: board) as opens:
        await promise(opens)


@each_promise
async def test_file_control_store_keeps_promise(promise: Promise, tmp_path: Path) -> None:
    async with opening(lambda: FileControlStore(tmp_path / "not" / "there")) as opens:
        await promise(opens)


@each_promise
async def test_redis_control_store_keeps_promise(promise: Promise, redis_url: str) -> None:
    name = namespace()
    async with opening(lambda: RedisControlStore(redis_url, namespace=name)) as opens:
        await promise(opens)


class Whole:
    """A board that keeps its promises; each broken one below changes one thing."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def name(self, tenant: str) -> str:
        return tenant

    async def read(self, tenant: str) -> TenantControls:
        await asyncio.sleep(0)
        return self.place.get(self.name(tenant), TenantControls())

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        if not self.follows(self.place.get(self.name(tenant), TenantControls()), controls):
            return False
        self.place[self.name(tenant)] = controls
        return True

    def follows(self, before: TenantControls, after: TenantControls) -> bool:
        return before.version == after.version - 1

    async def now(self) -> datetime:
        return SystemClock().now()

    async def aclose(self) -> None:
        """Do nothing."""


class BeginsAtOne(Whole):
    async def read(self, tenant: str) -> TenantControls:
        return self.place.get(tenant, TenantControls(version=1))


class ForgetsTokens(Whole):
    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        kept = tuple(limit for limit in controls.limits if limit.tokens is None)
        return await super().replace(tenant, controls.model_copy(update={"limits": kept}))


class KeepsItToItself(Whole):
    def __init__(self, place: Place) -> None:
        super().__init__({})
        self.below = place

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        self.place.setdefault(tenant, self.below.get(tenant, TenantControls()))
        self.below[tenant] = controls  # written, and never read again by who has been here
        return await super().replace(tenant, controls)

    async def read(self, tenant: str) -> TenantControls:
        return self.place.get(tenant) or self.below.get(tenant, TenantControls())


class TakesWhatIsNewer(Whole):
    def follows(self, before: TenantControls, after: TenantControls) -> bool:
        return before.version < after.version


class EndsWithItsWriter(Whole):
    async def aclose(self) -> None:
        self.place.clear()


class KnowsNoCase(Whole):
    def name(self, tenant: str) -> str:
        return tenant.lower()


class LooksThenWrites(Whole):
    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        is_next = self.follows(await self.read(tenant), controls)
        await asyncio.sleep(0)
        if is_next:
            self.place[tenant] = controls
        return is_next


class LosesNowAndThen(Whole):
    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        before = self.place.get(tenant, TenantControls())
        if before.version == 20 and len(before.limits) == 20:
            controls = controls.model_copy(update={"limits": before.limits})
        return await super().replace(tenant, controls)


class HasTheClockOfNobody(Whole):
    async def now(self) -> datetime:
        return datetime.fromtimestamp(0, UTC)


class ForgetsWhatWasPutBack(Whole):
    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        before = self.place.get(tenant, TenantControls())
        if len(controls.actions) > len(before.actions) + 1:
            controls = controls.model_copy(update={"halts": before.halts})
        return await super().replace(tenant, controls)


BROKEN: tuple[tuple[type[Whole], Promise], ...] = (
    (BeginsAtOne, promises.what_nobody_has_written_is_version_zero),
    (ForgetsTokens, promises.what_was_written_is_read_as_it_was),
    (KeepsItToItself, promises.every_board_over_a_place_reads_the_same),
    (TakesWhatIsNewer, promises.only_the_next_version_is_written),
    (EndsWithItsWriter, promises.a_board_outlives_who_wrote_to_it),
    (KnowsNoCase, promises.tenants_share_nothing),
    (LooksThenWrites, promises.of_many_who_replace_one_version_one_does),
    (LosesNowAndThen, promises.orders_given_at_once_all_count_once),
    (HasTheClockOfNobody, promises.a_command_is_ordered_by_the_clock_of_the_board),
    (ForgetsWhatWasPutBack, promises.a_lost_command_is_put_back_once),
)


@pytest.mark.parametrize(("broken", "promise"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_broken_control_store_is_detected(broken: type[Whole], promise: Promise) -> None:
    place: Place = {}
    async with opening(lambda: broken(place)) as opens:
        with pytest.raises((AssertionError, ValueError)):
            await promise(opens)


@each_promise
async def test_base_of_broken_stores_keeps_promises(promise: Promise) -> None:
    place: Place = {}
    async with opening(lambda: Whole(place)) as opens:
        await promise(opens)


def test_each_promise_has_broken_control_store() -> None:
    assert [promise for _, promise in BROKEN] == list(PROMISES)
