"""When a budget will be used up, at the pace of two spans."""

from datetime import UTC, datetime, timedelta

import pytest

from agentic_trading.governance.admission import RefusalSpan, RefusedCounter
from agentic_trading.governance.burn_rate import BurnRateMeter, Forecast
from agentic_trading.governance.ledger import Balance
from agentic_trading.governance.limits import Ceiling, ScopeKind, Window, Windows
from agentic_trading.governance.prices import Amount

START = datetime(2026, 1, 2, 8, tzinfo=UTC)
NOTHING = Amount(0, 0, 0)


def balance(
    nusd: int,
    *,
    most: int | None = 1000,
    calls: int | None = None,
    window: Window = Window.NONE,
    **more: object,
) -> Balance:
    spent = Amount(nusd, 0, int(str(more.get("spent_calls", 0))))
    kind = ScopeKind(str(more.get("scope", "tenant")))
    id_ = str(more.get("window_id", Windows(UTC).at(START)[window].id))
    return Balance("acme", kind, "a", window, id_, Ceiling(nusd=most, calls=calls), spent, NOTHING, NOTHING)


def after(meter: BurnRateMeter, minutes: float, seen: Balance) -> Forecast:
    (found,) = meter.look([seen], START + timedelta(minutes=minutes))
    return found


def test_at_first_there_is_no_pace() -> None:
    found = after(BurnRateMeter(Windows(UTC)), 0, balance(500))

    assert (found.burn.long, found.exhausted_at) == (NOTHING, None)


def test_a_steady_pace_ends_when_it_has_used_what_is_left() -> None:
    meter = BurnRateMeter(Windows(UTC))
    found = [after(meter, minute, balance(minute * 10)) for minute in range(11)][-1]

    assert found.burn.long.nusd == 600
    assert found.burn.short.nusd == 600
    assert found.exhausted_at == START + timedelta(minutes=100)
    assert (found.unit, found.is_steady) == ("nano-USD", True)


def test_a_burst_that_is_over_is_not_steady() -> None:
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(0))
    after(meter, 1, balance(300))
    found = [after(meter, minute, balance(300)) for minute in range(2, 12)][-1]

    assert found.burn.short.nusd == 0
    assert found.burn.long.nusd > 0
    assert found.exhausted_at is not None
    assert not found.is_steady


def test_what_is_older_than_an_hour_counts_no_more() -> None:
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(0))
    after(meter, 1, balance(600))
    found = [after(meter, minute, balance(600)) for minute in range(2, 70)][-1]

    assert found.burn.long == NOTHING


def test_a_window_that_ends_before_gives_no_date() -> None:
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(0, window=Window.DAY))
    lasting = after(meter, 10, balance(1, window=Window.DAY))
    short = after(meter, 20, balance(200, window=Window.DAY))

    assert lasting.exhausted_at is None
    assert short.exhausted_at is not None


def test_the_unit_that_ends_first_is_named() -> None:
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(0, calls=10))
    found = after(meter, 10, balance(10, calls=10, spent_calls=5))

    assert found.unit == "calls"
    assert found.exhausted_at == START + timedelta(minutes=20)


@pytest.mark.parametrize(
    "other",
    [
        balance(5, most=None),
        balance(5, scope="trace"),
        balance(5, window=Window.DAY, window_id="2026-01-01"),
    ],
)
def test_what_has_no_ceiling_is_short_lived_or_over_has_no_forecast(other: Balance) -> None:
    assert BurnRateMeter(Windows(UTC)).look([other], START) == []


def test_a_charge_that_was_corrected_is_no_pace_backwards() -> None:
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(500))

    assert after(meter, 10, balance(400)).burn.long == NOTHING


@pytest.mark.parametrize(
    ("seconds", "first", "spent", "has_date"),
    [
        (5, 0, 100_000_000, False),  # 0.25 % of the ceiling in five seconds
        (
            5,
            30_000_000_000,
            30_100_000_000,
            False,
        ),  # a worker that has just started over a counter that is half spent
        (5, 0, 800_000_000, True),  # 2 % of the ceiling
        (299, 0, 100_000_000, False),
        (300, 0, 100_000_000, True),
    ],
)
def test_forecast_needs_five_minutes_of_samples_or_two_percent_of_the_ceiling(
    seconds: float, first: int, spent: int, *, has_date: bool
) -> None:
    most = 40_000_000_000
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(first, most=most))

    found = after(meter, seconds / 60, balance(spent, most=most))

    assert found.burn.long.nusd > 0
    assert (found.exhausted_at is not None, found.is_steady) == (has_date, has_date)


def refused(first: float, last: float, *, id_: str = "a") -> dict[RefusedCounter, RefusalSpan]:
    """Return refusals for the tenant's dollars, from and to so many minutes after the start."""
    of = RefusedCounter("acme", ScopeKind.TENANT, id_, Window.NONE, "nano-USD")
    return {of: RefusalSpan(START + timedelta(minutes=first), START + timedelta(minutes=last), 5)}


def exhausted(*looks: tuple[Balance, dict[RefusedCounter, RefusalSpan]]) -> list[tuple[str, ...]]:
    """Return what is exhausted at each of the looks, a minute apart."""
    meter = BurnRateMeter(Windows(UTC))
    return [
        meter.look([seen], START + timedelta(minutes=minute), spans)[0].exhausted
        for minute, (seen, spans) in enumerate(looks)
    ]


def test_counter_that_refuses_for_five_minutes_and_admits_none_is_exhausted() -> None:
    seen = balance(998, spent_calls=9)

    assert exhausted((seen, refused(0, 1)), (seen, refused(2, 4)), (seen, refused(5, 5))) == [
        (), (), ("nano-USD",),
    ]  # fmt: skip


def test_counter_that_refused_one_oversized_call_is_not_exhausted() -> None:
    seen = balance(500, spent_calls=9)

    assert exhausted((seen, refused(0, 0)), *[(seen, {})] * 9) == [()] * 10


def test_counter_that_admits_smaller_calls_between_refusals_is_not_exhausted() -> None:
    looks = [(balance(500 + n, spent_calls=n), refused(n, n)) for n in range(12)]

    assert exhausted(*looks) == [()] * 12


def test_refusals_for_another_counter_exhaust_none() -> None:
    assert exhausted((balance(998), refused(0, 9, id_="other"))) == [()]


def test_exhausted_counter_with_another_ceiling_begins_again() -> None:
    shut, raised = balance(998), balance(998, most=2000)

    assert exhausted((shut, refused(0, 6)), (raised, {}), (raised, refused(7, 9))) == [("nano-USD",), (), ()]


def test_counter_at_its_ceiling_is_exhausted_without_a_refusal() -> None:
    assert exhausted((balance(1000), {})) == [("nano-USD",)]


def test_counter_that_has_admitted_no_call_is_exhausted_by_refusals() -> None:
    meter = BurnRateMeter(Windows(UTC))

    found = [meter.look([], START + timedelta(minutes=n), refused(n, n)) for n in range(7)]

    assert [[one.exhausted for one in look] for look in found] == [[()]] * 5 + [[("nano-USD",)]] * 2
    assert found[-1][0].balance.spent == NOTHING
    assert meter.look([balance(5, spent_calls=1)], START + timedelta(minutes=7))[0].exhausted == ()
