"""What an attempt is charged, on every way out of the gate."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission import Admitted, Charge
from agentic_trading.governance.errors import ReservationStateError
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.result import Usage
from tests.build import NOW
from tests.governance.asking import balance
from tests.governance.gates import (
    CAPABILITIES,
    MOST,
    MOST_NUSD,
    PRICES,
    USAGE,
    USED_NUSD,
    admitted,
    gate,
    tenant,
)
from tests.governance.requests import request

HAIKU = {"provider": "anthropic", "model": "claude-haiku-5-5"}
SERVED = Usage(input_tokens=1000, output_tokens=100)


async def charged(served_model: str, **asked: str) -> tuple[Charge, Admitted]:
    """Return what a call costs that `served_model` answered, and its admission."""
    at = gate(MemoryLedger())
    admission = await admitted(at, request(**asked))
    await at.lifecycle.dispatch(admission)
    return await at.lifecycle.settle(admission, SERVED, served_model=served_model), admission


async def test_price_is_fixed_at_reservation() -> None:
    wall = SimClock(datetime(2026, 11, 20, 23, 59, tzinfo=UTC))
    at = gate(MemoryLedger(), wall=wall)
    admission = await admitted(at, request(provider="anthropic", model="claude-sonnet-5-5"))
    await at.lifecycle.dispatch(admission)

    wall.advance_to(datetime(2026, 11, 21, tzinfo=UTC))

    assert (await at.lifecycle.settle(admission, Usage(cache_read_tokens=1000))).cost_nusd == 200_000


async def test_losing_sender_does_not_affect_winner() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    asked = request()
    sends, loses = await admitted(at, asked), await admitted(at, asked)
    await at.lifecycle.dispatch(sends)

    with pytest.raises(ReservationStateError):
        await at.lifecycle.dispatch(loses)
    await at.release(loses)

    assert (await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")).held == MOST
    assert await at.lifecycle.settle(sends, USAGE) == Charge(USED_NUSD)
    await at.release(loses)
    assert ledger.statistics().charged_nusd == USED_NUSD


async def test_released_call_is_free() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    admission = await admitted(at, request())

    await at.release(admission)
    await at.release(admission)

    assert (
        await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")
    ).spent == Amount(0, 0, 0)
    assert ledger.statistics().in_flight == 0
    await admitted(at, request())


async def test_refused_connection_charges_no_call() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)

    assert await at.lifecycle.settle_unsent(admission) == Charge(0)
    assert await at.lifecycle.settle_unsent(admission) == Charge(0)

    assert (
        await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")
    ).spent == Amount(0, 0, 0)
    await admitted(at, request())


async def test_undispatched_call_cannot_settle_as_unsent() -> None:
    at = gate(MemoryLedger())
    admission = await admitted(at, request())

    with pytest.raises(ReservationStateError):
        await at.lifecycle.settle_unsent(admission)


async def test_release_after_dispatch_has_no_effect() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)
    await at.release(admission)
    await at.lifecycle.in_doubt(admission)

    await at.release(admission)
    await at.release(replace(admission, request=replace(admission.request, key="long-forgotten")))

    assert (await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")).spent == MOST


async def test_unsent_in_doubt_call_is_refunded() -> None:
    at = gate(MemoryLedger())
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)
    await at.lifecycle.in_doubt(admission)

    assert await at.lifecycle.settle_unsent(admission) == Charge(0, late=True)


async def test_late_answer_corrects_full_charge() -> None:
    at = gate(MemoryLedger())
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)

    doubtful = await at.lifecycle.in_doubt(admission)
    late = await at.lifecycle.settle(admission, USAGE)

    assert doubtful == Charge(MOST_NUSD, in_doubt=True)
    assert late == Charge(USED_NUSD, late=True)
    assert await at.lifecycle.settle(admission, Usage(output_tokens=1)) == late


async def test_overrun_is_charged_and_reported() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)

    charge = await at.lifecycle.settle(admission, Usage(output_tokens=5000))

    assert charge == Charge(50_000_000, overrun_nusd=50_000_000 - MOST_NUSD)
    assert ledger.statistics().overruns == 1


async def test_higher_server_bill_is_charged() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)
    billed = USAGE.model_copy(update={"bill_nusd": USED_NUSD + 1})

    charge = await at.lifecycle.settle(admission, billed)

    assert charge == Charge(USED_NUSD + 1, bill_nusd=USED_NUSD + 1)
    assert (
        await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")
    ).spent.nusd == USED_NUSD + 1


async def test_lower_server_bill_is_ignored() -> None:
    at = gate(MemoryLedger())
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)

    charge = await at.lifecycle.settle(admission, USAGE.model_copy(update={"bill_nusd": 1}))

    assert charge == Charge(USED_NUSD, bill_nusd=1)


async def test_bill_above_reservation_is_fully_charged() -> None:
    ledger = MemoryLedger()
    at = gate(ledger)
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)
    bill = MOST_NUSD + 5

    charge = await at.lifecycle.settle(admission, USAGE.model_copy(update={"bill_nusd": bill}))

    assert charge == Charge(bill, overrun_nusd=5, bill_nusd=bill, overbilled=True)
    assert ledger.statistics().overruns == 1


@pytest.mark.parametrize("above", [0, 5])
async def test_unusable_answer_is_charged_as_billed(above: int) -> None:
    ledger = MemoryLedger()
    at = gate(ledger)
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)
    bill = MOST_NUSD + above

    charge = await at.lifecycle.in_doubt(admission, bill_nusd=bill)

    assert (charge.cost_nusd, charge.overrun_nusd, charge.bill_nusd) == (bill, above, bill)
    assert (charge.in_doubt, charge.overbilled) == (not above, bool(above))


async def test_unpriced_usage_costs_full_reservation() -> None:
    at = gate(MemoryLedger())
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)

    charge = await at.lifecycle.settle(admission, Usage(input_tokens=1, service_tier="priority"))

    assert charge == Charge(MOST_NUSD, unpriced="service_tier=priority")


def price(model: str) -> int:
    return PRICES.cost_nusd(LLMProvider.ANTHROPIC, model, SERVED, at=NOW)


async def test_dearer_served_model_causes_overrun() -> None:
    charge, admission = await charged("claude-opus-5-5", **HAIKU)

    cost = price("claude-opus-5-5")
    assert cost > admission.amount.nusd > price("claude-haiku-5-5")
    assert charge == Charge(cost, overrun_nusd=cost - admission.amount.nusd)


@pytest.mark.parametrize("served_model", ["", "claude-opus-5-5", "claude-haiku-5-5"])
async def test_cheaper_served_model_costs_requested_price(served_model: str) -> None:
    charge, _ = await charged(served_model, provider="anthropic", model="claude-opus-5-5")

    assert charge == Charge(price("claude-opus-5-5"))


async def test_served_alias_has_model_price() -> None:
    row = CAPABILITIES.of(LLMProvider.ANTHROPIC, "claude-haiku-5-5")
    renamed = Capabilities([row.model_copy(update={"served_as": ("claude-haiku-5-5-dated",)})])
    at = Gate(ledger=MemoryLedger(), prices=PRICES, capabilities=renamed, clock=SimClock(NOW), mode="live")
    admission = await admitted(at, request(**HAIKU))
    await at.lifecycle.dispatch(admission)

    charge = await at.lifecycle.settle(admission, SERVED, served_model="claude-haiku-5-5-dated")

    assert charge == Charge(price("claude-haiku-5-5"))


async def test_unpriced_served_model_costs_full_reservation() -> None:
    charge, admission = await charged("gpt-other", **HAIKU)

    assert charge == Charge(admission.amount.nusd, unpriced="served_as=gpt-other")


async def test_unpriced_served_model_overrun_is_charged() -> None:
    at = gate(MemoryLedger())
    admission = await admitted(at, request())
    await at.lifecycle.dispatch(admission)

    charge = await at.lifecycle.settle(admission, Usage(output_tokens=5000), served_model="gpt-other")

    assert charge == Charge(50_000_000, overrun_nusd=50_000_000 - MOST_NUSD, unpriced="served_as=gpt-other")
