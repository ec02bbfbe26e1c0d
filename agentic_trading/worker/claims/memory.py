"""Claims within one process."""

import asyncio
from collections import OrderedDict

from agentic_trading.worker.claim import Busy, Claim, Finished


class MemoryClaimStore:
    """Claims in a dict; the newest `remember` finished keys are known, older ones are forgotten."""

    def __init__(self, *, remember: int = 100_000) -> None:
        self._remember = remember
        self._held: dict[str, Claim] = {}
        self._freed: dict[str, asyncio.Event] = {}  # of the keys that are waited for
        self._tokens: dict[str, int] = {}
        self._finished: OrderedDict[str, str] = OrderedDict()

    async def claim(self, key: str, owner: str, content: str = "") -> Claim | Busy | Finished:
        """Take `key` for `owner`, unless it is held or finished."""
        if key in self._finished:
            return Finished(self._finished[key])
        if key in self._held:
            return Busy(self._held[key].owner, self._held[key].content)
        claim = Claim(key, owner, self._tokens.get(key, 0) + 1, content)
        self._tokens[key] = claim.token
        self._held[key] = claim
        return claim

    async def until_free(self, key: str) -> None:
        """Wait until `key` is free."""
        while key in self._held:
            await self._freed.setdefault(key, asyncio.Event()).wait()

    async def finish(self, claim: Claim) -> None:
        """Say that the envelope is done for good."""
        if not self._drop(claim):
            return
        self._tokens.pop(claim.key, None)
        self._finished[claim.key] = claim.content
        if len(self._finished) > self._remember:
            self._finished.popitem(last=False)

    async def give_up(self, claim: Claim) -> None:
        """Let another owner take it."""
        self._drop(claim)

    def _drop(self, claim: Claim) -> bool:
        if self._held.get(claim.key) != claim:
            return False
        del self._held[claim.key]
        freed = self._freed.pop(claim.key, None)
        if freed is not None:
            freed.set()
        return True
