"""The plan of a month of paper trading: when symbols are silent, when bars are late or repeated, and when the program is stopped."""

import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

START = datetime(2026, 6, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SYMBOLS = ("BTCUSDT", "ETHUSDT")
OPENS = {"BTCUSDT": 60_000.0, "ETHUSDT": 3_000.0}
SLOTS = 30
"""A plan has at most one event in each slot. A slot of a month is a day."""
STOPS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL)
MOST_MINUTES_DOWN = 9
SINGLE = 40
"""The number of late bars, and of repeated bars."""


@dataclass(frozen=True, slots=True)
class Span:
    """Minutes from `start` up to, and without, `end`."""

    start: int
    end: int

    def __contains__(self, minute: int) -> bool:
        return self.start <= minute < self.end


@dataclass(frozen=True, slots=True)
class Stop:
    """The signal that ends the program, and the minutes until it runs again. Their bars are not sent."""

    signal: signal.Signals
    down: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the sender does in each minute.

    Attributes:
        minutes: The number of minutes.
        silences: The spans in which one symbol is silent, by symbol.
        outages: The spans whose bars are never sent.
        backlogs: The spans whose bars are all sent at their end.
        stops: The minutes in which the program is stopped.
        late: The minutes in which a symbol's bar comes after the grace period.
        repeated: The minutes in which a symbol's bar comes twice.

    """

    minutes: int
    silences: Sequence[tuple[str, Span]]
    outages: Sequence[Span]
    backlogs: Sequence[Span]
    stops: Mapping[int, Stop]
    late: Mapping[int, str]
    repeated: Mapping[int, str]

    def sent(self, minute: int) -> tuple[str, ...]:
        """Return the symbols whose bar of this minute is sent before the grace period ends."""
        if any(minute in span for span in self.outages):
            return ()
        silent = {symbol for symbol, span in self.silences if minute in span}
        return tuple(each for each in SYMBOLS if each not in silent and self.late.get(minute) != each)


def plan_of(minutes: int, seed: int) -> Plan:
    """Return the plan of a seed. Plans of all lengths have the same number of events."""
    dice = random.Random(seed)  # noqa: S311 - a plan, not a secret
    slot = minutes // SLOTS
    # The first slot has no event, because the memory of a new process grows in it. The last one ends in order.
    slots = dice.sample(range(1, SLOTS - 1), SLOTS - 2)

    def span(shortest: float, longest: float) -> Span:
        length = int(slot * dice.uniform(shortest, longest))
        start = slots.pop() * slot + dice.randrange(slot - length)
        return Span(start, start + length)

    silences = [(SYMBOLS[number % 2], span(0.1, 0.25)) for number in range(6)]
    day = slots.pop() * slot
    outages = [Span(day, day + slot), span(0.1, 0.25), span(0.1, 0.25)]
    backlogs = [span(0.05, 0.1), span(0.05, 0.1)]
    stops = {}
    for each in STOPS:
        minute = slots.pop() * slot + dice.randrange(3, slot - MOST_MINUTES_DOWN)
        stops[minute] = Stop(each, dice.randint(1, MOST_MINUTES_DOWN))
        outages.append(Span(minute + 1, minute + 1 + stops[minute].down))
    # Every second minute, because the grace period of a symbol whose late bar is read begins with the next minute.
    quiet = dice.sample(
        [each * slot + minute for each in slots for minute in range(0, slot - 1, 2)], 2 * SINGLE
    )
    late = {minute: dice.choice(SYMBOLS) for minute in quiet[:SINGLE]}
    repeated = {minute: dice.choice(SYMBOLS) for minute in quiet[SINGLE:]}
    return Plan(minutes, silences, outages, backlogs, stops, late, repeated)


class Market:
    """The bars of all symbols, minute by minute, as a random walk."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - prices, not secrets
        self._closes = dict(OPENS)

    def rows(self, minute: int) -> dict[str, str]:
        """Return the row of each symbol. Call it for each minute in turn."""
        time_of = (START + minute * MINUTE).isoformat()
        return {symbol: f"{symbol},{time_of},{self._prices(symbol)}\n" for symbol in SYMBOLS}

    def _prices(self, symbol: str) -> str:
        dice, opened = self._dice, self._closes[symbol]
        close = opened * (1 + dice.gauss(0, 0.0006))
        high = max(opened, close) * (1 + abs(dice.gauss(0, 0.0003)))
        low = min(opened, close) * (1 - abs(dice.gauss(0, 0.0003)))
        self._closes[symbol] = round(close, 2)
        prices = (opened, high, low, self._closes[symbol])
        return ",".join([*(f"{price:.2f}" for price in prices), f"{dice.uniform(1, 50):.3f}"])
