"""A market as of one moment, from closed bars only."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentic_trading.desk.market.bar import LADDER, Bar, ClosedBar, Resampler, Timeframe
from agentic_trading.desk.market.correlation import CLOSES_KEPT, Close, ReferenceMarket
from agentic_trading.desk.market.errors import BarSequenceError, NoBarsError, UnclosedBarError
from agentic_trading.desk.market.frame import Frame, FrameGauge
from agentic_trading.desk.market.indicators.volume import VolumeProfile
from agentic_trading.desk.market.layers.levels import levels_layer, patterns_layer, risk_layer
from agentic_trading.desk.market.layers.readings import (
    indicators_layer,
    intermarket_layer,
    sentiment_layer,
    trend_layer,
    volatility_layer,
)
from agentic_trading.desk.market.levels import PriceLevels, price_levels

BASE = Timeframe.M5
PROFILE_BARS = 288  # a day of base bars
DAYS_KEPT = 14  # enough to hold the week before the present one


@dataclass(frozen=True, slots=True)
class MarketSnapshot:
    """The state of one symbol as of one moment, without later data.

    It does not change when its view gets new bars.

    Attributes:
        as_of: The moment.
        available_at: The close time of the newest bar, never after `as_of`.
        decision: The timeframe of decisions. Distances and stops are measured in ATR of this timeframe.
        last: The close of the newest bar.
        frames: The timeframes that have a closed bar, shortest first.
        levels: The price levels.
        closes: The last closes of the decision timeframe.
        reference: A market to compare with, without closes after `as_of`.

    """

    symbol: str
    as_of: datetime
    available_at: datetime
    decision: Timeframe
    last: float
    frames: Mapping[Timeframe, Frame]
    levels: PriceLevels
    closes: tuple[Close, ...] = ()
    reference: ReferenceMarket | None = None

    def layer_inputs(self) -> dict[str, dict[str, Any]]:
        """Return the content of the layers of an analysis, as plain JSON values.

        The keys are `trend`, `levels`, `patterns`, `indicators`, `sentiment`, `risk`, `volatility` and
        `intermarket`. The ninth layer, an agent's own record, does not come from the market.

        Prices and distances between prices have 8 significant digits, all other numbers 5. No number is NaN
        or infinite. Missing values are left out, and `not_available` of the layer has their names and
        reasons. Times are UTC with a `Z`.
        """
        frames, last, decision = self.frames, self.last, self.decision
        return {
            "trend": trend_layer(frames),
            "levels": levels_layer(frames, self.levels, last=last, decision=decision),
            "patterns": patterns_layer(frames),
            "indicators": indicators_layer(frames),
            "sentiment": sentiment_layer(frames),
            "risk": risk_layer(self.levels, frames.get(decision), last=last, decision=decision),
            "volatility": volatility_layer(frames),
            "intermarket": intermarket_layer(self.closes, self.reference, decision=decision),
        }


class MarketView:
    """All timeframes of one symbol, updated with each closed five-minute bar."""

    def __init__(self, symbol: str, *, decision: Timeframe = Timeframe.H1) -> None:
        self._symbol = symbol
        self._decision = decision
        self._resamplers = [Resampler(BASE, timeframe) for timeframe in LADDER if timeframe is not BASE]
        self._gauges = {timeframe: FrameGauge(timeframe) for timeframe in LADDER}
        self._profile = VolumeProfile(PROFILE_BARS)
        self._days: deque[ClosedBar] = deque(maxlen=DAYS_KEPT)
        self._closes: deque[Close] = deque(maxlen=CLOSES_KEPT)
        self._newest: Bar | None = None
        self._pushed = 0

    @property
    def decision(self) -> Timeframe:
        """The timeframe at whose closes decisions are made."""
        return self._decision

    def push(self, bar: Bar, *, as_of: datetime | None = None) -> tuple[ClosedBar, ...]:
        """Add the next bar, and return all bars that it closes, shortest timeframe first.

        After a gap, an incomplete window comes directly before the current window of its timeframe. If an
        error is raised, the view is unchanged.

        Raises:
            UnclosedBarError: If `as_of` is given and the bar closes after it.
            BarSequenceError: If the bar has another symbol or timeframe, or is not later than the last bar.

        """
        self._check(bar, as_of)
        self._newest = bar
        self._pushed += 1
        closed = [ClosedBar(bar)]
        for resampler in self._resamplers:
            closed.extend(resampler.push(bar))
        for each in closed:
            self._gauges[each.bar.timeframe].update(each)
            if each.bar.timeframe is Timeframe.D1:
                self._days.append(each)
            if each.bar.timeframe is self._decision:
                self._closes.append(Close(each.bar.close_time, float(each.bar.close)))
        self._profile.update(float(bar.high), float(bar.low), float(bar.volume))
        return tuple(closed)

    def reference_market(self, as_of: datetime) -> ReferenceMarket:
        """Return this market as a reference for another market, without closes after `as_of`."""
        return ReferenceMarket(self._symbol, tuple(self._closes)).until(as_of)

    def snapshot(
        self, as_of: datetime | None = None, *, reference: ReferenceMarket | None = None
    ) -> MarketSnapshot:
        """Return the market as of a moment.

        Args:
            as_of: The moment, by default the close of the newest bar.
            reference: A market to compare with, on the same decision timeframe. Its closes after `as_of` are
                ignored.

        Raises:
            NoBarsError: If there is no bar yet.
            UnclosedBarError: If a bar that was pushed closes after `as_of`.

        """
        if self._newest is None:
            raise NoBarsError(self._symbol)
        newest = self._newest
        moment = newest.close_time if as_of is None else as_of
        if newest.close_time > moment:
            raise UnclosedBarError(newest.close_time, moment)
        read = ((timeframe, gauge.read()) for timeframe, gauge in self._gauges.items())
        frames = {timeframe: frame for timeframe, frame in read if frame is not None}
        return MarketSnapshot(
            symbol=self._symbol,
            as_of=moment,
            available_at=newest.available_at,
            decision=self._decision,
            last=float(newest.close),
            frames=frames,
            levels=price_levels(
                frames,
                self._days,
                self._profile.value,
                price=float(newest.close),
                decision=self._decision,
                as_of=moment,
            ),
            closes=tuple(self._closes),
            reference=None if reference is None else reference.until(moment),
        )

    def _check(self, bar: Bar, as_of: datetime | None) -> None:
        line = self._pushed + 1
        if as_of is not None and bar.close_time > as_of:
            raise UnclosedBarError(bar.close_time, as_of)
        if bar.symbol != self._symbol:
            raise BarSequenceError("market view", line, "symbol", bar.symbol, self._symbol)
        if bar.timeframe is not BASE:
            raise BarSequenceError("market view", line, "timeframe", bar.timeframe, BASE.value)
        if self._newest is not None and bar.open_time < self._newest.close_time:
            allowed = f"{self._newest.close_time.isoformat()} or later"
            raise BarSequenceError("market view", line, "open_time", bar.open_time.isoformat(), allowed)
