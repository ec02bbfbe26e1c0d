"""The counters of a session count what passes, each kind under its name."""

from decimal import Decimal
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.client.gateway import GatewayReply
from agentic_trading.desk.decisions import CountingGateway, SessionCounters
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from tests.build import envelope, event, interaction
from tests.event_bodies import sample
from tests.gateway import AskedEitherWay


class Recording(AskedEitherWay):
    """A gateway that answers and keeps what it was given."""

    def __init__(self) -> None:
        self.asked: list[LLMEnvelope] = []
        self.recorded: list[Event] = []

    @override
    async def ask(self, asked: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None) -> GatewayReply:
        self.asked.append(asked)
        return interaction(envelope=asked)

    async def record(self, recorded: Event) -> None:
        self.recorded.append(recorded)


def counted(*events: Event) -> SessionCounters:
    counters = SessionCounters()
    for each in events:
        counters.count(each)
    return counters


async def test_counting_gateway_forwards_calls_and_events() -> None:
    gateway, counters = Recording(), SessionCounters()
    asked, fact = envelope(), sample("intent.approved")

    answer = await CountingGateway(gateway, counters).ask(asked)
    await CountingGateway(gateway, counters).record(fact)

    assert not isinstance(answer, Event)
    assert (gateway.asked, gateway.recorded) == ([asked], [fact])
    assert (counters.calls, counters.intents) == (1, 1)


def test_decisions_counted_by_workflow_and_outcome() -> None:
    reason = {"category": "refusal", "description": "no"}
    counters = counted(
        sample("analysis.assessed", verdict="stand_aside"),
        sample("analysis.assessed", verdict="stand_aside"),
        sample("analysis.assessed", verdict="long"),
        sample("intent.strategy_chosen", algo="twap", order_type="limit"),
        sample("analysis.undecided", reason=reason),
        sample("intent.undecided", reason={**reason, "category": "timeout"}),
    )

    assert counters.decisions == {"analysis": {"stand_aside": 2, "long": 1}, "execution": {"twap limit": 1}}
    assert counters.no_decisions == {"analysis": {"refusal": 1}, "execution": {"timeout": 1}}


def test_fees_summed_exactly_first_fill_kept() -> None:
    fills = [sample("order.filled", fee=fee) for fee in ("0.1", "0.2", "12345678901234567890.000000000003")]

    counters = counted(*fills)

    assert (counters.fills, counters.first_fill_id) == (3, fills[0].id)
    assert counters.fees == Decimal("12345678901234567890.300000000003")


@pytest.mark.parametrize(
    ("kind", "body", "counted_as"),
    [
        ("analysis.skipped", {"reason": "warming_up"}, {"skips": {"warming_up": 1}}),
        ("intent.skipped", {"reason": "position_open"}, {"skips": {"position_open": 1}}),
        ("intent.denied", {"rule": "min_quantity"}, {"intents_rejected": {"min_quantity": 1}}),
        ("order.denied", {"rule": "max_orders"}, {"intents_rejected": {"max_orders": 1}}),
        ("order.denied", {"rule": "balance", "order_id": "o1"}, {"orders_refused": {"balance": 1}}),
        ("order.submitted", {}, {"orders": 1}),
        ("order.canceled", {"reason": "plan_passed"}, {"cancelled": {"plan_passed": 1}}),
        ("analysis.triggered", {"kind": "thesis_due"}, {}),
    ],
)
def test_each_kind_has_named_counter(kind: str, body: dict[str, Any], counted_as: dict[str, Any]) -> None:
    counters = counted(sample(kind, **body), event("of.somebody.else"))

    nothing = SessionCounters()
    figures = {
        name: getattr(counters, name)
        for name in ("skips", "intents_rejected", "orders", "orders_refused", "cancelled", "fills", "intents")
    }
    empty = {name: getattr(nothing, name) for name in figures}
    assert figures == {**empty, **counted_as}
