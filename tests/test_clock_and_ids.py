"""Time and chance come from one place each."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.clock import PacedClock, SimClock, SystemClock, parse_duration, parse_moment
from agentic_trading.ids import derived_id, fraction, random_id, seeded_ids

START = datetime(2026, 1, 2, tzinfo=UTC)


async def test_sim_clock_moves_only_by_advance() -> None:
    clock = SimClock(START)

    await clock.sleep(3600)
    slept = clock.now()
    clock.advance_to(START + timedelta(minutes=5))

    assert slept == START
    assert clock.now() == START + timedelta(minutes=5)
    assert clock.monotonic() <= clock.monotonic()


def test_sim_clock_cannot_go_back() -> None:
    clock = SimClock(START)

    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance_to(START - timedelta(microseconds=1))


def test_clocks_return_utc() -> None:
    clock = SimClock(datetime(2026, 1, 2, 5, tzinfo=timezone(timedelta(hours=5))))

    assert clock.now() == START
    assert clock.now().tzinfo is UTC
    assert SystemClock().now().tzinfo is UTC


async def test_system_clock_waits_and_yields() -> None:
    clock = SystemClock()
    before = clock.monotonic()

    await clock.sleep(0.001)
    await clock.sleep(-1)

    assert clock.monotonic() - before >= 0.001


async def test_paced_clock_is_constant_while_waiting() -> None:
    clock = PacedClock(START)
    before = clock.monotonic()

    await clock.sleep(0.001)
    await clock.sleep(-1)

    assert clock.monotonic() - before >= 0.001
    assert clock.now() == START


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", START + timedelta(hours=5)),
        ("today", START),
        ("yesterday", START - timedelta(days=1)),
        ("30s", START + timedelta(hours=5, seconds=-30)),
        ("90m", START + timedelta(hours=3.5)),
        ("-2h", START + timedelta(hours=3)),
        ("7d", START + timedelta(hours=5, days=-7)),
        ("1w", START + timedelta(hours=5, days=-7)),
        ("2026-06-20", datetime(2026, 6, 20, tzinfo=UTC)),
        ("2026-06-20T10:00", datetime(2026, 6, 20, 10, tzinfo=UTC)),
        ("2026-06-20T10:00Z", datetime(2026, 6, 20, 10, tzinfo=UTC)),
        ("2026-06-20 10:00+02:00", datetime(2026, 6, 20, 8, tzinfo=UTC)),
    ],
)
def test_moment_is_a_time_or_an_age(text: str, moment: datetime) -> None:
    now = (START + timedelta(hours=5)).astimezone(timezone(timedelta(hours=-9)))

    found = parse_moment(text, now)

    assert (found, found.tzinfo) == (moment, UTC)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2h ago", "+2h", "7y", "\u0667d", "999999999d", "24-11-2026", "0001-01-01T00:00+09:00"],
)
def test_wrong_moment_error_lists_allowed_texts(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time\. Allowed: 2026-06-20, 2026-06-20T10:00Z, now"):
        parse_moment(text, START)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("30s", 30), ("90m", 5400), ("12h", 43_200), ("7d", 604_800), ("1w", 604_800)],
)
def test_duration_is_a_number_with_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "1", "-1h", "1.5h", "1 h", "1y", "\u0667d", "1234567890s", "999999999w"]
)
def test_wrong_duration_error_lists_allowed_texts(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration\. Allowed: a duration such as 90m, 12h or 7d"):
        parse_duration(text)


def test_random_ids_differ_derived_ids_repeat() -> None:
    assert random_id() != random_id()
    assert derived_id("a", 1) == derived_id("a", 1) != derived_id("a1")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), min_size=1))
def test_derived_id_is_uuid5_of_parts(parts: list[str | int]) -> None:
    expected = uuid5(UUID("6f1d3c1e-6a1c-5c0e-9d0f-8f5b6f3f8a11"), "\x1f".join(map(str, parts)))

    assert derived_id(*parts) == str(expected)


def test_seeded_ids_repeat_and_are_unique() -> None:
    first, second = seeded_ids("s"), seeded_ids("s")
    ids = [first() for _ in range(100)]

    assert ids == [second() for _ in range(100)]
    assert len(set(ids)) == 100


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers())
def test_fraction_repeats_and_stays_in_range(part: str, number: int) -> None:
    assert 0.0 <= fraction(part, number) < 1.0
    assert fraction(part, number) == fraction(part, number)


def test_fractions_are_spread_evenly() -> None:
    drawn = [fraction("even", number) for number in range(10_000)]

    assert 0.045 < sum(one < 0.05 for one in drawn) / 10_000 < 0.055
