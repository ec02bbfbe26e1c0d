"""A tree goes on where it was: finished, paused for the user, broken off, or asked by two at once."""

import asyncio
from typing import Any

import pytest

from agentic_trading.audit.trace import TraceTree
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.client.answer import TypedAnswers
from agentic_trading.client.fallback import Alternative, FallbackGateway
from agentic_trading.client.frames import KINDS, FrameOpened
from agentic_trading.client.gateway import GatewayClient, GatewayReply
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.client.recursion import (
    Concluded,
    Paused,
    Recursion,
    ResumeError,
    Unfinished,
)
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.store import Record
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.structured.pydantic_schema import SemanticCheck
from tests.client.trees import LIMITS, TRACE, asking, cost_bound, model, says, tree
from tests.gateway import gateway
from tests.worker.running import running


@pytest.mark.parametrize("most", [20, 3])
async def test_finished_tree_is_not_asked_again(most: int) -> None:
    script = model({"root": says("so far", "a", "b")})
    first = await tree(script, limits=LIMITS.model_copy(update={"max_calls": most}))
    lines = len([entry async for entry in first.store.scan()])

    again = await tree(script, store=first.store)

    assert again.requests == []
    assert again.outcome == first.outcome
    assert len([entry async for entry in first.store.scan()]) == lines


async def test_second_tree_in_trace_is_refused() -> None:
    first = await tree(model({}))

    with pytest.RaisesGroup(
        ResumeError, match="unhandled", check=lambda group: "'root'" in str(group.exceptions[0])
    ):
        await tree(model({}), "another", store=first.store)


async def test_empty_question_is_refused_before_sending() -> None:
    store = MemoryInteractionStore()

    with pytest.RaisesGroup(ValueError):
        await tree(model({}), "  ", store=store)

    assert [entry async for entry in store.scan()] == []


def asks_user(question: str = "Which time zone is meant?") -> str:
    return says(question, next_action="ask_user")


def told(zone_answer: str = "In UTC, 3.") -> Any:
    def line(request: ModelRequest) -> Any:
        context = request.envelope.context
        if request.envelope.prompt_version == "join.1":
            return says("joined")
        if context["question"] == "root":
            return says("so far", "days", "agents")
        if context["question"] == "days":
            return says(zone_answer) if "answers" in context else asks_user()
        return says("short")

    return line


async def test_waiting_frame_does_not_block_siblings() -> None:
    ran = await tree(told())

    assert isinstance(ran.outcome, Paused)
    assert ran.outcome.questions == {"1": "Which time zone is meant?"}
    assert ran.asked == ["root", "days", "agents"]
    assert [frame.state for frame in ran.outcome.frames] == ["open", "waiting", "concluded"]


async def test_paused_tree_resumes_in_same_trace() -> None:
    paused = await tree(told())

    ran = await tree(told(), store=paused.store, answers={"1": "UTC"})

    assert isinstance(ran.outcome, Concluded)
    assert ran.asked == ["days", "[root]"]
    assert ran.requests[0].envelope.context["answers"] == [
        {"asked": "Which time zone is meant?", "answer": "UTC"}
    ]
    assert {one.trace_id for one in await ran.interactions()} == {TRACE}
    assert ran.requests[1].envelope.context["findings"][0]["conclusion"] == "In UTC, 3."
    drawn = TraceTree(await ran.store.records.trace(TRACE))
    assert drawn.orphans == drawn.cycles == ()


@pytest.mark.parametrize("seen", ["nothing", "the root", "all"])
async def test_resume_before_events_are_read_concludes(seen: str) -> None:
    desk = gateway(ScriptedProvider(told()))

    async def lagging(trace_id: str) -> list[Record]:
        records = await desk.store.records.trace(trace_id)
        kinds = {"nothing": set[str](), "the root": {FrameOpened.KIND}}.get(seen)
        return [one for one in records if not isinstance(one, Event) or kinds is None or one.kind in kinds]

    async with running(desk) as client:
        recursion = Recursion(client, lagging, LIMITS, asking, cost_bound=cost_bound)
        paused = await recursion.run("root", trace_id=TRACE)
        ran = await recursion.resume(TRACE, {"1": "UTC"}, by="ann")
        again = await recursion.run("root", trace_id=TRACE)

    assert isinstance(paused, Paused)
    assert isinstance(ran, Concluded)
    assert again == ran
    ids = [one.id for one in await desk.store.records.trace(TRACE) if isinstance(one, Event)]
    assert len(ids) == len(set(ids))


class RecordsOnly(TypedAnswers):
    """A gateway that takes events and makes no call."""

    async def record(self, event: Event) -> None:
        pass

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        raise BusUnavailableError("memory", "no call is made here")

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        raise BusUnavailableError("memory", "no call is made here")

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        return envelope


