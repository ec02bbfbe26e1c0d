"""How fast prices move: RSI and MACD."""

from agentic_trading.desk.market.indicators.averages import EMA, WilderAverage


class RSI:
    """Relative strength index in 0..100: Wilder's average gain over average gain plus average loss.

    None before `period + 1` prices, and while no price has changed at all. Source: J. Welles Wilder,
    New Concepts in Technical Trading Systems, 1978; seeded as TA-Lib.
    """

    __slots__ = ("_gain", "_last", "_loss", "value")

    def __init__(self, period: int = 14) -> None:
        self._gain = WilderAverage(period)
        self._loss = WilderAverage(period)
        self._last: float | None = None
        self.value: float | None = None

    def update(self, price: float) -> float | None:
        """Take the next price; return the index."""
        last, self._last = self._last, price
        if last is None:
            return None
        gain = self._gain.update(max(price - last, 0.0))
        loss = self._loss.update(max(last - price, 0.0))
        if gain is not None and loss is not None:
            self.value = 100.0 * (gain / (gain + loss)) if gain + loss > 0.0 else None
        return self.value


class MACD:
    """Moving average convergence divergence: fast EMA less slow EMA, in units of price.

    `value` needs `slow` prices, `signal` (an EMA of `value`) and `histogram` (`value - signal`)
    `slow + smooth - 1`. Both averages start on the same bar, as in TA-Lib: the fast one waits for
    `slow - fast` prices. Source: Gerald Appel, The Moving Average
    Convergence-Divergence Method, 1979.
    """

    __slots__ = ("_fast", "_signal", "_skip", "_slow", "value")

    def __init__(self, fast: int = 12, slow: int = 26, smooth: int = 9) -> None:
        self._fast = EMA(fast)
        self._slow = EMA(slow)
        self._signal = EMA(smooth)
        self._skip = slow - fast
        self.value: float | None = None

    @property
    def signal(self) -> float | None:
        return self._signal.value

    @property
    def histogram(self) -> float | None:
        if self.value is None or self.signal is None:
            return None
        return self.value - self.signal

    def update(self, price: float) -> float | None:
        """Take the next price; return the difference of the averages."""
        slow = self._slow.update(price)
        if self._skip > 0:
            self._skip -= 1
            return None
        fast = self._fast.update(price)
        if fast is not None and slow is not None:
            self.value = fast - slow
            self._signal.update(self.value)
        return self.value
