"""Builders for ledger tests: asks and limits of which a test says only what matters."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count

from agentic_trading.governance.ledger import (
    Balance,
    Blocked,
    Declined,
    Ledger,
    Reservation,
    ReservationRequest,
)
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount

AT = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)

_numbers = count()


def ask(
    nusd: int = 0,
    *,
    tokens: int = 0,
    key: str = "",
    attempt: int = 1,
    at: datetime | None = AT,
    limits: tuple[Limit, ...] = (),
    priority: int = 0,
    **scopes: str,
) -> ReservationRequest:
    """Return an ask with a key of its own; `scopes` are `trace`, `agent`, `workflow`, `tenant`."""
    key = key or f"call-{next(_numbers)}"
    names = {
        "call": key,
        "trace": "trace-1",
        "agent": "agent-1",
        "workflow": "analysis",
        "tenant": "acme",
        **scopes,
    }
    ids = {ScopeKind(kind): name for kind, name in names.items()}
    return ReservationRequest(key, attempt, ids, Amount(nusd, tokens), at, limits, priority)


def tenant(nusd: int, *, window: Window = Window.NONE) -> Limit:
    """Return a ceiling on the money of every tenant."""
    return Limit(ScopeKind.TENANT, ANY, window, nusd=nusd)


async def reserved(ledger: Ledger, wanted: ReservationRequest) -> str:
    """Reserve what fits; return the reservation's id."""
    answer = await ledger.reserve(wanted)
    assert isinstance(answer, Reservation), answer
    return answer.id


async def refused(ledger: Ledger, wanted: ReservationRequest) -> Declined:
    """Ask for what does not fit."""
    answer = await ledger.reserve(wanted)
    assert isinstance(answer, Declined), answer
    return answer


async def held(ledger: Ledger, wanted: ReservationRequest) -> Blocked:
    """Ask for what fits later."""
    answer = await ledger.reserve(wanted)
    assert isinstance(answer, Blocked), answer
    return answer


async def spend(ledger: Ledger, wanted: ReservationRequest, nusd: int | None = None) -> str:
    """Reserve, dispatch and settle a call, at `nusd` or at all that it reserved; return the reservation's id."""
    id_ = await reserved(ledger, wanted)
    await ledger.dispatch(id_)
    await ledger.settle(id_, wanted.amount if nusd is None else Amount(nusd, wanted.amount.tokens))
    return id_


async def balance(
    ledger: Ledger, scope: ScopeKind, id_: str, window: Window, window_id: str = "", *, tenant: str = "acme"
) -> Balance:
    """Return the one counter of a scope and window."""
    (found,) = select(await ledger.balances(tenant), scope, id_, window, window_id)
    return found


def select(
    balances: Iterable[Balance], scope: ScopeKind, id_: str, window: Window, window_id: str = ""
) -> list[Balance]:
    """Return the counters of a scope and window, of one window if its id is given."""
    return [
        one
        for one in balances
        if (one.scope, one.id, one.window) == (scope, id_, window) and window_id in ("", one.window_id)
    ]


async def of_tenant(ledger: Ledger, window: Window = Window.NONE) -> Balance:
    """Return the counter of the tenant that asks come from."""
    return await balance(ledger, ScopeKind.TENANT, "acme", window)
