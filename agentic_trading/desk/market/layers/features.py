"""The measures of a layer over its timeframes; what is not available is named with its reason."""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame

Value = float | int | str | bool | None

BARS_NEEDED = {
    "direction": 26,
    "ema_21": 21,
    "sma_50": 50,
    "sma_200": 200,
    "close_vs_ema_21_atr": 21,
    "close_vs_sma_50_atr": 50,
    "close_vs_sma_200_atr": 200,
    "ema_21_slope_atr": 26,
    "sma_50_slope_atr": 55,
    "sma_200_slope_atr": 205,
    "range_width_pct": 20,
    "range_width_percentile": 119,
    "volume_skew": 20,
    "rsi_14": 15,
    "macd": 26,
    "macd_signal": 34,
    "macd_histogram": 34,
    "macd_histogram_change": 35,
    "adx_14": 28,
    "plus_di_14": 15,
    "minus_di_14": 15,
    "percent_b": 20,
    "band_width_pct": 20,
    "stochastic_k": 16,
    "stochastic_d": 18,
    "trix_15": 44,
    "obv_slope": 21,
    "mfi_14": 15,
    "close_vs_vwap_20_atr": 20,
    "atr_14": 15,
    "atr_pct": 15,
    "atr_percentile": 114,
    "realised_20_annual_pct": 21,
    "realised_96_annual_pct": 97,
    "realised_percentile": 120,
    "vol_of_vol": 40,
    "regime": 120,
    "next_bar_low": 21,
    "next_bar_high": 21,
    "narrow_7": 7,
    "wide_range": 15,
    "squeeze": 20,
    "taker_buy_pct": 1,
    "taker_buy_20_pct": 20,
    "trades": 1,
    "trades_z": 20,
    "volume_z": 20,
    "streak": 2,
    "gap_atr": 15,
}
"""From how many bars of its timeframe each measure is there, on bars that move."""

NO_BAR = "no closed bar yet"
NOT_IN_SOURCE = "the source does not tell it"
NO_SOURCE: Final = "no source"

UNSOURCED: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({
    "patterns": MappingProxyType({"chart_shapes": "no rule beyond these"}),
    "indicators": MappingProxyType({"market_breadth": NO_SOURCE}),
    "sentiment": MappingProxyType(
        dict.fromkeys(("vix", "put_call_ratio", "commitment_of_traders", "funding", "news"), NO_SOURCE)
    ),
    "volatility": MappingProxyType({"implied_volatility": NO_SOURCE}),
    "intermarket": MappingProxyType({"macro_calendar": NO_SOURCE}),
})
"""By the name of a layer: what its judgement has to do without, and why."""


class LayerFeatures:
    """Collect the measures of a layer, and the reasons of those that are missing."""

    def __init__(self) -> None:
        self.not_available: dict[str, str] = {}

    def frames(self, frames: Mapping[Timeframe, Frame]) -> list[Frame]:
        """Return the frames there are, shortest first; note the timeframes without a closed bar."""
        for timeframe in Timeframe:
            if timeframe not in frames:
                self.not_available[timeframe.value] = NO_BAR
        return [frames[timeframe] for timeframe in Timeframe if timeframe in frames]

    def keep(
        self, frame: Frame, values: Mapping[str, Value], *, unsourced: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the values that are there; note why the others are not, `unsourced` ones by their source."""
        for name, value in values.items():
            if value is None:
                reason = NOT_IN_SOURCE if name in unsourced else _reason(frame, name)
                self.not_available[f"{frame.timeframe}.{name}"] = reason
        return {name: _plain(value) for name, value in values.items() if value is not None}


def features_by_timeframe(
    layer: str,
    frames: Mapping[Timeframe, Frame],
    measure: Callable[[LayerFeatures, Frame], dict[str, Any]],
) -> dict[str, Any]:
    """Return the content of a layer that is measured on each timeframe alone, with all that is not available."""
    features = LayerFeatures()
    features.not_available |= UNSOURCED.get(layer, {})
    present = features.frames(frames)
    return {
        "timeframes": {frame.timeframe.value: measure(features, frame) for frame in present},
        "not_available": features.not_available,
    }


def _plain(value: Value) -> Value:
    return value.value if isinstance(value, StrEnum) else value


def _reason(frame: Frame, name: str) -> str:
    if name == "structure":
        return "needs two confirmed swing highs and two lows"
    needed = BARS_NEEDED[name]
    if frame.bars < needed:
        return f"needs {needed} bars, has {frame.bars}"
    return "not defined on bars that do not move"
