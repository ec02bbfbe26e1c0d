"""The server is killed before, between and after the steps of a call; an older file is put in its place."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from agentic_trading.governance.errors import (
    LedgerRolledBackError,
    LedgerUnavailableError,
    ReservationStateError,
)
from agentic_trading.governance.ledger import LedgerEntry, Reservation, ReservationState, Settlement
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.prices import Amount
from agentic_trading.redis import ANSWER_S
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import ask, of_tenant, reserved, spend, tenant
from tests.governance.ledgers.redis_ledgers import ledgers
from tests.redis_server import RealServer, namespace, own_server, servers

Step = Callable[[RedisLedger], Awaitable[object]]

WANTED = ask(60, key="the-call")
ID = WANTED.reservation_id
STEPS: dict[str, Step] = {
    "reserve": lambda ledger: ledger.reserve(WANTED),
    "dispatch": lambda ledger: ledger.dispatch(ID),
    "in_doubt": lambda ledger: ledger.in_doubt(ID),
    "settle": lambda ledger: ledger.settle(ID, Amount(45, 3)),
}


async def restarted(server: RealServer) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def answered(step: Callable[[], Awaitable[object]]) -> object:
    """Take a step until it is known to be taken; a dispatch may have been taken before."""
    while True:
        try:
            return await step()
        except LedgerUnavailableError:
            await asyncio.sleep(0)
        except ReservationStateError as e:
            return e.state


async def at_once(steps: Iterable[Callable[[], Awaitable[object]]]) -> list[object]:
    """Take steps side by side; return what each came to, errors of the server among them."""

    async def outcome(step: Callable[[], Awaitable[object]]) -> object:
        try:
            return await step()
        except LedgerUnavailableError as e:
            return e

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(outcome(step)) for step in steps]
    return [task.result() for task in tasks]


async def test_kill_between_steps_loses_no_data(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens([tenant(100)])
        for step in STEPS.values():
            await answered(partial(step, ledger))
            await restarted(own_redis)
        again = await answered(lambda: ledger.settle(ID, Amount(1, 0)))

        assert isinstance(again, Settlement)
        assert again.charged == Amount(45, 3)
        assert (await of_tenant(ledger)).spent == Amount(45, 3, 1)
        assert (await of_tenant(ledger)).held == Amount(0, 0, 0)


async def test_failed_step_can_be_repeated(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens([tenant(100)])
        for step in STEPS.values():
            await asyncio.to_thread(own_redis.kill)
            with pytest.raises(LedgerUnavailableError):
                await step(ledger)
            await asyncio.to_thread(own_redis.start)
            await step(ledger)

        assert (await of_tenant(ledger)).spent == Amount(45, 3, 1)


async def test_step_with_lost_answer_runs_once(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        process, other = await opens([tenant(100)]), await opens([tenant(100)])
        for name, step in STEPS.items():
            await answered(partial(step, process))  # whoever asked has never heard of it
            await restarted(own_redis)

            again = await answered(partial(step, other))

            assert isinstance(again, ReservationState if name == "dispatch" else Reservation | Settlement)
        assert (await of_tenant(other)).spent == Amount(45, 3, 1)
        assert (other.statistics().reserved, other.statistics().charged_nusd) == (0, 0)


async def test_late_answers_reach_no_other_caller(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens([tenant(10**6)])
        asks = [ask(number, key=f"call-{number}") for number in range(1, 101)]
        await reserved(ledger, ask(0, key="first"))

        with own_redis.held_up():
            found = await at_once(partial(ledger.reserve, one) for one in asks)
        again = await at_once(partial(ledger.reserve, one) for one in reversed(asks))
        looked = await at_once(partial(ledger.state_of, one.reservation_id) for one in asks)

        assert {type(one) for one in found} == {LedgerUnavailableError}
        assert again == [Reservation(one.reservation_id, one.amount) for one in reversed(asks)]
        assert set(looked) == {ReservationState.RESERVED}
        assert (await of_tenant(ledger)).held == Amount(sum(range(1, 101)), 0, 101)


async def until_sent() -> None:
    """Let the loop go round until what was asked for is on its way."""
    for _ in range(6):
        await asyncio.sleep(0)


async def refused_at(ledger: RedisLedger, count: int) -> list[float]:
    """Return when each of so many calls at once is told that the server cannot be reached."""

    async def told() -> float:
        with pytest.raises(LedgerUnavailableError):
            await ledger.reserve(ask(1))
        return asyncio.get_running_loop().time()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(told()) for _ in range(count)]
    return [task.result() for task in tasks]


async def test_silent_server_fails_all_callers_together(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens()
        await reserved(ledger, ask(1))

        with own_redis.held_up():
            async with asyncio.timeout(3 * ANSWER_S):
                times = await refused_at(ledger, 300)

        assert max(times) - min(times) < ANSWER_S / 2


async def test_blocked_loop_does_not_extend_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = asyncio.StreamWriter.writelines

    def stand_still(writer: asyncio.StreamWriter, data: Iterable[bytes]) -> None:
        write(writer, data)
        until = asyncio.get_running_loop().time() + 1.05 * ANSWER_S
        while asyncio.get_running_loop().time() < until:
            pass

    with own_server(servers()[-1]) as server:
        async with ledgers(server.url, namespace()) as opens:
            ledger = await opens()
            await reserved(ledger, ask(1))

            with server.held_up():
                monkeypatch.setattr(asyncio.StreamWriter, "writelines", stand_still)
                async with asyncio.timeout(3 * ANSWER_S):
                    with pytest.raises(LedgerUnavailableError):
                        await ledger.reserve(ask(1))
                monkeypatch.undo()


async def test_interrupted_close_answers_pending_callers(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens()
        await reserved(ledger, ask(1))

        with own_redis.held_up():
            async with asyncio.timeout(3 * ANSWER_S), asyncio.TaskGroup() as group:
                asked = group.create_task(refused_at(ledger, 300))
                await until_sent()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await ledger.aclose()

        assert max(asked.result()) - min(asked.result()) < ANSWER_S / 2


async def test_error_after_cancellation_is_not_reported(
    own_redis: RealServer,
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens()
        await reserved(ledger, ask(1))

        with own_redis.held_up():
            asking = asyncio.Task(ledger.reserve(ask(1)))
            await until_sent()
            asking.cancel()
            await asyncio.wait([asking])

    assert asking.cancelled()
    del asking
    gc.collect()
    assert reported == []


async def test_restart_breaks_at_most_first_step(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens()
        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(reserved(ledger, ask(1)))
        await restarted(own_redis)

        with suppress(LedgerUnavailableError):
            await ledger.reserve(ask(1))

        for _ in range(64):
            await reserved(ledger, ask(1))


async def test_charges_stay_exact_through_restarts(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens([tenant(10_000)])
        numbers = iter(range(300))

        async def work(*, restarts: bool) -> None:
            for number in numbers:
                wanted = ask(20, key=f"through-{number}")
                id_ = wanted.reservation_id
                await answered(partial(ledger.reserve, wanted))
                await answered(partial(ledger.dispatch, id_))
                if restarts and number % 10 == 0:
                    await restarted(own_redis)
                await answered(partial(ledger.settle, id_, Amount(number % 20, 0)))

        async with asyncio.timeout(15), asyncio.TaskGroup() as group:
            for place in range(8):
                group.create_task(work(restarts=place == 0))

        found = await of_tenant(ledger)
        assert found.spent == Amount(sum(number % 20 for number in range(300)), 0, 300)
        assert found.held == Amount(0, 0, 0)


async def test_waiter_is_served_after_a_restart(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens([tenant(100)], look_s=0.05)
        first = await reserved(ledger, ask(80))
        patient = ask(90, key="patient")

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(answered(lambda: ledger.wait_for_reservation(patient)))
            await in_line(ledger, 1)
            await restarted(own_redis)
            await answered(lambda: ledger.release(first))

        assert (await of_tenant(ledger)).held == Amount(90, 0, 1)


async def test_older_snapshot_closes_admission_for_all(own_redis: RealServer, tmp_path: Path) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens([tenant(100)])
        settled = ask(30)
        await spend(ledger, settled)
        await asyncio.to_thread(own_redis.copy, tmp_path / "older")
        doubtful = ask(20)
        await answered(lambda: ledger.reserve(doubtful))
        await ledger.dispatch(doubtful.reservation_id)
        await ledger.in_doubt(doubtful.reservation_id)
        await asyncio.to_thread(own_redis.set_back, tmp_path / "older")

        newcomer = await opens([tenant(100)])
        await answered(lambda: ledger.waiting("another tenant"))
        with pytest.raises(LedgerRolledBackError) as e:
            await ledger.reserve(ask(1))
        for behind in (ledger, newcomer):
            with pytest.raises(LedgerRolledBackError):
                await behind.reserve(ask(1))
            with pytest.raises(LedgerRolledBackError):
                await behind.settle(doubtful.reservation_id, Amount(1, 0))
            with pytest.raises(LedgerRolledBackError):
                await behind.state_of(doubtful.reservation_id)
        assert (e.value.known, e.value.found) == ("epoch 1, step 6", "epoch 1, step 3")
        assert (await of_tenant(newcomer)).spent == Amount(30, 0, 1)

        await newcomer.restore(
            "acme",
            [
                LedgerEntry(settled, ReservationState.SETTLED, settled.amount),
                LedgerEntry(doubtful, ReservationState.IN_DOUBT, doubtful.amount),
            ],
        )
        assert (await of_tenant(ledger)).spent == Amount(50, 0, 2)
        assert (await ledger.settle(doubtful.reservation_id, Amount(5, 0))).late
        assert (await of_tenant(newcomer)).spent == Amount(35, 0, 2)
        await spend(ledger, ask(65))


async def test_emptied_server_is_detected_as_rollback(own_redis: RealServer) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens([tenant(100)])
        await spend(ledger, ask(30))
        log = await ledger.checkpoint("acme")
        await ledger._server._redis.flushall()

        newcomer = await opens([tenant(100)])
        await newcomer.require_at_least("acme", log)
        for behind in (newcomer, ledger):
            with pytest.raises(LedgerRolledBackError):
                await behind.reserve(ask(1))
