"""The facts of an index are the columns of an export, so that both give the same answers."""

from typing import Any

import pytest

from agentic_trading.audit.columns import row_of
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.facts import NAME_FIELDS
from agentic_trading.llm.log_line import index_row_of
from agentic_trading.llm.store import ChainHead, Record
from agentic_trading.llm.stores.record_codec import write_line
from agentic_trading.llm.stores.record_facts import fact_of
from tests.build import event, interaction

TIMEOUT = FailureReason(category=FailureKind.TIMEOUT, description="Too slow.", recoverable=True)
NUMBERS = ("attempt", "input_tokens", "output_tokens", "cost_nusd", "latency_ms")


@pytest.mark.parametrize(
    "record",
    [
        interaction(cache_read_tokens=7, subject="BTCUSDT", latency_ms=12.345678),
        interaction(success=False, failure=TIMEOUT, attempt_number=2),
        event("order.denied", body={"verdict": "denied", "reason": {"category": "halted"}}),
        event(body={"verdict": None, "reason": {"category": None}, "symbol": "ETHUSDT"}),
    ],
    ids=["attempt", "failure", "denial", "nulls"],
)
def test_facts_are_columns(record: Record) -> None:
    line, _ = write_line(record.wire, ChainHead())
    columns, _ = row_of(line, "log")

    fact = fact_of(1, index_row_of(record.wire))

    for name in NAME_FIELDS:
        assert getattr(fact, name) == (columns[name] or "")
    for number in NUMBERS:
        assert getattr(fact, number) == (columns[number] or 0)


@pytest.mark.parametrize("value", ["", "x", 3, True, [1, "a"], {"a": [None]}, "{}"], ids=str)
@pytest.mark.parametrize("reason", ["text", [1], {}, {"category": 5}, {"category": {"a": 1}}], ids=str)
def test_odd_values_are_the_same_texts(value: Any, reason: Any) -> None:
    told = event(body={"verdict": value, "reason": reason})
    line, _ = write_line(told.wire, ChainHead())
    columns, _ = row_of(line, "log")

    row = index_row_of(told.wire)

    assert (row.verdict, row.failure) == (columns["verdict"] or "", columns["failure"] or "")
