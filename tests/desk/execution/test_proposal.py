"""From a proposal to an approved intent, and what keeps it from becoming one."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from agentic_trading.desk.execution.order import Sizing
from agentic_trading.desk.execution.risk import (
    Approved,
    EntryProposal,
    Rejection,
    RiskFacts,
    RiskLimits,
    propose_entry,
    propose_exit,
)
from agentic_trading.desk.instrument import Side
from tests.desk.trade import BTC, FIVE_MINUTES, START, exit_intent, intent

FACTS = RiskFacts(last_close=Decimal("100.5"), equity=Decimal(10_000))
LIMITS = RiskLimits()
WHEN = {"as_of": START + FIVE_MINUTES, "expires_at": START + timedelta(hours=1)}
LONG = EntryProposal(
    side=Side.BUY,
    entry=None,
    stop=Decimal("98.5049"),
    target=Decimal("104.0099"),
    risk_pct=Decimal(1),
    reason="trend",
    trace_id="t1",
    causation_id="assessment-1",
    **WHEN,
)


def approved(proposal: EntryProposal) -> Any:
    """Return the intent of a proposal that must pass."""
    outcome = propose_entry(proposal, LIMITS, BTC, FACTS)
    assert isinstance(outcome, Approved)
    return outcome.intent


def test_entry_sized_to_stop_on_grid() -> None:
    made = approved(LONG)

    assert (made.stop_loss, made.take_profit) == (Decimal("98.50"), Decimal("104.00"))
    assert made.quantity == Decimal("50.000")  # 100 to lose, 2.00 a unit
    assert (made.arrival_price, made.limit_price, made.reference_price) == (
        Decimal("100.5"),
        None,
        Decimal("100.5"),
    )
    assert (made.trace_id, made.causation_id, made.kind) == ("t1", "assessment-1", "entry")


def test_priced_entry_sized_from_limit() -> None:
    made = approved(replace(LONG, entry=Decimal("99.5099")))

    assert made.limit_price == Decimal("99.50")
    assert made.quantity == Decimal("95.477")  # 95 % of the equity binds before the 100 to lose
    assert made.reference_price == Decimal("99.50")


def test_short_rounds_to_opposite_grid_side() -> None:
    short = replace(LONG, side=Side.SELL, entry=Decimal("101.001"), stop=Decimal("102.501"), target=None)

    made = approved(short)

    assert (made.limit_price, made.stop_loss, made.take_profit) == (
        Decimal("101.01"),
        Decimal("102.51"),
        None,
    )


def test_intent_contains_sizing_facts() -> None:
    facts = replace(FACTS, position=Decimal(-1), pending=Decimal("0.5"), gross=Decimal(150))

    entry = propose_entry(LONG, LIMITS, BTC, facts)
    leave = propose_exit("flip", LIMITS, BTC, facts, trace_id="t1", causation_id="a2", **WHEN)

    assert isinstance(entry, Approved)
    assert isinstance(leave, Approved)
    sizing = Sizing(
        equity=Decimal(10_000),
        position=Decimal(-1),
        pending=Decimal("0.5"),
        gross=Decimal(150),
        risk_pct=Decimal(1),
        sized_by="risk",
    )
    assert entry.intent.sizing == sizing
    assert leave.intent.sizing == sizing.model_copy(update={"risk_pct": None, "sized_by": "position"})


def test_proposal_rejection_contains_sizing() -> None:
    full = propose_entry(LONG, LIMITS, BTC, replace(FACTS, gross=Decimal(9_000)))
    small = propose_entry(LONG, LIMITS, BTC, replace(FACTS, equity=Decimal("0.1")))

    assert isinstance(full, Rejection)
    assert isinstance(small, Rejection)
    assert (full.rule, full.side, full.quantity) == ("max_gross", "buy", 50)
    assert full.sizing is not None
    assert (full.sizing.gross, full.sizing.sized_by) == (9_000, "risk")
    assert (small.rule, small.side, small.quantity) == ("min_quantity", "buy", 0)
    assert small.sizing is not None


def test_equal_proposals_give_equal_intents() -> None:
    assert approved(LONG) == approved(LONG)


def test_undersized_proposal_is_rejected() -> None:
    outcome = propose_entry(LONG, LIMITS, BTC, replace(FACTS, equity=Decimal("0.1")))

    assert isinstance(outcome, Rejection)
    assert outcome.rule == "min_quantity"


def test_proposal_outside_limits_is_rejected() -> None:
    outcome = propose_entry(replace(LONG, stop=Decimal(101)), LIMITS, BTC, FACTS)

    assert isinstance(outcome, Rejection)
    assert outcome.rule == "stop_loss"


@pytest.mark.parametrize(("position", "side"), [(Decimal("0.7"), "sell"), (Decimal("-0.7"), "buy")])
def test_exit_closes_entire_position(position: Decimal, side: str) -> None:
    held = replace(FACTS, position=position)

    outcome = propose_exit("flip", LIMITS, BTC, held, trace_id="t1", causation_id="a2", **WHEN)

    assert isinstance(outcome, Approved)
    assert (outcome.intent.side, outcome.intent.quantity, outcome.intent.kind) == (
        side,
        Decimal("0.7"),
        "exit",
    )


def test_flat_position_has_no_exit() -> None:
    outcome = propose_exit("flip", LIMITS, BTC, FACTS, trace_id="t1", causation_id="a2", **WHEN)

    assert isinstance(outcome, Rejection)
    assert outcome.was == "flat"


def test_intent_expiry_must_follow_start() -> None:
    with pytest.raises(ValidationError, match="must be after as_of"):
        intent(expires_at=START)


def test_exit_with_stop_is_rejected() -> None:
    with pytest.raises(ValidationError, match="an exit takes no"):
        exit_intent(stop_loss=Decimal(1))
