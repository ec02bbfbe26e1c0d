"""A backtest of target weights: filled one bar after each decision, with costs."""

from dataclasses import dataclass
from typing import Final

from agentic_trading.desk.metrics import DAYS_PER_YEAR, Performance, performance
from agentic_trading.desk.planning.panel import Flags, Floats, Panel
from agentic_trading.errors import extra_named

with extra_named():
    import numpy as np

ENGINE_VERSION: Final = 1
"""Must be increased when equal weights would give other figures."""
_MOST_WEIGHT: Final = 1 + 1e-9
_LEAST_BUY: Final = 1e-12
"""The minimum purchase, as a share of the account."""


@dataclass(frozen=True, slots=True)
class TradeCosts:
    """The costs of a trade, in basis points of its value.

    Their sum must be below 10,000.
    """

    fee_bps: float = 10.0
    slippage_bps: float = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Backtest:
    """An account over all bars of a panel.

    Attributes:
        equity: The equity at each close.
        cash: The cash at each close.
        shares: The shares held at each close, one column per symbol.
        traded: The value bought and sold at each open.
        paid: The costs of these trades.
        stopped: The number of positions that hit their stop.
        vanished: Symbols that were held when they vanished. They stay in `equity` at their last close until a
            price lets them be sold.

    """

    equity: Floats
    cash: Floats
    shares: Floats
    traded: Floats
    paid: Floats
    stopped: int
    vanished: tuple[str, ...]

    def performance(
        self, first: int = 0, last: int | None = None, *, bars_per_year: float = DAYS_PER_YEAR
    ) -> Performance:
        """Return the figures of bars `first` to `last`, without `last`.

        The figures begin with the equity at the close before `first`.
        """
        start = max(first - 1, 0)  # the first bar has no trades, because no decision was made before it
        equity, traded = self.equity[start:last].tolist(), self.traded[start + 1 : last].tolist()
        return performance(equity, traded, bars_per_year=bars_per_year)


def backtest(
    panel: Panel,
    weights: Floats,
    rebalance: Flags,
    *,
    stop_loss: float | None = None,
    costs: TradeCosts = TradeCosts(),
    start: int = 0,
    capital: float = 1.0,
) -> Backtest:
    """Trade target weights over past prices.

    Row t is decided at close t and filled at the open of the next bar. On a bar of `rebalance`, all stocks
    are set to their weights. On other bars, only stocks whose weight has changed are traded. An order without
    a price on its bar waits for the next price. Costs are paid from the account, and weights are shares of
    the account after costs. If the cash is too low, purchases are reduced.

    A position whose close is at or below its entry price, slippage included, less the share `stop_loss` is
    sold on the next bar. It stays out until its weight has been 0. A vanished stock has weight 0. No decision
    uses a later bar.

    Args:
        panel: The prices.
        weights: One row per bar and one column per stock, as `panel.close`.
        rebalance: One flag per bar.
        stop_loss: The share of the entry price, or None without stops.
        costs: The costs of a trade.
        start: Decisions before this bar are ignored.
        capital: The cash at the start.

    Raises:
        ValueError: If weights are not finite numbers of 0 or more in the shape of the prices, or sum to more
            than 1 in a bar.

    """
    if weights.shape != panel.close.shape or not (weights >= 0).all():
        raise ValueError(f"weights must be {panel.close.shape} numbers of 0 or more")
    if (weights.sum(axis=1) > _MOST_WEIGHT).any():
        raise ValueError("the weights of a bar must sum to 1 or less")
    targets = np.where(np.isnan(panel.filled), 0.0, weights)
    targets[:start] = 0.0
    account = _Account(panel, targets, rebalance, stop_loss, costs, capital)
    account.trade()
    equity = account.cash_at + (account.shares_at * panel.marks).sum(axis=1)
    _, lost = np.nonzero((account.shares_at > 0) & np.isnan(panel.filled))
    return Backtest(
        equity=equity,
        cash=account.cash_at,
        shares=account.shares_at,
        traded=account.traded,
        paid=account.traded * account.cost,
        stopped=account.stopped,
        vanished=tuple(panel.symbols[stock] for stock in np.unique(lost).tolist()),
    )


def hold_equal_weight(
    panel: Panel,
    *,
    start: int = 0,
    costs: TradeCosts = TradeCosts(),
    capital: float = 1.0,
) -> Backtest:
    """Buy equal values of all stocks with a price at bar `start`.

    Each stock is held until it vanishes.
    """
    alive = np.logical_and.accumulate(~np.isnan(panel.filled[start:]), axis=0)
    weights = np.zeros_like(panel.close)
    weights[start:] = alive / max(alive[0].sum(), 1)
    never = np.zeros(len(panel.days), dtype=np.bool_)
    return backtest(panel, weights, never, start=start, costs=costs, capital=capital)


