"""Joined requests at the ends of their call: an error, a client that leaves, and the end of the server."""

import asyncio
from typing import Any

import aiohttp
import pytest

from agentic_trading.cancellation import OwnedTasks
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.llm.envelope import LLMEnvelope
from tests.server.conftest import Serving
from tests.server.test_joins import AGAIN, BODY, NAMED, PATH, Held, hold, joined
from tests.server.test_server import said


class Broken:
    """A gateway that raises."""

    async def ask_structured(self, envelope: LLMEnvelope, *, check: Any = None) -> StructuredOutcome:
        raise OSError("the disk is away")


@pytest.mark.parametrize("headers", [NAMED, AGAIN])
async def test_all_joined_requests_get_the_error_and_the_next_one_is_a_new_call(
    serve: Serving, headers: dict[str, str]
) -> None:
    async with serve() as served:
        held = hold(served)
        inner, held.inner = held.inner, Broken()
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(said(served, PATH, BODY, headers=headers)) for _ in range(3)]
            await joined(served, 2)
            held.may_end.set()
        held.inner = inner
        again = await said(served, PATH, BODY, headers=headers)

    assert [one.result()[0] for one in tries] == [500] * 3
    assert not any("disk" in one.result()[1]["message"] for one in tries)
    assert (again[0], held.calls) == (200, 2)


async def test_joined_request_gets_the_answer_of_a_client_that_has_left(serve: Serving) -> None:
    async with serve() as served:
        before, held = len(await served.asked()), hold(served)
        tasks = OwnedTasks()
        first = tasks.start(said(served, PATH, BODY, headers=NAMED), name="first")
        await held.has_begun.wait()
        second = tasks.start(said(served, PATH, BODY, headers=NAMED), name="second")
        await joined(served, 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        held.may_end.set()
        status, _, _ = await second
        sent = len(await served.asked()) - before

    assert (status, sent, held.calls) == (200, 1, 1)


async def test_end_of_the_server_ends_joined_requests_that_wait(serve: Serving) -> None:
    async with asyncio.TaskGroup() as group, asyncio.timeout(30):
        async with serve(drain_s=0.2) as served:
            held: Held = hold(served)
            tries = [group.create_task(_ended(said(served, PATH, BODY, headers=NAMED))) for _ in range(3)]
            await joined(served, 2)
        ends = [await one for one in tries]

    assert (ends, held.calls) == ([True] * 3, 1)


async def _ended(work: Any) -> bool:
    """Return whether a request ended without an answer."""
    try:
        await work
    except aiohttp.ClientError:
        return True
    return False
