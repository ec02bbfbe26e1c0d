"""What every store of claims promises, one function a promise."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agentic_trading.worker.claim import (
    Busy,
    Claim,
    ClaimKey,
    ClaimLostError,
    ClaimStore,
    Finished,
    OtherContent,
)

Opens = Callable[[], Awaitable[ClaimStore]]
"""Open a store of this process, over a new place."""

Promise = Callable[[Opens], Awaitable[None]]

KEY = ClaimKey("acme", "e-1")
PATIENCE_S = 5.0


async def taken(store: ClaimStore, key: ClaimKey = KEY, content: str = "one") -> Claim:
    claim = await store.claim(key, content)
    assert isinstance(claim, Claim)
    return claim


async def a_key_has_one_owner_at_a_time(opens: Opens) -> None:
    store = await opens()
    first = await taken(store)

    assert await store.claim(KEY, "one") == Busy()
    assert store.holds(first)

    await store.release(first)
    assert isinstance(await store.claim(KEY, "one"), Claim)


async def two_tenants_may_use_one_id(opens: Opens) -> None:
    store = await opens()
    await taken(store)

    assert (await taken(store, ClaimKey("other", "e-1"), "two")).count == 1


async def each_claim_of_a_key_has_a_higher_token(opens: Opens) -> None:
    store = await opens()
    first = await taken(store)
    await store.release(first)

    assert (await taken(store)).token > first.token


async def what_owners_before_have_left_is_there(opens: Opens) -> None:
    store = await opens()
    first = await taken(store)
    await store.intend(first, 1, b"sent")
    await store.keep(first, 1, lambda: b'{"text": "\x00\xff"}')
    await store.intend(first, 2, b"again")
    await store.release(first)

    second = await taken(store)
    assert dict(second.intended) == {1: b"sent", 2: b"again"}
    assert dict(second.kept) == {1: b'{"text": "\x00\xff"}'}


async def an_attempt_that_is_not_sent_after_all_is_not_intended(opens: Opens) -> None:
    store = await opens()
    first = await taken(store)
    await store.intend(first, 1, b"sent")
    await store.intend(first, 1, b"")
    await store.release(first)

    assert dict((await taken(store)).intended) == {}


async def a_stale_claim_changes_nothing(opens: Opens) -> None:
    store = await opens()
    stale = await taken(store)
    await store.release(stale)
    current = await taken(store)

    with pytest.raises(ClaimLostError):
        await store.intend(stale, 1, b"sent")
    with pytest.raises(ClaimLostError):
        await store.keep(stale, 1, lambda: b"answer")
    with pytest.raises(ClaimLostError):
        await store.finish(stale, lambda: b"last")
    await store.release(stale)

    assert await store.claim(KEY, "one") == Busy()
    await store.release(current)
    again = await taken(store)
    assert (dict(again.intended), dict(again.kept)) == ({}, {})


async def a_finished_key_stays_finished(opens: Opens) -> None:
    store = await opens()
    claim = await taken(store)

    await store.finish(claim, lambda: b"last")
    await store.release(claim)

    assert isinstance(await store.claim(KEY, "one"), Finished)
    with pytest.raises(ClaimLostError):
        await store.keep(claim, 1, lambda: b"late")


async def other_content_under_one_key_shows(opens: Opens) -> None:
    store = await opens()
    claim = await taken(store)

    assert await store.claim(KEY, "two") == OtherContent()
    await store.finish(claim, lambda: b"last")
    assert await store.claim(KEY, "two") == OtherContent()
    assert isinstance(await store.claim(KEY, "one"), Finished)


async def claims_are_counted_until_something_is_kept_and_a_release_takes_its_own_back(opens: Opens) -> None:
    store = await opens()
    first = await taken(store)
    await store.release(first)
    second = await taken(store)
    assert (first.count, second.count) == (1, 1)

    await store.keep(second, 1, lambda: b"answer")
    await store.release(second)
    assert (await taken(store)).count == 1


async def all_who_wait_for_a_key_go_on_when_it_is_free(opens: Opens) -> None:
    store = await opens()
    claim = await taken(store)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(store.until_free(KEY))
        await asyncio.sleep(0)
        await store.release(claim)
    await store.until_free(ClaimKey("acme", "nobody has it"))


async def the_first_answer_that_is_frozen_is_kept_as_long_as_it_is_to_be(opens: Opens) -> None:
    store = await opens()
    other = ClaimKey("other", "e-1")
    assert await store.frozen(KEY) == b""
    assert await store.freeze(KEY, b"first", 60.0) == b"first"
    assert await store.freeze(KEY, b"second", 60.0) == b"first"
    assert (await store.frozen(KEY), await store.frozen(other)) == (b"first", b"")

    await store.freeze(other, b"short", 0.01)
    for _ in range(20_000):
        if not await store.frozen(other):
            break
        await asyncio.sleep(0)
    assert await store.freeze(other, b"next", 60.0) == b"next"


async def a_store_is_closed_twice_without_harm(opens: Opens) -> None:
    store = await opens()
    await taken(store)
    await store.aclose()
    await store.aclose()


PROMISES = [
    a_key_has_one_owner_at_a_time,
    two_tenants_may_use_one_id,
    each_claim_of_a_key_has_a_higher_token,
    what_owners_before_have_left_is_there,
    an_attempt_that_is_not_sent_after_all_is_not_intended,
    a_stale_claim_changes_nothing,
    a_finished_key_stays_finished,
    other_content_under_one_key_shows,
    claims_are_counted_until_something_is_kept_and_a_release_takes_its_own_back,
    all_who_wait_for_a_key_go_on_when_it_is_free,
    the_first_answer_that_is_frozen_is_kept_as_long_as_it_is_to_be,
    a_store_is_closed_twice_without_harm,
]
