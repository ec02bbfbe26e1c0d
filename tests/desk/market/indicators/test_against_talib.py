"""Every indicator that TA-Lib also has is equal to it on the shipped bars.

Tolerance: 1e-9 of the value, from the first value that either gives; TA-Lib starts each indicator on the same
bar from the same seed. Two exceptions, where TA-Lib itself rounds: it takes the Bollinger deviation from a
difference of squares (1e-9 of the price), and MACD is a small difference of prices (1e-9 of the price). Where an
exchange stood still TA-Lib gives a stochastic and a money flow of 0; ours have no value there.
"""

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import pytest
import talib

from agentic_trading.desk.market.bar import Bar, Resampler, Timeframe
from agentic_trading.desk.market.indicators.averages import EMA, SMA
from agentic_trading.desk.market.indicators.momentum import ADX, MACD, RSI, TRIX, Stochastic
from agentic_trading.desk.market.indicators.volatility import ATR, BollingerBands
from agentic_trading.desk.market.indicators.volume import MFI, OBV
from agentic_trading.desk.market.samples import load_sample

RELATIVE = 1e-9
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


@cache
def columns(name: str, timeframe: Timeframe) -> Columns:
    table = np.array([
        (float(each.high), float(each.low), float(each.close)) for each in closed_bars(name, timeframe)
    ])
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()


@cache
def volumes(name: str, timeframe: Timeframe) -> np.ndarray:
    return np.array([float(each.volume) for each in closed_bars(name, timeframe)])


def closed_bars(name: str, timeframe: Timeframe) -> Iterable[Bar]:
    bars: Iterable[Bar] = load_sample(name)
    if timeframe is not Timeframe.M5:
        resampler = Resampler(Timeframe.M5, timeframe)
        return [closed.bar for each in bars for closed in resampler.push(each)]
    return bars


