"""Claims within one process."""

from collections import OrderedDict

from agentic_trading.worker.claim import Busy, Claim, Finished


class MemoryClaimStore:
    """Claims in a dict; the newest `remember` finished keys are known, older ones are forgotten."""

    def __init__(self, *, remember: int = 100_000) -> None:
        self._remember = remember
        self._held: dict[str, Claim] = {}
        self._tokens: dict[str, int] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    async def claim(self, key: str, owner: str) -> Claim | Busy | Finished:
        """Take `key` for `owner`, unless somebody holds it or it is finished."""
        if key in self._finished:
            return Finished()
        if key in self._held:
            return Busy(self._held[key].owner)
        claim = Claim(key, owner, self._tokens.get(key, 0) + 1)
        self._tokens[key] = claim.token
        self._held[key] = claim
        return claim

    async def finish(self, claim: Claim) -> None:
        """Say that the envelope is done for good."""
        if not self._drop(claim):
            return
        self._tokens.pop(claim.key, None)
        self._finished[claim.key] = None
        if len(self._finished) > self._remember:
            self._finished.popitem(last=False)

    async def give_up(self, claim: Claim) -> None:
        """Let somebody else take it."""
        self._drop(claim)

    def _drop(self, claim: Claim) -> bool:
        if self._held.get(claim.key) != claim:
            return False
        del self._held[claim.key]
        return True
