"""A list of chains says what came of each."""

from typing import Any

import pytest

from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Record
from agentic_trading.operate.trace_lines import chain_outcome
from tests.build import event, interaction


def step(kind: str, **body: Any) -> Event:
    return event(kind, body=body)


LONG = step("analysis.assessed", verdict="long")
REFUSED = step("analysis.undecided", reason={"category": "refusal"})


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        ([], ""),
        ([step("analysis.triggered"), step("analysis.skipped", reason="nothing_new")], ""),
        (
            [step("analysis.triggered"), interaction(), step("analysis.assessed", verdict="stand_aside")],
            "stand_aside",
        ),
        (
            [interaction(), LONG, step("order.submitted"), step("order.filled"), step("order.filled")],
            "long → 2 fills",
        ),
        ([interaction(), LONG, step("order.submitted"), step("order.filled")], "long → 1 fill"),
        ([interaction(), LONG, step("order.submitted"), step("order.canceled")], "long → unfilled"),
        ([interaction(), LONG, step("intent.denied", rule="max_gross")], "long → rejected"),
        ([interaction(), LONG, step("intent.skipped", reason="position_open")], "long → skipped"),
        ([interaction(), LONG, step("intent.approved"), REFUSED], "long → refusal"),
        ([interaction(), REFUSED], "refusal"),
        ([interaction(), step("analysis.undecided")], "no_decision"),
        ([interaction(validation_passed=True)], "accepted"),
    ],
)
def test_chain_outcome_is_verdict_and_result(records: list[Record], outcome: str) -> None:
    assert chain_outcome(records) == outcome
