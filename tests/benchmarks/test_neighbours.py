"""The benchmark of neighbours: every bound holds, and one that does not is seen."""

from dataclasses import replace

from benchmarks.neighbours import run


async def test_neighbour_bounds_hold_and_breach_is_detected() -> None:
    rows = await run()

    assert [row for row in rows if not row.holds] == []
    assert len(rows) == 7
    assert not any(replace(row, figure=row.bound + 1).holds for row in rows)
    refused, sent, spent, *waited = (row.figure for row in rows)
    assert (refused, sent) == (0, 0)
    assert spent > 0
    assert min(waited) > 0
