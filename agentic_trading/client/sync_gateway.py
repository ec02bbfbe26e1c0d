"""Open a gateway with `async with`, or with `sync()` if there is no event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from threading import Thread
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar

from agentic_trading.cancellation import run_async
from agentic_trading.client.answer import NO_EVIDENCE, Answer, M
from agentic_trading.client.gateway import GatewayReply, StructuredGateway
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.limits import LLMBudget

P = ParamSpec("P")
T = TypeVar("T")
G_co = TypeVar("G_co", bound=StructuredGateway, covariant=True)

_CLOSED: Final = "The gateway is closed. Open a new one with local_gateway or remote_gateway"
_OPENED: Final = "This gateway was opened before. Call local_gateway or remote_gateway again"


class GatewayContext(Generic[G_co]):
    """A gateway that is not open yet. `local_gateway` and `remote_gateway` return it.

    Use `async with` in asynchronous code, and `sync()` in scripts and notebooks. It can be opened once.
    """

    def __init__(self, context: AbstractAsyncContextManager[G_co]) -> None:
        self._context = context
        self._is_opened = False

    async def __aenter__(self) -> G_co:
        """Open the gateway.

        Raises:
            RuntimeError: If it was opened before.

        """
        if self._is_opened:
            raise RuntimeError(_OPENED)
        self._is_opened = True
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Finish the calls in flight, and close the gateway."""
        return await self._context.__aexit__(kind, e, trace)

    def sync(self) -> "SyncGateway":
        """Open the gateway in its own thread, for code without an event loop.

        Returns:
            The open gateway. Use it in a `with` statement, or call `close` at the end.

        Raises:
            Exception: Any error of opening the gateway.

        Example:
            with local_gateway(provider, budget_usd=Decimal("0.50")).sync() as gateway:
                outcome = gateway.ask_structured(envelope)

        """
        return SyncGateway(self)


def gateway_context(
    open_gateway: Callable[P, AbstractAsyncContextManager[G_co]],
) -> Callable[P, GatewayContext[G_co]]:
    """Decorate an opener, so that it returns a `GatewayContext`."""

    @wraps(open_gateway)
    def made(*args: P.args, **kwargs: P.kwargs) -> GatewayContext[G_co]:
        return GatewayContext(open_gateway(*args, **kwargs))

    return made


