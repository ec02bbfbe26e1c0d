"""The market as of one moment, from closed bars only."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentic_trading.desk.market.bar import Bar, ClosedBar, Resampler, Timeframe
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
    """What is known of one symbol at `as_of`; nothing in it is younger.

    `last` is the close of the newest bar and `available_at` its close time, never after `as_of`. `frames`
    holds the timeframes that have a closed bar, shortest first. Distances and stops are measured in ATR of
    the `decision` timeframe, whose last closes are `closes`; those of the `reference` market end at the same
    moment, if there is one. A snapshot does not change when its view goes on.
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

        Keys: `trend`, `levels`, `patterns`, `indicators`, `sentiment`, `risk`, `volatility`, `intermarket`;
        the ninth layer, an agent's own record, is not the market's. Prices and distances between prices have
        8 significant digits, everything else 5; no number is NaN or infinite. What is missing is
        left out and named with its reason in `not_available` of its layer. Times are UTC with a `Z`.
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
    """Keep every timeframe of one symbol up to date, one closed five-minute bar at a time."""

    def __init__(self, symbol: str, *, decision: Timeframe = Timeframe.H1) -> None:
        self._symbol = symbol
        self._decision = decision
        self._resamplers = [Resampler(BASE, timeframe) for timeframe in Timeframe if timeframe is not BASE]
        self._gauges = {timeframe: FrameGauge(timeframe) for timeframe in Timeframe}
        self._profile = VolumeProfile(PROFILE_BARS)
        self._days: deque[ClosedBar] = deque(maxlen=DAYS_KEPT)
        self._closes: deque[Close] = deque(maxlen=CLOSES_KEPT)
        self._newest: Bar | None = None
        self._pushed = 0

    @property
    def decision(self) -> Timeframe:
        """The timeframe at whose closes decisions are taken."""
        return self._decision

    def push(self, bar: Bar, *, as_of: datetime | None = None) -> tuple[ClosedBar, ...]:
        """Take the next bar; return every bar that is closed by it, shortest timeframe first.

        Where the bar ends a hole, a window that the hole cut short comes right before the present one of
        its timeframe. Raises `UnclosedBarError` if `as_of` is given and the bar closes after it, and
        `BarSequenceError` for another symbol or timeframe or a bar that is not later than the last; the
        view is then as before.
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
        """Return this market as the reference of another, as of a moment: nothing that closes after it."""
        return ReferenceMarket(self._symbol, tuple(self._closes)).until(as_of)

    def snapshot(
        self, as_of: datetime | None = None, *, reference: ReferenceMarket | None = None
    ) -> MarketSnapshot:
        """Return the market as of a moment, by default the close of the newest bar, with its `reference` market.

        The reference market's closes must be those of the same decision timeframe; later ones are not looked at.
        Raises `UnclosedBarError` if a bar that was pushed closes after `as_of`, `NoBarsError` before the
        first one.
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
