"""Every store of claims keeps every promise, and the suite finds those that break one."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from agentic_trading.worker.claim import Busy, Claim, ClaimKey, Finished, Spell
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.claims.redis import RedisClaimStore
from tests.contracts import claim_promises as promises
from tests.contracts.claim_promises import PROMISES, Promise
from tests.redis_server import namespace


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_memory_claim_store_keeps_promise(promise: Promise) -> None:
    async def opens() -> MemoryClaimStore:
        store = MemoryClaimStore()
        await store.begin()
        return store

    await promise(opens)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_redis_claim_store_keeps_promise(promise: Promise, redis_url: str) -> None:
    async with AsyncExitStack() as opened:

        async def opens() -> RedisClaimStore:
            store = await asyncio.to_thread(RedisClaimStore, redis_url, namespace=namespace())
            opened.push_async_callback(store.aclose)
            await store.begin()
            return store

        await promise(opens)


class GivesTwice(MemoryClaimStore):
    async def claim(self, key: ClaimKey, content: str) -> Any:
        found = await super().claim(key, content)
        return Claim(key, 1) if found == Busy() else found


class OneKeyForAll(MemoryClaimStore):
    async def claim(self, key: ClaimKey, content: str) -> Any:
        return await super().claim(ClaimKey("", key.envelope_id), content)


class OneToken(MemoryClaimStore):
    async def claim(self, key: ClaimKey, content: str) -> Any:
        found = await super().claim(key, content)
        return replace(found, token=1) if isinstance(found, Claim) else found


class KeepsNothing(MemoryClaimStore):
    async def keep(self, claim: Claim, attempt: int, spell: Spell) -> None:
        pass


class TakesNothingBack(MemoryClaimStore):
    async def intend(self, claim: Claim, attempt: int, facts: bytes) -> None:
        await super().intend(claim, attempt, facts or b"still")


class WithoutFence(MemoryClaimStore):
    def _own(self, claim: Claim) -> Any:
        return self._held[claim.key]


class RunsAgain(MemoryClaimStore):
    async def finish(self, claim: Claim, spell: Spell) -> None:
        await super().finish(claim, spell)
        self._finished.clear()


class BlindToContent(MemoryClaimStore):
    async def claim(self, key: ClaimKey, content: str) -> Any:
        return await super().claim(key, "")


class CountsReleases(MemoryClaimStore):
    async def release(self, claim: Claim) -> None:
        await super().release(claim)
        self._held[claim.key].count += 1 if claim.key in self._held else 0


class TheLastAnswerWins(MemoryClaimStore):
    async def freeze(self, key: ClaimKey, answer: bytes, keep_s: float) -> bytes:
        self._frozen.pop(key, None)
        return await super().freeze(key, answer, keep_s)


class FreezesForEver(MemoryClaimStore):
    async def freeze(self, key: ClaimKey, answer: bytes, keep_s: float) -> bytes:
        return await super().freeze(key, answer, 1e9)


class WakesOne(MemoryClaimStore):
    def _free(self, held: Any) -> None:
        held.freed = None


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (GivesTwice, promises.a_key_has_one_owner_at_a_time),
        (OneKeyForAll, promises.two_tenants_may_use_one_id),
        (OneToken, promises.each_claim_of_a_key_has_a_higher_token),
        (KeepsNothing, promises.what_owners_before_have_left_is_there),
        (TakesNothingBack, promises.an_attempt_that_is_not_sent_after_all_is_not_intended),
        (WithoutFence, promises.a_stale_claim_changes_nothing),
        (RunsAgain, promises.a_finished_key_stays_finished),
        (BlindToContent, promises.other_content_under_one_key_shows),
        (
            CountsReleases,
            promises.claims_are_counted_until_something_is_kept_and_a_release_takes_its_own_back,
        ),
        (TheLastAnswerWins, promises.the_first_answer_that_is_frozen_is_kept_as_long_as_it_is_to_be),
        (FreezesForEver, promises.the_first_answer_that_is_frozen_is_kept_as_long_as_it_is_to_be),
        (WakesOne, promises.all_who_wait_for_a_key_go_on_when_it_is_free),
    ],
)
async def test_broken_claim_store_is_detected(
    broken: type[MemoryClaimStore], promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promises, "PATIENCE_S", 0.05)

    async def opens() -> MemoryClaimStore:
        return broken()

    with pytest.raises((AssertionError, KeyError, TimeoutError, pytest.fail.Exception)):
        await promise(opens)


async def test_only_newest_finished_keys_are_remembered() -> None:
    store = MemoryClaimStore(remember=2)
    for name in ("a", "b", "c"):
        await store.finish(await promises.taken(store, ClaimKey("acme", name)), bytes)

    assert isinstance(await store.claim(ClaimKey("acme", "a"), "one"), Claim)
    assert await store.claim(ClaimKey("acme", "c"), "one") == Finished()


async def test_only_newest_frozen_answers_are_remembered() -> None:
    store = MemoryClaimStore(remember=2)
    for name in ("a", "b", "c"):
        await store.freeze(ClaimKey("acme", name), name.encode(), 60.0)

    assert [await store.frozen(ClaimKey("acme", name)) for name in ("a", "b", "c")] == [b"", b"b", b"c"]
