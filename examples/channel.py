"""A strategy of plain rules: it buys above the highs of 20 bars, and sells below the lows of 10.

    agentic-trading run --data btcusdt-5m --provider rules --agent channel:Channel --out runs/channel
    agentic-trading replay run runs/channel --agent channel:Channel

Run both in this folder. `docs/how-to/move-a-strategy.md` has the same strategy for two other libraries.
"""

from agentic_trading.desk import Agent, Bar, Desk


class Channel(Agent):
    """Holds one unit from a close above the last highs to a close below the last lows."""

    entry = 20
    exit = 10

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        """Buy or sell at the next open."""
        *before, _ = desk.history(n=self.entry + 1)
        if len(before) < self.entry:
            return
        if not desk.position() and bar.close > max(each.high for each in before):
            desk.buy(quantity=1)
        elif desk.position() and bar.close < min(each.low for each in before[-self.exit :]):
            desk.close()
