"""What a limit and an ask may say."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.errors import LedgerError, LimitError, ReservationRequestError
from agentic_trading.governance.ledger import Balance, tenant_of
from agentic_trading.governance.limits import ANY, LARGEST, Ceiling, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.llm.interaction import reservation_id
from tests.governance.asking import ask, tenant


@pytest.mark.parametrize("fields", [{"nusd": -1}, {"tokens": -1}, {"calls": -5, "nusd": 1}])
def test_negative_ceiling_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(LimitError, match="Allowed: 0"):
        Limit(ScopeKind.TENANT, ANY, Window.DAY, **fields)


def test_limit_without_ceiling_is_rejected() -> None:
    with pytest.raises(LimitError, match="Set at least one of nusd, tokens and calls") as e:
        Limit(ScopeKind.AGENT, "cmt", Window.DAY)

    assert e.value.subject == "agent 'cmt' per day"
    with pytest.raises(LimitError, match="limit on agent 'cmt' in all: has no ceiling"):
        Limit(ScopeKind.AGENT, "cmt", Window.NONE)


def test_limit_without_id_is_rejected() -> None:
    with pytest.raises(LimitError, match="has no id"):
        Limit(ScopeKind.AGENT, "", Window.DAY, nusd=1)


def test_zero_limit_is_valid() -> None:
    assert Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=0).ceiling == Ceiling(calls=0)


def test_request_limits_only_own_scopes() -> None:
    own = Limit(ScopeKind.TRACE, "trace-1", Window.NONE, nusd=1)

    assert ask(limits=(own, tenant(1))).limits == (own, tenant(1))
    with pytest.raises(ReservationRequestError, match=r"'another'\. Allowed: its own scopes"):
        ask(limits=(replace(own, id="another"),))


def test_scope_without_id_is_rejected() -> None:
    with pytest.raises(ReservationRequestError, match="empty id") as e:
        ask(key="call-x", agent="")

    assert e.value.key == "call-x"
    assert isinstance(e.value, LedgerError)


def test_payload_hash_is_stable_across_deliveries() -> None:
    first = ask(5, key="envelope-1")

    again = replace(first, at=None, priority=7, key="other", attempt=2)

    assert again.payload_hash == first.payload_hash
    for other in (
        replace(first, amount=Amount(5, 0, 2)),
        replace(first, limits=(tenant(1),)),
        ask(5, key="envelope-1", agent="another"),
    ):
        assert other.payload_hash != first.payload_hash


def test_remaining_budget_is_never_negative() -> None:
    found = Balance(
        "acme", ScopeKind.TENANT, "acme", Window.DAY, "2026-01-02", Ceiling(nusd=10, calls=3),
        spent=Amount(9, 9, 1), held=Amount(4, 0, 1), in_doubt=Amount(0, 0, 0),
    )  # fmt: skip

    assert found.left == Ceiling(nusd=0, tokens=None, calls=1)


@given(st.text(), st.text(), st.integers(1, 99))
def test_tenant_is_read_from_reservation_id(tenant: str, key: str, attempt: int) -> None:
    assert tenant_of(reservation_id(tenant, key, attempt)) == tenant


@given(st.tuples(st.text(":%3A2b5"), st.text(":%3A2b5")), st.tuples(st.text(":%3A2b5"), st.text(":%3A2b5")))
def test_reservation_ids_are_unique_across_tenants(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (reservation_id(*one, 1) == reservation_id(*other, 1)) == (one == other)


def test_timestamp_does_not_change_reservation_id() -> None:
    first = ask(5, key="envelope-1")

    assert replace(first, at=None).reservation_id == first.reservation_id == "acme:envelope-1:1"


@pytest.mark.parametrize("fields", [{"nusd": LARGEST + 1}, {"tokens": LARGEST + 1}])
def test_uncountable_ceiling_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(LimitError, match=f"to {LARGEST}"):
        Limit(ScopeKind.TENANT, ANY, Window.DAY, **fields)
