"""What level `recorded` promises: the first accepted answer of a request is its answer until the deadline, paid for once."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agentic_trading.clock import Clock, SimClock
from agentic_trading.llm import (
    AttemptTrace,
    DeterminismLevel,
    EnvelopeBuilder,
    FailureKind,
    LLMEnvelope,
    LLMInteraction,
    Stage,
    Violation,
)
from agentic_trading.llm.provider import ModelResponse, Providers
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.llm.result import LLMResult, Usage
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.call_context import Checks
from agentic_trading.worker.response_cache import ResponseCache
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from agentic_trading.worker.slots import StoppableWait
from tests.build import envelope as an_envelope
from tests.build import result as a_result
from tests.gateway import CAPABILITIES, GOOD, START, asking, attempts, gateway, timed_out
from tests.worker.caching import DEADLINE, OTHER, fixed, run

READ = AttemptTrace(parser="native", transport="native_schema", verdict=Stage.DONE)


def restarted(
    frozen: Iterable[LLMInteraction], *, checks: Checks | None = None, clock: Clock | None = None
) -> tuple[CallRunner, ScriptedProvider]:
    """Return a runner that knows a log, and a provider that answers nothing."""
    provider = ScriptedProvider([])
    desk = gateway(provider, clock=clock)
    answers = ResponseCache(desk.clock)
    answers.fill(frozen)
    parts = RunnerDependencies(
        gate=desk.gate,
        providers=Providers.every(provider),
        recorder=desk.recorder,
        capabilities=CAPABILITIES,
        clock=desk.clock,
        checks=checks or {},
        response_cache=answers,
    )
    return CallRunner(parts), provider


async def test_second_request_gets_first_answer_free() -> None:
    provider = ScriptedProvider([GOOD, OTHER])
    desk = gateway(provider)
    one, two = fixed().build(), fixed().build()

    first, second = await run(desk, one, two)

    assert one.request_hash == two.request_hash
    assert (first.served_from, first.determinism_level) == ("live", "recorded")
    assert (second.served_from, second.determinism_level) == ("recorded", "recorded")
    assert second.parsed_output == first.parsed_output
    assert (second.raw_output, second.actionable) == (first.raw_output, True)
    assert (second.envelope_id, second.attempt_number) == (two.envelope_id, 1)
    assert (second.cost_nusd, second.reserved_nusd) == (0, 0)
    assert (first.first_cost_nusd, second.first_cost_nusd) == (None, first.cost_nusd)
    assert desk.ledger.statistics().charged_nusd == first.cost_nusd
    assert len(provider.requests) == 1


async def test_cached_answer_is_recorded_per_caller() -> None:
    desk = gateway([GOOD])
    one, two = fixed().build(), fixed().build()

    await run(desk, one, two)

    (kept,) = await attempts(desk, two)
    assert (kept.result.served_from, kept.result.next_step) == ("recorded", "final")


@pytest.mark.parametrize(
    "builder",
    [
        asking().with_determinism(DeterminismLevel.RECORDED),
        asking().with_as_of(START),
        asking().with_as_of(START).with_determinism(DeterminismLevel.PINNED),
    ],
    ids=["without a moment", "without a level", "pinned"],
)
async def test_unrecorded_requests_are_not_cached(
    builder: EnvelopeBuilder,
) -> None:
    desk = gateway([GOOD, OTHER])

    results = await run(desk, builder.build(), builder.build())

    assert [(one.served_from, one.determinism_level) for one in results] == [("live", "pinned")] * 2
    assert results[0].parsed_output != results[1].parsed_output


async def test_cached_answer_expires_at_first_deadline() -> None:
    clock = SimClock(START)
    desk = gateway([GOOD, OTHER], clock=clock)
    (first,) = await run(desk, fixed().with_deadline(DEADLINE).build())
    clock.advance_to(DEADLINE - timedelta(microseconds=1))
    (before,) = await run(desk, fixed().build())
    clock.advance_to(DEADLINE)

    second, third = await run(desk, fixed().build(), fixed().build())

    assert (before.served_from, before.raw_output) == ("recorded", first.raw_output)
    assert (second.served_from, second.raw_output) == ("live", OTHER)
    assert (third.served_from, third.raw_output) == ("recorded", OTHER)


async def test_expired_request_gets_no_cached_answer() -> None:
    clock = SimClock(START)
    desk = gateway([GOOD], clock=clock)
    await run(desk, fixed().build())
    clock.advance_to(DEADLINE)

    (late,) = await run(desk, fixed().with_deadline(DEADLINE).build())

    assert late.failure is not None
    assert late.failure.category is FailureKind.EXPIRED


@pytest.mark.parametrize(
    "change",
    [
        lambda builder: builder.with_tenant("acme"),
        lambda builder: builder.with_subject("", occurrence=1),
        lambda builder: builder.with_as_of(START - timedelta(seconds=1)),
        lambda builder: builder.with_instructions("Advise well."),
    ],
    ids=["tenant", "occurrence", "moment", "words"],
)
async def test_different_requests_have_separate_answers(change: Any) -> None:
    desk = gateway([GOOD, OTHER])

    first, second = await run(desk, fixed().build(), change(fixed()).build())

    assert (first.raw_output, second.raw_output, second.served_from) == (GOOD, OTHER, "live")


async def test_look_ahead_is_refused_despite_cache() -> None:
    desk = gateway([GOOD])
    await run(desk, fixed().build())
    ahead = fixed().build().model_copy(update={"context_as_of": START + timedelta(seconds=1)})

    (result,) = await run(desk, ahead)

    assert result.failure is not None
    assert result.failure.category is FailureKind.LOOK_AHEAD


async def test_failure_is_not_cached() -> None:
    refusal = ModelResponse("", "refusal", Usage(input_tokens=9), "scripted-1")
    desk = gateway([refusal, GOOD])

    first, second = await run(desk, fixed().build(), fixed().build())

    assert first.determinism_level == "pinned"
    assert (second.served_from, second.actionable) == ("live", True)


async def test_substituted_model_answer_is_not_cached() -> None:
    other = ModelResponse(GOOD, "end_turn", Usage(output_tokens=9), "scripted-2")
    desk = gateway([other, OTHER])

    first, second = await run(desk, fixed().build(), fixed().build())

    assert (first.actionable, first.determinism_level) == (True, "pinned")
    assert (second.served_from, second.raw_output) == ("live", OTHER)


async def test_cache_replays_rejected_answers_without_losses() -> None:
    desk = gateway([timed_out(), "no json", GOOD])
    one, two = fixed().build(), fixed().build()

    await run(desk, one, two)

    assert [kept.result.in_doubt for kept in await attempts(desk, one)] == [True, False, False]
    again = [kept.result for kept in await attempts(desk, two)]
    assert [(result.attempt_number, result.raw_output) for result in again] == [(1, "no json"), (2, GOOD)]
    assert [(result.cost_nusd, result.in_doubt) for result in again] == [(0, False)] * 2
    assert [result.next_step for result in again] == ["ask_again", "final"]


async def test_cached_raised_cap_answer_is_complete() -> None:
    cut = ModelResponse('{"a', "max_tokens", Usage(output_tokens=200), "scripted-1")
    long = ModelResponse(GOOD, "end_turn", Usage(output_tokens=300), "scripted-1")
    desk = gateway([cut, long])

    first, second = await run(desk, fixed("planning").build(), fixed("planning").build())

    assert first.actionable
    assert (second.served_from, second.actionable) == ("recorded", True)


async def test_replay_returns_each_callers_record() -> None:
    live = gateway([timed_out(), "no json", GOOD])
    envelopes = [fixed().build(), fixed().build()]
    first = await run(live, *envelopes)
    log = [kept for envelope in envelopes for kept in await attempts(live, envelope)]
    recorded, provider = RecordedAnswers(log), ScriptedProvider([])
    again = gateway(provider, recorded=recorded)

    replayed = await run(again, *envelopes)

    assert [one.raw_output for one in replayed] == [one.raw_output for one in first]
    assert (provider.requests, recorded.misses, recorded.unused) == ([], [], [])


async def logged(lines: Sequence[Any], *envelopes: LLMEnvelope) -> list[LLMInteraction]:
    """Return the log of a gateway that was asked these."""
    desk = gateway(lines)
    await run(desk, *envelopes)
    return [kept for envelope in envelopes for kept in await attempts(desk, envelope)]


async def test_log_restores_cache_after_restart() -> None:
    log = await logged([timed_out(), GOOD, OTHER], fixed().build(), asking().with_as_of(START).build())
    runner, provider = restarted(log)

    frozen = (await runner.run(fixed().build())).result
    await runner.run(asking().with_as_of(START).build())

    assert (frozen.served_from, frozen.raw_output, frozen.cost_nusd) == ("recorded", GOOD, 0)
    assert len(provider.requests) == 1


async def test_same_envelope_replays_all_attempts() -> None:
    envelope = fixed().build()
    log = await logged([timed_out(), GOOD], envelope)
    runner, provider = restarted(log)

    again = (await runner.run(envelope)).result

    assert (again.attempt_number, again.raw_output, again.cost_nusd) == (2, GOOD, 0)
    assert provider.requests == []


async def test_first_unexpired_logged_answer_is_cached() -> None:
    over = await logged([GOOD], fixed(n=1).with_deadline(DEADLINE).build())
    first, later = [await logged([line], fixed().build()) for line in (GOOD, OTHER)]
    runner, provider = restarted([*over, *first, *later], clock=SimClock(DEADLINE))

    known = (await runner.run(fixed().build())).result
    await runner.run(fixed(n=1).build())

    assert (known.served_from, known.raw_output) == ("recorded", GOOD)
    assert [request.envelope.context for request in provider.requests] == [{"n": 1}]


async def test_replayed_answer_is_not_cached() -> None:
    other = ModelResponse(GOOD, "end_turn", Usage(output_tokens=9), "scripted-2")
    envelope = fixed().build()
    replay = gateway([], recorded=RecordedAnswers(await logged([other], envelope)))
    await run(replay, envelope)
    runner, provider = restarted(await attempts(replay, envelope))

    await runner.run(fixed().build())

    assert len(provider.requests) == 1


async def test_cached_answer_is_validated_again() -> None:
    def stricter(_envelope: LLMEnvelope, _text: str) -> Sequence[Violation]:
        return [Violation(path="$.size", keyword="lots", message="whole lots only")]

    log = await logged([GOOD], fixed().build())
    runner, provider = restarted(log, checks={"advice.v1": stricter})

    result = (await runner.run(fixed().build())).result

    assert (result.actionable, result.parsed_output, result.cost_nusd) == (False, {}, 0)
    assert result.validation_errors == ["$.size: whole lots only"]
    assert provider.requests == []


async def found(store: MemoryInteractionStore, asked: LLMEnvelope, clock: Clock) -> list[LLMResult]:
    """Return the attempts that a new cache finds in a log."""
    answers = ResponseCache(clock, recorded=store.records)
    async with answers.turn(asked, StoppableWait(clock)) as cached:
        assert cached is not None
        one = cached.find(1)
        return [] if one is None else [one]


async def test_answer_of_earlier_process_is_found_in_log() -> None:
    desk = gateway([GOOD, OTHER])
    first, _ = await run(desk, fixed().build(), fixed().with_tenant("other").build())
    at_deadline = SimClock(DEADLINE)

    (again,) = await found(desk.store, fixed().build(), desk.clock)

    assert again.parsed_output == first.parsed_output
    assert await found(desk.store, fixed().with_tenant("third").build(), desk.clock) == []
    assert await found(desk.store, fixed().build().model_copy(update={"occurrence": 1}), desk.clock) == []
    assert [*await found(desk.store, fixed().build(), at_deadline)] == [again]


async def test_expired_answer_in_log_is_not_used() -> None:
    desk = gateway([GOOD])
    first = fixed().with_deadline(DEADLINE).build()
    await run(desk, first)

    assert len(await found(desk.store, fixed().build(), desk.clock)) == 1
    assert await found(desk.store, fixed().build(), SimClock(DEADLINE)) == []


async def test_lookup_stops_at_first_answer_that_has_not_expired() -> None:
    desk = gateway([GOOD, OTHER, GOOD, OTHER])
    with_deadline = fixed().with_deadline(DEADLINE).build()
    desk_after = gateway([OTHER, GOOD], clock=SimClock(DEADLINE))
    await run(desk, with_deadline)
    await run(desk_after, fixed().build())
    log = [*await attempts(desk, with_deadline), *await desk_after.store.recent(1)]
    read: list[LLMInteraction] = []

    class Log:
        async def by_request(
            self, request_hash: str, occurrence: int, *, tenant: str | None = None
        ) -> AsyncGenerator[LLMInteraction]:
            for one in (*log, *log):
                read.append(one)
                yield one

    answers = ResponseCache(SimClock(DEADLINE), recorded=Log())
    async with answers.turn(fixed().build(), StoppableWait(SimClock(DEADLINE))) as call:
        assert call is not None
        served = call.find(1)

    assert served is not None
    assert (served.raw_output, read) == (OTHER, log)


async def test_unreadable_log_does_not_fail_the_call(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"broken\n")
    clock = SimClock(START)

    async with aclosing(JsonlRecords(path)) as records:
        answers = ResponseCache(clock, recorded=records)
        with capture_logs() as logged:
            async with answers.turn(fixed().build(), StoppableWait(clock)) as call:
                assert call is not None
                assert call.find(1) is None

    assert [each["event"] for each in logged] == ["recorded_answer_not_read"]
    assert logged[0]["reason"].startswith(f"{path}:1: ")


def frozen_alone(answers: ResponseCache, number: int, deadline: datetime | None = None) -> None:
    envelope = an_envelope(determinism="recorded", as_of=START, context={"n": number}, deadline=deadline)
    answers.store(envelope, [a_result(envelope_id=envelope.envelope_id, reading=READ)])


async def known(answers: ResponseCache, numbers: Iterable[int]) -> list[int]:
    """Return which of these requests have an answer."""
    found = []
    for number in numbers:
        asked = an_envelope(determinism="recorded", as_of=START, context={"n": number})
        async with answers.turn(asked, StoppableWait(SimClock(START))) as call:
            assert call is not None
            if call.find(1) is not None:
                found.append(number)
    return found


async def test_full_cache_drops_expired_then_unused() -> None:
    clock = SimClock(START)
    answers = ResponseCache(clock, most=10)
    for number in range(10):
        frozen_alone(answers, number, DEADLINE if number in {3, 4} else None)
    clock.advance_to(DEADLINE)
    for number in (10, 11):
        frozen_alone(answers, number)
    assert await known(answers, [0]) == [0]

    frozen_alone(answers, 12)

    assert await known(answers, range(13)) == [0, 2, 5, 6, 7, 8, 9, 10, 11, 12]


def test_cache_without_capacity_is_rejected() -> None:
    with pytest.raises(ValueError, match="most is 0"):
        ResponseCache(SimClock(START), most=0)
