"""pydantic-ai-harness: `get_many`, the call, `add_many`, as its `SpendLimits` does it."""

from datetime import timedelta
from decimal import Decimal

from pydantic_ai_harness.spend import RedisSpendStore, SpendEntry
from redis.asyncio import Redis

from benchmarks.peers.load import NANO, NUSD_PER_TOKEN
from benchmarks.peers.spending import Open, Opening, run_peer


class Counted:
    """One window of one budget."""

    def __init__(self, store: RedisSpendStore, key: str, budget: Decimal) -> None:
        self._store = store
        self._key = key
        self._budget = budget

    async def take(self, call: str) -> bool | None:  # noqa: ARG002 - it does not ask which
        """Return whether the budget is not used up."""
        spent = (await self._store.get_many([self._key]))[self._key]
        return None if spent.usd >= self._budget else True

    async def book(self, leave: bool, call: str, nusd: int) -> None:  # noqa: ARG002, FBT001 - the protocol's
        """Add what one response has cost, once."""
        entry = SpendEntry(
            key=self._key,
            usd=Decimal(nusd) / NANO,
            tokens=nusd // NUSD_PER_TOKEN,
            requests=1,
            ttl=timedelta(days=40),
            token=call,
        )
        await self._store.add_many([entry])


def open_purse(url: str) -> Open:
    """Return what opens a budget."""
    store = RedisSpendStore(Redis.from_url(url))

    async def opened(opening: Opening) -> Counted:
        return Counted(store, opening.run, Decimal(opening.budget_nusd) / NANO)

    return opened


if __name__ == "__main__":
    run_peer(open_purse)
