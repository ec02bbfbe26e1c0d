"""What every ledger promises of the steps of a call, one function a promise."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from agentic_trading.governance.errors import (
    ReservationConflictError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import Reservation, ReservationState
from agentic_trading.governance.limits import Ceiling, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import Opens, Promise
from tests.governance.asking import AT, ask, balance, held, of_tenant, refused, reserved, spend, tenant


async def asking_twice_reserves_and_charges_once(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(60, key="envelope-1")
    first = await reserved(ledger, wanted)

    again = await ledger.reserve(replace(wanted, at=AT + timedelta(minutes=3)))
    await ledger.dispatch(first)
    await ledger.settle(first, Amount(50, 0))
    settled = await ledger.reserve(wanted)

    assert again == Reservation(first, Amount(60, 0), ReservationState.RESERVED)
    assert settled == Reservation(first, Amount(60, 0), ReservationState.SETTLED)
    assert (await of_tenant(ledger)).spent == Amount(50, 0, 1)


async def another_attempt_is_another_reservation(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(60, key="envelope-1"))

    await spend(ledger, ask(30, key="envelope-1", attempt=2))

    assert (await of_tenant(ledger)).spent == Amount(90, 0, 2)


async def the_same_attempt_with_other_facts_is_an_error(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(60, key="envelope-1")
    await reserved(ledger, wanted)

    for other in (
        replace(wanted, amount=Amount(59, 0)),
        ask(60, key="envelope-1", trace="another"),
        replace(wanted, limits=(tenant(1000),)),
    ):
        with pytest.raises(ReservationConflictError):
            await ledger.reserve(other)
    assert (await of_tenant(ledger)).held == Amount(60, 0, 1)


async def settling_twice_charges_once(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await spend(ledger, ask(60), nusd=50)

    again = await ledger.settle(id_, Amount(7, 0))

    assert (again.charged, again.reserved) == (Amount(50, 0), Amount(60, 0))
    assert (await of_tenant(ledger)).spent == Amount(50, 0, 1)


async def more_than_was_reserved_is_charged_and_counted(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60, tokens=5))
    await ledger.dispatch(id_)

    settlement = await ledger.settle(id_, Amount(130, 4))

    assert settlement.overrun == Amount(70, 0, 0)
    assert (await of_tenant(ledger)).spent == Amount(130, 4, 1)
    assert (await of_tenant(ledger)).left == Ceiling(nusd=0)
    assert (await refused(ledger, ask(1))).left == 0
    assert (ledger.statistics().overruns, ledger.statistics().overrun_nusd) == (1, 70)


async def a_release_gives_all_back_and_twice_is_harmless(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60, tokens=5))

    await ledger.release(id_)
    await ledger.release(id_)

    assert ((await of_tenant(ledger)).held, (await of_tenant(ledger)).spent) == (
        Amount(0, 0, 0),
        Amount(0, 0, 0),
    )
    assert isinstance(await ledger.reserve(ask(100)), Reservation)


async def what_was_released_can_be_reserved_anew(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(60)
    await ledger.release(await reserved(ledger, wanted))

    again = await ledger.reserve(wanted)

    assert again == Reservation(wanted.reservation_id, wanted.amount, ReservationState.RESERVED)
    assert (await of_tenant(ledger)).held == Amount(60, 0, 1)


async def what_was_released_may_come_back_with_other_facts(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(60, key="envelope-1")
    await ledger.release(await reserved(ledger, wanted))
    other = ask(45, key="envelope-1", agent="another")

    again = await ledger.reserve(other)

    assert again == Reservation(wanted.reservation_id, Amount(45, 0), ReservationState.RESERVED)
    assert (await of_tenant(ledger)).held == Amount(45, 0, 1)
    with pytest.raises(ReservationConflictError):
        await ledger.reserve(wanted)


async def what_was_dispatched_is_not_refunded(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60))
    await ledger.dispatch(id_)

    with pytest.raises(ReservationStateError):
        await ledger.release(id_)

    assert (await of_tenant(ledger)).held == Amount(60, 0, 1)


async def only_one_may_dispatch(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60))
    await ledger.dispatch(id_)

    with pytest.raises(ReservationStateError) as e:
        await ledger.dispatch(id_)

    assert (e.value.state, e.value.allowed) == (ReservationState.DISPATCHED, (ReservationState.RESERVED,))


async def its_state_can_be_asked(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(10)
    states = [await ledger.state_of(wanted.reservation_id)]

    id_ = await reserved(ledger, wanted)
    states.append(await ledger.state_of(id_))
    await ledger.dispatch(id_)
    states.append(await ledger.state_of(id_))
    await ledger.in_doubt(id_)
    states.append(await ledger.state_of(id_))
    await ledger.settle(id_, Amount(5, 0))
    states.append(await ledger.state_of(id_))

    assert states == [
        None, ReservationState.RESERVED, ReservationState.DISPATCHED, ReservationState.IN_DOUBT, ReservationState.SETTLED
    ]  # fmt: skip
    given_back = await reserved(ledger, ask(10))
    await ledger.release(given_back)
    assert await ledger.state_of(given_back) in {None, ReservationState.RELEASED}


async def what_was_not_dispatched_is_not_charged(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60))

    with pytest.raises(ReservationStateError):
        await ledger.settle(id_, Amount(1, 0))
    with pytest.raises(ReservationStateError):
        await ledger.in_doubt(id_)

    assert (await of_tenant(ledger)).spent == Amount(0, 0, 0)


async def an_unknown_reservation_is_an_error(opens: Opens) -> None:
    ledger = await opens(tenant(100))

    for step in (
        ledger.dispatch,
        ledger.release,
        ledger.in_doubt,
        partial(ledger.settle, actual=Amount(1, 0)),
    ):
        with pytest.raises(UnknownReservationError):
            await step("acme:no:1")


async def a_call_in_doubt_is_charged_in_full_and_twice_is_harmless(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60, tokens=5))
    await ledger.dispatch(id_)

    settlement = await ledger.in_doubt(id_)

    assert await ledger.in_doubt(id_) == settlement
    assert (settlement.charged, settlement.in_doubt) == (Amount(60, 5, 1), True)
    found = await of_tenant(ledger)
    assert (found.spent, found.held, found.in_doubt) == (Amount(60, 5, 1), Amount(0, 0, 0), Amount(60, 5, 1))
    assert (await refused(ledger, ask(41))).left == 40


async def a_late_answer_corrects_the_charge_in_its_window(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.DAY))
    id_ = await reserved(ledger, ask(60))
    await ledger.dispatch(id_)
    await ledger.in_doubt(id_)
    await spend(ledger, ask(10, at=AT + timedelta(days=1)))

    settlement = await ledger.settle(id_, Amount(42, 0))

    assert (settlement.charged, settlement.late, settlement.in_doubt) == (Amount(42, 0), True, False)
    assert await ledger.in_doubt(id_) == settlement
    found = await balance(ledger, ScopeKind.TENANT, "acme", Window.DAY, "2026-01-02")
    assert (found.spent, found.in_doubt) == (Amount(42, 0, 1), Amount(0, 0, 0))


async def everything_is_counted(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(10), nusd=8)
    await ledger.release(await reserved(ledger, ask(10)))
    doubtful = await reserved(ledger, ask(10))
    await ledger.dispatch(doubtful)
    await ledger.in_doubt(doubtful)
    await reserved(ledger, ask(20))
    await held(ledger, ask(80))
    await refused(ledger, ask(90))

    await ledger.settle(doubtful, Amount(13, 0))

    found = ledger.statistics()
    assert (found.reserved, found.released, found.settled, found.in_doubt, found.late) == (4, 1, 2, 1, 1)
    assert (found.refused, found.held, found.in_flight, found.waiting) == (1, 1, 1, 0)
    assert (found.reserved_nusd, found.charged_nusd, found.overrun_nusd) == (20, 21, 3)


STEPS: tuple[Promise, ...] = (
    asking_twice_reserves_and_charges_once,
    another_attempt_is_another_reservation,
    the_same_attempt_with_other_facts_is_an_error,
    settling_twice_charges_once,
    more_than_was_reserved_is_charged_and_counted,
    a_release_gives_all_back_and_twice_is_harmless,
    what_was_released_can_be_reserved_anew,
    what_was_released_may_come_back_with_other_facts,
    what_was_dispatched_is_not_refunded,
    only_one_may_dispatch,
    its_state_can_be_asked,
    what_was_not_dispatched_is_not_charged,
    an_unknown_reservation_is_an_error,
    a_call_in_doubt_is_charged_in_full_and_twice_is_harmless,
    a_late_answer_corrects_the_charge_in_its_window,
    everything_is_counted,
)
