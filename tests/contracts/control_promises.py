"""What every board for the orders of operators promises, one function a promise."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import (
    AddHalt,
    OperatorCommand,
    RemoveHalt,
    RemoveLimit,
    SetLimit,
    execute_command,
)
from agentic_trading.governance.controls_document import (
    ControlStore,
    HaltScope,
    TenantControls,
    milliseconds,
)
from agentic_trading.governance.controls_merge import history_of, restore_controls
from agentic_trading.governance.limits import ANY, LARGEST, Limit, ScopeKind, Window
from tests.build import NOW

Opens = Callable[[], Awaitable[ControlStore]]
"""Open a board; each time another one, over the same place."""

Promise = Callable[[Opens], Awaitable[None]]

OPERATORS = 32


def version(number: int) -> TenantControls:
    """Return a document that holds nothing but its version."""
    return TenantControls(version=number)


def daily(nusd: int, agent: str = ANY) -> SetLimit:
    """Return the order of a limit on what an agent may cost in a day."""
    return SetLimit(Limit(ScopeKind.AGENT, agent, Window.DAY, nusd=nusd))


async def what_nobody_has_written_is_version_zero(opens: Opens) -> None:
    board = await opens()

    assert await board.read("acme") == TenantControls()


async def what_was_written_is_read_as_it_was(opens: Opens) -> None:
    board = await opens()
    orders: tuple[OperatorCommand, ...] = (
        SetLimit(Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=LARGEST, tokens=0, calls=1)),
        SetLimit(Limit(ScopeKind.TRACE, ANY, Window.NONE, tokens=10**6)),
        SetLimit(Limit(ScopeKind.AGENT, "cmt-1", Window.MINUTE, calls=3)),
        AddHalt(HaltScope.MODEL, "anthropic/claude-opus-5-5"),
        AddHalt(HaltScope.AGENT, "Ärger\n\"'{}"),
        RemoveLimit(ScopeKind.TRACE, ANY, Window.NONE),
        RemoveHalt(HaltScope.MODEL, "anthropic/claude-opus-5-5"),
    )
    written = TenantControls()
    for number, wanted in enumerate(orders):
        written = await execute_command(
            board, "acme", wanted, by="ann", why="“tests”", at=NOW + timedelta(microseconds=number)
        )
        assert await board.read("acme") == written

    assert (written.version, len(written.limits), len(written.halts)) == (7, 2, 1)


async def every_board_over_a_place_reads_the_same(opens: Opens) -> None:
    one, other = await opens(), await opens()

    assert await one.replace("acme", version(1))
    assert (await other.read("acme")).version == 1
    assert await other.replace("acme", version(2))
    assert not await one.replace("acme", version(2))
    assert (await one.read("acme")).version == 2


async def only_the_next_version_is_written(opens: Opens) -> None:
    board = await opens()

    assert not await board.replace("acme", version(2))
    assert await board.replace("acme", version(1))
    for stale in (0, 1, 3):
        assert not await board.replace("acme", version(stale))

    assert (await board.read("acme")).version == 1


async def a_board_outlives_who_wrote_to_it(opens: Opens) -> None:
    board = await opens()
    await execute_command(board, "acme", daily(5), by="ann", why="", at=NOW)
    await board.aclose()
    await board.aclose()

    assert len((await (await opens()).read("acme")).limits) == 1


async def tenants_share_nothing(opens: Opens) -> None:
    board = await opens()
    tenants = [
        "acme",
        "ACME",
        "acme/x",
        "../acme",
        "a:b",
        "a}b",
        "a%2Fb",
        "a/b",
        "%2A",
        ".",
        " ",
        "é",
    ]
    for number, tenant in enumerate(tenants, start=1):
        for step in range(1, number + 1):
            assert await board.replace(tenant, version(step))

    assert [(await board.read(tenant)).version for tenant in tenants] == list(range(1, len(tenants) + 1))


async def of_many_who_replace_one_version_one_does(opens: Opens) -> None:
    boards = [await opens(), await opens()]
    written: list[int] = []

    async def replace(number: int) -> None:
        controls = TenantControls(version=1, limits=(daily(number).limit,))
        if await boards[number % 2].replace("acme", controls):
            written.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(OPERATORS):
            group.create_task(replace(number))

    (winner,) = written
    assert (await boards[0].read("acme")).limits == (daily(winner).limit,)


async def orders_given_at_once_all_count_once(opens: Opens) -> None:
    boards = [await opens(), await opens()]
    # As many as the connections of a board: a caller that waits for one may wait for long where all others try again.
    at_once = asyncio.Semaphore(8)

    async def give(number: int) -> None:
        wanted = daily(number, agent=f"agent-{number}")
        async with at_once:
            await execute_command(boards[number % 2], "acme", wanted, by=f"operator-{number}", why="", at=NOW)

    async with asyncio.TaskGroup() as group:
        for number in range(OPERATORS):
            group.create_task(give(number))

    controls = await boards[0].read("acme")
    assert controls.version == OPERATORS
    assert {limit.id for limit in controls.limits} == {f"agent-{number}" for number in range(OPERATORS)}
    assert [action.version for action in controls.actions] == list(range(1, OPERATORS + 1))
    assert len({action.by for action in controls.actions}) == OPERATORS


async def a_command_is_ordered_by_the_clock_of_the_board(opens: Opens) -> None:
    boards = [await opens(), await opens()]
    present = SystemClock().now()
    for number, days in enumerate((400, -400)):
        at = present + timedelta(days=days)
        await execute_command(boards[number], "acme", daily(number), by="ann", why="", at=at)

    first, second = (await boards[0].read("acme")).actions

    assert first.serial is not None
    assert second.serial is not None
    assert first.serial < second.serial
    assert abs(second.serial - milliseconds(present)) < timedelta(days=1) / timedelta(milliseconds=1)


async def a_lost_command_is_put_back_once(opens: Opens) -> None:
    elsewhere, boards = await opens(), [await opens(), await opens()]
    orders: tuple[OperatorCommand, ...] = (daily(5), AddHalt(HaltScope.AGENT, "cmt-1"), daily(7, "cmt-1"))
    known = TenantControls()
    for wanted in orders:
        known = await execute_command(elsewhere, "a-copy", wanted, by="ann", why="", at=NOW)
    await execute_command(boards[0], "acme", daily(9, "cmt-2"), by="bob", why="", at=NOW)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(restore_controls(boards[number % 2], "acme", [history_of(known)]))

    found = await boards[0].read("acme")
    assert found.version == 2
    assert {*found.limits} == {*known.limits, daily(9, "cmt-2").limit}
    assert found.halts == known.halts


PROMISES: tuple[Promise, ...] = (
    what_nobody_has_written_is_version_zero,
    what_was_written_is_read_as_it_was,
    every_board_over_a_place_reads_the_same,
    only_the_next_version_is_written,
    a_board_outlives_who_wrote_to_it,
    tenants_share_nothing,
    of_many_who_replace_one_version_one_does,
    orders_given_at_once_all_count_once,
    a_command_is_ordered_by_the_clock_of_the_board,
    a_lost_command_is_put_back_once,
)
