"""A list of chains says what came of each."""

from typing import Any

import pytest

from agentic_trading.app.cli.chains import chain_outcome
from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Record
from tests.build import event, interaction


def step(kind: str, **body: Any) -> Event:
    return event(kind, body=body)


LONG = step("assessment", verdict="long")
REFUSED = step("no_decision", reason={"category": "refusal"})


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        ([], ""),
        ([step("trigger"), step("skip", reason="nothing_new")], ""),
        ([step("trigger"), interaction(), step("assessment", verdict="stand_aside")], "stand_aside"),
        ([interaction(), LONG, step("order.submitted"), step("fill"), step("fill")], "long → 2 fills"),
        ([interaction(), LONG, step("order.submitted"), step("fill")], "long → 1 fill"),
        ([interaction(), LONG, step("order.submitted"), step("order.cancelled")], "long → unfilled"),
        ([interaction(), LONG, step("intent.rejected", rule="max_gross")], "long → rejected"),
        ([interaction(), LONG, step("intent.skipped", reason="position_open")], "long → skipped"),
        ([interaction(), LONG, step("order.intent"), REFUSED], "long → refusal"),
        ([interaction(), REFUSED], "refusal"),
        ([interaction(), step("no_decision")], "no_decision"),
        ([interaction(validation_passed=True)], "accepted"),
    ],
)
def test_a_chain_is_told_by_its_verdict_and_what_followed(records: list[Record], outcome: str) -> None:
    assert chain_outcome(records) == outcome
