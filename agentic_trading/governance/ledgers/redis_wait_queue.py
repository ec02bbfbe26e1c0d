"""The requests of this process that wait for headroom on the server, and how the server wakes them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from agentic_trading.cancellation import OwnedTasks, run_shielded
from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.ledger import Blocked, Declined, Reservation

LOOK_S = 1.0
"""How often a queued request looks without being woken; more seldom if very many wait."""

_LOOKS_A_SECOND = 200
_LEASE_LOOKS = 3
_LISTENING_S = 0.5

WakeUps = AsyncGenerator[tuple[str, str]]
"""Which requests are woken: a queue, and the places in it, one per line of text; `*` is all, empty is none."""


class ReserveAttempt(NamedTuple):
    """The answer of one look; `is_new` marks a reservation that was just made."""

    answer: Reservation | Declined | Blocked
    is_new: bool = False


@dataclass(slots=True, eq=False)
class RedisWaiter:
    """A request that waits; `place` is empty before the first look, `ticket` is its part after the rank."""

    queue: str
    place: str = ""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ticket(self) -> str:
        """Its number in the order of arrival."""
        return self.place.rpartition(".")[2]


class WaiterClient(Protocol):
    """The steps on the ledger that a queued request needs."""

    async def look(self, waiter: RedisWaiter) -> ReserveAttempt:
        """Try again, and keep the place."""
        ...

    async def give_back(self) -> None:
        """Give back what was just reserved."""
        ...

    async def leave(self, place: str) -> None:
        """Give up the place."""
        ...


class RedisWaitQueue:
    """Waits for requests that cannot be served at once: woken by the server, or looking now and then."""

    def __init__(self, wake_ups: Callable[[], WakeUps], look_s: float = LOOK_S) -> None:
        self._wake_ups = wake_ups
        self._look_s = look_s
        self._at: dict[tuple[str, str], RedisWaiter] = {}
        self._tasks = OwnedTasks()
        self._listening: asyncio.Event | None = None
        self._listener: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._at)

    @property
    def look_s(self) -> float:
        """How long to wait to be woken before looking all the same."""
        return max(self._look_s, len(self._at) / _LOOKS_A_SECOND)

    @property
    def lease_s(self) -> float:
        """For how long a queued request counts as alive after a look."""
        return _LEASE_LOOKS * self.look_s

    async def wait(self, queue: str, turn: WaiterClient) -> Reservation | Declined:
        """Wait until a look is answered for good; cancelled, it gives up the place, and what it has led to."""
        with self._joined(queue) as waiter:
            try:
                while isinstance(answer := await self._look(waiter, turn), Blocked):
                    await self._listen()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self.look_s):
                            await waiter.woken.wait()
                    waiter.woken.clear()
            except asyncio.CancelledError:
                if waiter.place:
                    with suppress(LedgerError):  # the place has a lease
                        await turn.leave(waiter.place)
                raise
            return answer

    def placed(self, waiter: RedisWaiter, place: str) -> None:
        """Take note of the place that a look has given; a wake-up for it may have come before: look once more."""
        if place != waiter.place:
            waiter.place = place
            self._at[waiter.queue, place] = waiter
            waiter.woken.set()

    async def aclose(self) -> None:
        """Listen no longer; harmless twice."""
        if self._listener is not None:
            self._listener.cancel()
        await self._tasks.aclose()
        self._listening = self._listener = None

    @contextmanager
    def _joined(self, queue: str) -> Iterator[RedisWaiter]:
        waiter = RedisWaiter(queue)
        try:
            yield waiter
        finally:
            self._at.pop((queue, waiter.place), None)

    async def _look(self, waiter: RedisWaiter, turn: WaiterClient) -> Reservation | Declined | Blocked:
        """Look to the end, even if cancelled: only then is it known what there is to give back."""
        found: list[ReserveAttempt | Exception] = []
        try:
            await run_shielded(_look_into(found, turn.look(waiter)))
        except asyncio.CancelledError:
            if any(isinstance(one, ReserveAttempt) and one.is_new for one in found):
                with suppress(LedgerError):  # the reservation has a lease
                    await turn.give_back()
            raise
        (one,) = found
        if isinstance(one, Exception):
            raise one
        return one.answer

    async def _listen(self) -> None:
        """Start to listen for wake-ups; without them, requests look now and then all the same."""
        if self._listening is None:
            self._listening = asyncio.Event()
            self._listener = self._tasks.start(self._deliver_wake_ups(self._listening), name="wake-ups")
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTENING_S):
                await self._listening.wait()

    async def _deliver_wake_ups(self, listening: asyncio.Event) -> None:
        async with aclosing(self._wake_ups()) as calls:
            async for queue, places in calls:
                listening.set()
                for waiter in self._all_in(queue) if places == "*" else self._named(queue, places):
                    waiter.woken.set()

    def _all_in(self, queue: str) -> Iterator[RedisWaiter]:
        return (waiter for (of, _), waiter in self._at.items() if queue in {of, "*"})

    def _named(self, queue: str, places: str) -> Iterator[RedisWaiter]:
        found = (self._at.get((queue, place)) for place in places.split("\n"))
        return (waiter for waiter in found if waiter is not None)


async def _look_into(
    found: list[ReserveAttempt | Exception], look: Coroutine[Any, Any, ReserveAttempt]
) -> None:
    """Keep what a look comes to where a cancelled caller finds it, an error too: the cancellation goes first."""
    try:
        found.append(await look)
    except Exception as e:  # noqa: BLE001 - raised again by the caller
        found.append(e)
