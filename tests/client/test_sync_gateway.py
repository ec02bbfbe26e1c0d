"""A gateway for code without a loop: calls of threads, errors, Ctrl-C, and the way it closes."""

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import BaseModel

from agentic_trading.bus.errors import BusError
from agentic_trading.client.sync_gateway import GatewayContext, SyncGateway
from agentic_trading.errors import TradingError
from agentic_trading.llm.errors import EnvelopeValidationError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import BusConfig, PlatformConfig, local_gateway, remote_gateway
from tests.build import event
from tests.platform.calls import envelope

MODEL = "scripted/scripted-1"
BUDGET_USD = Decimal("0.5")


class Sum(BaseModel):
    """The answer of the tests."""

    total: int


class Waiting(ScriptedProvider):
    """A provider that does something before it answers."""

    def __init__(self, before: Callable[[], "asyncio.Future[None] | None"] | None = None) -> None:
        super().__init__(lambda _request: '{"total":3}')
        self.before = before
        self.gateway: SyncGateway | None = None
        self.is_closed = False

    async def complete(self, request: ModelRequest) -> ModelResponse:
        if self.before is not None and (pending := self.before()) is not None:
            await pending
        return await super().complete(request)

    async def aclose(self) -> None:
        self.is_closed = True
        await super().aclose()


def gateway_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "agentic-trading-gateway" and one.is_alive()]


def is_no_thread_left() -> bool:
    """Wait for threads that have told their end, and return whether none is left."""
    for thread in gateway_threads():
        thread.join()
    return not gateway_threads()


def test_both_gateways_share_context_type() -> None:
    local = local_gateway(ScriptedProvider([]), budget_usd=BUDGET_USD)
    remote = remote_gateway(PlatformConfig(bus=BusConfig(url="redis://127.0.0.1:1")))

    assert type(local) is type(remote) is GatewayContext


def test_sync_methods_block_until_result() -> None:
    store, note = MemoryInteractionStore(), event("note")
    with local_gateway(
        ScriptedProvider(lambda _r: "{}"), budget_usd=BUDGET_USD, store=store
    ).sync() as gateway:
        reply = gateway.ask(envelope(1))
        outcome = gateway.ask_structured(envelope(2))
        submitted = gateway.submit(envelope(3))  # not waited for: it may be dropped with the bus
        gateway.record(note)

    assert isinstance(reply, LLMInteraction)
    assert reply.actionable
    assert outcome.ok
    assert submitted.context == {"n": 3}
    kept = asyncio.run(records(store))
    assert note.id in {one.id for one in kept if isinstance(one, Event)}


async def records(store: MemoryInteractionStore) -> list[object]:
    return [entry.record async for entry in store.scan()]


def test_with_block_asks_and_closes() -> None:
    provider = Waiting()
    with local_gateway(provider, budget_usd=BUDGET_USD).sync() as gateway:
        answer = gateway.decide("Add 1 and 2.", output=Sum, model=MODEL)

    assert answer.output == Sum(total=3)
    assert provider.is_closed
    assert is_no_thread_left()


def test_close_ends_gateway_without_with_block() -> None:
    provider = Waiting()
    gateway = local_gateway(provider, budget_usd=BUDGET_USD).sync()

    assert gateway.decide("Add.", output=Sum, model=MODEL)
    gateway.close()
    gateway.close()

    assert provider.is_closed
    assert is_no_thread_left()
    with pytest.raises(RuntimeError, match="The gateway is closed"):
        gateway.decide("Add.", output=Sum, model=MODEL)


def test_threads_share_the_gateway() -> None:
    with (
        local_gateway(Waiting(), budget_usd=BUDGET_USD).sync() as gateway,
        ThreadPoolExecutor(4) as threads,
    ):
        answers = [threads.submit(gateway.decide, f"Add {n}.", output=Sum, model=MODEL) for n in range(8)]

    assert all(one.result() for one in answers)


