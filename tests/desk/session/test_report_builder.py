"""The report says what the log holds, and what became of every fault."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.execution.shortfall import total_shortfall
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.report_builder import report_of
from agentic_trading.desk.session.session_run import SessionResult
from agentic_trading.llm.errors import FailureKind, FailureReason, shortfall_text
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import AttemptTrace, Fix, Stage
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.operate.session_folder import DataSource, SessionFolder
from tests.build import NOW, envelope, interaction
from tests.flows.sessions import LOADED, TABLES, evening
from tests.operate.test_session_folder import manifest

READ = AttemptTrace(parser="InstructorParser", transport="prompted", verdict=Stage.JSON_PARSE)
MENDED = READ.model_copy(update={"fixes": (Fix(kind="trailing_comma", where="9", before=","),)})


async def reported(*attempts: LLMInteraction, **changes: Any) -> RunReport:
    """Return the report of a run that has left these attempts; `changes` are fields of its manifest."""
    store = MemoryInteractionStore()
    for attempt in attempts:
        await store.store(attempt)
    about = manifest(**{"digest": "ab", **changes})
    return await report_of(about, SessionFolder(Path("out")), SessionResult(), store, TABLES, elapsed_s=1.5)


def failed(kind: FailureKind, description: str = "no", **changes: Any) -> dict[str, Any]:
    """Return the fields of an attempt that failed."""
    reason = FailureReason(category=kind, description=description)
    return {"success": False, "failure": reason, "actionable": False, "validation_passed": False, **changes}


def spoilt(fault: str, kind: FailureKind = FailureKind.PARSING_ERROR, **changes: Any) -> dict[str, Any]:
    """Return the fields of an attempt whose answer was spoilt on purpose."""
    return failed(kind, provider_response_id=f"injected:{fault}", reading=READ, **changes)


async def test_empty_run_has_report() -> None:
    report = await reported()

    assert (report.attempts, report.cost_nusd, report.pnl, report.knowledge) == (0, 0, 0, {})
    assert report.equity_end == report.equity_start == trading.STARTING_CASH
    assert (report.digest, report.elapsed_s, report.budget_nusd) == ("ab", 1.5, 100_000_000)
    assert report.performance is None
    assert (report.data[0].bars, report.data[0].first, report.data[0].gaps) == (0, None, [])


async def test_report_lists_unpriced_words_once() -> None:
    asked = {"provider": "stub", "model_requested": "m-1", "unpriced": "service_tier=on_demand"}

    report = await reported(
        interaction(**asked, bill_problem="usage.cost is -1"),
        interaction(**asked, bill_problem="usage.cost is -1"),
        interaction(**asked | {"unpriced": "served_as=m-1-dated"}),
        interaction(),
    )

    assert [(one.model, one.word, one.attempts) for one in report.unpriced] == [
        ("stub/m-1", "service_tier=on_demand", 2),
        ("stub/m-1", "served_as=m-1-dated", 1),
    ]
    assert report.bill_problems == {"usage.cost is -1": 2}


async def test_totals_include_doubtful_attempts() -> None:
    report = await reported(
        interaction(cost_nusd=70, input_tokens=5, cache_read_tokens=1, output_tokens=2),
        interaction(cost_nusd=30, input_tokens=10, output_tokens=3),
        interaction(
            cost_nusd=900, in_doubt=True, input_tokens=0, output_tokens=0, **failed(FailureKind.TIMEOUT)
        ),
    )

    assert (report.attempts, report.cost_nusd, report.in_doubt) == (3, 1000, 1)
    assert (report.input_tokens, report.output_tokens) == (16, 5)
    assert report.attempts_by_outcome == {"accepted": 2, "timeout": 1}


async def test_earlier_runs_are_not_counted() -> None:
    report = await reported(interaction(cost_nusd=70), interaction(cost_nusd=30), first_seq=1, run_number=2)

    assert (report.attempts, report.cost_nusd) == (1, 30)
    assert report.decision_log == Path("out/decisions-2.jsonl")


async def test_unactionable_attempt_is_not_accepted() -> None:
    report = await reported(interaction(success=True, validation_passed=False))

    assert report.attempts_by_outcome == {"not actionable": 1}


async def test_report_counts_fault_outcomes() -> None:
    again, tried, lost, whole, mended = (
        envelope(subject=name) for name in ("again", "tried", "lost", "whole", "mended")
    )
    late = failed(FailureKind.TIMEOUT, "injected timeout", in_doubt=True)

    report = await reported(
        interaction(envelope=again, attempt_number=1, **spoilt("malformed")),
        interaction(envelope=again, attempt_number=2),
        interaction(envelope=tried, attempt_number=1, **late),
        interaction(envelope=tried, attempt_number=2),
        interaction(envelope=lost, attempt_number=1, **spoilt("refusal", FailureKind.REFUSAL)),
        interaction(
            envelope=whole, attempt_number=1, provider_response_id="injected:malformed", reading=READ
        ),
        interaction(
            envelope=mended, attempt_number=1, provider_response_id="injected:malformed", reading=MENDED
        ),
        interaction(provider_response_id="of-a-provider"),
        interaction(**failed(FailureKind.TIMEOUT, "no answer within 60 s")),
    )

    assert report.injected == {
        "malformed": {"asked again, then accepted": 1, "accepted as it was": 1, "mended, then accepted": 1},
        "refusal": {"no decision": 1},
        "timeout": {"tried again, then accepted": 1},
    }


async def test_fault_without_hits_is_reported() -> None:
    report = await reported(interaction(), inject="cut=1%,refusal=2%")

    assert report.injected == {"cut": {}, "refusal": {}}


async def test_unknown_model_has_unknown_knowledge() -> None:
    reason = failed(FailureKind.INVALID_REQUEST, "unknown model")

    report = await reported(
        interaction(as_of=NOW, model="nobody-knows", dispatched_at=NOW, **reason),
        interaction(as_of=NOW, dispatched_at=NOW),
        interaction(dispatched_at=NOW),
    )

    assert report.knowledge == {"unknown": 1, "in_sample": 1}


async def test_unsent_attempt_has_no_knowledge() -> None:
    refused = failed(FailureKind.BUDGET_EXHAUSTED, "0 calls left")

    report = await reported(interaction(as_of=NOW, dispatched_at=NOW), interaction(as_of=NOW, **refused))

    assert report.knowledge == {"in_sample": 1}


async def test_refusing_budgets_show_remaining_amount() -> None:
    def refused(kind: str, name: str, left: int) -> LLMInteraction:
        details = shortfall_text(kind, name, "day", "nano-USD", asked=70, left=left)
        reason = FailureReason(
            category=FailureKind.BUDGET_EXHAUSTED, description="no", technical_details=details
        )
        return interaction(success=False, failure=reason)

    report = await reported(
        refused("tenant", "acme", 30), refused("tenant", "acme", 20), refused("trace", "a", 5), refused("trace", "b", 5),
        interaction(**failed(FailureKind.BUDGET_EXHAUSTED, "of an older release")), interaction(dispatched_at=NOW),
    )  # fmt: skip

    found = [(one.scope, one.calls, one.left, one.asked) for one in report.refused_budgets]
    assert found == [
        ("tenant acme this day", 2, 30, 70), ("trace", 2, 5, 70), ("not on record", 1, None, None),
    ]  # fmt: skip


async def test_equity_is_cash_plus_marked_positions() -> None:
    played = (await evening()).played
    data = tuple(DataSource(name=name, symbol=bars[0].symbol) for name, bars in LOADED.items())
    about, folder = manifest(data=data), SessionFolder(Path("out"))

    report = await report_of(about, folder, played, MemoryInteractionStore(), TABLES, elapsed_s=0)

    held = sum((position.quantity * position.mark for position in report.open_positions), Decimal(0))
    assert played.account is not None
    assert report.equity_end == played.account.cash + held
    assert report.pnl == report.equity_end - report.equity_start != 0
    figures = report.performance
    assert figures is not None
    assert figures.bars == max(each.count for each in played.bars.values())
    assert figures.total_return == pytest.approx(float(report.pnl / report.equity_start), abs=1e-12)
    worth = sum(fill.notional for fill in played.fills)
    assert sum(played.curve.traded) == pytest.approx(float(worth))
    assert report.buy_and_hold_pnl != 0
    assert report.market_now_pnl != report.pnl
    cost = report.shortfall
    assert cost.total == total_shortfall(cost.intents)
    assert [each.intent_id for each in cost.intents] == [each.intent_id for each in played.intents]
    assert cost.total.total_bps is not None
    assert cost.market_now.total_bps not in {None, cost.total.total_bps}
    assert 0 < cost.total.fees < report.fees  # those of stops and targets are not in it
    assert (report.orders, report.fills, report.fees) == (
        played.counters.orders,
        played.counters.fills,
        played.counters.fees,
    )
