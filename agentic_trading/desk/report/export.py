"""The figures of a run as CSV files: equity, fills, decisions and calls."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, fields
from datetime import datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path

from agentic_trading.canonical import utc_text
from agentic_trading.desk.report.figures import inference_at_closes
from agentic_trading.desk.report.record import AttemptOnRecord, DecisionOnRecord, RunOnRecord
from agentic_trading.files import replace_file
from agentic_trading.operate.session_folder import writing

Row = Sequence[object]


def write_csv(run: RunOnRecord, folder: Path) -> list[Path]:
    """Write `equity.csv`, `fills.csv`, `decisions.csv` and `calls.csv`, and return their paths.

    Raises:
        StoreError: If a file cannot be written.

    """
    tables: dict[str, tuple[Row, Iterable[Row]]] = {
        "equity": (EQUITY, _equity(run)),
        "fills": (FILLS, _fills(run)),
        "decisions": (_names(DecisionOnRecord), map(astuple, run.decisions)),
        "calls": (_names(AttemptOnRecord), map(astuple, run.attempts)),
    }
    with writing(folder, option="--csv"):
        folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / f"{name}.csv", head, rows) for name, (head, rows) in tables.items()]


EQUITY: Row = ("time", "equity", "buy_and_hold", "market_orders", "inference_usd")
FILLS: Row = (
    "time",
    "fill_id",
    "symbol",
    "side",
    "quantity",
    "price",
    "fee",
    "fee_currency",
    "liquidity",
    "cause",
    "order_id",
    "intent_id",
    "trace_id",
)


def _equity(run: RunOnRecord) -> Iterator[Row]:
    """Yield the equity at each close, with the cost of all calls up to it."""
    for point, usd in zip(run.points, inference_at_closes(run), strict=True):
        yield point.at, point.equity, point.held, point.market_now, usd


def _fills(run: RunOnRecord) -> Iterator[Row]:
    for each in run.fills:
        fill = each.fill
        priced = (
            fill.side,
            fill.quantity,
            fill.price,
            fill.fee,
            fill.fee_currency,
            fill.liquidity,
            fill.cause,
        )
        yield fill.time, each.event_id, fill.symbol, *priced, fill.order_id, fill.intent_id, fill.trace_id


def _names(row: type) -> Row:
    return tuple(each.name for each in fields(row))


def _write(path: Path, head: Row, rows: Iterable[Row]) -> Path:
    # In memory first, so that a reader never sees half a file.
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(head)
    table.writerows([_cell(value) for value in row] for row in rows)
    with writing(path, option="--csv"):
        replace_file(path, text.getvalue().encode(), sync=False)
    return path


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return utc_text(value)
    return f"{value:f}" if isinstance(value, Decimal) else value
