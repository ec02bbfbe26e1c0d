"""The benchmark of the call path measures what it says, and judges by it."""

import sys
from pathlib import Path

import pytest

from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.runner import CallRunner
from benchmarks import floor, ours
from benchmarks.call_path import OURS, Pair, Row, judged, pairs
from benchmarks.peers.contender import Contender, UnavailableError
from benchmarks.peers.rounds import AT_ONCE, Round, timed


def row(contender: str, *cpu_us: float, goal: float | None = None, wrong: int = 0) -> Row:
    """Return a row that has been measured."""
    return Row(contender, contender, "call", goal, [Round(us, us, wrong) for us in cpu_us])


async def test_every_wrong_answer_is_counted() -> None:
    async def call() -> int:
        return 2

    wrong = await timed(call, lambda answer: answer == 1, 3 * AT_ONCE)
    right = await timed(call, lambda answer: answer == 2, 3 * AT_ONCE)

    assert wrong.wrong == 3 * AT_ONCE
    assert right.wrong == 0


async def test_own_paths_and_floor_answer_correctly() -> None:
    ways = (ours.without_dispatch, ours.in_memory, ours.redacted, ours.least, ours.stage_by_stage)
    for way in (*ways, ours.recorded, ours.replayed):
        assert (await way(AT_ONCE)).wrong == 0
    assert await floor.call() == ours.PARSED


@pytest.mark.parametrize("way", ours.DISPATCH_WAYS)
async def test_dispatch_ways_answer_correctly(way: str) -> None:
    assert (await ours.DISPATCH_WAYS[way](AT_ONCE)).wrong == 0


@pytest.mark.parametrize(("runner", "records"), [(CallRunner, 2), (ours.WithoutDispatch, 1)])
async def test_dispatch_ways_differ_by_single_record(runner: type[CallRunner], records: int) -> None:
    store = MemoryInteractionStore()
    calls = ours.Gateway(store).runner(runner)

    for _ in range(3):
        await calls.run(ours.envelope())

    assert (await store.head())[0] == 3 * records


def test_dispatch_cost_is_computed_per_round() -> None:
    pair = Pair(row(OURS, 400, 900, 450), row(OURS, 350, 600, 390))

    assert pair.added_us() == 60


def test_row_pairs_cover_dispatch_ways() -> None:
    ways = [row.way for pair in pairs() for row in (pair.with_record, pair.without)]

    assert sorted(ways) == sorted(ours.DISPATCH_WAYS)


async def test_stage_times_add_up() -> None:
    measured = await ours.stage_by_stage(AT_ONCE)

    assert sum(measured.stages_us.values()) == pytest.approx(measured.cpu_us)
    assert min(measured.stages_us.values()) > 0


def test_broken_contender_reports_the_reason() -> None:
    with (
        Contender("benchmarks.nowhere", Path(sys.executable)) as nobody,
        pytest.raises(UnavailableError) as e,
    ):
        nobody.round("call", AT_ONCE)

    assert "No module named benchmarks.nowhere" in e.value.reason


@pytest.mark.parametrize(
    ("peer_us", "wrong", "verdict"),
    [((400, 800), 0, "met"), ((399, 398), 0, "not met"), ((400, 800), 1, "met")],
)
def test_wrong_answers_fail_and_shares_are_printed(
    peer_us: tuple[float, ...], wrong: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [row(OURS, 100, 200), row("peer", *peer_us, goal=1 / 4, wrong=wrong)]

    assert judged(table) is (wrong == 0)
    assert f"(not judged): {table[0].over(table[1]):.2f}, {verdict}\n" in capsys.readouterr().out


def test_unavailable_peer_has_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    absent = Row("peer", "peer", "call", goal=1 / 4, unavailable="cannot be installed")

    assert judged([row(OURS, 100), absent])
    assert "peer" not in capsys.readouterr().out
