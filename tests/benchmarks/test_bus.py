"""The benchmark of the bus counts what it says, and judges by it; the servers are not needed for that."""

import asyncio
from dataclasses import replace

import pytest

from benchmarks.bus import OURS, SLOTS, Row, Table, bounds, faults, judged, print_table, table_of
from benchmarks.peers.consuming import KEYS, Consumed, Job, Tally

GOOD = Consumed(1.0, 1.0, 0.5, handled=100, copies=0, misordered=0, at_once=16, early=0, looks=3)


def row(contender: str, *seconds: float, work_s: float = 0.0, left: int = 0, **wrong: int) -> Row:
    """Return a row that has been measured; a round of it has 100 messages."""
    rounds = [replace(GOOD, wall_s=wall_s, work_s=wall_s, **wrong) for wall_s in seconds]
    way = "consume" if contender == OURS else "ack"
    is_judged = contender != OURS
    return Row(
        contender,
        contender,
        way,
        1,
        100,
        work_s,
        is_judged=is_judged,
        rounds=rounds,
        left=[left] * len(rounds),
    )


def table(ours: Row, *peers: Row, idle: float = 0.0, alone_idle: float = 0.0) -> Table:
    """Return a table in which so great a share of the slots was idle."""
    working, alone = (
        row(OURS, 100 * 0.05 / SLOTS / (1 - share), work_s=0.05) for share in (idle, alone_idle)
    )
    return Table("Kafka", [ours, *peers], [working, alone], [])


def job(**changes: float) -> Job:
    return replace(Job("server:9092", "topic", "group", 130, 100, 4), **changes)  # type: ignore[arg-type]


def test_ratios_are_computed_per_round() -> None:
    quick, slow = row("quick", 9, 900, 11), row("slow", 20, 2000, 22)
    measured = table(row(OURS, 1, 100, 1), quick, slow)

    ratios = {bound.what: (bound.figure, bound.holds) for bound in bounds(measured)}

    assert ratios["Kafka: times quick"] == (9, False)
    assert ratios["Kafka: times slow"] == (20, True)
    assert ratios[f"Kafka: share of {SLOTS} slots busy, of that of the work alone"] == (
        pytest.approx(1),
        True,
    )
    assert not judged([measured])


@pytest.mark.parametrize(("alone_idle", "share", "holds"), [(0.0, 0.9, False), (0.06, 0.957, True)])
def test_idle_slots_are_compared_with_baseline(alone_idle: float, share: float, *, holds: bool) -> None:
    (bound,) = bounds(table(row(OURS, 1), idle=0.1, alone_idle=alone_idle))

    assert (bound.figure, bound.holds) == (pytest.approx(share, abs=0.001), holds)


@pytest.mark.parametrize("fault", ["copies", "misordered", "early"])
def test_only_own_faults_fail_the_run(fault: str) -> None:
    peer = row("peer", 100, **{fault: 2})

    assert judged([table(row(OURS, 1), peer)])
    assert not judged([table(row(OURS, 1, **{fault: 2}), peer)])


def test_lost_or_unacknowledged_messages_are_faults() -> None:
    assert faults(table(row(OURS, 1, 1, handled=99))) == [f"Kafka, {OURS}: 2 lost"]
    assert faults(table(row(OURS, 1, left=3))) == [f"Kafka, {OURS}: 3 never acknowledged"]


def test_unavailable_peer_is_listed_but_ignored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = table(row(OURS, 1), row("peer"))
    measured.leave_out("peer", "cannot be installed")

    print_table(measured)

    assert "cannot be installed" in capsys.readouterr().out
    assert judged([measured])


@pytest.mark.parametrize("server", ["Kafka", "Redis"])
def test_each_server_compares_with_faststream(server: str) -> None:
    rows = table_of(server, quick=True)

    assert {each[0].contender for each in (rows.bare, rows.working, rows.publishing)} == {OURS}
    assert {each.contender for each in rows.bare if each.is_judged} == {"faststream"}


async def test_tally_of_ordered_messages_has_no_fault() -> None:
    tally = Tally(job())
    for place, (key, value) in enumerate(job().messages()):
        await tally.handle(value, (0, place))
        assert len(value) == job().size
        assert value.startswith(key.encode())

    result = tally.result()

    assert tally.all_done.is_set()
    assert (result.handled, result.copies, result.misordered) == (130, 0, 0)
    assert tally.done == {(0, place) for place in range(130)}


async def test_tally_detects_copies_and_disorder() -> None:
    values = [value for _, value in job().messages()]
    again = Tally(job())
    for value in (values[KEYS], values[0], values[1], values[1]):
        await again.handle(value)
    both = Tally(job(work_s=0.001))

    async with asyncio.TaskGroup() as group:
        for value in (values[0], values[1], values[KEYS]):
            group.create_task(both.handle(value))

    assert (again.result().copies, again.result().misordered) == (1, 1)
    assert (both.result().at_once, both.result().misordered) == (3, 1)
