"""The strategy of `examples/channel.py` for nautilus_trader."""

from nautilus_trader.config import StrategyConfig
from nautilus_trader.model.data import BarType
from nautilus_trader.model.enums import OrderSide
from nautilus_trader.trading.strategy import Strategy


class ChannelConfig(StrategyConfig, frozen=True):
    bar_type: BarType
    entry: int = 20
    exit: int = 10


class Channel(Strategy):
    def on_start(self):
        self.instrument = self.cache.instrument(self.config.bar_type.instrument_id)
        self.subscribe_bars(self.config.bar_type)

    def on_bar(self, bar):
        _, *before = self.cache.bars(bar.bar_type)[: self.config.entry + 1]  # newest first
        if len(before) < self.config.entry:
            return
        flat = self.portfolio.is_flat(self.instrument.id)
        if flat and bar.close > max(each.high for each in before):
            one = self.instrument.make_qty(1)
            self.submit_order(self.order_factory.market(self.instrument.id, OrderSide.BUY, one))
        elif not flat and bar.close < min(each.low for each in before[: self.config.exit]):
            self.close_all_positions(self.instrument.id)
