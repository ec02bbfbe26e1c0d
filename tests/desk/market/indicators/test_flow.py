"""Volume's direction, the stochastic and TRIX where nothing moves or trades."""

from agentic_trading.desk.market.indicators.momentum import TRIX, Stochastic
from agentic_trading.desk.market.indicators.volume import MFI, OBV, RollingVWAP


def test_obv_slope_is_volume_share() -> None:
    obv = OBV(4)
    for close, volume in ((1.0, 100.0), (2.0, 3.0), (3.0, 3.0), (2.0, 2.0), (2.0, 2.0)):
        obv.update(close, volume)

    assert obv.value == 100.0 + 3.0 + 3.0 - 2.0
    assert obv.slope == (3.0 + 3.0 - 2.0) / 10.0


def test_rolling_vwap_weights_by_volume() -> None:
    vwap = RollingVWAP(2)

    vwap.update(99.0, 99.0, 99.0, 5.0)
    assert vwap.value is None
    vwap.update(12.0, 9.0, 9.0, 1.0)
    vwap.update(21.0, 18.0, 21.0, 3.0)
    assert vwap.value == (10.0 * 1.0 + 20.0 * 3.0) / 4.0


def test_zero_volume_has_no_flow() -> None:
    obv, mfi, vwap = OBV(2), MFI(2), RollingVWAP(2)
    for price in (1.0, 2.0, 3.0, 2.0):
        obv.update(price, 0.0)
        mfi.update(price, price, price, 0.0)
        vwap.update(price, price, price, 0.0)

    assert (obv.slope, mfi.value, vwap.value) == (None, None, None)


def test_flat_range_stochastic_is_undefined() -> None:
    stochastic = Stochastic(2, 2)
    for _ in range(4):
        assert stochastic.update(5.0, 5.0, 5.0) is None

    assert stochastic.update(6.0, 5.0, 6.0) is None
    assert stochastic.update(6.0, 4.0, 5.0) == (100.0 + 50.0) / 2
    assert stochastic.d is None


def test_trix_of_flat_price_is_zero() -> None:
    trix = TRIX(3)
    given = [trix.update(7.0) for _ in range(9)]

    assert given == [None] * 7 + [0.0, 0.0]