class SyncGateway:
    """A gateway with blocking methods, for scripts, threads and notebooks.

    Its event loop runs in its own thread. Several threads may make calls at the same time. Leaving the `with`
    block completes the calls in flight. Ctrl-C cancels the call that is waited for. If it leaves the `with`
    block, the gateway closes like a cancelled `async with`: calls that were sent get a short time to end, and
    all results are recorded.
    """

    def __init__(self, context: AbstractAsyncContextManager[StructuredGateway]) -> None:
        self._context = context
        self._opened: Future[_Opened] = Future()
        self._ended: Future[None] = Future()
        # A daemon thread, because a notebook that does not close its gateway must be able to exit. The log survives that.
        Thread(target=self._run, name="agentic-trading-gateway", daemon=True).start()
        try:
            _wait_for_one(self._opened, self._ended)
        except BaseException:
            self._opened.add_done_callback(lambda _opened: self._close(is_cancelled=True))
            raise
        if not self._opened.done():
            raise self._ended.exception() or RuntimeError(_CLOSED)

    def __enter__(self) -> Self:
        """Return the open gateway."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the calls in flight, and close the gateway.

        The error of the block is raised. An error of closing is added to it as a note.
        """
        try:
            self._end(is_cancelled=e is not None and not isinstance(e, Exception))
        except Exception as closing:  # whatever an adapter raises while it is closed
            if e is None:
                raise
            if closing is not e:
                e.add_note(f"while the gateway was closed: {type(closing).__name__}: {closing}")

    def close(self) -> None:
        """Complete the calls in flight, and close the gateway. It may be called again."""
        self._end(is_cancelled=False)

    def decide(
        self,
        instructions: str,
        *,
        output: type[M],
        model: str,
        evidence: Mapping[str, Any] = NO_EVIDENCE,
        workflow: EnvelopeWorkflow = EnvelopeWorkflow.ANALYSIS,
        as_of: datetime | None = None,
        budget: LLMBudget | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Answer[M]:
        """Ask a model for an instance of a pydantic class: see `TypedAnswers.decide`."""
        return self._call(
            lambda gateway: gateway.decide(
                instructions, output=output, model=model, evidence=evidence, workflow=workflow, as_of=as_of,
                budget=budget, tenant=tenant,
            )
        )  # fmt: skip

    def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Run a call and return its last attempt, or a `NoDecision`."""
        return self._call(lambda gateway: gateway.ask(envelope))

    def ask_structured(self, envelope: LLMEnvelope) -> StructuredOutcome:
        """Run a call and return its outcome with all its attempts."""
        return self._call(lambda gateway: gateway.ask_structured(envelope))

    def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish a call without waiting for its answer, and return the envelope as published."""
        return self._call(lambda gateway: gateway.submit(envelope))

    def record(self, event: Event) -> None:
        """Append an event to the trace."""
        self._call(lambda gateway: gateway.record(event))

    def _call(self, work: Callable[[StructuredGateway], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the loop of the gateway. Interrupting the wait cancels it."""
        call, opened = _Call(work), self._opened.result()
        try:
            opened.soon(opened.start, call)
            _wait_for_one(call.result, self._ended)
        except BaseException:
            opened.soon(call.cancel)
            raise
        if call.result.done() and not call.is_cancelled:
            return call.result.result()
        wait((self._ended,))  # the gateway has ended, and the call with it
        raise self._ended.exception() or RuntimeError(_CLOSED)

    def _run(self) -> None:
        """Open the gateway and keep it open. This is the body of the thread."""
        try:
            run_async(self._serve())
        except BaseException as e:  # noqa: BLE001 - it is raised in the thread that waits for it
            self._ended.set_exception(e)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        async with self._context as gateway, asyncio.TaskGroup() as group:
            opened = _Opened(gateway, group)
            self._opened.set_result(opened)
            await opened.closing.wait()

    def _close(self, *, is_cancelled: bool) -> None:
        opened = self._opened.result()
        opened.soon(opened.cancel if is_cancelled else opened.closing.set)

    def _end(self, *, is_cancelled: bool) -> None:
        """Close the gateway and wait. The first interrupt cancels the calls in flight."""
        self._close(is_cancelled=is_cancelled)
        try:
            wait((self._ended,))
        except BaseException:
            self._close(is_cancelled=True)
            wait((self._ended,))
            raise
        with suppress(asyncio.CancelledError):
            self._ended.result()


def _wait_for_one(*futures: Future[Any]) -> None:
    """Wait until one of `futures` is done."""
    wait(futures, return_when=FIRST_COMPLETED)


@dataclass(frozen=True, slots=True)
class _Opened:
    """An open gateway with its task group, task and event loop."""

    gateway: StructuredGateway
    group: asyncio.TaskGroup
    serving: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def soon(self, act: Callable[..., object], *arguments: object) -> None:
        """Call `act` on the loop, from any thread. Without effect after the loop ended."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(act, *arguments, context=copy_context())

    def start(self, call: "_Call[Any]") -> None:
        """Start a call on the loop. Without effect while the gateway is closing."""
        if not self.closing.is_set():
            call.task = self.group.create_task(call.run(self.gateway), name="sync-call")

    def cancel(self) -> None:
        """Cancel the calls in flight, and close the gateway."""
        self.closing.set()
        if self.serving is not None:
            self.serving.cancel()


@dataclass(slots=True)
class _Call(Generic[T]):
    """A call of another thread. `result` is set on the loop."""

    work: Callable[[StructuredGateway], Coroutine[Any, Any, T]]
    result: Future[T] = field(default_factory=Future)
    task: asyncio.Task[None] | None = None
    is_cancelled: bool = False

    async def run(self, gateway: StructuredGateway) -> None:
        try:
            self.result.set_result(await self.work(gateway))
        except asyncio.CancelledError as e:
            self.is_cancelled = True
            self.result.set_exception(e)
            raise
        except BaseException as e:  # noqa: BLE001 - it is raised in the thread that waits; other calls go on
            self.result.set_exception(e)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
