"""The benchmark of the HTTP server judges by its bounds."""

import pytest

from benchmarks.http_server import MOST, MOST_ADDED, holds, rows
from benchmarks.peers.rounds import Round


@pytest.mark.parametrize(
    ("server", "embedded", "wrong", "is_held"),
    [
        (MOST, MOST - MOST_ADDED + 0.001, 0, True),
        (MOST + 0.01, MOST, 0, False),
        (MOST, MOST - MOST_ADDED - 0.01, 0, False),
        (MOST, MOST, 1, False),
    ],
)
def test_costly_or_wrong_server_fails(server: float, embedded: float, wrong: int, *, is_held: bool) -> None:
    table = rows()
    for name, row in table.items():
        cost = {"server": server, "embedded": embedded}.get(name.partition("_")[0], 1.0)
        row.rounds.append(Round(cost, cost, wrong))
    assert holds(table) is is_held
