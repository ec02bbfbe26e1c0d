"""A step is told in a few lines, whatever its body holds."""

from typing import Any

import pytest

from agentic_trading.audit.trace import EventNode
from agentic_trading.operate.trace_lines import step_text
from tests.build import event

JUDGED = {"score": 2, "findings": [{"text": "1h points up", "evidence_ids": ["E1", "E3"]}]}

TODAYS = {"score": 1, "finding": "it pays", "evidence": "E9"}


def lines_of(kind: str, **body: Any) -> list[str]:
    return step_text(EventNode(event(kind, body=body)))


def test_assessment_shows_layers_and_plan() -> None:
    layers = {
        "trend": JUDGED,
        "system": TODAYS,
        "risk": {"score": -1, "findings": []},
        "levels": {"score": 0},
    }

    lines = lines_of(
        "analysis.assessed",
        verdict="long",
        judgement={"layers": layers},
        plan={"side": "buy", "target": "29.5"},
    )

    assert lines == [
        "verdict long",
        "levels 0: no finding",
        "risk -1: no finding",
        "system +1: it pays (E9)",
        "trend +2: 1h points up (E1, E3)",
        "plan: side buy · target 29.5",
    ]


@pytest.mark.parametrize("layers", [None, [], {"trend": None}, {"trend": {"findings": "none", "score": "2"}}])
def test_foreign_assessment_is_shown_if_readable(layers: Any) -> None:
    lines = lines_of("analysis.assessed", judgement={"layers": layers})

    assert lines in ([], ["trend no score: no finding"])


@pytest.mark.parametrize("kind", ["intent.approved", "intent.denied", "order.denied"])
def test_order_sizing_is_shown_if_recorded(kind: str) -> None:
    sizing = {"sized_by": "risk", "equity": "100000", "risk_pct": "1", "position": "0", "gross": "0"}

    assert "sized: sized_by risk · equity 100000 · risk_pct 1 · position 0 · gross 0" in lines_of(
        kind, sizing=sizing
    )
    assert not any("sized" in line for line in lines_of(kind, quantity="2"))


@pytest.mark.parametrize(
    ("stored", "shown"),
    [("0E-7", "0"), ("1.50E-7", "0.000000150"), ("-2E+3", "-2000"), ("1E+999", "1E+999"), ("0.10", "0.10")],
)
def test_stored_decimal_is_shown_without_exponent(stored: str, shown: str) -> None:
    sizing = {"sized_by": "risk", "gross": stored}

    assert lines_of("intent.denied", sizing=sizing) == [f"sized: sized_by risk · gross {shown}"]


def test_facts_of_a_note_are_shown_by_name() -> None:
    lines = lines_of("agent.noted", text="state", facts={"quantity": "0E-7", "levels": {"low": 1, "high": 2}})

    assert lines == ["text state", "facts levels high 2, low 1, quantity 0"]
