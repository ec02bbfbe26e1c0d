"""Claims: one owner at a time, and finished for good."""

import asyncio

from agentic_trading.worker.claim import Busy, Claim, Finished
from agentic_trading.worker.claims.memory import MemoryClaimStore


async def claimed(store: MemoryClaimStore, key: str, owner: str = "w") -> Claim:
    claim = await store.claim(key, owner)
    assert isinstance(claim, Claim)
    return claim


async def test_a_key_has_one_owner_at_a_time() -> None:
    store = MemoryClaimStore()
    first = await claimed(store, "e", "w-1")

    assert await store.claim("e", "w-2") == Busy("w-1")

    await store.give_up(first)
    assert isinstance(await store.claim("e", "w-2"), Claim)


async def test_each_claim_of_a_key_has_a_higher_token() -> None:
    store = MemoryClaimStore()
    first = await claimed(store, "e")
    await store.give_up(first)

    second = await claimed(store, "e")

    assert second.token > first.token


async def test_a_stale_claim_changes_nothing() -> None:
    store = MemoryClaimStore()
    stale = await claimed(store, "e", "w-1")
    await store.give_up(stale)
    await claimed(store, "e", "w-2")

    await store.finish(stale)
    await store.give_up(stale)

    assert await store.claim("e", "w-3") == Busy("w-2")


async def test_a_finished_key_stays_finished() -> None:
    store = MemoryClaimStore()
    claim = await claimed(store, "e")

    await store.finish(claim)
    await store.give_up(claim)

    assert await store.claim("e", "w") == Finished()


async def test_only_the_newest_finished_keys_are_remembered() -> None:
    store = MemoryClaimStore(remember=2)
    for key in ("a", "b", "c"):
        await store.finish(await claimed(store, key))

    assert isinstance(await store.claim("a", "w"), Claim)
    assert await store.claim("c", "w") == Finished()


async def test_who_finds_a_key_held_or_finished_learns_with_what_content() -> None:
    store = MemoryClaimStore()
    claim = await store.claim("e", "w-1", "one")
    assert isinstance(claim, Claim)

    assert await store.claim("e", "w-2", "two") == Busy("w-1", "one")
    await store.finish(claim)
    assert await store.claim("e", "w-2", "two") == Finished("one")


async def test_all_who_wait_for_a_key_are_told_when_it_is_free() -> None:
    store = MemoryClaimStore()
    claim = await claimed(store, "e")

    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(store.until_free("e"))
        await asyncio.sleep(0)
        await store.give_up(claim)

    assert isinstance(await store.claim("e", "w-2"), Claim)


async def test_nobody_waits_for_a_key_that_is_free() -> None:
    await MemoryClaimStore().until_free("e")
