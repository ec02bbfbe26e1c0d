"""The benchmark of budgets hands out every call, loses none with a process, and judges by the invoice."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.overspend import FULL, MLFLOW, OURS, QUICK, Stub, judged, plan_of
from benchmarks.overspend_fleet import Fleet, Plan, Ran
from benchmarks.overspend_ours import PRICES, envelope_of
from benchmarks.overspend_table import Books, Invoice, Row, percentile, problems
from benchmarks.peers.contender import UnavailableError
from benchmarks.peers.load import BUDGET_NUSD, CENTS, LOADS, NUSD_PER_TOKEN, Load
from benchmarks.peers.paid import Provider
from benchmarks.peers.spending import WORKERS, Opening, Told

GIVES_ALL = """
from benchmarks.peers.spending import run_peer
class All:
    async def take(self, call): return True
    async def book(self, leave, call, nusd): pass
async def opened(opening): return All()
run_peer(lambda url: opened)
"""


def opening(load: str = "cents", run: str = "run-1") -> Opening:
    return Opening("default", load, BUDGET_NUSD, run)


def row(
    invoice: Mapping[str, list[int]], *told: Told, spent: int, held: int = 0, in_doubt: tuple[str, ...] = ()
) -> Row:
    """Return a row of ours with a budget of three of the most expensive calls."""
    made = Row(OURS, CENTS, 3 * CENTS.most_nusd, Ran(list(told)))
    made.invoice = Invoice(invoice)
    made.books = Books(spent, held, dict.fromkeys(in_doubt, CENTS.most_nusd))
    return made


def test_call_usage_is_deterministic_and_below_cap() -> None:
    for load in LOADS.values():
        used = [load.used(f"call-{number}") for number in range(2_000)]
        assert used == [load.used(f"call-{number}") for number in range(2_000)]
        assert load.least <= min(used) < max(used) < load.cap


def test_full_load_exceeds_the_budget() -> None:
    for size in (FULL, QUICK):
        for load in LOADS.values():
            wanted = sum(load.used(f"call-{number}") for number in range(size.calls)) * NUSD_PER_TOKEN
            assert wanted > size.budget(load)


def test_price_book_matches_stub_price() -> None:
    envelope = envelope_of(opening(), 1)

    rates = PRICES.rates(envelope.provider, envelope.model, at=envelope.created_at)

    assert (rates.input, rates.dearest_input, rates.output) == (0, 0, NUSD_PER_TOKEN)


def test_envelope_is_deterministic_per_call() -> None:
    assert envelope_of(opening(), 1) == envelope_of(opening(), 1)
    assert envelope_of(opening(), 1).envelope_id != envelope_of(opening(), 2).envelope_id


@pytest.mark.parametrize("load", LOADS.values())
def test_kill_plan_is_only_for_ours(load: Load) -> None:
    ours = plan_of(opening(), load, FULL, is_ours=True)
    peers = plan_of(opening(), load, FULL, is_ours=False)

    assert len(ours.kills) * WORKERS == pytest.approx(0.02 * FULL.calls, rel=0.1)
    assert min(ours.kills) < 2 * BUDGET_NUSD // load.most_nusd
    assert len(ours.restarts) == 3
    assert max(ours.restarts) < FULL.calls
    assert len(ours.twice) == 0.05 * FULL.calls
    assert (peers.kills, peers.restarts, peers.twice) == ((), (), frozenset())


async def test_abandoned_call_is_still_billed(tmp_path: Path) -> None:
    with Stub(tmp_path).opened() as (port, invoice):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"cents call-1\n")
        await writer.drain()
        writer.close()
        provider = Provider(port)
        tokens = await provider.call("cents", "call-2")
        provider.close()
        await writer.wait_closed()

    billed = Invoice.read(await asyncio.to_thread(invoice.read_text), CENTS)

    assert billed.of("call-2") == tokens * NUSD_PER_TOKEN == CENTS.used("call-2") * NUSD_PER_TOKEN
    assert billed.of("call-1") == CENTS.used("call-1") * NUSD_PER_TOKEN


async def test_all_calls_are_answered_despite_kills(
    tmp_path: Path,
) -> None:
    twice = frozenset(range(0, 200, 20))
    plan = Plan(opening(), CENTS, 200, kills=[60], twice=twice)
    with Stub(tmp_path).opened() as (port, _):
        async with Fleet([sys.executable, "-c", GIVES_ALL, "spend", "nowhere", str(port)]) as fleet:
            ran = await fleet.run(plan)

    assert ran.kills == 1
    assert 0 < ran.hit <= 2 * WORKERS
    assert sorted(told.call for told in ran.told) == sorted([*range(200), *twice])
    assert set(ran.answers) == set(range(200))


async def test_broken_contender_reports_the_reason() -> None:
    with pytest.raises(UnavailableError, match=r"No module named benchmarks\.nowhere"):
        async with Fleet([sys.executable, "-m", "benchmarks.nowhere"]):
            pass


def test_duplicate_delivery_keeps_the_paid_outcome() -> None:
    ran = Ran([Told(1, "taken"), Told(1, "paid", 5), Told(2, "paid", 7), Told(2, "taken")])

    assert {call: told.outcome for call, told in ran.answers.items()} == {1: "paid", 2: "paid"}


MOST = CENTS.most_nusd
PAID = Told(1, "paid", MOST)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (row({"call-1": [MOST]}, PAID, spent=MOST), None),
        (row({"call-1": [MOST], "call-2": [5]}, PAID, spent=2 * MOST, in_doubt=("call-2",)), None),
        (row({"call-1": [MOST]}, PAID, spent=2 * MOST, in_doubt=("call-2",)), None),
        (row({"call-1": [4 * MOST]}, replace(PAID, nusd=4 * MOST), spent=4 * MOST), "overspent"),
        (row({"call-1": [MOST]}, PAID, Told(2, "refused"), spent=MOST), "unspent"),
        (row({"call-1": [MOST]}, PAID, spent=MOST, held=1), "held"),
        (row({"call-1": [MOST, MOST]}, replace(PAID, nusd=2 * MOST), spent=2 * MOST), "twice"),
        (row({"call-1": [MOST]}, PAID, Told(2, "broke", why="KeyError"), spent=MOST), "KeyError"),
        (row({"call-1": [MOST]}, PAID, spent=MOST + 1), "ledger - invoice is 1 nano-USD"),
        (row({"call-1": [MOST], "call-2": [5]}, PAID, spent=MOST), "ledger - invoice is -5 nano-USD"),
        (row({"call-1": [MOST]}, replace(PAID, nusd=1), spent=MOST), "told another cost"),
    ],
)
def test_broken_promise_is_named(found: Row, problem: str | None) -> None:
    told = problems(found)

    assert (not told) if problem is None else any(problem in one for one in told)


@pytest.mark.parametrize(
    ("mlflow", "holds"),
    [
        (Row(MLFLOW, CENTS, 10, invoice=Invoice({"call-1": [11]})), True),
        (Row(MLFLOW, CENTS, 10, invoice=Invoice({"call-1": [10]})), False),
        (Row(MLFLOW, CENTS, 10, unavailable="cannot be installed"), False),
    ],
)
def test_run_without_mlflow_overspend_is_void(mlflow: Row, *, holds: bool) -> None:
    ours = row({"call-1": [MOST]}, PAID, spent=MOST)

    assert judged([ours, mlflow]) is holds


def test_unmeasured_own_row_breaks_promise() -> None:
    ours = Row(OURS, CENTS, 10, unavailable="it broke")

    assert not judged([ours, Row(MLFLOW, CENTS, 10, invoice=Invoice({"call-1": [11]}))])


def test_percentile_of_empty_list_is_zero() -> None:
    assert percentile([], 0.99) == 0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0
