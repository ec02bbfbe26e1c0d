"""Answers that are given once: what a request of level `recorded` got first, it gets again until its deadline."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self
from weakref import WeakValueDictionary

from agentic_trading.clock import Clock
from agentic_trading.llm.envelope import DeterminismLevel, LLMEnvelope
from agentic_trading.llm.envelope_rules import check_envelope
from agentic_trading.llm.errors import EnvelopeValidationError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import LLMResult
from agentic_trading.logger import get_logger
from agentic_trading.worker.claim import ClaimKey, ClaimStore, ClaimStoreUnavailableError
from agentic_trading.worker.slots import Parking, StoppableWait

MOST_CACHED = 10_000
"""Answers that are kept; beyond that those whose deadline has come go first, then those unused for the longest."""

SHARED_S = 24 * 3600.0
"""How long an answer without a deadline is kept for other processes."""

log = get_logger()

_Key = tuple[str, str, int]
_NOT_CACHED: AbstractAsyncContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class _CachedAttempts:
    """The attempts at the envelope that was answered first, up to the accepted one."""

    envelope_id: str
    deadline: datetime | None
    attempts: tuple[LLMResult, ...]

    @classmethod
    def read(cls, answer: bytes) -> Self:
        """Read what is shared: the attempts as they are on record, one a line."""
        attempts = [LLMInteraction.from_wire(line) for line in answer.split(b"\n")]
        envelope = attempts[-1].envelope
        return cls(envelope.envelope_id, envelope.deadline, tuple(one.result for one in attempts))

    def served_to(self, envelope: LLMEnvelope) -> Mapping[int, LLMResult]:
        """Return the attempts by number: all for the very same envelope, for another one those that were answered."""
        if envelope.envelope_id == self.envelope_id:
            return {result.attempt_number: result for result in self.attempts}
        answered = [result for result in self.attempts if result.reading is not None]
        return {
            number: result.model_copy(update={"attempt_number": number})
            for number, result in enumerate(answered, start=1)
        }

    def is_over(self, now: datetime) -> bool:
        """Whether the deadline has come; without one it never does."""
        return self.deadline is not None and now >= self.deadline


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Queue:
    """The calls that make the same request, one after the other: `turn` is held by the one under way."""

    length: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextmanager
    def joined(self) -> Iterator[bool]:
        """Join it; gives whether others have already."""
        others = self.length > 0
        self.length += 1
        try:
            yield others
        finally:
            self.length -= 1


class CachedCall:
    """One call of level `recorded` under way: what is served to it, and what it adds to the cache."""

    def __init__(
        self, cache: "ResponseCache", envelope: LLMEnvelope, served: Mapping[int, LLMResult]
    ) -> None:
        self._cache = cache
        self._envelope = envelope
        self._served = served
        self._attempts: list[LLMInteraction] = []

    def find(self, attempt: int) -> LLMResult | None:
        """Return what this attempt gave when the request was answered first, or None."""
        return self._served.get(attempt)

    async def add(self, interaction: LLMInteraction) -> None:
        """Take an attempt that is on record; the first accepted one is cached together with those before it."""
        self._attempts.append(interaction)
        if _is_first(interaction.result):
            self._cache.store(self._envelope, [one.result for one in self._attempts])
            await self._cache.share(self._attempts)


class ResponseCache:
    """The first accepted answer of each tenant's request and occurrence, until the deadline of the call that made it first.

    Without a deadline it is kept for as long as the process lives. Of two same requests at once the second waits for
    the first, so that one of them is paid for; that holds within one process. An answer of another model than the one
    asked for is not cached. The log is the truth: after a restart `fill` it from there.

    What is kept in `shared`, without a deadline for a day, is the answer in all processes that share it: one that finds none
    there asks. If two do so at once, both are answered, and the first is the answer from then on.
    """

    def __init__(self, clock: Clock, *, most: int = MOST_CACHED, shared: ClaimStore | None = None) -> None:
        if most < 1:
            raise ValueError(f"most is {most}; allowed is 1 and more")
        self._clock = clock
        self._most = most
        self._shared = shared
        self._cached: OrderedDict[_Key, _CachedAttempts] = OrderedDict()
        self._queues: WeakValueDictionary[_Key, _Queue] = WeakValueDictionary()

    def fill(self, interactions: Iterable[LLMInteraction]) -> None:
        """Cache what was cached when these were recorded; they must come in the log's order.

        What is over by this clock is not served, and what is cached here already stays.
        """
        under_way: dict[tuple[str, str], list[LLMResult]] = {}
        for interaction in interactions:
            envelope = interaction.envelope
            if not envelope.is_cacheable:
                continue
            attempts = under_way.setdefault((envelope.tenant_id, envelope.envelope_id), [])
            attempts.append(interaction.result)
            if _is_first(interaction.result):
                self.store(envelope, attempts)

    def store(self, envelope: LLMEnvelope, attempts: Iterable[LLMResult]) -> None:
        """Keep the attempts at `envelope`, of which the last one was accepted, unless its request has an answer."""
        key, now = _key(envelope), self._clock.now()
        if self._known(key, now) is not None:
            return
        self._put(key, _CachedAttempts(envelope.envelope_id, envelope.deadline, tuple(attempts)))

    async def share(self, attempts: Sequence[LLMInteraction]) -> None:
        """Keep these attempts for all processes, the last of which was accepted; take over what was there before."""
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
        """Take over what another process was answered first."""
        key = _key(envelope)
        if self._shared is None or self._known(key, self._clock.now()) is not None:
            return
        first = await self._shared.frozen(_shared_key(key))
        if first:
            self._put(key, _CachedAttempts.read(first))

    def turn(
        self, envelope: LLMEnvelope, waits: StoppableWait, parked: Parking = nullcontext
    ) -> AbstractAsyncContextManager[CachedCall | None]:
        """Let one call at a time make a request of level `recorded`; gives None for an envelope of any other level.

        A call that waits longer than its deadline, or than `waits` allow, gets None too: it has not its turn, and must
        not be sent. `parked` is entered for as long as it waits.
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
                continue  # a clock that stands still says when the deadline has come
        return False

    def _served(self, envelope: LLMEnvelope) -> Mapping[int, LLMResult]:
        """Return the cached attempts; none to an envelope that breaks a rule, which is for the gate to refuse."""
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
        """Drop what is over, and a tenth if that is not enough: each sweep then makes room for many."""
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
    """Whether a result is of an answer that was accepted live, and of level `recorded` because it is cached."""
    return result.served_from == "live" and result.determinism_level is DeterminismLevel.RECORDED
