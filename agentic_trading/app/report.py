"""What a run came to, as a value: the command line prints it, a program reads it."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path

from pydantic import BaseModel

from agentic_trading.app.options import Mode

Counts = dict[str, int]


class DataReport(BaseModel, frozen=True):
    """What was fed of one symbol; `gaps` are told as they were found, none was filled."""

    name: str
    symbol: str
    bars: int
    first: datetime | None
    last: datetime | None
    gaps: list[str]
    duplicates: int


class RunReport(BaseModel, frozen=True):
    """A run in figures. Money is in the quote currency as exact decimals, cost in whole nano-dollars.

    `decisions` counts verdicts by workflow, `no_decisions` reasons by workflow, `injected` what became of each
    kind of injected fault. `market_now_pnl` is what the same orders would have made if each had been taken at the
    open of the next bar; `knowledge` counts calls by whether the model may have seen the period in training.
    `digest` is the SHA-256 of the decision log.
    """

    session_id: str
    run_number: int
    mode: Mode
    provider: str
    model: str
    data: list[DataReport]
    decisions: dict[str, Counts]
    no_decisions: dict[str, Counts]
    skips: Counts
    attempts: int
    attempts_by_outcome: Counts
    injected: dict[str, Counts]
    input_tokens: int
    output_tokens: int
    cost_nusd: int
    budget_nusd: int
    in_doubt: int
    intents: int
    intents_rejected: Counts
    orders: int
    fills: int
    first_fill_id: str
    fees: Decimal
    pnl: Decimal
    equity_start: Decimal
    equity_end: Decimal
    buy_and_hold_pnl: Decimal
    market_now_pnl: Decimal
    knowledge: Counts
    log: Path
    decision_log: Path
    digest: str
    elapsed_s: float
    interrupted: bool


class Progress(BaseModel, frozen=True):
    """How far a run is; `bars_total` is None where the feed does not know its end."""

    bars_done: int
    bars_total: int | None
    as_of: datetime
    calls: int
    fills: int
