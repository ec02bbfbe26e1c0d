"""What every limiter promises of rates and of permits, one function a promise."""

from math import inf, nan

from agentic_trading.governance.limiter import (
    LONGEST_COOLDOWN_S,
    CircuitState,
    DeploymentStatus,
    Permit,
    PermitOutcome,
    RateLimits,
    Throttled,
)
from tests.contracts.limiter_opening import DEPLOYMENT, OTHER, Opens, Promise, Rules, limited, request


async def no_more_requests_enter_than_the_limit(opens: Opens) -> None:
    asking = await opens(limited(requests=3))

    for _ in range(3):
        await asking.enters()
    await asking.waits(request(), "requests")


async def requests_come_back_with_time(opens: Opens) -> None:
    asking = await opens(limited(requests=300))
    entered, started = 0, asking.clock.now()
    while isinstance(answer := await asking.limiter.acquire(late := request()), Permit):
        entered += 1
    come_back = 5 * (asking.clock.now() - started).total_seconds()
    assert 300 <= entered <= 301 + come_back

    assert isinstance(answer, Throttled)
    assert answer.reason == "requests"
    await asking.pass_s(answer.retry_after_s)
    await asking.enters(late)


async def no_more_tokens_enter_than_the_limit(opens: Opens) -> None:
    asking = await opens(limited(tokens=1000))

    await asking.enters(request(700))
    await asking.waits(request(400), "tokens")


async def tokens_come_back_with_time(opens: Opens) -> None:
    asking = await opens(limited(tokens=60_000))
    await asking.enters(request(60_000))

    late = request(100)
    await asking.pass_s(await asking.waits(late, "tokens"))
    await asking.enters(late)


async def tokens_that_were_not_used_come_back(opens: Opens) -> None:
    asking = await opens(limited(tokens=1000))
    permit = await asking.enters(request(1000))

    await asking.limiter.release(permit, PermitOutcome.ANSWERED, tokens=100)

    await asking.enters(request(900))
    await asking.waits(request(500), "tokens")


async def tokens_used_beyond_what_was_taken_are_owed(opens: Opens) -> None:
    asking = await opens(limited(tokens=1000))
    permit = await asking.enters(request(300))

    await asking.limiter.release(permit, PermitOutcome.ANSWERED, tokens=900)

    await asking.waits(request(600), "tokens")


async def tokens_stay_taken_where_the_use_is_not_known(opens: Opens) -> None:
    asking = await opens(limited(tokens=1000))

    await asking.limiter.release(await asking.enters(request(800)), PermitOutcome.FAILED)

    await asking.waits(request(600), "tokens")


async def more_than_the_bucket_holds_enters_when_it_is_full(opens: Opens) -> None:
    asking = await opens(limited(tokens=1000))

    await asking.enters(request(5000))
    await asking.waits(request(1), "tokens")

    emptier = await opens(limited(tokens=1000))
    await emptier.enters(request(500))
    await emptier.waits(request(5000), "tokens")


async def calls_at_once_are_capped(opens: Opens) -> None:
    asking = await opens(limited(concurrent=2))
    first, _ = await asking.enters(), await asking.enters()
    third = request()
    await asking.waits(third, "concurrent")

    await asking.limiter.release(first, PermitOutcome.ANSWERED)

    await asking.enters(third)
    await asking.waits(request(), "concurrent")


async def who_waits_takes_nothing(opens: Opens) -> None:
    asking = await opens(limited(requests=10, tokens=1000, concurrent=5))
    await asking.enters(request(900))
    big = request(500)

    await asking.waits(big, "tokens")
    await asking.limiter.cancel(big)

    status = await asking.status()
    assert (status.requests_left, status.in_flight) == (9, 1)
    await asking.enters(request(100))


async def lanes_do_not_share(opens: Opens) -> None:
    asking = await opens(limited(tokens=10, concurrent=1))

    await asking.enters(request(10))
    await asking.enters(request(10, deployment=OTHER))

    await asking.waits(request(10, deployment=OTHER), "tokens")


async def a_lane_without_limits_lets_everybody_in(opens: Opens) -> None:
    asking = await opens(Rules())

    for _ in range(100):
        await asking.enters(request(10**9))

    status = await asking.status()
    assert (status.in_flight, status.requests_left, status.tokens_left) == (100, None, None)


async def the_same_entry_gets_the_same_permit(opens: Opens) -> None:
    asking = await opens(limited(requests=5, tokens=100, concurrent=1))
    wanted = request(60)

    first = await asking.enters(wanted)
    again = await asking.enters(wanted)

    assert again == first
    status = await asking.status()
    assert (status.requests_left, status.tokens_left, status.in_flight) == (4, 40, 1)


async def leaving_twice_is_harmless(opens: Opens) -> None:
    asking = await opens(limited(tokens=1000, concurrent=2))
    first, _ = await asking.enters(request(400)), await asking.enters(request(400))

    for _ in range(2):
        await asking.limiter.release(first, PermitOutcome.ANSWERED, tokens=100, cooldown_s=None)

    status = await asking.status()
    assert (status.in_flight, status.answered) == (1, 1)
    assert status.tokens_left is not None
    assert 500 <= status.tokens_left < 520


