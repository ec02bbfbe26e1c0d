"""What was not known at `as_of` gets no answer: it fails where it is built, and in the worker if it was forged."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from agentic_trading.client.gateway import Gateway, GatewayClient, GatewayReply
from agentic_trading.clock import SimClock
from agentic_trading.desk.analysis.analyst import CmtAnalyst
from agentic_trading.desk.market.errors import UnclosedBarError
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, LookAheadError, NoDecision
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from tests.flows.sessions import LOADED, calls_in, evening, rules
from tests.gateway import MemoryGateway, gateway

BTC = LOADED["btcusdt-5m"]
FIVE_MINUTES = timedelta(minutes=5)


def market(bars: int = 312) -> MarketSnapshot:
    """Return the market after so many bars of the sample, at the close of an hour."""
    view = MarketView("BTCUSDT")
    for bar in BTC[:bars]:
        view.push(bar)
    return view.snapshot()


def test_unclosed_bar_is_refused_by_market_view() -> None:
    view = MarketView("BTCUSDT")
    view.push(BTC[0], as_of=BTC[0].close_time)

    with pytest.raises(UnclosedBarError, match="does not exist yet"):
        view.push(BTC[1], as_of=BTC[1].close_time - timedelta(microseconds=1))
    with pytest.raises(UnclosedBarError):
        view.snapshot(as_of=BTC[0].close_time - timedelta(microseconds=1))


async def test_question_about_unclosed_bar_is_refused() -> None:
    seen = market()
    ahead = replace(seen, as_of=seen.as_of - FIVE_MINUTES)
    desk = gateway(rules())

    with pytest.raises(LookAheadError, match="allowed is what was known at as_of") as refused:
        await analyst(GatewayClient(desk.broker), ahead).consider(ahead)

    assert refused.value.known_at == seen.as_of
    assert refused.value.as_of == ahead.as_of
    assert desk.broker.statistics().published == {}


class Kept:
    """A gateway that keeps what it is asked, and answers nothing."""

    def __init__(self) -> None:
        self.asked: list[LLMEnvelope] = []

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        self.asked.append(envelope)
        return NoDecision(
            reason=FailureReason(category=FailureKind.UNDELIVERABLE, description="nobody is here")
        )

    async def record(self, event: Event) -> None:
        """Forget it."""


async def honest_envelope() -> LLMEnvelope:
    """Return the envelope that the analyst makes of the market."""
    kept, seen = Kept(), market()
    await analyst(kept, seen).consider(seen)
    return kept.asked[0]


def analyst(client: Gateway, seen: MarketSnapshot) -> CmtAnalyst:
    return CmtAnalyst(
        client, SimClock(seen.as_of), session_id="s", provider=LLMProvider.RULES, model="rules-1"
    )


async def answer_of(desk: MemoryGateway, envelope: LLMEnvelope) -> GatewayReply:
    """Put an envelope on the bus as it is and wait for what a worker makes of it."""
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        async with GatewayClient(desk.broker) as client:
            answer = await client.ask(envelope)
        desk.pool.stop()
    return answer


async def test_unmodified_envelope_is_answered() -> None:
    envelope = await honest_envelope()
    desk = gateway(rules(), clock=SimClock(market().as_of))

    answer = await answer_of(desk, envelope)

    assert isinstance(answer, LLMInteraction)
    assert answer.result.actionable


@pytest.mark.parametrize("back", [timedelta(microseconds=1), FIVE_MINUTES, timedelta(days=1)])
async def test_envelope_with_earlier_as_of_is_refused(back: timedelta) -> None:
    honest = await honest_envelope()
    assert honest.as_of is not None
    forged = honest.model_copy(update={"as_of": honest.as_of - back})
    desk = gateway(rules(), clock=SimClock(honest.as_of))

    answer = await answer_of(desk, forged)

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert answer.result.failure.category is FailureKind.LOOK_AHEAD
    assert (answer.result.actionable, answer.result.raw_output, answer.result.dispatched_at) == (
        False,
        "",
        None,
    )
    assert desk.gate.statistics().admitted == 0


async def test_later_evidence_is_refused_by_worker() -> None:
    honest = await honest_envelope()
    assert honest.as_of is not None
    last = honest.retrieved_evidence[-1]
    later = last.model_copy(update={"available_at": honest.as_of + FIVE_MINUTES})
    forged = honest.model_copy(update={"retrieved_evidence": [*honest.retrieved_evidence[:-1], later]})

    answer = await answer_of(gateway(rules(), clock=SimClock(honest.as_of)), forged)

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert answer.result.failure.category is FailureKind.LOOK_AHEAD
    assert last.evidence_id in answer.result.failure.description


async def test_session_evidence_precedes_as_of() -> None:
    played = await evening()

    for one in calls_in(await played.records()):
        envelope = one.envelope
        assert envelope.as_of is not None
        assert envelope.context_as_of is not None
        assert envelope.context_as_of <= envelope.as_of
        assert envelope.retrieved_evidence
        for item in envelope.retrieved_evidence:
            assert item.available_at is not None
            assert item.available_at <= envelope.as_of


async def test_fill_follows_the_decision_bar() -> None:
    played = await evening()
    fills = [line for line in played.lines if line["kind"] == "order.filled"]
    intents = {line["id"]: line for line in played.lines if line["kind"] == "intent.approved"}

    assert fills
    assert all(fill["body"]["time"] > intents[fill["body"]["intent_id"]]["as_of"] for fill in fills)


async def test_later_bars_do_not_change_earlier_log() -> None:
    whole = await evening()
    part = await evening(most_bars=450)

    assert part.log == whole.log[: len(part.log)]
    assert 0 < len(part.log) < len(whole.log)
