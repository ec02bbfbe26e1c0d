"""The grid of an instrument, learned from bars: only ever finer, and the same for the same bars."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.instrument import LARGEST_LOT_WORTH, Instrument, Instruments, step_of
from agentic_trading.desk.market.samples import load_sample

prices = st.decimals("0.000001", 1_000_000, places=6)
volumes = st.decimals(0, 1_000_000, places=5)


def learned(*seen: tuple[str, str]) -> Instrument:
    """Return the instrument after a price and a volume each."""
    instruments = Instruments(["X"])
    for price, volume in seen:
        instruments.see("X", [Decimal(price)], Decimal(volume))
    return instruments["X"]


@pytest.mark.parametrize(
    ("value", "step"),
    [("27972.87", "0.01"), ("27972.87000000", "0.01"), ("0.06993", "0.00001"), ("28000", "1"), ("0", "1")],
)
def test_a_step_is_that_of_the_last_digit_that_is_not_zero(value: str, step: str) -> None:
    assert step_of(Decimal(value)) == Decimal(step)


def test_no_step_is_finer_than_a_price_may_be() -> None:
    assert step_of(Decimal("0.30000000000000004")) == Decimal("1e-12")


def test_a_grid_is_the_finest_that_was_seen() -> None:
    instrument = learned(("28000", "12"), ("28000.5", "0.125"), ("28001.25", "3"))

    assert (instrument.tick_size, instrument.lot_size) == (Decimal("0.01"), Decimal("0.0001"))
    assert instrument.min_quantity == instrument.lot_size


def test_a_lot_is_worth_little_even_where_volumes_are_given_in_whole_coins() -> None:
    assert learned(("28000.01", "1975")).lot_size == Decimal("0.0001")
    assert learned(("0.06993", "790191004.00000")).lot_size == 1


def test_a_cheap_coin_has_a_fine_tick() -> None:
    assert learned(("0.06993", "790191004")).tick_size == Decimal("0.00001")


def test_only_the_symbols_of_the_session_are_known() -> None:
    instruments = Instruments(["BTCUSDT", "ETHUSDT"])

    assert (list(instruments), len(instruments)) == (["BTCUSDT", "ETHUSDT"], 2)
    with pytest.raises(KeyError):
        instruments.see("DOGEUSDT", [Decimal(1)], Decimal(1))


@pytest.mark.parametrize(
    ("sample", "tick", "lot"), [("btcusdt-5m", "0.01", "0.00001"), ("ethusdt-5m", "0.01", "0.0001")]
)
def test_a_few_bars_of_a_sample_show_its_grid(sample: str, tick: str, lot: str) -> None:
    instruments = Instruments(["X"])
    for bar in load_sample(sample)[:12]:
        instruments.see("X", [bar.open, bar.high, bar.low, bar.close], bar.volume)

    assert (instruments["X"].tick_size, instruments["X"].lot_size) == (Decimal(tick), Decimal(lot))


@given(st.lists(st.tuples(prices, volumes), min_size=1, max_size=8))
def test_what_was_on_the_grid_stays_on_it(seen: list[tuple[Decimal, Decimal]]) -> None:
    instruments, before = Instruments(["X"]), []
    for price, volume in seen:
        instruments.see("X", [price], volume)
        instrument = instruments["X"]
        before.append((price, instrument.lot_size))

        assert all(each % instrument.tick_size == 0 for each, _ in before)
        assert all(lot % instrument.lot_size == 0 for _, lot in before)


@given(st.lists(st.tuples(prices, volumes), min_size=1, max_size=8))
def test_a_grid_is_the_finest_step_of_all_that_was_seen(seen: list[tuple[Decimal, Decimal]]) -> None:
    instruments = Instruments(["X"])
    for price, volume in seen:
        instruments.see("X", [price], volume)

    dearest = max(price for price, _ in seen)
    of_worth = Decimal(1).scaleb(min(0, (LARGEST_LOT_WORTH / dearest).adjusted()))
    assert instruments["X"].tick_size == min(step_of(price) for price, _ in seen)
    assert instruments["X"].lot_size == min(of_worth, *(step_of(volume) for _, volume in seen))