async def what_was_not_sent_is_given_back(opens: Opens) -> None:
    asking = await opens(limited(requests=1, tokens=100, concurrent=1))

    for _ in range(2):
        await asking.limiter.release(await asking.enters(request(100)), PermitOutcome.UNUSED, tokens=100)

    status = await asking.status()
    assert (status.requests_left, status.tokens_left, status.in_flight) == (1, 100, 0)
    assert (status.answered, status.failed) == (0, 0)


async def a_permit_ends_with_its_lease(opens: Opens) -> None:
    asking = await opens(limited(tokens=1000, concurrent=1))
    permit = await asking.enters(request(500, lease_s=0.05))

    await asking.pass_s(0.06)
    await asking.enters(request(100, id_="next"))
    await asking.limiter.release(permit, PermitOutcome.FAILED, tokens=0, cooldown_s=60)

    status = await asking.status()
    assert (status.in_flight, status.failed, status.cooldown_s) == (1, 0, 0)
    assert status.tokens_left is not None
    assert 400 <= status.tokens_left < 420


async def asking_again_begins_the_lease_anew(opens: Opens) -> None:
    asking = await opens(limited(concurrent=1))

    await asking.enters(request(id_="again", lease_s=0.05))
    await asking.enters(request(id_="again", lease_s=60))
    await asking.pass_s(0.06)

    await asking.waits(request(), "concurrent")


async def a_pause_holds_everybody_until_it_is_over(opens: Opens) -> None:
    asking = await opens(Rules())
    for deployment, cooldown_s in ((DEPLOYMENT, 30), (OTHER, 0.05)):
        permit = await asking.enters(request(deployment=deployment))
        await asking.limiter.release(permit, PermitOutcome.NEUTRAL, cooldown_s=cooldown_s)

    assert await asking.waits(request(priority=9), "cooldown") <= 30
    await asking.pass_s(0.06)
    await asking.enters(request(deployment=OTHER))


async def a_shorter_pause_does_not_end_a_longer_one(opens: Opens) -> None:
    asking = await opens(Rules())
    first, second = await asking.enters(), await asking.enters()

    await asking.limiter.release(first, PermitOutcome.NEUTRAL, cooldown_s=30)
    await asking.limiter.release(second, PermitOutcome.NEUTRAL, cooldown_s=1)

    assert 29 < await asking.waits(request(), "cooldown") <= 30


async def a_pause_has_an_end(opens: Opens) -> None:
    asking = await opens(Rules())

    for nonsense in (nan, -1.0, 0.0, -inf):
        await asking.limiter.release(await asking.enters(), PermitOutcome.NEUTRAL, cooldown_s=nonsense)
    await asking.limiter.release(await asking.enters(), PermitOutcome.NEUTRAL, cooldown_s=inf)

    assert LONGEST_COOLDOWN_S - 2 < await asking.waits(request(), "cooldown") <= LONGEST_COOLDOWN_S


async def a_lane_tells_how_it_stands(opens: Opens) -> None:
    rules = limited(requests=10, tokens=1000, concurrent=2)
    asking = await opens(rules)
    await asking.ends(PermitOutcome.ANSWERED, PermitOutcome.FAILED, PermitOutcome.NEUTRAL)
    permit = await asking.enters(request(300))
    await asking.enters(request(500, is_retry=True))
    await asking.waits(request(1), "concurrent")
    await asking.limiter.release(permit, PermitOutcome.ANSWERED, cooldown_s=3000)

    status = await asking.status()

    assert 2998 < status.cooldown_s <= 3000
    assert status.tokens_left is not None
    assert 200 <= status.tokens_left < 220
    assert status == DeploymentStatus(
        deployment=DEPLOYMENT,
        limits=RateLimits(10, 1000, 2),
        breaker=CircuitState.CLOSED,
        answered=2,
        failed=1,
        in_flight=1,
        waiting=1,
        requests_left=5,
        tokens_left=status.tokens_left,
        retries_left=9,
        cooldown_s=status.cooldown_s,
    )


RATES: tuple[Promise, ...] = (
    no_more_requests_enter_than_the_limit,
    requests_come_back_with_time,
    no_more_tokens_enter_than_the_limit,
    tokens_come_back_with_time,
    tokens_that_were_not_used_come_back,
    tokens_used_beyond_what_was_taken_are_owed,
    tokens_stay_taken_where_the_use_is_not_known,
    more_than_the_bucket_holds_enters_when_it_is_full,
    calls_at_once_are_capped,
    who_waits_takes_nothing,
    lanes_do_not_share,
    a_lane_without_limits_lets_everybody_in,
    the_same_entry_gets_the_same_permit,
    leaving_twice_is_harmless,
    what_was_not_sent_is_given_back,
    a_permit_ends_with_its_lease,
    asking_again_begins_the_lease_anew,
    a_pause_holds_everybody_until_it_is_over,
    a_shorter_pause_does_not_end_a_longer_one,
    a_pause_has_an_end,
    a_lane_tells_how_it_stands,
)
