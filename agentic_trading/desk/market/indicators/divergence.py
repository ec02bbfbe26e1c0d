"""Where price and an oscillator disagree about the last two swings."""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from agentic_trading.desk.market.indicators.swings import Swing

Oscillators = Mapping[str, float | None]


class Divergence(StrEnum):
    """Which way a divergence points."""

    BEARISH = "bearish"
    BULLISH = "bullish"


class Divergences:
    """Hold each oscillator at a swing against the one before it.

    Bearish: of the last two confirmed swing highs the later one is higher in price and lower in the oscillator, both
    as of the close of the swing's bar; bullish is the mirror at swing lows. It stands until the next swing of its
    side is confirmed, and begins when its second swing is: never on the bar of the swing itself. Source: J. Welles
    Wilder, New Concepts in Technical Trading Systems, 1978, for RSI; Gerald Appel for MACD; the swings are fractals
    in place of an eye.
    """

    __slots__ = ("_at_swings", "_recent")

    def __init__(self, wing: int = 3) -> None:
        self._recent: deque[tuple[datetime, Oscillators]] = deque(maxlen=wing + 1)
        self._at_swings: dict[Divergence, deque[tuple[Swing, Oscillators]]] = {
            side: deque(maxlen=2) for side in Divergence
        }

    def update(
        self, at: datetime, oscillators: Oscillators, highs: Sequence[Swing], lows: Sequence[Swing]
    ) -> None:
        """Take the oscillators at the bar that closed at `at`, and the swings that are confirmed then, oldest first."""
        self._recent.append((at, oscillators))
        for side, swings in ((Divergence.BEARISH, highs), (Divergence.BULLISH, lows)):
            if swings and swings[-1].confirmed_at == at:
                then = dict(self._recent)[swings[-1].at]
                self._at_swings[side].append((swings[-1], then))

    @property
    def found(self) -> tuple[tuple[Divergence, str], ...]:
        """Every divergence that stands, with its oscillator, in the order of `Divergence` and of the oscillators."""
        return tuple(
            (side, name)
            for side, pair in self._at_swings.items()
            if len(pair) == 2
            for name in pair[1][1]
            if _diverges(side, pair[0], pair[1], name)
        )


def _diverges(
    side: Divergence, first: tuple[Swing, Oscillators], second: tuple[Swing, Oscillators], name: str
) -> bool:
    before, after = first[1].get(name), second[1].get(name)
    if before is None or after is None:
        return False
    sign = 1 if side is Divergence.BEARISH else -1
    return sign * (second[0].price - first[0].price) > 0 and sign * (after - before) < 0
