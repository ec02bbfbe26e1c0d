"""The days around a halt of the exchange: nothing is entered in it, and the report tells it as it was."""

from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Provider
from tests.flows.sessions import (
    LOADED,
    SAMPLES,
    Evening,
    Line,
    csv_of,
    decided,
    evening,
    lines_of,
    ran,
    rules,
    with_faults,
    write,
)

AROUND = {name: LOADED[name][900:1560] for name in SAMPLES}


def bodies(lines: list[Line], *kinds: str) -> list[Line]:
    """Return the bodies of the lines of these kinds."""
    return [line["body"] for line in lines if line["kind"] in kinds]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def around(provider: Provider | None = None) -> Evening:
    """Play both samples around the halt of 24 March 2023."""
    return await evening(provider, bars=AROUND, most_bars=None)


async def test_entry_fills_precede_intent_expiry() -> None:
    lines = (await around()).lines
    intents = {body["intent_id"]: body for body in bodies(lines, "intent.approved")}

    entries = [
        (moment(fill["bar_open_time"]), moment(intents[fill["intent_id"]]["expires_at"]))
        for fill in bodies(lines, "order.filled")
        if fill["cause"] in {"order", "deadline"} and intents[fill["intent_id"]]["kind"] == "entry"
    ]

    assert entries
    assert all(opened < expires for opened, expires in entries)


async def test_bars_without_trades_get_no_entry() -> None:
    lines = (await around()).lines
    halted = {bar.close_time for bars in AROUND.values() for bar in bars if bar.volume == 0}

    asked = [body for body in bodies(lines, "intent.approved") if moment(body["as_of"]) in halted]

    assert [body for body in asked if body["kind"] == "entry"] == []


async def test_approved_entries_stay_within_gross_limit() -> None:
    lines = (await around()).lines
    entries = [body for body in bodies(lines, "intent.approved") if body["kind"] == "entry"]

    at_once: dict[str, list[Decimal]] = {}
    for body in entries:
        sizing, worth = body["sizing"], Decimal(body["quantity"]) * Decimal(body["arrival_price"])
        assert Decimal(sizing["gross"]) + worth <= Decimal("0.95") * Decimal(sizing["equity"])
        at_once.setdefault(body["as_of"], []).append(Decimal(sizing["gross"]))
    assert entries
    assert all(gross == sorted(gross) for gross in at_once.values())
    refused = bodies(lines, "intent.denied")
    assert {"side", "quantity", "sizing"} <= set(refused[0])


async def test_execution_context_spread_is_1_bps() -> None:
    session = await around()

    told = {
        call.envelope.context["market"]["spread_bps"]
        for call in await session.records()
        if isinstance(call, LLMInteraction) and call.envelope.workflow == "execution"
    }

    assert told == {"1.0"}


async def test_only_placed_intents_are_compared_with_market() -> None:
    session = await around(with_faults(rules(), "refusal=40%"))

    placed = {body["intent_id"] for body in bodies(session.lines, "order.submitted")}
    assert [intent.intent_id for intent in session.played.intents if intent.intent_id not in placed] == []
    assert {intent.intent_id for intent in session.played.intents} == placed
    assert len(placed) < len(bodies(session.lines, "intent.approved"))


@pytest.fixture
async def told(tmp_path: Path) -> tuple[RunReport, list[Line]]:
    """Return the report of a run around the halt, and its decision log."""
    write(tmp_path / "BTCUSDT.csv", csv_of(AROUND[SAMPLES[0]]))
    report = await ran(tmp_path / "out", data=(str(tmp_path / "BTCUSDT.csv"),), bars=None)
    return report, lines_of(decided(tmp_path / "out"))


async def test_quiet_bars_are_reported_with_gaps(
    told: tuple[RunReport, list[Line]],
) -> None:
    (data,) = told[0].data

    assert data.gaps == ["16 bars missing from 2023-03-24 12:40 to 2023-03-24 14:00"]
    assert data.quiet == ["14 bars without a trade from 2023-03-24 11:30 to 2023-03-24 12:40"]


async def test_report_lists_cancellations_and_open_positions(
    told: tuple[RunReport, list[Line]],
) -> None:
    report, lines = told

    reasons = Counter(body["reason"] for body in bodies(lines, "order.canceled"))
    held = sum(
        Decimal(fill["quantity"]) * (1 if fill["side"] == "buy" else -1)
        for fill in bodies(lines, "order.filled")
    )
    assert report.cancelled == reasons
    assert sum(position.quantity for position in report.open_positions) == held
    for position in report.open_positions:
        assert position.mark == AROUND[SAMPLES[0]][-1].close
        assert position.unrealised == position.quantity * (position.mark - position.average_price)
