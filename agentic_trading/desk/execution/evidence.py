"""What the model is told of the market: a few closed bars, their volume, their range."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from statistics import median
from typing import Any

from agentic_trading.canonical import utc_text
from agentic_trading.desk.instrument import BPS, EXACT, ZERO
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import NoBarsError

SHOWN_BARS = 6

CENT = Decimal("0.01")
MILLIONTH = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One piece of evidence: where it is from, and plain data."""

    source: str
    content: dict[str, Any]


def execution_evidence(
    symbol: str, bars: Sequence[Bar], quantity: Decimal, spread_bps: Decimal
) -> list[Evidence]:
    """Return bars, volume and volatility of the last closed bars, oldest first, as evidence E1 to E3.

    Means, the median and the share of volume are over the bars that traded, and `without_trades` says how many
    did not. Basis points are rounded to hundredths and shares of volume to millionths, half to even. Raises
    `NoBarsError` without a bar.
    """
    if not bars:
        raise NoBarsError(symbol)
    return [
        Evidence("bars", _bars(bars)),
        Evidence("volume", {**_counts(bars), **_volume(bars, quantity)}),
        Evidence("volatility", {**_counts(bars), **_volatility(bars, spread_bps)}),
    ]


def _bars(bars: Sequence[Bar]) -> dict[str, Any]:
    rows = [
        [utc_text(bar.open_time), bar.open, bar.high, bar.low, bar.close, bar.volume]
        for bar in bars[-SHOWN_BARS:]
    ]
    return {
        "timeframe": bars[-1].timeframe,
        "columns": ["open_time", "open", "high", "low", "close", "volume"],
        "rows": rows,
    }


def _volume(bars: Sequence[Bar], quantity: Decimal) -> dict[str, Any]:
    volumes = [bar.volume for bar in _traded(bars)] or [ZERO]
    mean = EXACT.divide(sum(volumes, ZERO), len(volumes))
    return {
        "mean": _rounded(mean, MILLIONTH),
        "median": _rounded(median(volumes), MILLIONTH),
        "last": bars[-1].volume,
        "order_to_mean": _rounded(EXACT.divide(quantity, mean), MILLIONTH) if mean else None,
    }


def _volatility(bars: Sequence[Bar], spread_bps: Decimal) -> dict[str, Any]:
    ranges = [_range_bps(bar) for bar in _traded(bars)] or [ZERO]
    move = _in_bps(EXACT.subtract(bars[-1].close, bars[0].open), bars[0].open)
    return {
        "mean_range_bps": _rounded(EXACT.divide(sum(ranges, ZERO), len(ranges)), CENT),
        "last_range_bps": _rounded(_range_bps(bars[-1]), CENT),
        "widest_range_bps": _rounded(max(ranges), CENT),
        "move_bps": _rounded(move, CENT),
        "spread_bps": spread_bps,
    }


def _counts(bars: Sequence[Bar]) -> dict[str, Any]:
    return {"bars": len(bars), "without_trades": len(bars) - len(_traded(bars))}


def _traded(bars: Sequence[Bar]) -> list[Bar]:
    return [bar for bar in bars if bar.volume]


def _range_bps(bar: Bar) -> Decimal:
    return _in_bps(EXACT.subtract(bar.high, bar.low), bar.close)


def _in_bps(part: Decimal, whole: Decimal) -> Decimal:
    return EXACT.divide(EXACT.multiply(part, BPS), whole)


def _rounded(value: Decimal, step: Decimal) -> Decimal:
    return value.quantize(step, ROUND_HALF_EVEN, EXACT)
