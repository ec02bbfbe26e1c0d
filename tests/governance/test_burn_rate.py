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


def test_first_sample_has_no_pace() -> None:
    found = after(BurnRateMeter(Windows(UTC)), 0, balance(500))

    assert (found.burn.long, found.exhausted_at) == (NOTHING, None)


def test_steady_pace_predicts_exhaustion_time() -> None:
    meter = BurnRateMeter(Windows(UTC))
    found = [after(meter, minute, balance(minute * 10)) for minute in range(11)][-1]

    assert found.burn.long.nusd == 600
    assert found.burn.short.nusd == 600
    assert found.exhausted_at == START + timedelta(minutes=100)
    assert (found.unit, found.is_steady) == ("nano-USD", True)


def test_finished_burst_is_not_steady() -> None:
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(0))
    after(meter, 1, balance(300))
    found = [after(meter, minute, balance(300)) for minute in range(2, 12)][-1]

    assert found.burn.short.nusd == 0
    assert found.burn.long.nusd > 0
    assert found.exhausted_at is not None
    assert not found.is_steady


def test_spend_older_than_hour_is_ignored() -> None:
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(0))
    after(meter, 1, balance(600))
    found = [after(meter, minute, balance(600)) for minute in range(2, 70)][-1]

    assert found.burn.long == NOTHING


def test_window_ending_first_gives_no_date() -> None:
    meter = BurnRateMeter(Windows(UTC))
    after(meter, 0, balance(0, window=Window.DAY))
    lasting = after(meter, 10, balance(1, window=Window.DAY))
    short = after(meter, 20, balance(200, window=Window.DAY))

    assert lasting.exhausted_at is None
    assert short.exhausted_at is not None


def test_unit_exhausted_first_is_reported() -> None:
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
def test_unlimited_trace_and_ended_counters_are_skipped(other: Balance) -> None:
    assert BurnRateMeter(Windows(UTC)).look([other], START) == []


def test_corrected_charge_gives_no_negative_pace() -> None:
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
def test_forecast_needs_enough_samples_or_spending(
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


def test_counter_refusing_five_minutes_is_exhausted() -> None:
    seen = balance(998, spent_calls=9)

    assert exhausted((seen, refused(0, 1)), (seen, refused(2, 4)), (seen, refused(5, 5))) == [
        (), (), ("nano-USD",),
    ]  # fmt: skip


def test_oversized_call_does_not_exhaust_counter() -> None:
    seen = balance(500, spent_calls=9)

    assert exhausted((seen, refused(0, 0)), *[(seen, {})] * 9) == [()] * 10


def test_admissions_between_refusals_prevent_exhaustion() -> None:
    looks = [(balance(500 + n, spent_calls=n), refused(n, n)) for n in range(12)]

    assert exhausted(*looks) == [()] * 12


def test_refusals_for_another_counter_are_ignored() -> None:
    assert exhausted((balance(998), refused(0, 9, id_="other"))) == [()]


def test_raised_ceiling_resets_exhaustion() -> None:
    shut, raised = balance(998), balance(998, most=2000)

    assert exhausted((shut, refused(0, 6)), (raised, {}), (raised, refused(7, 9))) == [("nano-USD",), (), ()]


def test_counter_at_ceiling_is_exhausted() -> None:
    assert exhausted((balance(1000), {})) == [("nano-USD",)]


def test_refusals_exhaust_counter_without_admissions() -> None:
    meter = BurnRateMeter(Windows(UTC))

    found = [meter.look([], START + timedelta(minutes=n), refused(n, n)) for n in range(7)]

    assert [[one.exhausted for one in look] for look in found] == [[()]] * 5 + [[("nano-USD",)]] * 2
    assert found[-1][0].balance.spent == NOTHING
    assert meter.look([balance(5, spent_calls=1)], START + timedelta(minutes=7))[0].exhausted == ()
