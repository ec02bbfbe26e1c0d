"""The benchmark of money over HTTP sees each broken promise, and the lease of a reservation outlasts its call."""

from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.governance.ledger import LEASE_S
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.platform import Ports
from benchmarks.http_money import CASES, Row, problems, table_of
from benchmarks.http_money_callers import CALLERS
from benchmarks.peers.load import BUDGET_NUSD, DOLLARS
from tests.server.conftest import Serving, place, serve, vendor
from tests.server.test_server import EACH, said

__all__ = ["place", "serve", "vendor"]

PLAIN, KILLED = CASES[0], CASES[3]
REST = DOLLARS.most_nusd - 1
SPENT = BUDGET_NUSD - REST
RIGHT = Row("a", "plain race", refused_402=1, invoice=SPENT, spent=SPENT, settled=SPENT)

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"invoice": BUDGET_NUSD + 1}, "overspent"),
    ({"invoice": SPENT + 1}, "less than the invoice"),
    ({"held": 1}, "still held"),
    ({"settled": SPENT - 1}, "settled"),
    ({"spent": SPENT - 1, "settled": SPENT - 1, "invoice": 0}, "refused calls with 1.2800 USD left"),
    ({"refused_402": 0}, "the load is too small"),
    ({"settled": SPENT - 5, "in_doubt": 5}, "in doubt or without usage"),
    ({"settled": SPENT - 5, "unmetered": 5}, "in doubt or without usage"),
    ({"wrong_charges": ["call-1"]}, "charges differ"),
    ({"other": {"500": 1}}, "other ends"),
]


def test_row_that_keeps_its_promises_has_no_problem() -> None:
    assert problems(PLAIN, RIGHT) == []
    killed = replace(RIGHT, in_flight_at_kill=CALLERS, settled=SPENT - 5, in_doubt=5)
    assert problems(KILLED, killed) == []
    assert table_of([RIGHT])[-1].startswith("| a plain race | 0 |")


@pytest.mark.parametrize(("changes", "named"), BROKEN)
def test_broken_promise_is_found(changes: dict[str, Any], named: str) -> None:
    assert any(named in problem for problem in problems(PLAIN, replace(RIGHT, **changes)))


def test_kill_with_fewer_calls_in_flight_is_void() -> None:
    assert problems(KILLED, replace(RIGHT, in_flight_at_kill=63)) == [
        "only 63 calls were in flight at the kill"
    ]


class _Leases(MemoryLedger):
    """A ledger that notes the leases of sent calls."""

    leases: list[float]

    @override
    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        self.leases.append(lease_s)
        await super().dispatch(reservation_id, lease_s=lease_s)


@pytest.mark.parametrize("attempt_timeout_s", [0.5, 12.0, 3600.0])
async def test_reservation_outlasts_the_longest_call_of_its_key(
    serve: Serving, attempt_timeout_s: float
) -> None:
    ledger = _Leases()
    ledger.leases = []
    ports = Ports(store=MemoryInteractionStore(), ledger=ledger)
    rights = {"max_output_tokens": 100, "attempt_timeout_s": attempt_timeout_s}
    async with serve(rights=rights, ports=ports) as served:
        status, _, _ = await said(served, "/v1/responses", EACH["/v1/responses"])

    assert (status, ledger.leases) == (200, [attempt_timeout_s + 30.0])
