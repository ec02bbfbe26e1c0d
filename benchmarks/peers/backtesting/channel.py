"""The strategy of `examples/channel.py` for backtesting.py."""

from backtesting import Strategy


class Channel(Strategy):
    entry = 20
    exit = 10

    def init(self):
        pass

    def next(self):
        high, low, close = self.data.High, self.data.Low, self.data.Close
        if len(close) <= self.entry:
            return
        if not self.position and close[-1] > max(high[-self.entry - 1 : -1]):
            self.buy(size=1)
        elif self.position and close[-1] < min(low[-self.exit - 1 : -1]):
            self.position.close()
