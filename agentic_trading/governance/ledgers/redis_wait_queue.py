"""The queued requests of this process: they wait for headroom on the server, and look again when it wakes them.

A look is one attempt to reserve, which takes or keeps the request's place in the server's queue.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from agentic_trading.cancellation import OwnedTasks, run_shielded
from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.ledger import Blocked, Declined, Reservation

LOOK_S = 1.0
"""How long a queued request waits to be woken before it looks again; longer if very many are queued."""

_LOOKS_A_SECOND = 200  # of all queued requests together
_LEASE_LOOKS = 3
_LISTENING_S = 0.5  # the longest wait until the process listens

WakeUps = AsyncGenerator[tuple[str, str]]
"""Which requests are woken: a queue, and the places in it, one per line of text; `*` is all, empty is none."""


class LookResult(NamedTuple):
    """The answer to one look; `is_new`: this look made the reservation."""

    answer: Reservation | Declined | Blocked
    is_new: bool = False


@dataclass(slots=True, eq=False)
class RedisQueuedRequest:
    """A request in a queue on the server; `place` is what the first look has given it, empty before."""

    queue: str
    place: str = ""
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class QueueCalls(Protocol):
    """What a queued request calls on the ledger."""

    async def look(self, queued: RedisQueuedRequest) -> LookResult:
        """Try to reserve, and take or keep the place."""
        ...

    async def give_back(self) -> None:
        """Release what was just reserved."""
        ...

    async def leave(self, place: str) -> None:
        """Give up the place."""
        ...


class RedisWaitQueue:
    """Lets blocked requests wait until a look has a final answer; the server wakes them, or `look_s` has passed."""

    def __init__(self, wake_ups: Callable[[], WakeUps], look_s: float = LOOK_S) -> None:
        self._wake_ups = wake_ups
        self._look_s = look_s
        self._by_place: dict[tuple[str, str], RedisQueuedRequest] = {}
        self._tasks = OwnedTasks()
        self._listening: asyncio.Event | None = None
        self._listener: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._by_place)

    @property
    def look_s(self) -> float:
        """How long a queued request waits to be woken before it looks again."""
        return max(self._look_s, len(self._by_place) / _LOOKS_A_SECOND)

    @property
    def lease_s(self) -> float:
        """For how long a queued request keeps its place after a look."""
        return _LEASE_LOOKS * self.look_s

    async def wait(self, queue: str, calls: QueueCalls) -> Reservation | Declined:
        """Look until the answer is final; a cancelled wait gives up its place, and what it has just reserved."""
        with self._joined(queue) as queued:
            try:
                while isinstance(answer := await self._look(queued, calls), Blocked):
                    await self._listen()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self.look_s):
                            await queued.woken.wait()
                    queued.woken.clear()
            except asyncio.CancelledError:
                if queued.place:
                    with suppress(LedgerError):  # the place has a lease
                        await calls.leave(queued.place)
                raise
            return answer

    def set_place(self, queued: RedisQueuedRequest, place: str) -> None:
        """Keep the place that a look has given; a wake-up for it may have come before, so the request looks again."""
        if place != queued.place:
            queued.place = place
            self._by_place[queued.queue, place] = queued
            queued.woken.set()

    async def aclose(self) -> None:
        """Stop listening for wake-ups; harmless twice."""
        if self._listener is not None:
            self._listener.cancel()
        await self._tasks.aclose()
        self._listening = self._listener = None

    @contextmanager
    def _joined(self, queue: str) -> Iterator[RedisQueuedRequest]:
        queued = RedisQueuedRequest(queue)
        try:
            yield queued
        finally:
            self._by_place.pop((queue, queued.place), None)

    async def _look(self, queued: RedisQueuedRequest, calls: QueueCalls) -> Reservation | Declined | Blocked:
        """Finish a look even if cancelled: only then is it known whether there is a reservation to give back."""
        outcomes: list[LookResult | Exception] = []
        try:
            await run_shielded(_keep_outcome(outcomes, calls.look(queued)))
        except asyncio.CancelledError:
            if any(isinstance(outcome, LookResult) and outcome.is_new for outcome in outcomes):
                with suppress(LedgerError):  # the reservation has a lease
                    await calls.give_back()
            raise
        (outcome,) = outcomes
        if isinstance(outcome, Exception):
            raise outcome
        return outcome.answer

    async def _listen(self) -> None:
        """Start to listen for wake-ups, and wait until that has begun; requests look again without them too."""
        if self._listening is None:
            self._listening = asyncio.Event()
            self._listener = self._tasks.start(self._deliver_wake_ups(self._listening), name="wake-ups")
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTENING_S):
                await self._listening.wait()

    async def _deliver_wake_ups(self, listening: asyncio.Event) -> None:
        async with aclosing(self._wake_ups()) as wake_ups:
            async for queue, places in wake_ups:
                listening.set()
                for queued in self._all_in(queue) if places == "*" else self._named(queue, places):
                    queued.woken.set()

    def _all_in(self, queue: str) -> Iterator[RedisQueuedRequest]:
        return (queued for (own_queue, _), queued in self._by_place.items() if queue in {own_queue, "*"})

    def _named(self, queue: str, places: str) -> Iterator[RedisQueuedRequest]:
        requests = (self._by_place.get((queue, place)) for place in places.split("\n"))
        return (queued for queued in requests if queued is not None)


async def _keep_outcome(
    outcomes: list[LookResult | Exception], look: Coroutine[Any, Any, LookResult]
) -> None:
    """Append the outcome of a look, an error too: `run_shielded` loses it when the caller is cancelled."""
    try:
        outcomes.append(await look)
    except Exception as e:  # noqa: BLE001 - raised again by the caller
        outcomes.append(e)
