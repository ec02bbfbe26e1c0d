"""A claim store within one process."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentic_trading.worker import claim as claim_api


@dataclass(slots=True)
class _Held:
    """An unfinished envelope. `is_free` is True while no task runs it."""

    content: str
    token: int = 0
    count: int = 0
    is_free: bool = True
    intended: dict[int, bytes] = field(default_factory=dict)
    kept: dict[int, claim_api.Spell] = field(default_factory=dict)
    freed: asyncio.Event | None = None


class MemoryClaimStore:
    """An in-memory claim store for the tasks of one process.

    The newest `remember` finished keys are remembered. Older ones are forgotten.
    """

    def __init__(self, *, remember: int = 100_000) -> None:
        self._remember = remember
        self._held: dict[claim_api.ClaimKey, _Held] = {}
        self._finished: OrderedDict[claim_api.ClaimKey, str] = OrderedDict()
        self._frozen: OrderedDict[claim_api.ClaimKey, tuple[bytes, float]] = OrderedDict()

    async def begin(self) -> None:
        """Do nothing, because tasks live as long as the process."""

    def holds(self, claim: claim_api.Claim) -> bool:  # noqa: ARG002 - each lasts
        """Return True, because claims last as long as the process."""
        return True

    async def claim(
        self, key: claim_api.ClaimKey, content: str
    ) -> claim_api.Claim | claim_api.Busy | claim_api.Finished | claim_api.OtherContent:
        """Take `key`, unless it is held or finished."""
        finished = self._finished.get(key)
        if finished is not None:
            return claim_api.Finished() if finished == content else claim_api.OtherContent()
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(content)
        elif held.content != content:
            return claim_api.OtherContent()
        elif not held.is_free:
            return claim_api.Busy()
        held.is_free = False
        held.token += 1
        held.count += 1
        kept = {attempt: spell() for attempt, spell in held.kept.items()}
        return claim_api.Claim(key, held.token, held.count, dict(held.intended), kept)

    async def until_free(self, key: claim_api.ClaimKey) -> None:
        """Wait until `key` is free."""
        while (held := self._held.get(key)) is not None and not held.is_free:
            held.freed = held.freed or asyncio.Event()
            await held.freed.wait()

    async def intend(self, claim: claim_api.Claim, attempt: int, facts: bytes) -> None:
        """Store that `attempt` is about to be sent, or that it is not."""
        held = self._own(claim)
        if facts:
            held.intended[attempt] = facts
        else:
            held.intended.pop(attempt, None)

    async def keep(self, claim: claim_api.Claim, attempt: int, spell: claim_api.Spell) -> None:
        """Store the outcome of `attempt`."""
        held = self._own(claim)
        held.kept[attempt] = spell
        held.count = 0

    async def finish(self, claim: claim_api.Claim, spell: claim_api.Spell) -> None:  # noqa: ARG002 - the log has it
        """Mark the envelope as finished. Its attempts are not kept, because they are in the log."""
        content = self._own(claim).content
        self._free(self._held.pop(claim.key))
        self._finished[claim.key] = content
        if len(self._finished) > self._remember:
            self._finished.popitem(last=False)

    async def release(self, claim: claim_api.Claim) -> None:
        """Free the claim for another task."""
        held = self._held.get(claim.key)
        if held is not None and held.token == claim.token and not held.is_free:
            held.count = max(0, held.count - 1)
            held.is_free = True
            self._free(held)

    async def freeze(self, key: claim_api.ClaimKey, answer: bytes, keep_s: float) -> bytes:
        """Keep an answer, unless the key has one. Return the answer that is kept."""
        if kept := self._answer(key):
            return kept
        self._frozen[key] = answer, asyncio.get_running_loop().time() + keep_s
        if len(self._frozen) > self._remember:
            self._frozen.popitem(last=False)
        return answer

    async def frozen(self, key: claim_api.ClaimKey) -> bytes:
        """Return the answer that is kept, or empty bytes."""
        return self._answer(key)

    async def left(self, tenant: str) -> Sequence[claim_api.AbandonedClaim]:
        """Return the free, unfinished envelopes of a tenant."""
        return [
            claim_api.AbandonedClaim.of(key, held.intended, held.kept)
            for key, held in self._held.items()
            if held.is_free and key.tenant == tenant
        ]

    async def aclose(self) -> None:
        """Do nothing, because claims end with the process."""

    def _answer(self, key: claim_api.ClaimKey) -> bytes:
        answer, until = self._frozen.get(key, (b"", 0.0))
        if until > asyncio.get_running_loop().time():
            return answer
        self._frozen.pop(key, None)
        return b""

    def _own(self, claim: claim_api.Claim) -> _Held:
        held = self._held.get(claim.key)
        if held is None or held.token != claim.token or held.is_free:
            raise claim_api.ClaimLostError(claim.key)
        return held

    def _free(self, held: _Held) -> None:
        if held.freed is not None:
            held.freed.set()
            held.freed = None
