"""What every provider promises, and providers that break each promise."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.providers.fault_injection import Faults, FaultyProvider
from agentic_trading.llm.providers.offline import RecordedAnswers, RulesProvider, ScriptedProvider
from agentic_trading.llm.result import Usage
from tests.build import interaction
from tests.structured.asking import request

CAP = 50


def ask(number: int, **changes: Any) -> ModelRequest:
    """Return one of the requests that every provider under test can answer."""
    return request(context={"n": number}, budget=LLMBudget(max_output_tokens=CAP), **changes)


REQUESTS = [ask(number) for number in range(8)]
UNANSWERABLE = request(instructions="Something else.", expected_output_schema={"$id": "unknown.v1"})


def text_for(context: dict[str, Any]) -> str:
    """Return what the providers under test answer; a half of it is not JSON."""
    number = context["n"]
    return f'{{"answer": "{number}"}}' if number % 2 else f"answer {number} {{"


def scripted() -> Provider:
    """Return a scripted provider that answers the requests of this suite and no other."""

    def line(made: ModelRequest) -> str | ProviderError:
        if "n" in made.envelope.context:
            return text_for(made.envelope.context)
        return ProviderError(FailureKind.INVALID_REQUEST, "not in the script", sent=False)

    return ScriptedProvider(line)


def recorded() -> Provider:
    """Return the same answers from a recording."""
    return RecordedAnswers(
        interaction(
            envelope=made.envelope, raw_output=text_for(made.envelope.context), stop_reason="end_turn"
        )
        for made in REQUESTS
    )


ADAPTERS: dict[str, Callable[[], Provider]] = {
    "rules": lambda: RulesProvider({"answer.v1": lambda envelope: text_for(envelope.context)}),
    "scripted": scripted,
    "recorded": recorded,
    "faulty": lambda: FaultyProvider(scripted(), Faults.parse(""), "seed"),
}

Promise = Callable[[Provider], Awaitable[None]]


async def an_answer_says_what_why_and_who(provider: Provider) -> None:
    answer = await provider.complete(REQUESTS[1])

    assert answer.text == '{"answer": "1"}'
    assert answer.stop_reason in {"end_turn", "stop", "tool_use", "tool_calls"}  # the provider's own word
    assert answer.model


async def an_answer_is_not_judged(provider: Provider) -> None:
    assert (await provider.complete(REQUESTS[2])).text == "answer 2 {"


async def usage_is_told_and_within_the_caps(provider: Provider) -> None:
    for made in REQUESTS:
        usage = (await provider.complete(made)).usage

        assert 0 < usage.total_input_tokens <= len((made.system + made.user).encode())
        assert 0 < usage.output_tokens <= made.max_tokens


async def the_same_request_gets_the_same_answer(provider: Provider) -> None:
    first, again = await provider.complete(REQUESTS[3]), await provider.complete(REQUESTS[3])

    assert first == again


async def requests_at_once_get_their_own_answers(provider: Provider) -> None:
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(provider.complete(made)) for made in REQUESTS]

    assert [task.result().text for task in answers] == [text_for(made.envelope.context) for made in REQUESTS]


async def what_cannot_be_answered_is_one_kind_of_error(provider: Provider) -> None:
    with pytest.raises(ProviderError) as failed:
        await provider.complete(UNANSWERABLE)

    assert failed.value.kind in {FailureKind.INVALID_REQUEST, FailureKind.REPLAY_MISS}
    assert failed.value.sent is False


async def a_count_is_at_least_what_is_used(provider: Provider) -> None:
    counted = await provider.count_tokens(REQUESTS[4])

    assert counted is None or counted >= (await provider.complete(REQUESTS[4])).usage.total_input_tokens


async def closing_twice_is_harmless(provider: Provider) -> None:
    await provider.aclose()
    await provider.aclose()


PROMISES: list[Promise] = [
    an_answer_says_what_why_and_who,
    an_answer_is_not_judged,
    usage_is_told_and_within_the_caps,
    the_same_request_gets_the_same_answer,
    requests_at_once_get_their_own_answers,
    what_cannot_be_answered_is_one_kind_of_error,
    a_count_is_at_least_what_is_used,
    closing_twice_is_harmless,
]


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_provider_keeps_promise(promise: Promise, adapter: str) -> None:
    await promise(ADAPTERS[adapter]())


class Broken:
    """A provider that is right but for what a subclass spoils."""

    def __init__(self) -> None:
        self.inner = scripted()
        self.calls = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.calls += 1
        return self.spoilt(await self.inner.complete(request))

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self.inner.count_tokens(request)

    async def aclose(self) -> None:
        await self.inner.aclose()

    def spoilt(self, answer: ModelResponse) -> ModelResponse:
        return answer


class Nameless(Broken):
    def spoilt(self, answer: ModelResponse) -> ModelResponse:
        return replace(answer, model="")


class Repairs(Broken):
    def spoilt(self, answer: ModelResponse) -> ModelResponse:
        return replace(answer, text=answer.text.replace(" {", ""))


class TellsNoUsage(Broken):
    def spoilt(self, answer: ModelResponse) -> ModelResponse:
        return replace(answer, usage=Usage())


class CountsUp(Broken):
    def spoilt(self, answer: ModelResponse) -> ModelResponse:
        return replace(answer, provider_response_id=str(self.calls))


class AnswersTheLast(Broken):
    last: ModelRequest = REQUESTS[0]

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.last = request
        await asyncio.sleep(0)
        return await self.inner.complete(self.last)


class LeaksErrors(Broken):
    async def complete(self, request: ModelRequest) -> ModelResponse:
        text_for(request.envelope.context)
        return await self.inner.complete(request)


class CountsTooLittle(Broken):
    async def count_tokens(self, request: ModelRequest) -> int | None:
        return 1


class ClosesOnce(Broken):
    async def aclose(self) -> None:
        del self.inner


BROKEN: list[tuple[Promise, type[Broken]]] = [
    (an_answer_says_what_why_and_who, Nameless),
    (an_answer_is_not_judged, Repairs),
    (usage_is_told_and_within_the_caps, TellsNoUsage),
    (the_same_request_gets_the_same_answer, CountsUp),
    (requests_at_once_get_their_own_answers, AnswersTheLast),
    (what_cannot_be_answered_is_one_kind_of_error, LeaksErrors),
    (a_count_is_at_least_what_is_used, CountsTooLittle),
    (closing_twice_is_harmless, ClosesOnce),
]


@pytest.mark.parametrize(("promise", "provider"), BROKEN, ids=lambda part: part.__name__)
async def test_broken_provider_is_detected(promise: Promise, provider: type[Broken]) -> None:
    with pytest.raises((AssertionError, AttributeError, KeyError)):
        await promise(provider())


def test_each_promise_has_broken_provider() -> None:
    assert [promise for promise, _ in BROKEN] == PROMISES
