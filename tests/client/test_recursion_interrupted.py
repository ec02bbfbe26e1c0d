"""A tree is interrupted between any two records: what is on record is used, counted once, and gone on with."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.client.answer import TypedAnswers
from agentic_trading.client.call_log import CallLog, EarlierCalls
from agentic_trading.client.fallback import Alternative, FallbackGateway
from agentic_trading.client.gateway import GatewayClient, StructuredGateway
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.client.recursion import Concluded, Paused, Recursion, RecursionOutcome, Unfinished
from agentic_trading.clock import SimClock
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.structured.pydantic_schema import SemanticCheck
from tests.client.trees import LIMITS, TRACE, asking, model, says, tree
from tests.gateway import START, gateway
from tests.worker.running import running


class InterruptedHereError(Exception):
    """Where a process ends."""


class Interrupting(TypedAnswers):
    """A gateway whose process ends when it is to ask one question."""

    def __init__(self, gateway: StructuredGateway, question: str) -> None:
        self._gateway = gateway
        self._question = question

    async def ask(self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None) -> Any:
        return await self._gateway.ask(envelope)

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        return await self._gateway.submit(envelope)

    async def record(self, event: Event) -> None:
        await self._gateway.record(event)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        if envelope.context["question"] == self._question:
            raise InterruptedHereError
        return await self._gateway.ask_structured(envelope, check=check)


async def test_recorded_part_without_frame_ignores_limit() -> None:
    script = model({"root": says("so far", "a"), "a": says("so far", "b")})
    most = LIMITS.model_copy(update={"max_calls": 5})
    first = await tree(script, limits=most)
    without_frames = MemoryInteractionStore()
    for attempt in await first.interactions():
        await without_frames.store(attempt)

    again = await tree(script, limits=most, store=without_frames)

    assert again.requests == []
    assert again.outcome == first.outcome


async def test_repeat_of_interrupted_part_is_answered_together() -> None:
    def line(request: ModelRequest) -> Any:
        context = request.envelope.context
        if request.envelope.prompt_version == "join.1":
            return says("joined")
        if context["question"] == "root":
            return says("so far", "days", "agents")
        if context["question"] == "days":
            return (
                says("so far", "agents") if "answers" in context else says("Which?", next_action="ask_user")
            )
        return says("short")

    desk = gateway(line)
    async with running(desk) as client:
        broken_off = Recursion(Interrupting(client, "agents"), desk.store.records.trace, LIMITS, asking)
        with suppress(InterruptedHereError):
            await broken_off.run("root", trace_id=TRACE)

    ran = await tree(line, store=desk.store, answers={"1": "UTC"})

    assert isinstance(ran.outcome, Concluded)
    assert ran.asked == ["days", "agents", "[days]", "[root]"]
    assert {frame.state for frame in ran.outcome.frames} == {"concluded", "repeated"}


async def test_fallback_calls_count_once_after_resume() -> None:
    def line(request: ModelRequest) -> Any:
        context = request.envelope.context
        if request.envelope.prompt_version == "join.1":
            return says("joined")
        if context["question"] == "root":
            is_first = request.envelope.model == "scripted-1"
            away = ProviderError(FailureKind.SERVER_ERROR, "away", sent=True)
            return away if is_first else says("so far", "days")
        if context["question"] == "days":
            return says("so far", "a") if "answers" in context else says("Which?", next_action="ask_user")
        return says("short")

    store = MemoryInteractionStore()
    most = LIMITS.model_copy(update={"max_calls": 7})

    async def go(step: Callable[[Recursion], Any]) -> RecursionOutcome:
        desk = gateway(line, store=store)
        async with running(desk) as client:
            chain = FallbackGateway(client, [Alternative(LLMProvider.SCRIPTED, "scripted-prompted-1")])
            build = lambda: asking().with_retry_policy(RetryPolicy(max_retries=0))  # noqa: E731
            outcome: RecursionOutcome = await step(Recursion(chain, desk.store.records.trace, most, build))
            return outcome

    paused = await go(lambda recursion: recursion.run("root", trace_id=TRACE))
    ended = await go(lambda recursion: recursion.resume(TRACE, {"1": "UTC"}))

    assert isinstance(paused, Paused)
    assert isinstance(ended, Concluded)
    assert {frame.stopped_by for frame in ended.frames} == {""}
    assert sum(frame.calls for frame in ended.frames) == 7


async def test_interrupted_call_falls_back_without_repeating_model() -> None:
    def line(request: ModelRequest) -> Any:
        asked.append(request.envelope.model)
        is_first = request.envelope.model == "scripted-1"
        return (
            ProviderError(FailureKind.SERVER_ERROR, "away", sent=True) if is_first else says("from the other")
        )

    async def go(store: MemoryInteractionStore) -> RecursionOutcome:
        desk = gateway(line, store=store)
        async with running(desk) as client:
            chain = FallbackGateway(client, [Alternative(LLMProvider.SCRIPTED, "scripted-prompted-1")])
            build = lambda: asking().with_retry_policy(RetryPolicy(max_retries=0))  # noqa: E731
            return await Recursion(chain, store.records.trace, LIMITS, build).run("root", trace_id=TRACE)

    asked: list[str] = []
    first, broken_off = MemoryInteractionStore(), MemoryInteractionStore()
    await go(first)
    await broken_off.store((await first.get_by_trace_id(TRACE))[0])
    asked.clear()

    went_on = await go(broken_off)

    assert isinstance(went_on, Concluded)
    assert asked == ["scripted-prompted-1"]


async def test_call_resumed_under_new_deadline_is_found() -> None:
    def until(minutes: int) -> Callable[[], EnvelopeBuilder]:
        return lambda: asking().with_deadline(START + timedelta(minutes=minutes))

    def line(request: ModelRequest) -> Any:
        is_first = request.attempt == 1 and len(asked) == 0
        asked.append(request)
        return ProviderError(FailureKind.SERVER_ERROR, "away", sent=True) if is_first else says("short")

    asked: list[ModelRequest] = []
    first = await tree(line, build=until(60))
    interrupted = MemoryInteractionStore()
    await interrupted.store((await first.interactions())[0])

    went_on = await tree(line, build=until(90), store=interrupted)
    again = await tree(line, build=until(120), store=interrupted)

    assert isinstance(went_on.outcome, Concluded)
    assert (again.outcome, again.requests) == (went_on.outcome, [])


async def test_lost_answer_fails_frame_without_repayment() -> None:
    store = MemoryInteractionStore()

    async def gone_on(clock: SimClock, earlier: EarlierCalls) -> RecursionOutcome:
        log = CallLog(store, clock, Redaction(), earlier)
        async with GatewayClient(MemoryBroker(), call_log=log, reply_timeout_s=0.01) as client:
            return await Recursion(client, store.records.trace, LIMITS, asking).run("root", trace_id=TRACE)

    broken_off = await gone_on(SimClock(START), EarlierCalls())
    earlier = EarlierCalls(are_all_read=True, asks_again=True)
    async for entry in store.scan():
        earlier.read(entry.record)
    lost = await gone_on(SimClock(START + timedelta(days=1)), earlier)

    assert isinstance(broken_off, Unfinished)
    assert broken_off.detail == "no worker answered within 0.01 s"
    assert isinstance(lost, Unfinished)
    assert (lost.stopped_by, lost.detail.partition(":")[0]) == (
        "undeliverable",
        "it was requested before, its answer is kept nowhere, and it is not paid again",
    )
    assert [frame.state for frame in lost.frames] == ["failed"]
