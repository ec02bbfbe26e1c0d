"""A run over many stocks: plans as the market changes, trades their weights, and can be replayed and gone on with."""

import asyncio
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.planning.params import PlanTerms
from agentic_trading.desk.session.options import plan_on_record
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.errors import OptionError
from tests.flows.sessions import kept_in, ran

PANEL: dict[str, Any] = {"data": ["sp500-sample"]}
DAYS: dict[str, Any] = {**PANEL, "bars": 178}
"""Long enough for a second plan."""
TERMS: dict[str, Any] = {"family": "volatility", "rounds": 2}

pytestmark = pytest.mark.timeout(180)  # each plan starts processes, and so does each change of weights


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """Return the report of a run that ends with its first plan."""
    return asyncio.run(ran(tmp_path_factory.mktemp("panel"), **PANEL, bars=145))


@pytest.fixture(scope="module")
def whole(part: RunReport) -> RunReport:
    """Return the report of this run after its resumption."""
    # Its replay decides without an interruption, so that no second run of this length is needed.
    return asyncio.run(ran(part.log.parent, **DAYS, resume=True))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """Return the report of a short run on terms of its own. Tests resume copies of it."""
    return asyncio.run(ran(tmp_path_factory.mktemp("searched"), **PANEL, **TERMS, bars=145))


async def test_plans_follow_history_and_regime_changes(
    whole: RunReport,
) -> None:
    regimes = [plan.regime for plan in whole.plans]

    assert len(regimes) > 1
    assert all(before != after for before, after in pairwise(regimes))
    assert whole.plans[0].as_of.date().isoformat() == "2010-03-23"
    assert whole.decisions["planning"] == {"momentum": len(regimes)}
    assert whole.intents == whole.orders > 50


async def test_orders_are_caused_by_answered_plans(whole: RunReport) -> None:
    records = await kept_in(whole.log)
    events = {record.id: record for record in records if isinstance(record, Event)}
    asked = {record.interaction_id: record for record in records if isinstance(record, LLMInteraction)}

    intents = [event for event in events.values() if event.kind == "intent.approved"]
    for intent in intents:
        plan = events[intent.causation_id]
        accepted = events[plan.causation_id]
        proposed = events[accepted.causation_id]
        assert (plan.kind, accepted.kind, proposed.kind) == (
            "plan.chosen",
            "generation.accepted",
            "generation.proposed",
        )
        assert asked[proposed.causation_id].envelope.workflow == "planning"
        assert intent.as_of is not None
        assert plan.as_of is not None
        assert plan.as_of <= intent.as_of


async def test_resumed_portfolio_run_replays_identically(part: RunReport, whole: RunReport) -> None:
    again = await replay(whole.log.parent, workers=8)

    assert len(part.plans) == 1
    assert part.plans == whole.plans[:1]
    assert again.identical
    assert again.digest == whole.digest
    assert (again.misses, again.unused) == (0, 0)


async def test_failed_plans_leave_equity_unchanged(tmp_path: Path) -> None:
    report = await ran(tmp_path, **PANEL, bars=160, inject="refusal=100%")

    assert report.plans == []
    assert report.intents == 0
    assert report.no_decisions == {"planning": {"refusal": report.no_decisions["planning"]["refusal"]}}
    assert report.no_decisions["planning"]["refusal"] > 1
    assert report.equity_end == report.equity_start


async def terms_of(folder: Path) -> PlanTerms | None:
    """Return on which terms the last run in a folder searches for its plans."""
    return plan_on_record(await asyncio.to_thread(SessionFolder(folder).read_manifest))


async def test_resumed_run_keeps_its_plan_terms(searched: RunReport, tmp_path: Path) -> None:
    folder, straight = tmp_path / "resumed", tmp_path / "straight"
    await asyncio.to_thread(shutil.copytree, searched.log.parent, folder)

    assert await terms_of(folder) == PlanTerms(**TERMS)
    assert {(plan.params["strategy_type"], plan.tried) for plan in searched.plans} == {("volatility", 2)}
    with pytest.raises(OptionError, match=r"^--family is 'momentum'. Allowed: 'volatility', because run 1 "):
        await ran(folder, **PANEL, family="momentum", resume=True)
    with pytest.raises(OptionError, match=r"^--rounds is 5. Allowed: 2, because run 1 "):
        await ran(folder, **PANEL, rounds=5, resume=True)

    then = await ran(folder, **PANEL, bars=148, resume=True)
    whole = await ran(straight, **PANEL, **TERMS, bars=148)

    assert await terms_of(folder) == PlanTerms(**TERMS)
    assert then.plans[: len(searched.plans)] == searched.plans
    assert (then.digest, then.pnl, then.attempts) == (whole.digest, whole.pnl, whole.attempts)


async def test_recorded_run_keeps_original_terms(searched: RunReport, tmp_path: Path) -> None:
    recorded: dict[str, Any] = {"provider": "recorded", "recorded_from": searched.log.parent}

    again = await ran(tmp_path / "again", **PANEL, **recorded, bars=145)

    assert (again.digest, again.plans[0].tried) == (searched.digest, 2)
    with pytest.raises(OptionError, match=r"^--rounds is 3. Allowed: 2, because the recorded run "):
        await ran(tmp_path / "other", **PANEL, **recorded, rounds=3)


async def test_session_id_depends_on_plan_terms(whole: RunReport, tmp_path: Path) -> None:
    other = await ran(tmp_path, **PANEL, rounds=2, bars=1)

    assert other.session_id != whole.session_id


async def test_only_incomplete_stocks_report_gaps(whole: RunReport) -> None:
    lacking = {fed.symbol for fed in whole.data if fed.gaps}

    assert {"AAPL", "GOOG", "MSFT"} <= lacking
    assert len(lacking) == 12
    assert next(fed.bars for fed in whole.data if fed.symbol == "SGP") < 60


async def test_stock_sample_cannot_be_combined(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="sp500-sample without other data"):
        await ran(tmp_path, data=["sp500-sample", "btcusdt-5m"])
