"""nautilus_trader: an engine with a venue, an instrument and bars, from which a strategy gets its events."""

from datetime import timedelta

from nautilus_trader.backtest.engine import BacktestEngine, BacktestEngineConfig
from nautilus_trader.config import LoggingConfig
from nautilus_trader.model.currencies import USDT
from nautilus_trader.model.data import BarType
from nautilus_trader.model.enums import AccountType, OmsType
from nautilus_trader.model.identifiers import Venue
from nautilus_trader.model.objects import Money
from nautilus_trader.persistence.wranglers import BarDataWrangler
from nautilus_trader.test_kit.providers import TestInstrumentProvider

from benchmarks.peers.decisions import answer_files
from benchmarks.peers.nautilus_trader.channel import Channel, ChannelConfig


def decide(bars):
    """Return the times and sides of the market orders. They are filled at the close that decides them."""
    prices = bars[["open", "high", "low", "close", "volume"]]
    instrument = TestInstrumentProvider.btcusdt_binance()
    bar_type = BarType.from_str("BTCUSDT.BINANCE-5-MINUTE-LAST-EXTERNAL")
    engine = BacktestEngine(BacktestEngineConfig(logging=LoggingConfig(bypass_logging=True)))
    engine.add_venue(
        Venue("BINANCE"), OmsType.NETTING, AccountType.CASH, starting_balances=[Money(100_000, USDT)]
    )
    engine.add_instrument(instrument)
    closed = prices.set_axis(prices.index + timedelta(minutes=5))  # its bars have the times of their closes
    engine.add_data(BarDataWrangler(bar_type, instrument).process(closed))
    engine.add_strategy(Channel(ChannelConfig(bar_type=bar_type)))
    engine.run()
    fills = engine.trader.generate_order_fills_report()
    engine.dispose()
    return sorted(
        (filled, side.lower()) for filled, side in zip(fills["ts_last"], fills["side"], strict=True)
    )


if __name__ == "__main__":
    answer_files(decide)
