"""Layer 5: how those who trade behave, as far as the bars tell it."""

from collections.abc import Mapping
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.layers.features import NOT_IN_SOURCE, LayerFeatures
from agentic_trading.desk.market.layers.missing_features import UNSOURCED
from agentic_trading.desk.market.rounding import ratio


def sentiment_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return taker share, trade count, volume, streak and opening gap of each timeframe.

    Shares are in percent of volume, `gap_atr` in ATR of the same timeframe. A source without taker volumes or
    trade counts is named.
    """
    sheet = LayerFeatures()
    present = sheet.frames(frames)
    sheet.not_available |= UNSOURCED["sentiment"]
    if not any(frame.sentiment.has_takers for frame in present):
        sheet.not_available["taker_volume"] = NOT_IN_SOURCE
    if not any(frame.sentiment.has_trades for frame in present):
        sheet.not_available["trade_count"] = NOT_IN_SOURCE
    return {
        "timeframes": {frame.timeframe.value: _one(sheet, frame) for frame in present},
        "not_available": sheet.not_available,
    }


def _one(sheet: LayerFeatures, frame: Frame) -> dict[str, Any]:
    mood = frame.sentiment
    return sheet.keep(
        frame,
        {
            "taker_buy_pct": ratio(mood.taker_buy_pct),
            "taker_buy_20_pct": ratio(mood.taker_buy_20_pct),
            "trades": mood.trades,
            "trades_z": ratio(mood.trades_z),
            "volume_z": ratio(mood.volume_z),
            "streak": mood.streak,
            "gap_atr": ratio(frame.in_atr(mood.gap)),
        },
        unsourced=[
            *(() if mood.has_takers else ("taker_buy_pct", "taker_buy_20_pct")),
            *(() if mood.has_trades else ("trades", "trades_z")),
        ],
    )
