"""What every ledger promises of the calls that it knows one by one, one function a promise."""

from dataclasses import replace
from datetime import timedelta, timezone

from agentic_trading.governance.ledger import (
    Balance,
    Ledger,
    LedgerEntry,
    Reservation,
    ReservationRequest,
    ReservationState,
)
from agentic_trading.governance.limits import ANY, SHORT_LIVED, Limit, ScopeKind, Window, Windows
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import join
from tests.contracts.ledger_history import expect_beyond
from tests.contracts.ledger_opening import Opens, Promise
from tests.governance.asking import AT, ask, of_tenant, reserved, spend, tenant

ZONE = timezone(timedelta(hours=5, minutes=30))
EVERY_WINDOW = [Limit(ScopeKind.TENANT, ANY, window, nusd=10**6) for window in Window]


async def sent(ledger: Ledger, wanted: ReservationRequest) -> str:
    id_ = await reserved(ledger, wanted)
    await ledger.dispatch(id_)
    return id_


async def known(ledger: Ledger) -> dict[str, tuple[ReservationState, Amount]]:
    """Return what the ledger has charged, call by call."""
    found = await ledger.entries("acme")
    assert len({one.request.reservation_id for one in found}) == len(found)
    return {one.request.reservation_id: (one.state, one.charged) for one in found}


async def lasting(ledger: Ledger) -> list[Balance]:
    """Return the counters of what lasts: those of a trace may be made only when something needs them."""
    found = [one for one in await ledger.balances("acme") if one.scope not in SHORT_LIVED]
    return sorted(found, key=repr)


async def what_was_charged_is_known_call_by_call(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    settled = await spend(ledger, ask(20, tokens=3), nusd=15)
    doubtful, corrected = await sent(ledger, ask(10)), await sent(ledger, ask(9))
    for id_ in (doubtful, corrected):
        await ledger.in_doubt(id_)
    await ledger.settle(corrected, Amount(4, 1))
    await ledger.release(await reserved(ledger, ask(8)))
    await reserved(ledger, ask(7))
    await sent(ledger, ask(6))
    await spend(ledger, ask(5, tenant="other"))

    assert await known(ledger) == {
        settled: (ReservationState.SETTLED, Amount(15, 3)),
        doubtful: (ReservationState.IN_DOUBT, Amount(10, 0)),
        corrected: (ReservationState.SETTLED, Amount(4, 1)),
    }
    assert await ledger.entries("nobody") == []


async def what_is_known_call_by_call_can_be_booked_again_as_it_was(opens: Opens) -> None:
    ledger = await opens(*EVERY_WINDOW, zone=ZONE)
    moments = (AT, AT + timedelta(minutes=61), AT + timedelta(hours=7))
    for number, at in enumerate(moments, start=1):
        await spend(ledger, ask(10 * number, trace=f"a/b\n{number}", agent=f"100% {number}", at=at))
    own = Limit(ScopeKind.TRACE, "trace-1", Window.NONE, nusd=99)
    asked = ask(5, key="a:b", at=moments[2], limits=(own,))
    doubtful = await sent(ledger, asked)
    await ledger.in_doubt(doubtful)
    flying = await sent(ledger, ask(6))
    before = await lasting(ledger)

    entries = await ledger.entries("acme")
    await ledger.restore("acme", entries)

    assert await lasting(ledger) == before
    again = await ledger.entries("acme")
    assert {_facts(one) for one in again} == {_facts(one) for one in entries}
    assert await ledger.reserve(asked) == Reservation(doubtful, asked.amount, ReservationState.IN_DOUBT)
    assert (await ledger.settle(doubtful, Amount(2, 0))).late
    assert (await ledger.settle(flying, Amount(3, 0))).charged == Amount(3, 0)
    assert (await of_tenant(ledger)).spent == Amount(65, 0, 5)


def _facts(entry: LedgerEntry) -> tuple[object, ...]:
    """Return what counts of an entry: a moment is as good as another of the same windows."""
    request = entry.request
    at = request.at
    assert at is not None
    windows = tuple(window.id for window in Windows(ZONE).at(at).values())
    return (
        request.reservation_id,
        *request.scope_ids.items(),
        request.amount,
        windows,
        entry.state,
        entry.charged,
    )


async def a_ledger_that_has_gone_back_names_what_was_sent(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    settled = await spend(ledger, ask(20))
    lost, ended = ask(30, key="lost"), ask(9, key="ended")
    flying, answered = await sent(ledger, lost), await sent(ledger, ended)
    await reserved(ledger, ask(5))
    assert set(await known(ledger)) == {settled}
    await expect_beyond(ledger, sequence=50)

    assert await known(ledger) == {
        settled: (ReservationState.SETTLED, Amount(20, 0)),
        flying: (ReservationState.DISPATCHED, Amount(30, 0)),
        answered: (ReservationState.DISPATCHED, Amount(9, 0)),
    }
    logged = LedgerEntry(ended, ReservationState.SETTLED, Amount(7, 0))
    entries, kept = join([logged], await ledger.entries("acme"))
    await ledger.restore("acme", entries)

    found = await of_tenant(ledger)
    assert (found.spent, found.in_doubt) == (Amount(57, 0, 3), Amount(30, 0, 1))
    assert found.held == Amount(0, 0, 0)
    assert {one.reservation_id for one in kept} == {settled, flying}
    assert (await ledger.settle(flying, Amount(1, 0))).late


async def what_is_joined_with_logs_counts_each_call_once(opens: Opens) -> None:
    ledger = await opens(tenant(1000, window=Window.DAY))
    cheaper, dearer, same, unknown, doubtful = (ask(100, key=key) for key in ("c", "d", "s", "u", "i"))
    for wanted in (cheaper, dearer, same, unknown):
        await spend(ledger, wanted, nusd=50)
    await ledger.in_doubt(await sent(ledger, doubtful))
    flying, ended = await sent(ledger, ask(70)), ask(60)
    await sent(ledger, ended)
    new = ask(20)
    ends = (cheaper, 40), (dearer, 90), (same, 50), (doubtful, 30), (ended, 25), (new, 20)
    logged = [
        LedgerEntry(replace(wanted, at=AT + timedelta(days=1)), ReservationState.SETTLED, Amount(nusd, 0))
        for wanted, nusd in ends
    ]  # on another day than the ledger has them

    entries, kept = join(logged, await ledger.entries("acme"))
    await ledger.restore("acme", entries)

    days = {
        one.window_id: (one.spent, one.held, one.in_doubt)
        for one in await ledger.balances("acme")
        if (one.scope, one.window) == (ScopeKind.TENANT, Window.DAY)
    }
    assert days == {
        "2026-01-02": (Amount(50 + 90 + 50 + 50 + 100 + 25, 0, 6), Amount(70, 0), Amount(100, 0)),
        "2026-01-03": (Amount(20, 0, 1), Amount(0, 0, 0), Amount(0, 0, 0)),
    }
    assert {(one.reservation_id, one.charged.nusd, one.logged.nusd) for one in kept} == {
        ("acme:c:1", 50, 40),
        ("acme:u:1", 50, 0),
        ("acme:i:1", 100, 30),
    }
    assert await ledger.state_of(flying) is ReservationState.DISPATCHED


ENTRIES: tuple[Promise, ...] = (
    what_was_charged_is_known_call_by_call,
    what_is_known_call_by_call_can_be_booked_again_as_it_was,
    a_ledger_that_has_gone_back_names_what_was_sent,
    what_is_joined_with_logs_counts_each_call_once,
)
