"""What logs say of calls, joined with what a ledger has charged for them."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.ledger import (
    Balance,
    Ledger,
    LedgerEntry,
    ReservationRequest,
    ReservationState,
)
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import KeptCharge, join
from tests.governance.asking import AT, ask, of_tenant

SETTLED, IN_DOUBT, DISPATCHED = (
    ReservationState.SETTLED,
    ReservationState.IN_DOUBT,
    ReservationState.DISPATCHED,
)
NOTHING = Amount(0, 0, 0)
LATER = AT + timedelta(hours=1)


def entry(state: ReservationState, nusd: int, *, tokens: int = 0, key: str = "k") -> LedgerEntry:
    """Return what is known of a call that has reserved 100."""
    return LedgerEntry(ask(100, key=key), state, Amount(nusd, tokens))


def of_log(state: ReservationState, nusd: int, *, tokens: int = 0) -> LedgerEntry:
    """Return an entry of a log, which has another moment and agent for the call than the ledger."""
    found = entry(state, nusd, tokens=tokens)
    scopes = {**found.request.scope_ids, ScopeKind.AGENT: "another"}
    return replace(found, request=replace(found.request, at=LATER, scope_ids=scopes))


def test_entry_only_in_log_is_used() -> None:
    logged = of_log(SETTLED, 5)

    assert join([logged], []) == ([logged], [])


def test_charge_only_in_ledger_is_kept() -> None:
    charged = entry(SETTLED, 5)

    assert join([], [charged]) == ([charged], [KeptCharge("acme:k:1", Amount(5, 0), NOTHING)])


@pytest.mark.parametrize(
    ("logged", "charged", "expected", "is_kept"),
    [
        ((SETTLED, 5), (SETTLED, 5), (SETTLED, 5), False),
        ((SETTLED, 9), (SETTLED, 5), (SETTLED, 9), False),
        ((SETTLED, 5), (SETTLED, 9), (SETTLED, 9), True),
        ((SETTLED, 100), (IN_DOUBT, 100), (SETTLED, 100), False),
        ((SETTLED, 5), (IN_DOUBT, 100), (IN_DOUBT, 100), True),
        ((IN_DOUBT, 100), (SETTLED, 5), (IN_DOUBT, 100), False),
        ((IN_DOUBT, 100), (SETTLED, 130), (SETTLED, 130), True),
        ((IN_DOUBT, 200), (IN_DOUBT, 100), (IN_DOUBT, 200), False),
        ((SETTLED, 5), (DISPATCHED, 100), (SETTLED, 5), False),
        ((IN_DOUBT, 100), (DISPATCHED, 100), (IN_DOUBT, 100), False),
        ((IN_DOUBT, 40), (DISPATCHED, 100), (IN_DOUBT, 100), True),
    ],
)
def test_dearer_entry_wins_with_ledger_scopes(
    logged: tuple[ReservationState, int],
    charged: tuple[ReservationState, int],
    expected: tuple[ReservationState, int],
    *,
    is_kept: bool,
) -> None:
    (joined,), kept = join([of_log(*logged)], [entry(*charged)])

    assert (joined.state, joined.charged.nusd, joined.request.at) == (*expected, AT)
    assert joined.request.scope_ids[ScopeKind.AGENT] == "agent-1"
    assert bool(kept) is is_kept


def test_higher_dollars_and_tokens_win_separately() -> None:
    (joined,), kept = join([of_log(SETTLED, 9, tokens=1)], [entry(SETTLED, 5, tokens=7)])

    assert (joined.state, joined.charged) == (IN_DOUBT, Amount(9, 7))
    assert kept == [KeptCharge("acme:k:1", Amount(5, 7), Amount(9, 1))]


def test_unlogged_dispatched_call_becomes_in_doubt() -> None:
    (joined,), kept = join([], [entry(DISPATCHED, 100)])

    assert (joined.state, joined.charged) == (IN_DOUBT, Amount(100, 0))
    assert [one.reservation_id for one in kept] == ["acme:k:1"]


calls = st.lists(
    st.tuples(
        st.sampled_from(["settled", "in doubt", "held", "unknown"]),
        st.integers(0, 120),
        st.sampled_from([SETTLED, IN_DOUBT, None]),
        st.integers(0, 120),
        st.integers(0, 3),
    ),
    max_size=12,
)


@given(calls)
def test_rebuild_never_lowers_any_sum(
    known: list[tuple[str, int, ReservationState | None, int, int]],
) -> None:
    async def check() -> None:
        ledger = MemoryLedger([Limit(ScopeKind.TENANT, ANY, window, nusd=10**9) for window in Window])
        logged = []
        for number, (state, nusd, log_state, log_nusd, hours) in enumerate(known):
            wanted = ask(100, key=f"call-{number}", at=AT + timedelta(hours=hours))
            await _bring_to(ledger, wanted.reservation_id, state, nusd, wanted)
            if log_state is not None:
                at = AT if state != "unknown" else wanted.at
                logged.append(LedgerEntry(replace(wanted, at=at), log_state, Amount(log_nusd, 0)))
        before = await ledger.balances("acme")

        entries, _ = join(logged, await ledger.entries("acme"))
        await ledger.restore("acme", entries)

        after = {_counter(one): one.spent for one in await ledger.balances("acme")}
        for one in before:
            found = after.get(_counter(one), NOTHING)
            assert all(now >= was for now, was in zip(found.units, one.spent.units, strict=True))
        if logged:
            assert (await of_tenant(ledger)).spent.nusd >= sum(one.charged.nusd for one in logged)

    asyncio.run(check())


async def _bring_to(ledger: Ledger, id_: str, state: str, nusd: int, wanted: ReservationRequest) -> None:
    """Have a call in this state in the ledger."""
    if state == "unknown":
        return
    await ledger.reserve(wanted)
    await ledger.dispatch(id_)
    if state == "settled":
        await ledger.settle(id_, Amount(nusd, 0))
    elif state == "in doubt":
        await ledger.in_doubt(id_)


def _counter(balance: Balance) -> tuple[str, ...]:
    return balance.scope, balance.id, balance.window, balance.window_id
