"""Of the records of one reservation, in whatever order they are read, the dearer counts."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from agentic_trading.governance.events import AttemptAnsweredLate, AttemptDispatched, AttemptUnsent
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.limits import ScopeKind
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import (
    LedgerRebuild,
    LostAttempt,
)
from agentic_trading.llm import Event
from agentic_trading.llm.errors import UnknownKindError
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import AttemptTrace, Stage
from agentic_trading.llm.store import Record
from tests.build import envelope, event, interaction
from tests.gateway import START

READING = AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE)


def silent(
    key: str, *, nusd: int = 70, state: str = "in_doubt", tenant_id: str = "default", **more: Any
) -> Event:
    """Return the record of a call whose lease was over."""
    body = {"reservation_id": f"default:{key}:1", "state": state, "nusd": nusd, "tokens": 3, **more}
    body["scopes"] = {"agent": "desk-1"}
    return event("reservation.expired", body=body, time=START, tenant_id=tenant_id)


def of(body: EventBody, **more: Any) -> Event:
    """Return an event with this body."""
    return event(body.KIND, body=body.model_dump(mode="json"), **more)


def sent(
    key: str,
    *,
    nusd: int = 40,
    tokens: int = 0,
    tenant_id: str = "default",
    at: datetime = START,
    **more: Any,
) -> Event:
    """Return the record that a call is about to be sent."""
    scopes = {ScopeKind.CALL: key, ScopeKind.TENANT: "default", ScopeKind.AGENT: "desk-1"}
    body = AttemptDispatched(
        attempt=1, request_hash="", provider="", model="", reservation_id=f"default:{key}:1",
        scopes=scopes, reserved_nusd=nusd, reserved_tokens=tokens, window_at=at,
    )  # fmt: skip
    return of(body, tenant_id=tenant_id, **more)


def taken_back(noted: Event) -> Event:
    """Return the record that a dispatch was taken back."""
    body = AttemptUnsent(attempt=1, reservation_id=noted.body["reservation_id"], why="no time left")
    return of(body, causation_id=noted.id)


def late(noted: Event, nusd: int) -> Event:
    """Return the record of an answer that came after its attempt had been given up."""
    id_ = noted.body["reservation_id"]
    return of(
        AttemptAnsweredLate(attempt=1, reservation_id=id_, cost_nusd=nusd, tokens=1), causation_id=noted.id
    )


def answered(key: str, nusd: int, **more: Any) -> LLMInteraction:
    """Return a call that was answered."""
    asked = envelope(idempotency_key=key, envelope_id=more.pop("envelope_id", f"e-{key}"))
    return interaction(envelope=asked, dispatched_at=START, finished_at=START, cost_nusd=nusd, **more)


def unconnected(key: str) -> LLMInteraction:
    """Return a call whose connection was refused."""
    return answered(key, 0, input_tokens=0, output_tokens=0)


def booked(*records: Record) -> list[tuple[str, str, int]]:
    """Return what these records book, in whatever order they are read, and however often."""
    found = []
    for order in (records, tuple(reversed(records)), records * 2):
        reading = LedgerRebuild("default", "live")
        for record in order:
            reading.read(record)
        found.append(sorted(reading.entries(), key=lambda one: one.request.reservation_id))
    whole = [[(one.charged, one.state, one.request.at) for one in each] for each in found]
    assert whole[0] == whole[1] == whole[2]
    return [(one.request.reservation_id, one.state.value, one.charged.nusd) for one in found[0]]


def test_expired_lease_charge_is_in_doubt() -> None:
    reading = LedgerRebuild("default", "live")
    reading.read(silent("a:b"))

    (lost,) = reading.entries()

    assert (lost.request.reservation_id, lost.state) == ("default:a:b:1", ReservationState.IN_DOUBT)
    assert (lost.charged, lost.request.at) == (Amount(70, 3), START)
    assert lost.request.scope_ids == {
        ScopeKind.AGENT: "desk-1",
        ScopeKind.CALL: "a:b",
        ScopeKind.TENANT: "default",
    }


def test_expired_lease_keeps_reservation_window() -> None:
    reading, day_before = LedgerRebuild("default", "live"), START - timedelta(days=1)
    reading.read(silent("k", window_at=day_before.isoformat()))

    (lost,) = reading.entries()

    assert lost.request.at == day_before


def test_answer_counts_for_dispatched_principal() -> None:
    noted = sent("k")
    body = {**noted.body, "scopes": {**noted.body["scopes"], "principal": "desk-a"}}
    reading = LedgerRebuild("default", "live")
    reading.read(noted.model_copy(update={"body": body}))
    reading.read(answered("k", 5))

    (entry,) = reading.entries()

    assert (entry.request.scope_ids[ScopeKind.PRINCIPAL], entry.charged.nusd) == ("desk-a", 5)


def test_answer_replaces_expired_lease_charge() -> None:
    assert booked(silent("k"), answered("k", 5)) == [("default:k:1", "settled", 5)]


def test_dearer_of_lease_and_dispatch_counts() -> None:
    assert booked(silent("k", nusd=70), sent("k", nusd=40)) == [("default:k:1", "in_doubt", 70)]
    assert booked(silent("k", nusd=30), sent("k", nusd=40)) == [("default:k:1", "in_doubt", 40)]
    assert booked(silent("k", state="released"), sent("k")) == [("default:k:1", "in_doubt", 40)]


def test_event_tenant_does_not_affect_booking() -> None:
    expected = [("default:k:1", "in_doubt", 70)]

    assert booked(silent("k", tenant_id="platform")) == expected
    assert booked(sent("k", nusd=70, tenant_id="platform")) == expected


def test_withdrawn_dispatch_is_not_booked() -> None:
    noted = sent("k", id="d-1")

    assert booked(noted, taken_back(noted)) == []
    assert booked(noted, taken_back(noted), silent("k")) == [("default:k:1", "in_doubt", 70)]


def test_dispatch_after_withdrawn_dispatch_counts() -> None:
    first, second = sent("k", id="d-1"), sent("k", id="d-2")

    assert booked(first, taken_back(first), second) == [("default:k:1", "in_doubt", 40)]


def test_withdrawn_dispatch_result_spares_lost_dispatch() -> None:
    first, second = sent("k", id="d-1"), sent("k", id="d-2")
    refused = unconnected("k")

    assert booked(first, taken_back(first), refused, second) == [("default:k:1", "in_doubt", 40)]
    assert booked(first, taken_back(first), refused) == [("default:k:1", "settled", 0)]


def test_free_calls_count_most_tokens() -> None:
    few, many = sent("k", id="d-1", nusd=0, tokens=5), sent("k", id="d-2", nusd=0, tokens=90)
    ended = answered("k", 0, input_tokens=1, output_tokens=0, reading=READING)

    assert booked(few, many, ended) == [("default:k:1", "in_doubt", 0)]
    reading = LedgerRebuild("default", "live")
    for record in (few, ended, many):
        reading.read(record)
    (entry,) = reading.entries()
    assert entry.charged == Amount(0, 91, 2)


def test_dearer_of_two_lease_records_counts() -> None:
    assert booked(silent("k", nusd=70), silent("k", nusd=30)) == [("default:k:1", "in_doubt", 70)]


def test_window_is_independent_of_log_order() -> None:
    later = START + timedelta(days=1)
    booked(sent("k", id="d-1"), sent("k", id="d-2", at=later))
    first, second = sent("k", id="d-1"), sent("k", id="d-2", at=later)
    reading = LedgerRebuild("default", "live")
    for record in (first, taken_back(first), second):
        reading.read(record)

    (entry,) = reading.entries()
    assert entry.request.at == later


def test_unknown_event_kind_is_refused() -> None:
    with pytest.raises(UnknownKindError):
        LedgerRebuild("default", "live").read(event("attempt.moved", tenant_id="platform"))


def test_refusal_does_not_withdraw_lost_call() -> None:
    noted = sent("k", causation_id="e-k")
    refused = interaction(
        envelope=envelope(idempotency_key="k", envelope_id="e-k"), dispatched_at=None, cost_nusd=0
    )

    assert booked(noted, refused) == [("default:k:1", "in_doubt", 40)]


def test_every_unanswered_dispatch_counts() -> None:
    noted = [sent("k", id=f"d-{n}", nusd=40 + n) for n in range(3)]

    assert booked(*noted) == [("default:k:1", "in_doubt", 123)]
    assert booked(*noted, answered("k", 5)) == [("default:k:1", "in_doubt", 88)]
    assert booked(noted[0], answered("k", 5)) == [("default:k:1", "settled", 5)]


def test_refused_connection_keeps_earlier_answer() -> None:
    refused = unconnected("k")

    assert booked(answered("k", 70), refused) == [("default:k:1", "settled", 70)]


def test_call_by_two_envelopes_counts_twice() -> None:
    twice = [answered("k", 7, envelope_id=f"e-{n}", reservation_id="default:k:1") for n in range(2)]

    assert booked(*twice) == [("default:k:1", "settled", 14)]


def test_dispatched_attempt_without_end_is_lost() -> None:
    noted = sent("k", id="d-1", time=START)
    reading = LedgerRebuild("default", "live")
    for record in (noted, sent("k", id="d-2"), sent("done"), answered("done", 5), silent("only a lease")):
        reading.read(record)

    assert reading.lost() == {"default:k:1": LostAttempt("default:k:1", Amount(80, 0, 2), START)}


def test_late_answer_replaces_in_doubt_charge() -> None:
    noted = sent("k", nusd=40)

    assert booked(noted) == [("default:k:1", "in_doubt", 40)]
    assert booked(noted, late(noted, 25)) == [("default:k:1", "settled", 25)]
    assert booked(noted, answered("k", 40, in_doubt=True, success=False), late(noted, 25)) == [
        ("default:k:1", "settled", 25)
    ]


def test_late_answer_keeps_confirmed_charge() -> None:
    noted = sent("k", nusd=40)

    assert booked(noted, answered("k", 30), late(noted, 25)) == [("default:k:1", "settled", 30)]


def test_late_answer_corrects_cheapest_doubt() -> None:
    first, second = sent("k", nusd=40), sent("k", nusd=60)

    assert booked(first, second, late(first, 25)) == [("default:k:1", "in_doubt", 85)]