class _Account:
    """An account that moves from fill to fill. Between fills only prices change."""

    def __init__(
        self,
        panel: Panel,
        targets: Floats,
        rebalance: Flags,
        stop_loss: float | None,
        costs: TradeCosts,
        capital: float,
    ) -> None:
        self.cost = (costs.fee_bps + costs.slippage_bps) / 10_000
        bars, stocks = targets.shape
        self.cash_at, self.shares_at, self.traded = np.zeros(bars), np.zeros((bars, stocks)), np.zeros(bars)
        self.stopped = 0
        self._close, self._targets = panel.close, targets
        self._priced = ~np.isnan(panel.open)
        self._prices = np.where(self._priced, panel.open, np.roll(panel.marks, 1, axis=0))
        self._orders = (np.diff(targets, axis=0, prepend=0.0) != 0) | rebalance[:, None]
        self._kept = None if stop_loss is None else 1 - stop_loss
        self._slipped = 1 + costs.slippage_bps / 10_000
        self._cash, self._shares, self._entry = capital, np.zeros(stocks), np.zeros(stocks)
        self._waiting, self._leaving, self._barred = (np.zeros(stocks, dtype=np.bool_) for _ in range(3))

    def trade(self) -> None:
        """Process all bars."""
        bars = len(self._targets)
        at = 0
        for due in (*(np.flatnonzero(self._orders.any(axis=1)) + 1).tolist(), bars):
            while at < due:
                fill = self._next_stop(at, self._next_price(at, due))
                self.shares_at[at:fill] = self._shares
                self.cash_at[at:fill] = self._cash
                if fill < bars:
                    self._fill(fill)
                at = fill

    def _next_price(self, at: int, due: int) -> int:
        """Return the next bar in which a waiting order has a price, at most `due`."""
        if not self._waiting.any():
            return due
        priced = self._priced[at + 1 : due, self._waiting].any(axis=1)
        return at + 1 + int(priced.argmax()) if priced.any() else due

    def _next_stop(self, at: int, due: int) -> int:
        """Mark the first stops from `at` on. Return the bar after them, at most `due`."""
        if self._kept is None:
            return due
        stops = np.where(self._shares > 0, self._entry * self._kept, -1.0)
        hits = self._close[at:due] <= stops
        if not hits.any():
            return due
        first = int(hits.any(axis=1).argmax())
        self._leaving |= hits[first]
        self._barred |= hits[first]
        self.stopped += int(hits[first].sum())
        return at + first + 1

    def _fill(self, bar: int) -> None:
        """Trade the last decisions and waiting orders at the open of `bar`."""
        wanted, price = self._targets[bar - 1], self._prices[bar]
        self._barred &= wanted > 0
        aim = np.where(self._barred | self._leaving, 0.0, wanted)
        due = self._orders[bar - 1] | self._waiting | self._leaving
        now = due & self._priced[bar]
        self._waiting = due & ~now & ((self._shares > 0) | (aim > 0))
        self._leaving &= ~now
        held = self._shares * price
        value = float(self._cash + held.sum())
        change = np.where(now, aim * self._after_costs(value, aim * now, held * now) - held, 0.0)
        bought = np.maximum(change, 0.0)
        sold = bought - change
        bought *= self._affordable(float(bought.sum()), float(sold.sum()))
        # A smaller purchase is a rounding error. It would be a position with a stop.
        self._move(bar, np.where(bought > _LEAST_BUY * value, bought, 0.0) - sold, price)
        self._shares[now & (aim == 0)] = 0.0  # otherwise a rounding error could stay as a position

    def _after_costs(self, value: float, aim: Floats, held: Floats) -> float:
        """Return x = value - cost * sum(|aim * x - held|), by Newton's method."""
        after = value
        # Newton's method reaches the exact value, because the sum is piecewise linear.
        if self.cost:
            for _ in range(len(aim) + 2):
                side = np.sign(aim * after - held)
                before = after
                after = (value + self.cost * float(side @ held)) / (1 + self.cost * float(side @ aim))
                if after == before:
                    break
        return after

    def _affordable(self, bought: float, sold: float) -> float:
        """Return the share of the purchases that cash and sales can pay."""
        left = max(self._cash + sold * (1 - self.cost), 0.0)  # a rounding may leave cash below 0
        price = bought * (1 + self.cost)
        return left / price if price > left else 1.0

    def _move(self, bar: int, change: Floats, price: Floats) -> None:
        grown = change > 0
        shares = self._shares + change / np.where(change == 0, 1.0, price)
        paid = self._shares * self._entry + change * self._slipped
        self._entry = np.where(grown, paid / np.where(grown, shares, 1.0), self._entry)
        self._shares = shares
        self.traded[bar] = np.abs(change).sum()
        self._cash -= float(change.sum()) + self.cost * float(self.traded[bar])