@pytest.fixture(params=["btcusdt-5m", "ethusdt-5m"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[Timeframe.M5, Timeframe.M15, Timeframe.H1, Timeframe.H4])
def bars(request: pytest.FixtureRequest, name: str) -> Columns:
    return columns(name, request.param)


def streamed(step: Callable[..., float | None], *inputs: np.ndarray) -> np.ndarray:
    given = [step(*(float(number) for number in row)) for row in zip(*inputs, strict=True)]
    return np.array([np.nan if value is None else value for value in given])


def assert_same(ours: np.ndarray, theirs: np.ndarray, *, within: np.ndarray | float = 0.0) -> None:
    assert np.count_nonzero(~np.isnan(theirs))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    known = ~np.isnan(theirs)
    allowed = np.maximum(RELATIVE * np.abs(theirs), within)
    assert np.all(np.abs(ours - theirs)[known] <= allowed[known])


@pytest.mark.parametrize("period", [2, 20, 50])
def test_sma_matches_talib(bars: Columns, period: int) -> None:
    _, _, close = bars

    assert_same(streamed(SMA(period).update, close), talib.SMA(close, period))


@pytest.mark.parametrize("period", [2, 21, 50])
def test_ema_matches_talib(bars: Columns, period: int) -> None:
    _, _, close = bars

    assert_same(streamed(EMA(period).update, close), talib.EMA(close, period))


@pytest.mark.parametrize("period", [2, 14])
def test_rsi_matches_talib(bars: Columns, period: int) -> None:
    _, _, close = bars

    assert_same(streamed(RSI(period).update, close), talib.RSI(close, period))


@pytest.mark.parametrize("period", [2, 14])
def test_atr_matches_talib(bars: Columns, period: int) -> None:
    assert_same(streamed(ATR(period).update, *bars), talib.ATR(*bars, period))


@pytest.mark.parametrize("period", [2, 14])
def test_adx_matches_talib(bars: Columns, period: int) -> None:
    assert_same(streamed(ADX(period).update, *bars), talib.ADX(*bars, period))


@pytest.mark.parametrize("period", [2, 14])
def test_directional_indicators_match_talib(bars: Columns, period: int) -> None:
    plus, minus = ADX(period), ADX(period)

    def plus_di(high: float, low: float, close: float) -> float | None:
        plus.update(high, low, close)
        return plus.plus_di

    def minus_di(high: float, low: float, close: float) -> float | None:
        minus.update(high, low, close)
        return minus.minus_di

    assert_same(streamed(plus_di, *bars), talib.PLUS_DI(*bars, period))
    assert_same(streamed(minus_di, *bars), talib.MINUS_DI(*bars, period))


def test_macd_and_signal_match_talib(bars: Columns) -> None:
    _, _, close = bars
    macd, signal, histogram = talib.MACD(close, 12, 26, 9)
    ours = MACD(12, 26, 9)
    rows = []
    for price in close:
        ours.update(float(price))
        rows.append((ours.value, ours.signal, ours.histogram))
    values, signals, histograms = np.array(rows, dtype=float).T

    values[: np.argmax(~np.isnan(signals))] = np.nan  # TA-Lib gives the line from where it has the signal
    assert_same(values, macd, within=RELATIVE * close)
    assert_same(signals, signal, within=RELATIVE * close)
    assert_same(histograms, histogram, within=RELATIVE * close)


def test_bollinger_bands_match_talib(bars: Columns) -> None:
    _, _, close = bars
    upper, middle, lower = talib.BBANDS(close, 20, 2.0, 2.0)
    ours = BollingerBands(20, 2.0)
    given = []
    for price in close:
        ours.update(float(price))
        given.append(ours.value)

    def band(name: str) -> np.ndarray:
        return np.array([np.nan if bands is None else getattr(bands, name) for bands in given])

    assert_same(band("middle"), middle)
    assert_same(band("upper"), upper, within=RELATIVE * close)
    assert_same(band("lower"), lower, within=RELATIVE * close)
    assert_same(band("width"), (upper - lower) / middle, within=2 * RELATIVE * np.ones_like(close))


@pytest.mark.parametrize("period", [5, 14])
def test_slow_stochastic_matches_talib(bars: Columns, period: int) -> None:
    k, d = talib.STOCH(*bars, fastk_period=period, slowk_period=3, slowd_period=3)
    high, low, _ = bars
    for back in range(5):  # a range without height is in `k` for three bars and in `d` for five
        flat = [
            end >= period and high[end - period : end].max() == low[end - period : end].min()
            for end in range(1 - back, len(high) + 1 - back)
        ]
        d[flat] = np.nan
        k[flat] = np.nan if back < 3 else k[flat]
    ours = Stochastic(period, 3)
    rows = []
    for row in zip(*bars, strict=True):
        ours.update(*map(float, row))
        rows.append((ours.k, ours.d))
    ks, ds = np.array(rows, dtype=float).T

    ks[: period + 3] = np.nan  # TA-Lib gives both from where it has the second
    assert_same(ks, k, within=1e-9 * 100)
    assert_same(ds, d, within=1e-9 * 100)


@pytest.mark.parametrize("period", [2, 15])
def test_trix_matches_talib(bars: Columns, period: int) -> None:
    _, _, close = bars

    assert_same(streamed(TRIX(period).update, close), talib.TRIX(close, period), within=1e-11)


@pytest.mark.parametrize("timeframe", [Timeframe.M5, Timeframe.M15, Timeframe.H1, Timeframe.H4])
def test_on_balance_volume_matches_talib(name: str, timeframe: Timeframe) -> None:
    close, volume = columns(name, timeframe)[2], volumes(name, timeframe)

    theirs = talib.OBV(close, volume)
    assert_same(streamed(OBV().update, close, volume), theirs, within=RELATIVE * np.cumsum(volume))


@pytest.mark.parametrize("timeframe", [Timeframe.M5, Timeframe.M15, Timeframe.H1, Timeframe.H4])
@pytest.mark.parametrize("period", [2, 14])
def test_money_flow_index_matches_talib(name: str, timeframe: Timeframe, period: int) -> None:
    given = (*columns(name, timeframe), volumes(name, timeframe))

    theirs = talib.MFI(*given, period)
    money = np.where(np.diff(sum(given[:3]) / 3) == 0.0, 0.0, given[3][1:])
    moved = np.array([money[max(end - period, 0) : end].sum() for end in range(len(money) + 1)])
    theirs[moved == 0.0] = np.nan
    index = MFI(period)

    def step(*bar: float) -> float | None:
        index.update(*bar)
        return index.value

    assert_same(streamed(step, *given), theirs, within=1e-7)
