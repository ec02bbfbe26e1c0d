"""What every board for the statuses of workers promises, one function a promise."""

import asyncio
from collections.abc import Awaitable, Callable

from agentic_trading.governance.status_feed import StatusFeed
from tests.governance.reporting import full, told

Opens = Callable[[], Awaitable[StatusFeed]]
"""Open a board; each time another one, over the same place."""

Promise = Callable[[Opens], Awaitable[None]]

WORKERS = 32


async def of_whom_nobody_has_told_nothing_is_known(opens: Opens) -> None:
    board = await opens()

    assert list(await board.read("acme")) == []


async def what_was_told_is_read_as_it_was(opens: Opens) -> None:
    board = await opens()
    await board.publish(full())

    assert list(await board.read("acme")) == [full()]


async def the_last_thing_told_takes_the_place_of_what_was_told_before(opens: Opens) -> None:
    board = await opens()
    await board.publish(full())
    await board.publish(told(limits_version=7))

    assert [status.limits_version for status in await board.read("acme")] == [7]


async def each_worker_is_read_in_the_order_of_their_names(opens: Opens) -> None:
    board = await opens()
    workers = ["w-1", "w", "w-10", "host/1@x", "Ä", "w.1", "W", "w" * 300]
    for worker in workers:
        await board.publish(told(worker))

    assert [status.worker for status in await board.read("acme")] == sorted(workers)


async def tenants_share_nothing(opens: Opens) -> None:
    board = await opens()
    tenants = [
        "acme",
        "ACME",
        "acme/x",
        "../acme",
        "a:b",
        "a}b",
        "a@b",
        "a",
        "a*",
        "*",
        "[a]",
        "a%2Fb",
        "a/b",
        ".",
        "é",
        "t" * 300,
        "t" * 299 + "u",
        "é" * 500,
    ]
    for number, tenant in enumerate(tenants):
        await board.publish(told("b@c", tenant, limits_version=number))

    for number, tenant in enumerate(tenants):
        found = await board.read(tenant)
        assert [(one.tenant, one.limits_version) for one in found] == [(tenant, number)]


async def every_board_over_a_place_reads_the_same(opens: Opens) -> None:
    one, other = await opens(), await opens()
    await one.publish(told("w-1"))
    await other.publish(told("w-2"))

    assert list(await one.read("acme")) == list(await other.read("acme")) == [told("w-1"), told("w-2")]


async def what_was_told_is_there_when_who_told_it_is_gone(opens: Opens) -> None:
    board = await opens()
    await board.publish(told(is_running=False))
    await board.aclose()
    await board.aclose()

    assert list(await (await opens()).read("acme")) == [told(is_running=False)]


async def of_many_who_tell_at_once_each_is_heard(opens: Opens) -> None:
    boards = [await opens(), await opens()]

    async with asyncio.TaskGroup() as group:
        for number in range(WORKERS):
            group.create_task(boards[number % 2].publish(told(f"w-{number:02}")))

    assert [status.worker for status in await boards[0].read("acme")] == [
        f"w-{number:02}" for number in range(WORKERS)
    ]


async def every_tenant_with_a_status_is_listed_once(opens: Opens) -> None:
    board = await opens()
    assert list(await board.tenants()) == []
    tenants = ["acme", "a@b", "a/b", "a}b", "*", "é" * 500, "t" * 300, "Zenith"]
    for tenant in tenants:
        await board.publish(told("w-1", tenant))
        await board.publish(told("w-2", tenant, is_running=False))

    assert list(await (await opens()).tenants()) == sorted(tenants)


PROMISES: tuple[Promise, ...] = (
    of_whom_nobody_has_told_nothing_is_known,
    what_was_told_is_read_as_it_was,
    the_last_thing_told_takes_the_place_of_what_was_told_before,
    each_worker_is_read_in_the_order_of_their_names,
    tenants_share_nothing,
    every_board_over_a_place_reads_the_same,
    what_was_told_is_there_when_who_told_it_is_gone,
    of_many_who_tell_at_once_each_is_heard,
    every_tenant_with_a_status_is_listed_once,
)
