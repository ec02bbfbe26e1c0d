"""What every ledger promises of calls that nobody ends, one function a promise."""

import asyncio

import pytest

from agentic_trading.governance.errors import ReservationStateError, UnknownReservationError
from agentic_trading.governance.ledger import ExpiredReservation, Reservation, ReservationState
from agentic_trading.governance.limits import ScopeKind
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import Opens, Promise, in_line
from tests.governance.asking import AT, ask, of_tenant, reserved, tenant


async def what_was_never_sent_is_refunded_when_its_lease_is_over(opens: Opens) -> None:
    ledger = await opens(tenant(100), reserved_lease_s=0)
    id_ = await reserved(ledger, ask(60, tokens=5))

    expired = await ledger.expire_leases()

    assert list(expired) == [ExpiredReservation(id_, ReservationState.RELEASED, Amount(60, 5))]
    found = await of_tenant(ledger)
    assert (found.held, found.spent) == (Amount(0, 0, 0), Amount(0, 0, 0))
    await ledger.acknowledge_expired(id_)
    assert list(await ledger.expire_leases()) == []


async def what_was_sent_and_is_silent_is_charged_in_full(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60, tokens=5))
    await ledger.dispatch(id_, lease_s=0)

    expired = await ledger.expire_leases()

    assert list(expired) == [ExpiredReservation(id_, ReservationState.IN_DOUBT, Amount(60, 5))]
    assert expired[0].scope_ids[ScopeKind.TENANT] == "acme"
    assert expired[0].counted_at is not None
    assert f"{expired[0].counted_at:%Y-%m-%d}" == f"{AT:%Y-%m-%d}"
    found = await of_tenant(ledger)
    assert (found.spent, found.held, found.in_doubt) == (Amount(60, 5), Amount(0, 0, 0), Amount(60, 5))
    assert await ledger.state_of(id_) is ReservationState.IN_DOUBT
    assert list(await ledger.expire_leases()) == []


async def who_is_within_its_lease_is_left_alone(opens: Opens) -> None:
    ledger = await opens(tenant(100), reserved_lease_s=0)
    sent = await reserved(ledger, ask(60))
    await ledger.dispatch(sent)
    patient = await opens(tenant(100))
    waits = await reserved(patient, ask(60))

    assert [list(await one.expire_leases()) for one in (ledger, patient)] == [[], []]
    assert await ledger.state_of(sent) is ReservationState.DISPATCHED
    assert await patient.state_of(waits) is ReservationState.RESERVED


async def an_answer_after_the_lease_corrects_the_charge(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60))
    await ledger.dispatch(id_, lease_s=0)
    await ledger.expire_leases()

    settlement = await ledger.settle(id_, Amount(45, 0))

    assert (settlement.charged, settlement.late) == (Amount(45, 0), True)
    found = await of_tenant(ledger)
    assert (found.spent, found.in_doubt) == (Amount(45, 0), Amount(0, 0, 0))


async def a_redelivery_after_the_lease_is_not_charged_again(opens: Opens) -> None:
    ledger = await opens(tenant(200))
    wanted = ask(60)
    id_ = await reserved(ledger, wanted)
    await ledger.dispatch(id_, lease_s=0)
    await ledger.expire_leases()

    again = await ledger.reserve(wanted)

    assert again == Reservation(id_, wanted.amount, ReservationState.IN_DOUBT)
    with pytest.raises(ReservationStateError):
        await ledger.dispatch(id_)
    await ledger.settle(id_, Amount(50, 0))
    assert await ledger.reserve(wanted) == Reservation(id_, wanted.amount, ReservationState.SETTLED)
    assert (await of_tenant(ledger)).spent == Amount(50, 0, 1)


async def who_comes_back_after_the_lease_cannot_send(opens: Opens) -> None:
    ledger = await opens(tenant(100), reserved_lease_s=0)
    wanted = ask(60)
    id_ = await reserved(ledger, wanted)
    await ledger.expire_leases()

    with pytest.raises((ReservationStateError, UnknownReservationError)):
        await ledger.dispatch(id_)

    assert (await of_tenant(ledger)).held == Amount(0, 0, 0)
    assert await ledger.reserve(wanted) == Reservation(id_, wanted.amount, ReservationState.RESERVED)
    await ledger.dispatch(id_)


async def who_waits_gets_what_the_dead_held(opens: Opens) -> None:
    ledger = await opens(tenant(100), reserved_lease_s=0)
    await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(90, key="outlives")))
        await in_line(ledger, 1)
        await ledger.expire_leases()

    assert waiting.result() == Reservation("acme:outlives:1", Amount(90, 0))


async def what_ran_out_is_returned_until_it_is_on_record(opens: Opens) -> None:
    ledger = await opens(tenant(100), reserved_lease_s=0)
    unsent, silent = await reserved(ledger, ask(20)), await reserved(ledger, ask(30, tokens=5))
    await ledger.dispatch(silent, lease_s=0)

    found = sorted(await ledger.expire_leases(), key=lambda one: one.amount.nusd)
    assert [one.reservation_id for one in found] == [unsent, silent]
    assert sorted(await ledger.expire_leases(), key=lambda one: one.amount.nusd) == found

    for _ in range(2):
        await ledger.acknowledge_expired(silent)
    assert list(await ledger.expire_leases()) == found[:1]
    assert ledger.statistics().in_doubt == ledger.statistics().released == 1


async def what_went_on_after_its_lease_is_returned_no_more(opens: Opens) -> None:
    ledger = await opens(tenant(100), reserved_lease_s=0)
    wanted = ask(20)
    again, late = await reserved(ledger, wanted), await reserved(ledger, ask(30))
    await ledger.dispatch(late, lease_s=0)
    assert len(await ledger.expire_leases()) == 2

    await ledger.settle(late, Amount(10, 0))
    await reserved(ledger, wanted)
    await ledger.dispatch(again)

    assert list(await ledger.expire_leases()) == []


LEASES: tuple[Promise, ...] = (
    what_was_never_sent_is_refunded_when_its_lease_is_over,
    what_was_sent_and_is_silent_is_charged_in_full,
    who_is_within_its_lease_is_left_alone,
    an_answer_after_the_lease_corrects_the_charge,
    a_redelivery_after_the_lease_is_not_charged_again,
    who_comes_back_after_the_lease_cannot_send,
    who_waits_gets_what_the_dead_held,
    what_ran_out_is_returned_until_it_is_on_record,
    what_went_on_after_its_lease_is_returned_no_more,
)
