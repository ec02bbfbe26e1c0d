"""The decision log: one line for each call and event, in an order that no worker can change."""

import asyncio
from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from agentic_trading.client.gateway import GatewayReply, verdict_of
from agentic_trading.desk.decisions import DecisionLoggingGateway
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.worker.attempt_result import degraded_result
from tests.build import NOW, envelope, event, interaction, result
from tests.event_bodies import sample
from tests.gateway import AskedEitherWay

REFUSED = FailureReason(category=FailureKind.REFUSAL, description="no")


class Answering(AskedEitherWay):
    """A gateway that gives one answer, after as many turns of the loop as the context says."""

    def __init__(self, answer: GatewayReply | None = None) -> None:
        self._answer = answer
        self.recorded: list[Event] = []

    @override
    async def ask(self, asked: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None) -> GatewayReply:
        for _ in range(asked.context.get("turns", 0)):
            await asyncio.sleep(0)
        return interaction(envelope=asked) if self._answer is None else self._answer

    async def record(self, fact: Event) -> None:
        self.recorded.append(fact)


def objects(lines: list[bytes]) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in lines]


async def test_logged_call_has_request_and_answer() -> None:
    asked = envelope(subject="BTCUSDT", as_of=NOW, workflow="analysis", causation_id="t-1")
    answer = interaction(envelope=asked, parsed_output={"size": 1.50}, attempt_number=2)
    log = DecisionLoggingGateway(Answering(answer))

    assert await log.ask(asked) is answer

    assert objects(log.close()) == [
        {
            "kind": "call",
            "subject": "BTCUSDT",
            "step": 1,
            "id": asked.envelope_id,
            "trace_id": asked.trace_id,
            "causation_id": "t-1",
            "as_of": "2026-01-02T00:00:00Z",
            "workflow": "analysis",
            "agent_id": "analyst-1",
            "request_hash": asked.request_hash,
            "verdict": "accepted",
            "attempts": 2,
            "answer": {"size": 1.5},
        }
    ]


async def test_answer_number_keeps_digits() -> None:
    asked = envelope(subject="BTCUSDT")
    answer = interaction(envelope=asked, result=result(parsed_output={"size": 1, "price": 27000.1}))
    log = DecisionLoggingGateway(Answering(answer))

    await log.ask(asked)

    assert b'"answer":{"size":1,"price":27000.1}' in log.close()[0]


async def test_missing_decision_logs_reason_without_answer() -> None:
    log = DecisionLoggingGateway(Answering(NoDecision(reason=REFUSED)))

    await log.ask(envelope(subject="BTCUSDT"))

    (line,) = objects(log.close())
    assert (line["verdict"], line["answer"], line["attempts"], line["as_of"]) == ("refusal", {}, 0, None)


async def test_lines_omit_wall_time_cost_latency() -> None:
    asked = envelope(subject="BTCUSDT", as_of=NOW, created_at=NOW + timedelta(days=99))
    one = interaction(envelope=asked, latency_ms=1.0, cost_nusd=7, stored_at=NOW + timedelta(days=77))
    other = interaction(envelope=asked, latency_ms=2.0, cost_nusd=8)
    written = []

    for answer in (one, other):
        log = DecisionLoggingGateway(Answering(answer))
        await log.ask(asked)
        await log.record(event("of.somebody", id="f-1", trace_id="t-1", time=answer.stored_at, as_of=NOW))
        written.append(log.close())

    assert written[0] == written[1]


async def test_skipped_event_recorded_but_not_logged() -> None:
    gateway = Answering()
    log = DecisionLoggingGateway(gateway)
    skipped, fact = sample("analysis.skipped"), sample("analysis.triggered")

    await log.record(skipped)
    await log.record(fact)

    assert gateway.recorded == [skipped, fact]
    assert [line["kind"] for line in objects(log.close())] == ["analysis.triggered"]


async def test_close_clears_logged_lines() -> None:
    log = DecisionLoggingGateway(Answering())
    await log.record(event())

    assert len(log.close()) == 1
    assert log.close() == []


@given(st.lists(st.tuples(st.sampled_from(["BTC", "ETH", "SOL"]), st.integers(0, 5)), max_size=12))
async def test_answer_order_does_not_affect_lines(calls: list[tuple[str, int]]) -> None:
    by_subject: dict[str, list[LLMEnvelope]] = {}
    for place, (subject, turns) in enumerate(calls):
        asked = envelope(
            subject=subject, envelope_id=f"e-{place}", trace_id="t", context={"n": place, "turns": turns}
        )
        by_subject.setdefault(subject, []).append(asked)

    one_by_one, at_once = DecisionLoggingGateway(Answering()), DecisionLoggingGateway(Answering())
    for sequence in by_subject.values():
        await _in_order(one_by_one, sequence)
    async with asyncio.TaskGroup() as group:
        for sequence in reversed(by_subject.values()):
            group.create_task(_in_order(at_once, sequence))

    lines = one_by_one.close()
    assert at_once.close() == lines
    assert [(line["subject"], line["step"]) for line in objects(lines)] == [
        (subject, step) for subject in sorted(by_subject) for step in range(1, len(by_subject[subject]) + 1)
    ]


async def _in_order(log: DecisionLoggingGateway, sequence: list[LLMEnvelope]) -> None:
    for asked in sequence:
        await log.ask(asked)


FAILED = {"success": False, "failure": REFUSED, "actionable": False, "validation_passed": False}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (NoDecision(reason=REFUSED), "refusal"),
        (interaction(), "accepted"),
        (interaction(**FAILED), "refusal"),
        (interaction(result=degraded_result(result(**FAILED))), "refusal"),
        (interaction(success=True, validation_passed=False), "degraded"),
    ],
)
def test_each_reply_maps_to_verdict(answer: GatewayReply, verdict: str) -> None:
    assert verdict_of(answer) == verdict
