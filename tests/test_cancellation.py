"""Work that must be done is done, however often its caller is cancelled; and no other caller is."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agentic_trading.cancellation import OwnedTasks, end_wait, run_shielded

STEPS = range(9)
"""At which turn of the loop a caller is cancelled: before, within and after the work."""

Caller = Callable[[], Awaitable[object]]


async def cancelled_after(steps: int, caller: Caller, times: int = 1) -> asyncio.Task[object]:
    """Run `caller` in a task that is cancelled after so many turns of the loop; return the task, ended."""

    async def run() -> object:
        return await caller()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        for _ in range(steps):
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
    return task


def nothing_left() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def three_turns(done: list[str]) -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    done.append("work")
    return "kept"


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("steps", STEPS)
async def test_work_completes_whenever_caller_is_cancelled(steps: int, times: int) -> None:
    done: list[str] = []

    async def caller() -> str:
        return await run_shielded(three_turns(done))

    task = await cancelled_after(steps, caller, times)

    assert done == (["work"] if steps > 0 else [])
    assert task.cancelled() or task.result() == "kept"
    assert nothing_left()


async def test_repeated_cancellation_waits_for_work() -> None:
    release, done = asyncio.Event(), []

    async def work() -> str:
        await release.wait()
        done.append("work")
        return "lost"

    async def caller() -> None:
        done.append(await run_shielded(work()))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(caller())
        for _ in range(2):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        release.set()

    assert task.cancelled()
    assert done == ["work"]
    assert nothing_left()


async def test_work_error_reaches_the_caller() -> None:
    async def work() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        await run_shielded(work())


async def test_work_error_reaches_cancelled_caller_first() -> None:
    seen: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        raise KeyError("k")

    async def caller() -> None:
        try:
            await run_shielded(work())
        except KeyError:
            seen.append("error")
        await asyncio.sleep(0)
        seen.append("never")

    task = await cancelled_after(1, caller)

    assert task.cancelled()
    assert seen == ["error"]


async def test_timeout_around_work_ends_with_work() -> None:
    release = asyncio.Event()

    async def work() -> None:
        await release.wait()

    async def limited() -> None:
        async with asyncio.timeout(0):
            asyncio.get_running_loop().call_later(0.001, release.set)
            await run_shielded(work())

    with pytest.raises(TimeoutError):
        await limited()

    await asyncio.sleep(0)


async def test_endless_work_is_given_up() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"not done within 0\.01 s"):
        await run_shielded(work(), longest_s=0.01)

    assert nothing_left()


@pytest.mark.parametrize("cancelled", ["first", "second"])
@pytest.mark.parametrize("steps", STEPS)
async def test_cancelled_caller_leaves_shared_task_running(cancelled: str, steps: int) -> None:
    tasks = OwnedTasks()
    done: list[str] = []
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        answer.set_result(await three_turns(done))

    async def caller() -> str:
        if not done:
            done.append("started")
            _ = tasks.start(work(), name="shared")
        return await asyncio.shield(answer)

    async with asyncio.TaskGroup() as group:
        callers = {name: group.create_task(caller()) for name in ("first", "second")}
        for _ in range(1 + steps):
            await asyncio.sleep(0)
        callers[cancelled].cancel()
    (other,) = callers.keys() - {cancelled}
    await tasks.aclose()

    assert callers[other].result() == "kept"
    assert done == ["started", "work"]
    assert nothing_left()


async def test_failing_task_is_reported_on_close() -> None:
    tasks = OwnedTasks()
    done: list[str] = []

    async def fail() -> None:
        raise KeyError("k")

    async def caller() -> str:
        _ = tasks.start(fail(), name="failing")
        _ = tasks.start(three_turns(done), name="working")
        for _ in range(3):
            await asyncio.sleep(0)
        return "went on"

    async with asyncio.TaskGroup() as group:
        task = group.create_task(caller())

    assert task.result() == "went on"
    with pytest.raises(KeyError):
        await tasks.aclose()
    assert done == ["work"]
    await tasks.aclose()


async def test_cancelled_close_ends_the_tasks() -> None:
    tasks, ended = OwnedTasks(), []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("task")

    _ = tasks.start(endless(), name="endless")

    closing = await cancelled_after(1, tasks.aclose)

    assert closing.cancelled()
    assert ended == ["task"]
    assert nothing_left()


async def test_wait_may_be_ended_twice() -> None:
    may_end = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    async def end_twice() -> None:
        for _ in range(2):
            await asyncio.sleep(0)
            end_wait(limit)
            await asyncio.sleep(0)
        may_end.set()

    async def limited() -> None:
        async with limit:
            await slow_to_end()

    limit = asyncio.timeout(None)
    async with asyncio.TaskGroup() as group:
        group.create_task(end_twice())
        with pytest.raises(TimeoutError):
            await limited()
