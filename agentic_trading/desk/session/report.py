"""The report of a run as a value: the command line prints it, a program reads it."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path

from pydantic import BaseModel

from agentic_trading.desk.exchange import OrderType
from agentic_trading.desk.execution.risk import RiskLimits
from agentic_trading.desk.execution.shortfall import Shortfall, TotalShortfall
from agentic_trading.desk.instrument import Side
from agentic_trading.desk.intents import TradingRules
from agentic_trading.desk.market.bar import TradingYear
from agentic_trading.desk.metrics import Performance
from agentic_trading.desk.planning.events import PlanChosen
from agentic_trading.desk.session.trading import PaperVenue
from agentic_trading.platform.config import RunMode

Counts = dict[str, int]


class DataReport(BaseModel, frozen=True):
    """What was fed of one symbol; `gaps` stand as they were found, none was filled.

    `quiet` are runs of three and more bars in which nothing traded. `unclosed` counts rows that were left out because their
    bar had not closed, `unread` are unknown columns.
    `is_sample` says that the bars ship with the package, so that the rules were written with them in view. `companion`
    is another market that the agents saw beside it without being asked for, and where it came from; empty for none.
    """

    name: str
    symbol: str
    bars: int
    first: datetime | None
    last: datetime | None
    gaps: list[str]
    duplicates: int
    unclosed: int = 0
    unread: list[str] = []
    quiet: list[str] = []
    is_sample: bool = False
    companion: str = ""


class MarketYear(BaseModel, frozen=True):
    """What a year is for the yearly figures: bars of a session, and sessions."""

    bars_per_session: int
    sessions: int

    @classmethod
    def of(cls, year: TradingYear | None) -> "MarketYear | None":
        """Return the year of the market that was fed; None without a bar."""
        if year is None:
            return None
        return cls(bars_per_session=year.bars_per_session, sessions=year.sessions_per_year)


class RefusedBudget(BaseModel, frozen=True):
    """A budget that refused `calls` attempts; `left` and `asked` are those of the first, None where its record does not say.

    `scope` is the kind, the id and the window; every call and every chain of decisions has a budget of its own, which
    are counted together. `unit` is nano-USD, tokens or calls.
    """

    scope: str
    unit: str
    calls: int
    asked: int | None
    left: int | None


class OpenPosition(BaseModel, frozen=True):
    """What was held of a symbol when a run ended, negative for a short; `mark` is its last close.

    `unrealised` is quantity times the way from the average price to the mark, before the costs of leaving.
    """

    symbol: str
    quantity: Decimal
    average_price: Decimal
    mark: Decimal
    unrealised: Decimal


class WorkingOrder(BaseModel, frozen=True):
    """An order that had something left to fill when a run ended."""

    order_id: str
    symbol: str
    side: Side
    order_type: OrderType
    left: Decimal
    expires_at: datetime


class FillingCost(BaseModel, frozen=True):
    """What filling has cost against the prices at which it was decided.

    `intents` are those that were sent, in order, and `total` their sum; `market_now` is what the same ones would have
    cost if each had been taken at the open of the next bar.
    """

    total: TotalShortfall = TotalShortfall()
    market_now: TotalShortfall = TotalShortfall()
    intents: list[Shortfall] = []


class UnpricedWord(BaseModel, frozen=True):
    """A word of the answers of `model` that has no price, such as `service_tier=on_demand`.

    `attempts` were charged what was set aside for them, at least. `add` is what gives it a price.
    """

    model: str
    word: str
    attempts: int
    add: str


class RunReport(BaseModel, frozen=True):
    """A run in figures. Money is in the quote currency as exact decimals, cost in whole nano-dollars.

    `decisions` counts verdicts by workflow, `no_decisions` reasons by workflow, `plans` are those of a portfolio in order, `refused_budgets` attempts by the budget
    that refused them, `unpriced` words for which attempts were charged in full, `bill_problems` how many answers had a
    bill that was not read, and why, `injected` the outcomes of each kind of injected fault. `market_now_pnl` is what the same orders would have made if each had been taken at the
    open of the next bar; `performance` is of the account at each close, None without a bar; `cancelled` counts orders by
    why the rest of them was not filled, and `working` are those
    that were still open at the end, as `open_positions` are; `knowledge` counts calls by whether the model may have
    seen the period in training; `sent` attempts reached a provider or may have, `accepted` of them gave an answer that
    was used, and `max_calls` is how many were allowed; `assumed` are the assumptions that no bar confirms. An injected kind of fault
    that was asked for and hit nothing counts nothing. `digest` is the SHA-256 of the decision log.
    """

    session_id: str
    run_number: int
    mode: RunMode
    provider: str
    model: str
    data: list[DataReport]
    decisions: dict[str, Counts]
    no_decisions: dict[str, Counts]
    plans: list[PlanChosen] = []
    refused_budgets: list[RefusedBudget] = []
    skips: Counts
    attempts: int
    attempts_by_outcome: Counts
    sent: int = 0
    accepted: int = 0
    max_calls: int | None = None
    unpriced: list[UnpricedWord] = []
    bill_problems: Counts = {}
    injected: dict[str, Counts]
    input_tokens: int
    output_tokens: int
    cost_nusd: int
    budget_nusd: int
    in_doubt: int
    intents: int
    intents_rejected: Counts
    orders: int
    orders_refused: Counts = {}
    cancelled: Counts = {}
    working: list[WorkingOrder] = []
    open_positions: list[OpenPosition] = []
    fills: int
    first_fill_id: str
    fees: Decimal
    pnl: Decimal
    equity_start: Decimal
    equity_end: Decimal
    buy_and_hold_pnl: Decimal
    market_now_pnl: Decimal
    shortfall: FillingCost = FillingCost()
    performance: Performance | None = None
    year: MarketYear | None = None
    knowledge: Counts
    assumed: list[str] = []
    log: Path
    decision_log: Path
    digest: str
    elapsed_s: float
    interrupted: bool


class RunProgress(BaseModel, frozen=True):
    """How far a run is; `bars_total` is None where the feed does not know its end."""

    bars_done: int
    bars_total: int | None
    as_of: datetime
    calls: int
    fills: int


def assumptions(venue: PaperVenue, sizing: TradingRules | RiskLimits) -> list[str]:
    """Return what was assumed, a phrase each, with the values that a session was played with.

    What orders are sized by are rules, or for the weights of a plan its limits.
    """
    costs = venue.costs
    if isinstance(sizing, TradingRules):
        sized = f"{sizing.risk_pct} % of the equity at risk an entry"
    else:
        sized = (
            f"weights of a plan in {sizing.max_gross_pct} % of the equity, its stops looked at on each close"
        )
    return [
        f"fees of {costs.maker_fee_bps} bps for a maker and {costs.taker_fee_bps} for a taker",
        f"{costs.half_spread_bps} bps of half a spread against a taker",
        "shorts without borrow cost",
        "no latency, but no fill before the bar after a decision",
        sized,
        f"{venue.cash:,} to start with",
    ]
