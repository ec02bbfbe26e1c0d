"""What every limiter promises to those who wait, one function a promise."""

from agentic_trading.governance.limiter import CircuitBreakerConfig, PermitOutcome, RateLimits
from tests.contracts.limiter_opening import Opens, Promise, Rules, limited, request


async def who_came_first_goes_first(opens: Opens) -> None:
    asking = await opens(limited(concurrent=1))
    permit = await asking.enters()
    first, second = request(), request()
    await asking.waits(first, "concurrent")
    await asking.waits(second, "concurrent")

    await asking.limiter.release(permit, PermitOutcome.ANSWERED)

    await asking.waits(second, "queue")
    await asking.waits(request(), "queue")
    await asking.limiter.release(await asking.enters(first), PermitOutcome.ANSWERED)
    await asking.enters(second)


async def a_higher_priority_goes_first(opens: Opens) -> None:
    asking = await opens(limited(concurrent=1))
    permit = await asking.enters()
    low, high = request(priority=-3600), request(priority=2**31)
    await asking.waits(low, "concurrent")
    await asking.waits(high, "concurrent")

    await asking.limiter.release(permit, PermitOutcome.ANSWERED)

    await asking.waits(low, "queue")
    await asking.enters(high)


async def a_priority_is_worth_seconds_of_waiting(opens: Opens) -> None:
    asking = await opens(limited(concurrent=1))
    permit = await asking.enters()
    patient, prior = request(), request(priority=1)
    await asking.waits(patient, "concurrent")
    await asking.pass_s(1.1)
    await asking.waits(prior, "concurrent")

    await asking.limiter.release(permit, PermitOutcome.ANSWERED)

    await asking.waits(prior, "queue")
    await asking.enters(patient)


async def another_priority_moves_a_place(opens: Opens) -> None:
    asking = await opens(limited(concurrent=1))
    permit = await asking.enters()
    await asking.waits(request(id_="first", priority=3600), "concurrent")
    await asking.waits(request(id_="second", priority=3600), "concurrent")
    await asking.limiter.release(permit, PermitOutcome.ANSWERED)

    await asking.waits(request(id_="first", priority=0), "queue")
    await asking.waits(request(id_="first", priority=0), "queue")
    await asking.enters(request(id_="second", priority=3600))


async def a_big_one_is_not_starved_by_small_ones(opens: Opens) -> None:
    asking = await opens(limited(tokens=1000))
    await asking.enters(request(500))
    await asking.waits(request(900), "tokens")

    await asking.waits(request(200), "queue")


async def a_place_keeps_no_more_than_its_share(opens: Opens) -> None:
    asking = await opens(limited(concurrent=2, tokens=1000))
    first, second = await asking.enters(request(100)), await asking.enters(request(100))
    sleeper = request(100)
    await asking.waits(sleeper, "concurrent")

    await asking.limiter.release(first, PermitOutcome.ANSWERED)
    await asking.limiter.release(second, PermitOutcome.ANSWERED)

    await asking.enters(request(100))
    await asking.waits(request(100), "queue")
    await asking.enters(sleeper)


async def those_far_behind_wait_for_the_line_to_move(opens: Opens) -> None:
    asking = await opens(limited(concurrent=70))
    call = [await asking.enters() for _ in range(70)]
    line = [request() for _ in range(69)]
    for one in line:
        await asking.waits(one, "concurrent")

    for permit in call:
        await asking.limiter.release(permit, PermitOutcome.ANSWERED)

    await asking.waits(request(), "queue")
    for one in reversed(line[:65]):
        await asking.enters(one)
    for one in line[65:]:
        await asking.enters(one)


async def a_place_is_kept_for_who_asks_again(opens: Opens) -> None:
    asking = await opens(limited(concurrent=1, place_s=0.2))
    permit = await asking.enters()
    first = request()

    await asking.waits(first, "concurrent")
    await asking.pass_s(0.15)
    await asking.waits(first, "concurrent")
    await asking.pass_s(0.15)
    await asking.limiter.release(permit, PermitOutcome.ANSWERED)

    await asking.waits(request(), "queue")
    await asking.enters(first)


async def who_does_not_ask_again_loses_the_place(opens: Opens) -> None:
    asking = await opens(limited(concurrent=1, place_s=0.01))
    permit = await asking.enters()
    await asking.waits(request(id_="dead"), "concurrent")
    await asking.limiter.release(permit, PermitOutcome.ANSWERED)
    await asking.waits(request(id_="alive"), "queue")

    await asking.pass_s(0.13)

    assert (await asking.status()).waiting == 0
    await asking.enters(request(id_="alive"))


async def who_gives_up_leaves_the_line(opens: Opens) -> None:
    asking = await opens(limited(concurrent=1))
    permit = await asking.enters()
    first, second = request(), request()
    await asking.waits(first, "concurrent")
    await asking.waits(second, "concurrent")
    await asking.limiter.release(permit, PermitOutcome.ANSWERED)

    await asking.limiter.cancel(first)
    await asking.limiter.cancel(request())

    assert (await asking.status()).waiting == 1
    await asking.enters(second)


async def who_gives_up_gives_back_what_it_was_given(opens: Opens) -> None:
    asking = await opens(limited(requests=1, tokens=100, concurrent=1))
    wanted = request(100)
    await asking.enters(wanted)

    await asking.limiter.cancel(wanted)

    await asking.enters(request(100))


async def who_is_turned_away_has_no_place(opens: Opens) -> None:
    asking = await opens(Rules(RateLimits(concurrent=1), CircuitBreakerConfig(min_calls=1, wait_open_s=60)))
    permit = await asking.enters()
    waiting = request()
    await asking.waits(waiting, "concurrent")

    await asking.limiter.release(permit, PermitOutcome.FAILED)
    await asking.is_shut(waiting)

    assert (await asking.status()).waiting == 0


LINE: tuple[Promise, ...] = (
    who_came_first_goes_first,
    a_higher_priority_goes_first,
    a_priority_is_worth_seconds_of_waiting,
    another_priority_moves_a_place,
    a_big_one_is_not_starved_by_small_ones,
    a_place_keeps_no_more_than_its_share,
    those_far_behind_wait_for_the_line_to_move,
    a_place_is_kept_for_who_asks_again,
    who_does_not_ask_again_loses_the_place,
    who_gives_up_leaves_the_line,
    who_gives_up_gives_back_what_it_was_given,
    who_is_turned_away_has_no_place,
)
