"""A circuit opens at its share of failures, lets probes try, and goes by what entered since it changed."""

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.limiter import CircuitBreakerConfig, CircuitState, PermitOutcome
from agentic_trading.governance.limiters.deployment import CircuitBreaker

ANSWERED, FAILED = PermitOutcome.ANSWERED, PermitOutcome.FAILED
RULES = CircuitBreakerConfig(window_s=30, min_calls=4, failure_rate=0.5, wait_open_s=30, half_open_calls=1)


def opened(rules: CircuitBreakerConfig = RULES, now_ms: int = 0) -> CircuitBreaker:
    """Return a breaker that has opened just now."""
    breaker = CircuitBreaker(rules)
    for _ in range(rules.min_calls):
        breaker.release(breaker.acquire(), FAILED, now_ms)
    return breaker


def test_circuit_opens_for_configured_time() -> None:
    breaker = opened()

    assert breaker.state(29_999) is CircuitState.OPEN
    assert breaker.open_for_ms(29_999) == 1
    assert breaker.state(30_000) is CircuitState.HALF_OPEN
    assert breaker.open_for_ms(30_000) == 0


def test_probe_in_flight_delays_other_calls() -> None:
    breaker = opened()
    assert breaker.open_for_ms(30_000) == 0

    breaker.acquire()

    assert breaker.open_for_ms(30_000) == 1000


def test_backward_clock_does_not_extend_opening() -> None:
    breaker = opened(now_ms=10_000_000)

    assert breaker.open_for_ms(0) == 30_000
    assert breaker.open_for_ms(30_000) == 0


def test_successful_call_can_open_circuit() -> None:
    breaker = CircuitBreaker(RULES)
    eras = [breaker.acquire() for _ in range(4)]

    for era, outcome in zip(eras, (FAILED, FAILED, FAILED, ANSWERED), strict=True):
        breaker.release(era, outcome, 0)

    assert breaker.state(0) is CircuitState.OPEN


def test_first_probe_decides_circuit_state() -> None:
    breaker = opened(CircuitBreakerConfig(min_calls=2, half_open_calls=2))
    first, second = breaker.acquire(), breaker.acquire()

    breaker.release(first, ANSWERED, 31_000)
    breaker.release(second, FAILED, 31_000)

    assert breaker.state(31_000) is CircuitState.CLOSED
    assert (breaker.probes, breaker.ended.second) == (0, 0)


@given(
    plan=st.lists(
        st.tuples(st.integers(0, 3000), st.sampled_from(PermitOutcome), st.booleans()),
        min_size=1,
        max_size=80,
    ),
    probes=st.integers(1, 3),
)
def test_probes_stay_limited_and_circuit_closes(
    plan: list[tuple[int, PermitOutcome, bool]], probes: int
) -> None:
    breaker = CircuitBreaker(
        CircuitBreakerConfig(window_s=5, min_calls=3, wait_open_s=2, half_open_calls=probes)
    )
    call: list[int] = []
    now_ms = 0
    for passed_ms, outcome, is_leaving in plan:
        now_ms += passed_ms
        if is_leaving and call:
            breaker.release(call.pop(0), outcome, now_ms)
        elif not breaker.open_for_ms(now_ms):
            call.append(breaker.acquire())
        is_half_open = breaker.state(now_ms) is CircuitState.HALF_OPEN
        assert breaker.probes == (call.count(breaker.era) if is_half_open else 0)
        assert breaker.probes <= probes

    for era in call:
        breaker.release(era, PermitOutcome.NEUTRAL, now_ms)
    now_ms += 10_000
    assert not breaker.open_for_ms(now_ms)
    breaker.release(breaker.acquire(), ANSWERED, now_ms)
    assert breaker.state(now_ms) is CircuitState.CLOSED
