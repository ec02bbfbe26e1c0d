"""A bucket fills evenly and never beyond full; counts pass with their window, and not before."""

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.limiters.deployment import (
    MINUTE_MS,
    SlidingWindowCounter,
    TokenBucket,
    slot_length_ms,
)

steps = st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 120)), max_size=40)


def test_bucket_starts_full() -> None:
    assert TokenBucket(90, at_ms=5).left == 90


def test_bucket_refills_at_limit_per_minute() -> None:
    bucket = TokenBucket(60, at_ms=0)
    bucket.take(60)

    bucket.fill(999)
    assert bucket.left == 0
    bucket.fill(1000)
    assert bucket.left == 1
    bucket.fill(MINUTE_MS * 5)
    assert bucket.left == 60


def test_bucket_returns_the_exact_wait() -> None:
    bucket = TokenBucket(7, at_ms=0)
    bucket.take(7)

    wait_ms = bucket.wait_ms(3, ahead=2)

    bucket.fill(wait_ms - 1)
    assert bucket.wait_ms(3, ahead=2) == 1
    bucket.fill(wait_ms)
    assert bucket.wait_ms(3, ahead=2) == 0


def test_bucket_debt_is_repaid_first() -> None:
    bucket = TokenBucket(60, at_ms=0)
    bucket.take(90)

    assert bucket.left == 0
    assert bucket.wait_ms(1) == 31_000


def test_oversized_request_needs_full_bucket() -> None:
    bucket = TokenBucket(60, at_ms=0)

    assert bucket.wait_ms(1000) == 0
    bucket.take(1)
    assert bucket.wait_ms(1000) == 1000


def test_returned_tokens_never_overflow_bucket() -> None:
    bucket = TokenBucket(60, at_ms=0)

    bucket.take(-30)

    assert bucket.left == 60


def test_backward_clock_does_not_refill() -> None:
    bucket = TokenBucket(60, at_ms=100_000)
    bucket.take(60)

    bucket.fill(10_000)
    assert bucket.left == 0
    bucket.fill(11_000)
    assert bucket.left == 1


@given(per_minute=st.integers(1, 100), plan=steps)
def test_bucket_minute_total_is_bounded(per_minute: int, plan: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(per_minute, at_ms=0)
    taken: list[tuple[int, int]] = []
    now_ms = 0
    for passed_ms, wanted in plan:
        now_ms += passed_ms
        bucket.fill(now_ms)
        amount = min(wanted, per_minute)
        if not bucket.wait_ms(amount):
            bucket.take(amount)
            taken.append((now_ms, amount))

    for start_ms, _ in taken:
        minute = [amount for at_ms, amount in taken if start_ms <= at_ms <= start_ms + MINUTE_MS]
        assert sum(minute) <= 2 * per_minute


@given(amount=st.integers(1, 10**9), per_minute=st.integers(1, 10**10), ahead=st.integers(0, 10**6))
def test_bucket_wait_is_exact_to_milliseconds(amount: int, per_minute: int, ahead: int) -> None:
    bucket = TokenBucket(per_minute, at_ms=0)
    bucket.take(per_minute)
    ahead = min(ahead, per_minute - min(amount, per_minute))

    wait_ms = bucket.wait_ms(amount, ahead)

    bucket.fill(wait_ms - 1)
    assert bucket.wait_ms(amount, ahead)
    bucket.fill(wait_ms)
    assert not bucket.wait_ms(amount, ahead)


def test_counter_drops_expired_slots() -> None:
    counter = SlidingWindowCounter(slot_ms=10, slots=3)
    counter.add(5, 1, 0)
    counter.add(12, 0, 1)

    counter.move_to(39)
    assert (counter.first, counter.second) == (1, 1)
    counter.move_to(40)
    assert (counter.first, counter.second) == (0, 1)
    assert counter.next_ms(40) == 10
    counter.move_to(50)
    assert (counter.first, counter.second) == (0, 0)


def test_take_back_reduces_original_slot() -> None:
    counter = SlidingWindowCounter(slot_ms=10, slots=3)
    counter.add(5, 2, 1)
    counter.add(15, 1, 0)

    counter.take_back(5, 1, 1)
    counter.take_back(500, 1, 1)

    assert (counter.first, counter.second) == (2, 0)
    counter.move_to(40)
    assert (counter.first, counter.second) == (1, 0)


def test_counter_can_be_cleared() -> None:
    counter = SlidingWindowCounter(slot_ms=10, slots=3)
    counter.add(5, 2, 1)

    counter.clear()

    assert (counter.first, counter.second) == (0, 0)
    assert counter.next_ms(5) == 35


def test_backward_clock_drops_future_counts() -> None:
    counter = SlidingWindowCounter(slot_ms=10, slots=3)
    counter.add(1000, 4, 2)

    counter.move_to(5)

    assert (counter.first, counter.second) == (0, 0)


@given(plan=st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=60), slots=st.integers(1, 12))
def test_counter_window_is_accurate_to_slot(plan: list[tuple[int, bool]], slots: int) -> None:
    window_ms = 1000
    counter = SlidingWindowCounter.over(window_ms / 1000, slots)
    ended: list[tuple[int, bool]] = []
    now_ms = 0
    for passed_ms, second in plan:
        now_ms += passed_ms
        counter.move_to(now_ms)
        counter.add(now_ms, not second, second)
        ended.append((now_ms, second))

        within = [kind for at_ms, kind in ended if at_ms > now_ms - window_ms]
        reach_ms = counter.slot_ms * (slots + 1)
        around = [kind for at_ms, kind in ended if at_ms > now_ms - reach_ms]
        assert within.count(True) <= counter.second <= around.count(True)
        assert within.count(False) <= counter.first <= around.count(False)


@given(window_s=st.floats(0.001, 86_400), slots=st.integers(1, 20))
def test_slots_cover_their_window(window_s: float, slots: int) -> None:
    assert slot_length_ms(window_s, slots) * slots >= round(window_s * 1000)
