"""The response cache: a request of level `recorded` gets its first answer again, until its deadline."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, Self
from weakref import WeakValueDictionary

from agentic_trading.clock import Clock
from agentic_trading.llm.envelope import DeterminismLevel, LLMEnvelope
from agentic_trading.llm.envelope_rules import check_envelope
from agentic_trading.llm.errors import EnvelopeValidationError, StoreError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import LLMResult
from agentic_trading.logger import get_logger
from agentic_trading.worker.claim import ClaimKey, ClaimStore, ClaimStoreUnavailableError
from agentic_trading.worker.slots import Parking, StoppableWait

MOST_CACHED = 10_000
"""The maximum number of cached answers. Expired ones are dropped first, then those unused for the longest."""

SHARED_S = 24 * 3600.0
"""How long an answer without a deadline is kept for other processes."""

log = get_logger()

_Key = tuple[str, str, int]
_Attempts = defaultdict[tuple[str, str], list[LLMResult]]
"""The attempts that were read, by tenant and envelope."""

_NOT_CACHED: AbstractAsyncContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class _CachedAttempts:
    """The attempts of the envelope that was answered first, up to the accepted one."""

    envelope_id: str
    deadline: datetime | None
    attempts: tuple[LLMResult, ...]

    @classmethod
    def read(cls, answer: bytes) -> Self:
        """Parse a shared answer: the attempts as recorded, one on each line."""
        attempts = [LLMInteraction.from_wire(line) for line in answer.split(b"\n")]
        envelope = attempts[-1].envelope
        return cls(envelope.envelope_id, envelope.deadline, tuple(one.result for one in attempts))

    def served_to(self, envelope: LLMEnvelope) -> Mapping[int, LLMResult]:
        """Return the attempts by number. Another envelope gets only the answered ones."""
        if envelope.envelope_id == self.envelope_id:
            return {result.attempt_number: result for result in self.attempts}
        answered = [result for result in self.attempts if result.reading is not None]
        return {
            number: result.model_copy(update={"attempt_number": number})
            for number, result in enumerate(answered, start=1)
        }

    def is_over(self, now: datetime) -> bool:
        """Whether the deadline has passed. Without a deadline, this is always False."""
        return self.deadline is not None and now >= self.deadline


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Queue:
    """The calls with the same request, one after another. The call in progress holds `turn`."""

    length: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextmanager
    def joined(self) -> Iterator[bool]:
        """Join the queue. Yields whether it already contains other calls."""
        others = self.length > 0
        self.length += 1
        try:
            yield others
        finally:
            self.length -= 1


class CachedCall:
    """One call of level `recorded` in progress: its cached attempts, and those to be cached."""

    def __init__(
        self, cache: "ResponseCache", envelope: LLMEnvelope, served: Mapping[int, LLMResult]
    ) -> None:
        self._cache = cache
        self._envelope = envelope
        self._served = served
        self._attempts: list[LLMInteraction] = []

    def find(self, attempt: int) -> LLMResult | None:
        """Return the cached result of this attempt, or None."""
        return self._served.get(attempt)

    async def add(self, interaction: LLMInteraction) -> None:
        """Add a recorded attempt.

        The first accepted one is cached together with those before it.
        """
        self._attempts.append(interaction)
        if _is_first(interaction.result):
            self._cache.store(self._envelope, [one.result for one in self._attempts])
            await self._cache.share(self._attempts)


class RecordedAttempts(Protocol):
    """The recorded attempts of a log, by request. `Records` has them."""

    def by_request(
        self, request_hash: str, occurrence: int, *, tenant: str | None = None
    ) -> AsyncGenerator[LLMInteraction]:
        """Yield the attempts at a request and occurrence that were sent, oldest first."""
        ...


class ResponseCache:
    """The first accepted answer of each tenant's requests, by request and occurrence.

    An answer is kept until the deadline of its first call, or without a deadline until the process ends. With
    `recorded`, the answers of earlier processes are found in the log, when their request is made again. If
    two equal requests arrive at the same time, the second one waits for the first, so that only one is paid
    for. This holds within one process. An answer of another model than the requested one is not cached.
    Without `recorded`, `fill` the cache from the log after a restart.

    Answers in `shared` are used by all processes that share it. Without a deadline, they are kept for a day.
    A process that finds no shared answer sends the request. If two processes do so at the same time, both are
    answered, and the first answer is used from then on.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        most: int = MOST_CACHED,
        shared: ClaimStore | None = None,
        recorded: RecordedAttempts | None = None,
    ) -> None:
        if most < 1:
            raise ValueError(f"most is {most}. Allowed: 1 or more.")
        self._clock = clock
        self._most = most
        self._shared = shared
        self._recorded = recorded
        self._cached: OrderedDict[_Key, _CachedAttempts] = OrderedDict()
        self._queues: WeakValueDictionary[_Key, _Queue] = WeakValueDictionary()

    def fill(self, interactions: Iterable[LLMInteraction]) -> None:
        """Cache the answers in recorded `interactions`, which must be in the order of the log.

        Expired answers are not used, and existing entries are unchanged.
        """
        under_way: _Attempts = defaultdict(list)
        for interaction in interactions:
            self._add_recorded(under_way, interaction)

    def _add_recorded(self, under_way: _Attempts, interaction: LLMInteraction) -> None:
        """Add a recorded attempt to those of its envelope, and cache them if it was accepted."""
        envelope = interaction.envelope
        if not envelope.is_cacheable:
            return
        attempts = under_way[envelope.tenant_id, envelope.envelope_id]
        attempts.append(interaction.result)
        if _is_first(interaction.result):
            self.store(envelope, attempts)

    def store(self, envelope: LLMEnvelope, attempts: Iterable[LLMResult]) -> None:
        """Cache the attempts of `envelope`, unless its request has an answer.

        The last attempt was accepted.
        """
        key, now = _key(envelope), self._clock.now()
        if self._known(key, now) is not None:
            return
        self._put(key, _CachedAttempts(envelope.envelope_id, envelope.deadline, tuple(attempts)))

    async def share(self, attempts: Sequence[LLMInteraction]) -> None:
        """Share these attempts with all processes.

        If a shared answer exists already, use that one. The last attempt was accepted.
        """
        if self._shared is None:
            return
        envelope, now = attempts[-1].envelope, self._clock.now()
        key = _key(envelope)
        left_s = SHARED_S if envelope.deadline is None else (envelope.deadline - now).total_seconds()
        answer = b"\n".join(one.wire for one in attempts)
        try:
            first = await self._shared.freeze(_shared_key(key), answer, left_s)
        except ClaimStoreUnavailableError as e:
            log.warning("answer_not_shared", envelope_id=envelope.envelope_id, reason=str(e))
        else:
            self._put(key, _CachedAttempts.read(first))

    async def _look(self, envelope: LLMEnvelope) -> None:
        """Load the first answer in the log, otherwise one that another process has shared."""
        key = _key(envelope)
        if self._recorded is not None and self._known(key, self._clock.now()) is None:
            await self._look_in(self._recorded, key)
        if self._shared is None or self._known(key, self._clock.now()) is not None:
            return
        first = await self._shared.frozen(_shared_key(key))
        if first:
            self._put(key, _CachedAttempts.read(first))

    async def _look_in(self, recorded: RecordedAttempts, key: _Key) -> None:
        """Load the first answer in a log that has not expired. A log that cannot be read has none."""
        tenant, request_hash, occurrence = key
        under_way: _Attempts = defaultdict(list)
        try:
            async with aclosing(recorded.by_request(request_hash, occurrence, tenant=tenant)) as attempts:
                async for attempt in attempts:
                    self._add_recorded(under_way, attempt)
                    if self._known(key, self._clock.now()) is not None:
                        return
        except StoreError as e:
            log.warning("recorded_answer_not_read", request_hash=request_hash, reason=str(e))

    def turn(
        self, envelope: LLMEnvelope, waits: StoppableWait, parked: Parking = nullcontext
    ) -> AbstractAsyncContextManager[CachedCall | None]:
        """Let one call at a time make a request of level `recorded`.

        Yields None for envelopes of other levels. A call also gets None if it waits longer than its deadline,
        or than `waits` allow. It must then not be sent, because it is not its turn. `parked` is entered while
        it waits.
        """
        return self._turn(envelope, waits, parked) if envelope.is_cacheable else _NOT_CACHED

    @asynccontextmanager
    async def _turn(
        self, envelope: LLMEnvelope, waits: StoppableWait, parked: Parking
    ) -> AsyncGenerator[CachedCall | None]:
        queue = self._queues.setdefault(_key(envelope), _Queue())
        has_turn = False
        with queue.joined() as must_wait:
            try:
                async with parked() if must_wait else nullcontext():
                    has_turn = await self._acquired(queue.turn, envelope.deadline, waits)
                if has_turn:
                    await self._look(envelope)
                yield CachedCall(self, envelope, self._served(envelope)) if has_turn else None
            finally:
                if has_turn:
                    queue.turn.release()

    async def _acquired(self, lock: asyncio.Lock, deadline: datetime | None, waits: StoppableWait) -> bool:
        while deadline is None or self._clock.now() < deadline:
            left_s = None if deadline is None else (deadline - self._clock.now()).total_seconds()
            try:
                async with asyncio.timeout(left_s):
                    return await waits.wait_for(lock.acquire())
            except TimeoutError:
                continue  # ask the call's clock again, because a simulated one may not have moved
        return False

    def _served(self, envelope: LLMEnvelope) -> Mapping[int, LLMResult]:
        """Return the cached attempts.

        An invalid envelope gets none, because the gate must refuse it.
        """
        key = _key(envelope)
        cached = self._known(key, self._clock.now())
        if cached is None:
            return {}
        try:
            check_envelope(envelope)
        except EnvelopeValidationError:
            return {}
        self._cached.move_to_end(key)
        return cached.served_to(envelope)

    def _known(self, key: _Key, now: datetime) -> _CachedAttempts | None:
        cached = self._cached.get(key)
        if cached is not None and cached.is_over(now):
            del self._cached[key]
            return None
        return cached

    def _put(self, key: _Key, cached: _CachedAttempts) -> None:
        if len(self._cached) >= self._most:
            self._make_room(self._clock.now())
        self._cached[key] = cached

    def _make_room(self, now: datetime) -> None:
        """Drop expired answers.

        If that is not enough, drop a tenth, so that one sweep makes room for many.
        """
        for key in [key for key, cached in self._cached.items() if cached.is_over(now)]:
            del self._cached[key]
        while len(self._cached) > self._most * 9 // 10:
            self._cached.popitem(last=False)


def _key(envelope: LLMEnvelope) -> _Key:
    return envelope.tenant_id, envelope.request_hash, envelope.occurrence


def _shared_key(key: _Key) -> ClaimKey:
    tenant, request_hash, occurrence = key
    return ClaimKey(tenant, f"{request_hash}:{occurrence}")


def _is_first(result: LLMResult) -> bool:
    """Whether a result is an accepted live answer that may be cached."""
    return result.served_from == "live" and result.determinism_level is DeterminismLevel.RECORDED
