"""The account as layer 6 is told it: what a stop allows to hold, what is at risk, and what moves together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agentic_trading.desk.market.correlation import RETURNS, Close, ReferenceMarket, correlation_with

NO_BOOK = "no account is handed over"


@dataclass(frozen=True, slots=True)
class Holding:
    """An open position, in the quote currency at its mark.

    `value` is negative for a short. `to_stop` is what is lost from the mark to its stop, 0 or more; None where a part
    of it has no stop. `market` holds the closes of its symbol on the decision timeframe.
    """

    symbol: str
    value: Decimal
    to_stop: Decimal | None
    market: ReferenceMarket


@dataclass(frozen=True, slots=True)
class PortfolioContext:
    """The account at the close of a question, in the quote currency.

    `risk_pct` of the equity may be lost at a stop, and a position may be worth `largest` at most. `gross` is what
    all positions and open entries are worth, long and short added.
    """

    equity: Decimal
    gross: Decimal
    risk_pct: Decimal
    largest: Decimal
    holdings: tuple[Holding, ...] = ()

    def told(self, symbol: str, closes: Sequence[Close]) -> dict[str, Any]:
        """Return exposure, open risk and correlation in percent of the equity and -1..1; what is not known is named.

        The correlation is that of the last 48 returns of `symbol` with those of all other positions together, each
        weighted by its value: negative where a long would hedge them.
        """
        told: dict[str, Any] = {"risk_pct": float(self.risk_pct)}
        if self.equity <= 0:
            return {**told, "not_available": {"exposure": "no equity", "open_risk": "no equity"}}
        absent: dict[str, str] = {}
        told["exposure_pct"] = self._pct(self.gross)
        losses = [each.to_stop for each in self.holdings if each.to_stop is not None]
        if len(losses) == len(self.holdings):
            told["open_risk_pct"] = self._pct(sum(losses, Decimal(0)))
        else:
            absent["open_risk"] = "a position has no stop"
        others = [each for each in self.holdings if each.symbol != symbol]
        weighted = [(each.market, self._pct(each.value)) for each in others]
        together = correlation_with(closes, weighted) if others else None
        if together is not None:
            told["correlation"] = together
        else:
            few = f"needs {RETURNS} returns in common that move"
            absent["correlation"] = few if others else "nothing else is held"
        return {**told, **({"not_available": absent} if absent else {})}

    def sizes_pct(self, stops: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return for each stop how much may be held in percent of the equity, so that it loses `risk_pct` there.

        `stops` tell their `distance_pct` from the entry. Bounded by `largest`; 0 where there is no equity.
        """
        if self.equity <= 0:
            return [0.0] * len(stops)
        most, risk = self._pct(self.largest), float(self.risk_pct)
        return [min(most, 100.0 * risk / stop["distance_pct"]) for stop in stops]

    def _pct(self, value: Decimal) -> float:
        return float(100 * value / self.equity)
