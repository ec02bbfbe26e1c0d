"""The report of a run as a value, for the command line and for programs."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from shlex import quote
from typing import Final, Literal

from pydantic import BaseModel

from agentic_trading.desk.exchange import OrderType
from agentic_trading.desk.execution.shortfall import Shortfall, TotalShortfall
from agentic_trading.desk.instrument import USDT, Side
from agentic_trading.desk.market.bar import TradingYear
from agentic_trading.desk.metrics import Performance
from agentic_trading.desk.planning.events import PlanChosen
from agentic_trading.desk.session.trading import PaperVenue
from agentic_trading.platform.config import RunMode

Counts = dict[str, int]

FAULT_NAMES: Final = {"cut": "truncated"}
"""The printed names of fault kinds that have another name in the log."""
FAULT_OUTCOMES: Final = {
    "mended, then accepted": "repaired, accepted",
    "asked again, then accepted": "re-asked, accepted",
    "tried again, then accepted": "retried, accepted",
}
"""The printed words for the outcomes of injected faults, by their keys in the report."""
KNOWLEDGE: Final = {
    "in_sample": "in sample",
    "post_cutoff": "after the training cutoff",
    "unknown": "training cutoff unknown",
}
"""The printed words for whether the training data of a model may include the period."""


class DataReport(BaseModel, frozen=True):
    """The bars of one symbol that a run used.

    Attributes:
        name: The source.
        first: The open time of the first bar.
        last: The close time of the last bar.
        gaps: Descriptions of the gaps. Gaps are never filled.
        duplicates: The number of repeated bars, which were left out.
        unclosed: The number of rows that were left out because their bar had not closed.
        late: The number of bars that were left out because they came after the grace period.
        silences: The number of times that its feed was silent, alone or with all others.
        unread: The names of unknown columns.
        quiet: Descriptions of three or more bars in a row without a trade.
        is_sample: Whether the bars ship with the package, so that the built-in rules were written with them
            in view.
        companion: A shipped market that the agents saw as a reference although it was not requested, with its
            source. Empty if there was no such market.

    """

    name: str
    symbol: str
    bars: int
    first: datetime | None
    last: datetime | None
    gaps: list[str]
    duplicates: int
    unclosed: int = 0
    late: int = 0
    silences: int = 0
    unread: list[str] = []
    quiet: list[str] = []
    is_sample: bool = False
    companion: str = ""


class MarketYear(BaseModel, frozen=True):
    """The year of the yearly figures: bars per session, and sessions per year."""

    bars_per_session: int
    sessions: int

    @classmethod
    def of(cls, year: TradingYear | None) -> "MarketYear | None":
        """Return the year of a market, or None without a bar."""
        if year is None:
            return None
        return cls(bars_per_session=year.bars_per_session, sessions=year.sessions_per_year)


class RefusedBudget(BaseModel, frozen=True):
    """A budget that refused attempts.

    Attributes:
        scope: The kind, the id and the window of the budget. The budgets of single calls, and those of single
            chains of decisions, are counted together under their kind.
        unit: nano-USD, tokens or calls.
        calls: The number of refused attempts.
        asked: The amount that the first refused attempt needed, or None if its record lacks it.
        left: The amount that was left at the first refusal, or None if its record lacks it.

    """

    scope: str
    unit: str
    calls: int
    asked: int | None
    left: int | None


class OpenPosition(BaseModel, frozen=True):
    """A position that was open when a run ended.

    Attributes:
        quantity: The quantity, negative for a short position.
        mark: The last close of the symbol.
        unrealised: The quantity times the difference of mark and average price, before the costs of closing
            the position.

    """

    symbol: str
    quantity: Decimal
    average_price: Decimal
    mark: Decimal
    unrealised: Decimal


class WorkingOrder(BaseModel, frozen=True):
    """An order that was not completely filled when a run ended. `left` is the unfilled quantity."""

    order_id: str
    symbol: str
    side: Side
    order_type: OrderType
    left: Decimal
    expires_at: datetime


class FillingCost(BaseModel, frozen=True):
    """The cost of filling, compared with the prices at the decisions.

    Attributes:
        total: The sum over all intents.
        market_now: The cost of the same intents if each had been filled at the open of the next bar.
        intents: The intents that were sent, in order.

    """

    total: TotalShortfall = TotalShortfall()
    market_now: TotalShortfall = TotalShortfall()
    intents: list[Shortfall] = []


class TradeReport(BaseModel, frozen=True):
    """A round trip: the trades of one symbol from a flat position to the next, or to the end of the run.

    Attributes:
        side: `long` or `short`.
        quantity: The largest position.
        closed: The time of the last trade. None if the position is open.
        pnl: The P&L after fees, before inference. An open position counts at the last close.
        inference_nusd: The cost of the calls in the traces of its fills. A trace that led to several round
            trips counts for the first.
        net: The P&L less this cost, in the quote currency. None without a rate.
        fill_id: The first fill.

    """

    symbol: str
    side: Literal["long", "short"]
    quantity: Decimal
    opened: datetime
    closed: datetime | None
    pnl: Decimal
    inference_nusd: int
    net: Decimal | None
    fill_id: str


class EntryChange(BaseModel, frozen=True):
    """A loss limit that was reached, or the resume of halted entries.

    Attributes:
        kind: `tripped` or `resumed`.
        at: The close.
        rules: The limit, or the rules that had halted entries.
        equity: The equity at this close.
        base: The equity that the loss was measured from. None for a resume.
        floor: The equity at which the limit was reached. None for a resume.
        by: The operator who resumed. Empty for the next day and for a limit.

    """

    kind: Literal["tripped", "resumed"]
    at: datetime | None
    rules: tuple[str, ...]
    equity: Decimal
    base: Decimal | None = None
    floor: Decimal | None = None
    by: str = ""


class UnpricedWord(BaseModel, frozen=True):
    """A word in the answers of a model that has no price, such as `service_tier=on_demand`.

    Attributes:
        attempts: The number of attempts with this word. Each was charged its reservation or more.
        add: The instruction to add a price.

    """

    model: str
    word: str
    attempts: int
    add: str


class RunReport(BaseModel, frozen=True):
    """A run in figures. Money is in the quote currency as exact decimals, and cost is in whole nano-dollars.

    Attributes:
        agent: The import path of your own agent. Empty for a shipped one.
        family: The strategy family of an installed package. Empty for a shipped one.
        decisions: The number of verdicts, by workflow and verdict.
        no_decisions: The number of calls without a decision, by workflow and reason.
        plans: The plans of a portfolio, in order.
        refused_budgets: The refused attempts, by the budget that refused them.
        attempts_by_outcome: The number of attempts, by outcome.
        sent: The number of attempts that reached a provider or may have reached it.
        accepted: The number of sent attempts whose answer was used.
        max_calls: The allowed number of calls, or None.
        unpriced: The words without a price, with the attempts that were charged in full because of them.
        bill_problems: The number of answers with an unreadable bill, by problem.
        injected: The outcomes of injected faults, by kind. A requested kind that hit no call has an empty
            count.
        in_doubt: The number of calls that may have been billed. They are charged in full.
        cancelled: The number of orders that were not completely filled, by reason.
        entry_changes: The loss limits that were reached, and the resumes of entries, in order.
        entries_halted: The rules that halted entries at the end.
        working: The orders that were open at the end.
        open_positions: The positions that were open at the end.
        currency: The quote currency.
        inference_nusd: The cost of all calls, in nano-dollars. An answer from a recording counts with the
            cost of its first call.
        inference: The same in the quote currency. None without a rate.
        net_pnl: The P&L less the cost of inference. None without a rate.
        net_performance: The figures of the account, less the cost of inference up to each close. None
            without a rate or a cost.
        trades: The round trips, in order of their first fill.
        market_now_pnl: The profit of the same orders if each had been filled at the open of the next bar.
        performance: The figures of the account at each close, or None without a bar.
        knowledge: The number of calls, by whether the model's training data may include the period.
        assumed: The assumptions that no bar confirms.
        digest: The SHA-256 of the decision log.

    """

    session_id: str
    run_number: int
    mode: RunMode
    agent: str = ""
    family: str = ""
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
    entry_changes: list[EntryChange] = []
    entries_halted: list[str] = []
    working: list[WorkingOrder] = []
    open_positions: list[OpenPosition] = []
    fills: int
    first_fill_id: str
    fees: Decimal
    pnl: Decimal
    currency: str = USDT
    inference_nusd: int = 0
    inference: Decimal | None = None
    net_pnl: Decimal | None = None
    net_performance: Performance | None = None
    trades: list[TradeReport] = []
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

    @property
    def named_again(self) -> str:
        """The options that name the user's code in a replay, with a space before each."""
        named = {"agent": self.agent, "family": self.family}
        return "".join(f" --{option} {quote(name)}" for option, name in named.items() if name)


class RunProgress(BaseModel, frozen=True):
    """The progress of a run. `bars_total` is None if the number of bars is not known."""

    bars_done: int
    bars_total: int | None
    as_of: datetime
    calls: int
    fills: int


def assumptions(venue: PaperVenue, sized: str) -> list[str]:
    """Return the assumptions of a session as phrases, with their values. `sized` is how orders are sized."""
    costs = venue.costs
    return [
        f"fees of {costs.maker_fee_bps} bps for a maker and {costs.taker_fee_bps} for a taker",
        f"{costs.half_spread_bps} bps of half a spread against a taker",
        "shorts without borrow cost",
        "no latency, but no fill before the bar after a decision",
        sized,
        f"{venue.cash:,} to start with",
    ]