def test_opening_errors_are_raised(tmp_path: Path) -> None:
    store = MemoryInteractionStore()

    with pytest.raises(ValueError, match="both folder and store"):
        local_gateway(Waiting(), budget_usd=BUDGET_USD, folder=tmp_path, store=store).sync()
    with pytest.raises(TradingError, match=r"bus\.url"):
        remote_gateway(PlatformConfig()).sync()
    assert is_no_thread_left()


def test_call_errors_leave_gateway_usable() -> None:
    with local_gateway(Waiting(), budget_usd=BUDGET_USD).sync() as gateway:
        with pytest.raises(EnvelopeValidationError, match="has no provider"):
            gateway.decide("Add.", output=Sum, model="x")
        assert gateway.decide("Add.", output=Sum, model=MODEL)


def test_block_error_is_raised_after_closing() -> None:
    provider = Waiting()

    with pytest.raises(LookupError, match="mine"), local_gateway(provider, budget_usd=BUDGET_USD).sync():
        raise LookupError("mine")

    assert provider.is_closed
    assert is_no_thread_left()


def test_context_opens_only_once() -> None:
    context = local_gateway(Waiting(), budget_usd=BUDGET_USD)
    context.sync().close()

    with pytest.raises(RuntimeError, match="was opened before"):
        context.sync()


def test_close_finishes_calls_in_flight() -> None:
    started = threading.Event()
    gateway = None

    def until_closing() -> "asyncio.Future[None]":
        started.set()
        assert gateway is not None
        opened = gateway._opened.result()
        return asyncio.ensure_future(closed(opened.closing))  # noqa: TID251 - the provider's own wait

    async def closed(closing: asyncio.Event) -> None:
        await closing.wait()

    provider = Waiting(until_closing)
    gateway = local_gateway(provider, budget_usd=BUDGET_USD).sync()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(gateway.decide, "Add.", output=Sum, model=MODEL)
        started.wait()
        gateway.close()

    assert call.result().output == Sum(total=3)
    assert is_no_thread_left()


def interrupt() -> "asyncio.Future[None]":
    """Send Ctrl-C to the main thread, and wait for ever."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
    return asyncio.get_running_loop().create_future()


def test_ctrl_c_cancels_call_and_closes() -> None:
    store, provider = MemoryInteractionStore(), Waiting(interrupt)

    with (
        pytest.raises(KeyboardInterrupt),
        local_gateway(provider, budget_usd=BUDGET_USD, store=store).sync() as gateway,
    ):
        gateway.decide("Add.", output=Sum, model=MODEL)

    assert provider.is_closed
    assert is_no_thread_left()
    (attempt,) = [one for one in asyncio.run(records(store)) if isinstance(one, LLMInteraction)]
    assert attempt.result.in_doubt  # it was sent: its reservation is charged, and nothing is lost
    assert attempt.result.cost_nusd > 0


def test_gateway_works_after_caught_ctrl_c() -> None:
    provider = Waiting(interrupt)
    gateway = local_gateway(provider, budget_usd=BUDGET_USD).sync()

    def use_and_end_by_ctrl_c() -> None:
        with gateway:
            with pytest.raises(KeyboardInterrupt):
                gateway.decide("Add.", output=Sum, model=MODEL)
            provider.before = None
            assert gateway.decide("Add once more.", output=Sum, model=MODEL)
            raise KeyboardInterrupt  # the worker still waits for the first call, which only a cancellation ends

    with pytest.raises(KeyboardInterrupt):
        use_and_end_by_ctrl_c()

    assert is_no_thread_left()


def test_broken_gateway_raises_the_cause() -> None:
    class BreakingContext:
        async def __aenter__(self) -> object:
            raise BusError("the bus is gone")

        async def __aexit__(self, *_exc: object) -> None:
            return None

    with pytest.raises(BusError, match="the bus is gone"):
        SyncGateway(BreakingContext())  # type: ignore[arg-type]