@pytest.mark.parametrize(("later", "is_kept"), [(19, True), (20, False)])
async def test_recursion_keeps_limited_number_of_events(
    later: int, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    monkeypatch.setattr("agentic_trading.client.recursion.REMEMBERED_EVENTS", 20)

    async def nothing_yet(_trace_id: str) -> list[Record]:
        return []

    recursion = Recursion(RecordsOnly(), nothing_yet, LIMITS, asking)
    for trace_id in [TRACE, *(f"trace-{n}" for n in range(later))]:
        with pytest.raises(BusUnavailableError):
            await recursion.run("root", trace_id=trace_id)

    with pytest.raises(BusUnavailableError if is_kept else ResumeError):
        await recursion.resume(TRACE)


async def test_resume_without_answers_stays_paused() -> None:
    paused = await tree(told())

    ran = await tree(told(), store=paused.store, answers={})

    assert (ran.outcome, ran.requests) == (paused.outcome, [])


@pytest.mark.parametrize("answers", [{"2": "x"}, {"7": "x"}, {"1": " "}])
async def test_unrequested_answer_is_refused_and_not_recorded(answers: dict[str, str]) -> None:
    paused = await tree(told())
    lines = len([entry async for entry in paused.store.scan()])

    with pytest.RaisesGroup(ResumeError):
        await tree(told(), store=paused.store, answers=answers)

    assert len([entry async for entry in paused.store.scan()]) == lines


async def test_unrecorded_waiting_frame_is_named_by_id() -> None:
    paused = await tree(told())
    cut = MemoryInteractionStore()
    async for entry in paused.store.scan():
        record = entry.record
        body = KINDS.of(record) if isinstance(record, Event) else None
        if isinstance(record, Event) and not (isinstance(body, FrameOpened) and body.depth):
            await cut.record(record)

    with pytest.RaisesGroup(
        ResumeError,
        match="unhandled",
        check=lambda group: paused.frames["1"].frame_id in str(group.exceptions[0]),
    ):
        await tree(told(), store=cut, answers={"2": "x"})


async def test_resume_of_unknown_trace_is_refused() -> None:
    with pytest.RaisesGroup(ResumeError):
        await tree(told(), answers={})


async def test_excess_user_questions_leave_frame_unfinished() -> None:
    ran = await tree(lambda _request: asks_user())
    for _ in range(3):
        assert isinstance(ran.outcome, Paused)
        ran = await tree(lambda _request: asks_user(), store=ran.store, answers={"0": "UTC"})

    assert ran.outcome == Unfinished(TRACE, "questions", ran.outcome.frames)
    assert len(await ran.interactions()) == 4


async def test_repeat_of_waiting_part_waits_too() -> None:
    def line(request: ModelRequest) -> Any:
        context = request.envelope.context
        if context["question"] == "root":
            return says("so far", "days", "days")
        return says("3") if "answers" in context else asks_user()

    paused = await tree(line)
    ran = await tree(told("3"), store=paused.store, answers={"1": "UTC"})

    assert isinstance(paused.outcome, Paused)
    assert ran.frames["2"].conclusion == "3"
    assert isinstance(ran.outcome, Concluded)


async def test_undelivered_call_leaves_tree_resumable() -> None:
    desk = gateway(model({}))
    async with GatewayClient(desk.broker, reply_timeout_s=0.01) as client:
        recursion = Recursion(client, desk.store.records.trace, LIMITS, asking)
        outcome = await recursion.run("root", trace_id=TRACE)

    ran = await tree(model({}), store=desk.store)

    why = "no worker answered within 0.01 s"
    assert outcome == Unfinished(TRACE, "undeliverable", outcome.frames, why)
    assert [frame.state for frame in outcome.frames] == ["open"]
    assert isinstance(ran.outcome, Concluded)


async def test_concurrent_recursions_pay_for_tree_once() -> None:
    answering = model({"root": says("so far", "a", "b", "c")})

    def line(request: ModelRequest) -> Any:
        is_first_of_a = request.envelope.context["question"] == "a" and request.answer == 1
        return "no JSON" if is_first_of_a else answering(request)

    provider = ScriptedProvider(line)
    desk = gateway(provider)
    outcomes = []

    async def go_on(client: GatewayClient) -> None:
        recursion = Recursion(client, desk.store.records.trace, LIMITS, asking, cost_bound=cost_bound)
        outcomes.append(await recursion.run("root", trace_id=TRACE))

    async with (
        running(desk) as one,
        GatewayClient(desk.broker) as other,
        asyncio.TaskGroup() as group,
    ):
        for client in (one, other):
            group.create_task(go_on(client))

    assert len(provider.requests) == 6
    assert outcomes[0] == outcomes[1]
    records = await desk.store.records.trace(TRACE)
    kinds = [one.kind for one in records if isinstance(one, Event) and KINDS.of(one) is not None]
    assert sorted(kinds) == ["recursion.frame_closed"] * 4 + ["recursion.frame_opened"] * 4


@pytest.mark.parametrize("skipped", [0, 11])
async def test_fallback_call_is_found_on_resume(skipped: int) -> None:
    same = Alternative(LLMProvider.SCRIPTED, "scripted-1")
    other = Alternative(LLMProvider.SCRIPTED, "scripted-prompted-1")
    retries = RetryPolicy(max_retries=0)

    def line(request: ModelRequest) -> Any:
        if request.envelope.model == "scripted-1":
            return ProviderError(FailureKind.SERVER_ERROR, "away", sent=False)
        return says("from the other")

    provider = ScriptedProvider(line)
    desk = gateway(provider)
    async with running(desk) as client:
        chain = FallbackGateway(client, [*[same] * skipped, other])
        build = lambda: asking().with_retry_policy(retries)  # noqa: E731
        first = await Recursion(chain, desk.store.records.trace, LIMITS, build).run("root", trace_id=TRACE)
    again = await tree(line, store=desk.store)

    assert isinstance(first, Concluded)
    assert (again.outcome, again.requests) == (first, [])
