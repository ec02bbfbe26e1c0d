"""An agent of your own: it asks a model whether to take a breakout, and sizes the entry by its stop.

    agentic-trading run --data btcusdt-5m --provider rules --agent breakout:Breakout --out runs/breakout
    agentic-trading replay run runs/breakout --agent breakout:Breakout

Run both in this folder. `--agent-config FILE` sets `lookback` and the other attributes.
"""

from pydantic import BaseModel, Field

from agentic_trading.desk import Agent, Bar, Cancellation, Desk, Fill


class Verdict(BaseModel):
    """The answer of the model."""

    take: bool
    confidence: float = Field(ge=0, le=1)
    why: str = Field(max_length=200)


class Breakout(Agent):
    """Buys an hourly close above the last highs, if the model agrees."""

    timeframe = "1h"
    lookback = 20
    least_confidence = 0.3

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        """Ask about a breakout, and request an entry."""
        bars, atr = desk.history(n=self.lookback + 1), desk.atr()
        if len(bars) <= self.lookback or atr is None or desk.position():
            return
        if bar.close <= max(each.high for each in bars[:-1]):
            return
        answer = await desk.decide(
            "Is this breakout worth taking?", output=Verdict, evidence={"bars": bars[-12:]}
        )
        if not answer or answer.output is None or not answer.output.take:
            return
        if answer.output.confidence >= self.least_confidence:
            desk.buy(risk_pct=1, stop=bar.close - 2 * atr, target=bar.close + 3 * atr)

    async def on_fill(self, desk: Desk, report: Fill | Cancellation) -> None:
        """Note the position after each fill."""
        await desk.note("position", quantity=str(desk.position(report.symbol)))
