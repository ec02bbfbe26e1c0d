"""A rehearsal: rules that have a price, and a budget that runs out in mid-run."""

import asyncio
import shutil
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path

import pytest

from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.operate.budget_log import BudgetEvent, read_budget_events
from agentic_trading.operate.budgets import BudgetLocationOptions, read_status
from tests.flows.overseen import rehearsal
from tests.flows.sessions import SAMPLES, calls_in, events_in, kept_in, ran
from tests.llm.stores.jsonl_logs import blank_lines

BUDGET_USD = Decimal("0.08")
BUDGET_NUSD = 80_000_000


@pytest.fixture(scope="module")
def spent_up(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """Return the report of a run whose budget ran out."""
    folder = tmp_path_factory.mktemp("rehearsal")
    return asyncio.run(
        ran(
            folder / "out",
            data=SAMPLES[:1],
            bars=500,
            budget_usd=BUDGET_USD,
            prices_file=rehearsal(folder),
        )
    )


async def test_run_finishes_within_exhausted_budget(
    spent_up: RunReport,
) -> None:
    records = await kept_in(spent_up.log)
    results = [call.result for call in calls_in(records)]
    categories = [result.failure.category if result.failure else None for result in results]
    first = categories.index(FailureKind.BUDGET_EXHAUSTED)

    assert 0 < spent_up.cost_nusd <= BUDGET_NUSD
    assert set(categories[:first]) == {None}
    assert set(categories[first:]) == {FailureKind.BUDGET_EXHAUSTED}
    assert all(result.cost_nusd == 0 and result.dispatched_at is None for result in results[first:])
    assert spent_up.no_decisions["analysis"] == {"budget_exhausted": len(results) - first}
    assert len(events_in(records, "analysis.undecided", "intent.undecided")) == len(results) - first
    assert not spent_up.interrupted


async def test_history_reads_only_calls_and_money(spent_up: RunReport, tmp_path: Path) -> None:
    folder = await asyncio.to_thread(shutil.copytree, spent_up.log.parent, tmp_path / "copied")
    log = folder / spent_up.log.name
    before = await read_budget_events(log, "default", together=False)
    async with aclosing(JsonlRecords(log)) as records:
        kinds = {fact.seq: fact.kind async for fact in records.select()}
    needed = ("interaction", "attempt.", "budget.", "ledger.", "reservation.", "operator.")
    but = [seq for seq, kind in kinds.items() if kind.startswith(needed) or seq == len(kinds)]
    assert len(but) < len(kinds)

    await asyncio.to_thread(blank_lines, log, but=but)

    assert await read_budget_events(log, "default", together=False) == before


async def test_history_explains_budget_refusals(spent_up: RunReport) -> None:
    found = await read_budget_events(spent_up.log, "default", together=True)

    (ordered,) = [one for one in found if one.what == "command"]
    (refused,) = [one for one in found if one.what == "denied"]
    assert (ordered.subject, ordered.why) == (
        "tenant * in all",
        "no limit -> 0.08 USD, by run: --budget-usd",
    )
    assert refused.subject == "cmt-analyst · analysis · rules/rules-1 · budget_exhausted"
    assert refused.times == spent_up.no_decisions["analysis"]["budget_exhausted"] > 1
    assert refused.first < refused.last
    left = BUDGET_NUSD - spent_up.cost_nusd
    assert refused.why.startswith(f"tenant default has {Decimal(left).scaleb(-9).normalize()} USD left, ")
    assert refused.why.endswith("raise the limit or ask for less")


async def test_history_lists_each_refusal_on_request(spent_up: RunReport) -> None:
    found = await read_budget_events(spent_up.log, "default", together=False)

    refused = [one for one in found if one.what == "denied"]
    assert len(refused) == spent_up.no_decisions["analysis"]["budget_exhausted"]
    assert {one.times for one in refused} == {1}
    assert await read_budget_events(spent_up.log, "somebody-else", together=True) == list[BudgetEvent]()


async def test_worker_report_matches_the_log(spent_up: RunReport) -> None:
    view = await read_status(BudgetLocationOptions(spent_up.log.parent), "default")

    (counter,) = view.counters
    (worker,) = view.workers
    assert counter.most[0] == BUDGET_NUSD
    assert counter.spent[0] == spent_up.cost_nusd
    assert (counter.held, counter.in_doubt) == ((0, 0, 0), (0, 0, 0))
    assert not worker.is_running
    assert worker.calls.admitted == spent_up.accepted
    assert worker.calls.refused == spent_up.attempts - spent_up.accepted
    assert {one.kind for one in worker.refusals} == {FailureKind.BUDGET_EXHAUSTED}


async def test_exhausted_run_replays_identically(spent_up: RunReport) -> None:
    assert (await replay(spent_up.log.parent, workers=8)).identical


async def test_second_run_has_a_separate_budget(spent_up: RunReport, tmp_path: Path) -> None:
    folder = tmp_path / "out"  # a copy: other tests look at the first one
    await asyncio.to_thread(shutil.copytree, spent_up.log.parent, folder)

    again = await ran(
        folder,
        data=SAMPLES[:1],
        bars=400,
        budget_usd=Decimal(1),
        prices_file=rehearsal(tmp_path),
    )

    assert again.run_number == 2
    assert again.no_decisions == {}
    assert (await read_status(BudgetLocationOptions(folder), "default")).controls.limits[0].nusd == 10**9
