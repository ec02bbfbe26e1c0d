"""Keys are exchanged while a gateway runs: new ones are valid, removed ones are not, and nothing is stopped."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Event

import pytest
import structlog

from agentic_trading.bus.errors import SigningKeyError
from agentic_trading.bus.signing import Signer, read_keys
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import LLMInteraction, NoDecision
from agentic_trading.platform.signing_keys import PrincipalKeys
from tests.gateway import GOOD, MemoryGateway, asking, gateway
from tests.worker.running import running
from tests.worker.ticking import Slow, Steps, with_pool

OLD, NEW = b"1" * 32, b"2" * 32


@pytest.fixture
def keys(tmp_path: Path) -> PrincipalKeys:
    """Return the keys in a folder where desk-a has one."""
    (tmp_path / "desk-a").mkdir()
    (tmp_path / "desk-a" / "1").write_bytes(OLD)
    return PrincipalKeys(tmp_path, partial(read_keys, tmp_path))


@asynccontextmanager
async def served(keys: PrincipalKeys, clock: Steps, renewals: list[int]) -> AsyncGenerator[MemoryGateway]:
    """Give a gateway whose pool runs and wants proofs by `keys`."""
    desk = with_pool(gateway(lambda _request: GOOD), verifier=keys.verifier)
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        async with keys.followed(clock, lambda: renewals.append(1)):
            yield desk
        desk.pool.stop()


async def is_answered(desk: MemoryGateway, signer: Signer) -> bool:
    async with GatewayClient(desk.broker, signer=signer) as client:
        answer = await client.ask(asking().build())
    assert isinstance(answer, LLMInteraction | NoDecision)
    return isinstance(answer, LLMInteraction)


async def test_keys_rotate_under_a_running_pool(tmp_path: Path, keys: PrincipalKeys) -> None:
    clock, renewals = Steps(), list[int]()
    old, new, own = Signer("desk-a", OLD), Signer("desk-a", NEW), keys.signer("desk-a")

    async with asyncio.timeout(10), served(keys, clock, renewals) as desk:
        before = [await is_answered(desk, each) for each in (old, new, own)]
        (tmp_path / "desk-a" / "2").write_bytes(NEW)
        await clock.step()
        both = [await is_answered(desk, each) for each in (old, new, own)]
        (tmp_path / "desk-a" / "1").unlink()
        await clock.step()
        after = [await is_answered(desk, each) for each in (old, new, own)]
        await clock.step()

    assert (before, both, after) == ([True, False, True], [True, True, True], [False, True, True])
    assert len(renewals) == 2
    assert list(keys.secrets) == [NEW]


async def test_call_in_flight_survives_key_removal(tmp_path: Path, keys: PrincipalKeys) -> None:
    clock, provider = Steps(), Slow()
    desk = with_pool(gateway(provider), verifier=keys.verifier)

    async with (
        asyncio.timeout(10),
        running(desk),
        keys.followed(clock, lambda: None),
        GatewayClient(desk.broker, signer=keys.signer("desk-a")) as client,
        asyncio.TaskGroup() as group,
    ):
        begun = group.create_task(client.ask(asking().build()))
        await provider.started.wait()
        (tmp_path / "desk-a" / "2").write_bytes(NEW)
        (tmp_path / "desk-a" / "1").unlink()
        await clock.step()
        provider.go.set()

    assert isinstance(begun.result(), LLMInteraction)
    assert client.ignored_replies == {}


async def test_error_of_the_block_is_raised_as_it_is(keys: PrincipalKeys) -> None:
    with pytest.raises(LookupError, match="own mistake"):
        async with keys.followed(Steps(), lambda: None):
            raise LookupError("own mistake")


async def test_principals_change_while_gateway_runs(tmp_path: Path, keys: PrincipalKeys) -> None:
    clock, renewals = Steps(), list[int]()
    leaving = keys.signer("desk-a")

    async with asyncio.timeout(10), served(keys, clock, renewals) as desk:
        (tmp_path / "desk-b").write_bytes(NEW)
        (tmp_path / "desk-a" / "1").unlink()
        (tmp_path / "desk-a").rmdir()
        await clock.step()
        answered = [await is_answered(desk, each) for each in (leaving, keys.signer("desk-b"))]

    assert answered == [False, True]
    assert list(keys.principals) == ["desk-b"]


async def test_unreadable_keys_leave_earlier_keys_valid(tmp_path: Path, keys: PrincipalKeys) -> None:
    clock, renewals = Steps(), list[int]()

    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(10), served(keys, clock, renewals) as desk:
            (tmp_path / "desk-a" / "1").write_bytes(b"half of it")
            await clock.step()
            still = await is_answered(desk, Signer("desk-a", OLD))
            (tmp_path / "desk-a" / "1").write_bytes(NEW)
            await clock.step()
            then = [await is_answered(desk, Signer("desk-a", key)) for key in (OLD, NEW)]

    assert (still, then) == (True, [False, True])
    said = [line["event"] for line in logs if line["event"].startswith("signing_keys")]
    assert said == ["signing_keys_not_renewed", "signing_keys_renewed"]
    assert all(key.decode() not in str(logs) for key in (OLD, NEW))


class Passing(Steps):
    """A clock on which each sleep takes as long as it should."""

    passed_s = 0.0

    def monotonic(self) -> float:
        return self.passed_s

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        self.passed_s += seconds


async def test_unread_folder_is_warned_and_measured(tmp_path: Path, keys: PrincipalKeys) -> None:
    clock, renewals, unread = Passing(), list[int](), list[float]()

    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(10), served(keys, clock, renewals) as desk:
            os.mkfifo(tmp_path / "desk-b")
            for _ in range(2):
                await clock.step()
                unread.append(keys.unread_s)
            (tmp_path / "desk-b").unlink()
            (tmp_path / "desk-a" / "1").write_bytes(NEW)
            await clock.step()
            unread.append(keys.unread_s)
            then = [await is_answered(desk, Signer("desk-a", key)) for key in (OLD, NEW)]

    assert unread == [30, 60, 0]
    warned = [(line["log_level"], line["unread_s"]) for line in logs if "unread_s" in line]
    assert warned == [("warning", 30), ("warning", 60)]
    assert "desk-b cannot be read (a FIFO, not a regular file)" in str(logs)
    assert then == [False, True]


async def test_unresponsive_disk_is_a_warning(tmp_path: Path) -> None:
    answers, hangs = Event(), Event()

    def read() -> dict[str, tuple[bytes, ...]]:
        if hangs.is_set():
            answers.wait()
        return read_keys(tmp_path)

    (tmp_path / "desk-a").write_bytes(OLD)
    clock, keys = Steps(), PrincipalKeys(tmp_path, read, within_s=0.05)
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(10), keys.followed(clock, lambda: None):
            hangs.set()
            (tmp_path / "desk-b").write_bytes(NEW)
            await clock.step()
            await clock.step()
    answers.set()

    assert [line["event"] for line in logs] == ["signing_keys_not_renewed"] * 2
    assert "its disk did not answer within 0.05 s" in logs[0]["reason"]
    assert "its disk has not answered an earlier read" in logs[1]["reason"]


def test_unreadable_folder_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(SigningKeyError, match="cannot be read"):
        PrincipalKeys(tmp_path / "none", dict)
