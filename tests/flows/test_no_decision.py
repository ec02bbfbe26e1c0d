"""A call that failed is no decision: it has its reason on record, is counted apart, and gives no order."""

from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.platform import port_adapters
from tests.flows.sessions import LOADED, PRICED, Priced, calls_in, evening, events_in, kept_in, ran

BTC = {"btcusdt-5m": LOADED["btcusdt-5m"]}


@pytest.mark.parametrize(
    ("inject", "reasons"),
    [
        ("refusal=100%", {"refusal"}),
        ("timeout=100%", {"timeout"}),
        ("cut=100%", {"truncated", "parsing_error"}),
    ],
)
async def test_failed_calls_give_reasons_without_orders(
    inject: str, reasons: set[str], tmp_path: Path
) -> None:
    report = await ran(tmp_path, data=("btcusdt-5m",), inject=inject, bars=450)

    events = events_in(await kept_in(report.log))
    kinds = Counter(event.kind for event in events)
    assert set(report.no_decisions["analysis"]) <= reasons
    assert (
        sum(report.no_decisions["analysis"].values())
        == kinds["analysis.triggered"]
        == kinds["analysis.undecided"]
        > 3
    )
    assert report.decisions == {}
    assert kinds.keys() == {
        "analysis.skipped",
        "analysis.triggered",
        "analysis.undecided",
        "attempt.dispatched",
    }
    assert (report.orders, report.fills, report.pnl, report.equity_end) == (0, 0, 0, report.equity_start)


async def test_only_analysis_mends_malformed_answers(tmp_path: Path) -> None:
    report = await ran(tmp_path, inject="malformed=100%", bars=900)

    calls = calls_in(await kept_in(report.log))
    mended = [call for call in calls if call.result.actionable]
    assert mended
    assert {call.envelope.workflow for call in mended} == {EnvelopeWorkflow.ANALYSIS}
    assert all(call.result.reading and call.result.reading.fixes for call in mended)
    refused = [call for call in calls if call.envelope.workflow is EnvelopeWorkflow.EXECUTION]
    assert refused
    assert not any(call.result.success for call in refused)
    assert (report.orders, report.fills) == (0, 0)


async def test_no_decisions_are_counted_separately(recorded: RunReport) -> None:
    events = events_in(await kept_in(recorded.log))
    verdicts = Counter(event.body["verdict"] for event in events if event.kind == "analysis.assessed")
    missing = [event for event in events if event.kind in {"analysis.undecided", "intent.undecided"}]

    assert recorded.decisions["analysis"] == verdicts
    assert verdicts["stand_aside"] > 0
    assert sum(sum(counts.values()) for counts in recorded.no_decisions.values()) == len(missing) > 2
    assert sum(event.kind == "analysis.triggered" for event in events) == verdicts.total() + sum(
        event.body.get("step") == "cmt" for event in missing
    )
    assert {event.body["reason"]["category"] for event in missing} <= set(FailureKind)


async def test_failed_fill_strategy_gives_no_order(recorded: RunReport) -> None:
    events = events_in(await kept_in(recorded.log))
    caused = Counter((event.kind, event.trace_id) for event in events)
    undecided = [event for event in events if event.kind == "intent.undecided"]

    assert sum(recorded.no_decisions.get("execution", {}).values()) == len(undecided)
    assert all(caused["order.submitted", event.trace_id] == 0 for event in undecided)
    assert all(caused["intent.approved", event.trace_id] == 1 for event in undecided)


async def test_no_decision_reason_is_from_last_attempt(recorded: RunReport) -> None:
    everything = await kept_in(recorded.log)
    last = {one.envelope.envelope_id: one.result for one in calls_in(everything)}

    for event in events_in(everything, "analysis.undecided", "intent.undecided"):
        failure = last[event.body["envelope_id"]].failure
        assert failure is not None
        assert event.body["reason"]["category"] == failure.category
        assert event.body["reason"]["description"]


@pytest.mark.parametrize("budget_nusd", [1, 100_000_000, 130_000_000])
async def test_refused_calls_are_recorded_within_budget(budget_nusd: int) -> None:
    ledger = port_adapters.budget_ledger(budget_nusd)

    played = await evening(Priced(), model=PRICED, ledger=ledger, bars=BTC, workers=8)

    results = [one.result for one in calls_in(await played.records())]
    spent = sum(result.cost_nusd for result in results)
    refused = [r for r in results if r.failure and r.failure.category is FailureKind.BUDGET_EXHAUSTED]
    missing = events_in(await played.records(), "analysis.undecided", "intent.undecided")
    assert spent <= budget_nusd
    assert bool(spent) is (budget_nusd > 1)
    assert len(refused) == len(missing) > 0
    assert {event.body["reason"]["category"] for event in missing} == {"budget_exhausted"}
    assert all(result.cost_nusd == 0 and result.dispatched_at is None for result in refused)


async def test_in_doubt_charges_count_against_budget() -> None:
    class Lost(Priced):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            raise ProviderError(FailureKind.TIMEOUT, "no answer", sent=True)

    played = await evening(Lost(), model=PRICED, ledger=port_adapters.budget_ledger(10**9), bars=BTC)

    results = [one.result for one in calls_in(await played.records())]
    doubtful = [result for result in results if result.in_doubt]
    assert doubtful
    assert sum(result.cost_nusd for result in results) <= 10**9
    assert all(result.cost_nusd == result.reserved_nusd > 0 for result in doubtful)
    assert played.played.counters.orders == 0


async def test_execution_in_doubt_is_not_retried() -> None:
    class LostOnce(Priced):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            if request.envelope.workflow is EnvelopeWorkflow.EXECUTION:
                raise ProviderError(FailureKind.TIMEOUT, "no answer", sent=True)
            return await super().complete(request)

    played = await evening(LostOnce(), model=PRICED, bars=BTC)

    calls = [one for one in calls_in(await played.records()) if one.envelope.workflow == "execution"]
    assert [one.result.attempt_number for one in calls] == [1] * len(calls)
    assert len(calls) == played.played.counters.intents > 0
    assert played.played.counters.orders == 0
    assert played.played.counters.no_decisions["execution"] == {"timeout": len(calls)}


async def test_minimal_budget_suffices_for_free_rules(tmp_path: Path) -> None:
    report = await ran(tmp_path, data=("btcusdt-5m",), budget_usd=Decimal("1e-9"), bars=400)

    assert report.attempts > 0
    assert report.no_decisions == {}
    assert (report.cost_nusd, report.budget_nusd) == (0, 1)
