"""What must be done is done, however often the task is cancelled."""

import asyncio

import pytest

from agentic_trading.worker.error_boundary import run_shielded


async def test_work_is_done_though_its_task_is_cancelled_twice_and_then_it_is_cancelled() -> None:
    release, done, after = asyncio.Event(), [], []

    async def work() -> str:
        await release.wait()
        done.append("work")
        return "kept"

    async def caller() -> None:
        done.append(await run_shielded(work()))
        await asyncio.sleep(0)
        after.append("never")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(caller())
        for _ in range(2):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        release.set()

    assert task.cancelled()
    assert (done, after) == (["work", "kept"], [])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_work_raises_reaches_the_caller() -> None:
    async def work() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        await run_shielded(work())


async def test_a_time_limit_around_it_still_says_that_time_was_up() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"not done within 0\.01 s"):
        await run_shielded(work(), longest_s=0.01)

    assert asyncio.all_tasks() == {asyncio.current_task()}
