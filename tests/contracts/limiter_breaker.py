"""What every limiter promises of its breaker and its retry budget, one function a promise."""

from agentic_trading.governance.limiter import CircuitBreakerConfig, CircuitState, PermitOutcome, RetryBudget
from tests.contracts.limiter_opening import Asking, Opens, Promise, Rules, request

ANSWERED, FAILED, NEUTRAL, UNUSED = (
    PermitOutcome.ANSWERED,
    PermitOutcome.FAILED,
    PermitOutcome.NEUTRAL,
    PermitOutcome.UNUSED,
)
SOON_S = 0.06
LATER_S = 0.07


async def half_open(opens: Opens, *, probes: int = 1, min_calls: int = 2) -> Asking:
    """Return a limiter whose circuit was opened by failures, and may be tried again."""
    rules = Rules(
        breaker=CircuitBreakerConfig(min_calls=min_calls, wait_open_s=SOON_S, half_open_calls=probes)
    )
    asking = await opens(rules)
    await asking.ends(*[FAILED] * min_calls)
    await asking.pass_s(LATER_S)
    assert (await asking.status()).breaker is CircuitState.HALF_OPEN
    return asking


async def the_circuit_opens_at_its_share_of_failures(opens: Opens) -> None:
    asking = await opens(Rules(breaker=CircuitBreakerConfig(min_calls=4, failure_rate=0.5)))

    await asking.ends(FAILED, ANSWERED, ANSWERED, ANSWERED, FAILED)
    assert (await asking.status()).breaker is CircuitState.CLOSED
    await asking.ends(FAILED)

    shut = await asking.is_shut()
    assert shut.reason == "circuit_open"
    assert 25 < shut.retry_after_s <= 30
    assert (await asking.status()).breaker is CircuitState.OPEN


async def a_few_failures_open_nothing(opens: Opens) -> None:
    asking = await opens(Rules(breaker=CircuitBreakerConfig(min_calls=4)))

    await asking.ends(FAILED, FAILED, FAILED)
    await asking.enters()
    await asking.ends(ANSWERED)

    await asking.is_shut()


async def what_says_nothing_of_the_provider_is_not_counted(opens: Opens) -> None:
    asking = await opens(Rules(breaker=CircuitBreakerConfig(min_calls=3)))

    await asking.ends(FAILED, FAILED, NEUTRAL, UNUSED, NEUTRAL)

    status = await asking.status()
    assert (status.breaker, status.failed, status.answered) == (CircuitState.CLOSED, 2, 0)


async def failures_pass_with_the_window(opens: Opens) -> None:
    asking = await opens(Rules(breaker=CircuitBreakerConfig(window_s=0.1, min_calls=3)))

    await asking.ends(FAILED, FAILED)
    await asking.pass_s(0.13)
    await asking.ends(FAILED)

    status = await asking.status()
    assert (status.breaker, status.failed) == (CircuitState.CLOSED, 1)


async def a_half_open_circuit_lets_its_probes_in_and_nobody_else(opens: Opens) -> None:
    asking = await half_open(opens, probes=2)

    first, _ = await asking.enters(), await asking.enters()
    await asking.is_shut()
    await asking.limiter.release(first, NEUTRAL)

    await asking.enters()
    await asking.is_shut()


async def an_answered_probe_closes_the_circuit(opens: Opens) -> None:
    asking = await half_open(opens)

    await asking.ends(ANSWERED)

    status = await asking.status()
    assert (status.breaker, status.failed, status.answered) == (CircuitState.CLOSED, 0, 0)
    await asking.ends(FAILED)
    await asking.enters()


async def a_failed_probe_opens_the_circuit_again(opens: Opens) -> None:
    asking = await half_open(opens)

    await asking.ends(FAILED)

    await asking.is_shut()
    assert (await asking.status()).breaker is CircuitState.OPEN
    await asking.pass_s(LATER_S)
    await asking.enters()


async def a_probe_that_was_not_sent_lets_another_try(opens: Opens) -> None:
    asking = await half_open(opens)

    await asking.ends(UNUSED, UNUSED)

    await asking.enters()
    await asking.is_shut()


async def a_probe_that_died_lets_another_try(opens: Opens) -> None:
    asking = await half_open(opens)
    await asking.enters(request(lease_s=SOON_S))
    await asking.is_shut()

    await asking.pass_s(LATER_S)

    await asking.enters()
    await asking.is_shut()


async def what_was_sent_before_says_nothing_of_now(opens: Opens) -> None:
    rules = Rules(breaker=CircuitBreakerConfig(min_calls=2, wait_open_s=SOON_S))
    asking = await opens(rules)
    old = [await asking.enters() for _ in range(6)]
    for permit in old[:2]:
        await asking.limiter.release(permit, FAILED)
    await asking.is_shut()

    await asking.limiter.release(old[2], ANSWERED)
    await asking.is_shut()
    await asking.pass_s(LATER_S)
    await asking.limiter.release(old[3], FAILED)
    await asking.ends(ANSWERED)
    for permit in old[4:]:
        await asking.limiter.release(permit, FAILED)

    status = await asking.status()
    assert (status.breaker, status.failed) == (CircuitState.CLOSED, 0)


async def retries_have_a_budget_and_first_calls_none(opens: Opens) -> None:
    asking = await opens(Rules(retries=RetryBudget(least=3)))

    for _ in range(3):
        await asking.enters(request(is_retry=True))

    shut = await asking.is_shut(request(is_retry=True))
    assert shut.reason == "retry_budget"
    assert 55 <= shut.retry_after_s <= 65
    await asking.enters()


async def retries_may_be_a_share_of_the_calls(opens: Opens) -> None:
    asking = await opens(Rules(retries=RetryBudget(share=0.2, least=0)))
    for _ in range(4):
        await asking.enters()
    await asking.is_shut(request(is_retry=True))

    await asking.enters()

    await asking.enters(request(is_retry=True))
    await asking.is_shut(request(is_retry=True))
    assert (await asking.status()).retries_left == 0


async def a_retry_that_was_not_sent_is_not_counted(opens: Opens) -> None:
    asking = await opens(Rules(retries=RetryBudget(share=1, least=1)))

    for _ in range(3):
        await asking.limiter.release(await asking.enters(request(is_retry=True)), UNUSED)
    await asking.enters(request(is_retry=True))

    await asking.is_shut(request(is_retry=True))


async def retries_come_back_with_time(opens: Opens) -> None:
    asking = await opens(Rules(retries=RetryBudget(least=1, window_s=0.12)))
    await asking.enters(request(is_retry=True))

    shut = await asking.is_shut(request(is_retry=True))
    assert shut.retry_after_s <= 0.13
    await asking.pass_s(shut.retry_after_s)

    await asking.enters(request(is_retry=True))


BREAKER: tuple[Promise, ...] = (
    the_circuit_opens_at_its_share_of_failures,
    a_few_failures_open_nothing,
    what_says_nothing_of_the_provider_is_not_counted,
    failures_pass_with_the_window,
    a_half_open_circuit_lets_its_probes_in_and_nobody_else,
    an_answered_probe_closes_the_circuit,
    a_failed_probe_opens_the_circuit_again,
    a_probe_that_was_not_sent_lets_another_try,
    a_probe_that_died_lets_another_try,
    what_was_sent_before_says_nothing_of_now,
    retries_have_a_budget_and_first_calls_none,
    retries_may_be_a_share_of_the_calls,
    a_retry_that_was_not_sent_is_not_counted,
    retries_come_back_with_time,
)
