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
def test_step_is_last_nonzero_digit(value: str, step: str) -> None:
    assert step_of(Decimal(value)) == Decimal(step)


def test_step_has_twelve_decimals_at_most() -> None:
    assert step_of(Decimal("0.30000000000000004")) == Decimal("1e-12")


def test_grid_refines_with_finer_values() -> None:
    instrument = learned(("28000", "12"), ("28000.5", "0.125"), ("28001.25", "3"))

    assert (instrument.tick_size, instrument.lot_size) == (Decimal("0.01"), Decimal("0.0001"))
    assert instrument.min_quantity == instrument.lot_size


def test_lot_worth_capped_for_integer_volumes() -> None:
    assert learned(("28000.01", "1975")).lot_size == Decimal("0.0001")
    assert learned(("0.06993", "790191004.00000")).lot_size == 1


def test_cheap_coin_has_fine_tick() -> None:
    assert learned(("0.06993", "790191004")).tick_size == Decimal("0.00001")


def test_instruments_reject_unlisted_symbols() -> None:
    instruments = Instruments(["BTCUSDT", "ETHUSDT"])

    assert (list(instruments), len(instruments)) == (["BTCUSDT", "ETHUSDT"], 2)
    with pytest.raises(KeyError):
        instruments.see("DOGEUSDT", [Decimal(1)], Decimal(1))


@pytest.mark.parametrize(
    ("sample", "tick", "lot"), [("btcusdt-5m", "0.01", "0.00001"), ("ethusdt-5m", "0.01", "0.0001")]
)
def test_twelve_bars_reveal_sample_grid(sample: str, tick: str, lot: str) -> None:
    instruments = Instruments(["X"])
    for bar in load_sample(sample)[:12]:
        instruments.see("X", [bar.open, bar.high, bar.low, bar.close], bar.volume)

    assert (instruments["X"].tick_size, instruments["X"].lot_size) == (Decimal(tick), Decimal(lot))


@given(st.lists(st.tuples(prices, volumes), min_size=1, max_size=8))
def test_earlier_values_stay_on_grid(seen: list[tuple[Decimal, Decimal]]) -> None:
    instruments, before = Instruments(["X"]), []
    for price, volume in seen:
        instruments.see("X", [price], volume)
        instrument = instruments["X"]
        before.append((price, instrument.lot_size))

        assert all(each % instrument.tick_size == 0 for each, _ in before)
        assert all(lot % instrument.lot_size == 0 for _, lot in before)


@given(st.lists(st.tuples(prices, volumes), min_size=1, max_size=8))
def test_grid_is_finest_step_seen(seen: list[tuple[Decimal, Decimal]]) -> None:
    instruments = Instruments(["X"])
    for price, volume in seen:
        instruments.see("X", [price], volume)

    dearest = max(price for price, _ in seen)
    of_worth = Decimal(1).scaleb(min(0, (LARGEST_LOT_WORTH / dearest).adjusted()))
    assert instruments["X"].tick_size == min(step_of(price) for price, _ in seen)
    assert instruments["X"].lot_size == min(of_worth, *(step_of(volume) for _, volume in seen))
