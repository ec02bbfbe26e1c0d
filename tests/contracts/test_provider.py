"""The suite of providers passes on the shipped providers, and finds providers that break one promise each."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
from typing_extensions import override

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.result import Usage
from agentic_trading.testing import (
    BrokenContractError,
    Faults,
    FaultyProvider,
    ModelServer,
    ProviderSuite,
    RecordedAnswers,
    RemoteProviderSuite,
    RulesProvider,
    ScriptedProvider,
)
from tests.build import interaction
from tests.contracts.breaking import checks_of, failures, unbroken


def scripted(server: ModelServer) -> Provider:
    """Return a scripted provider whose lines come from the server."""

    def line(request: ModelRequest) -> str | ProviderError:
        try:
            return server.reply(request.user).text
        except ValueError as e:
            return ProviderError(FailureKind.INVALID_REQUEST, str(e), sent=False)

    return ScriptedProvider(line)


class TestScriptedProvider(ProviderSuite):
    @override
    def provider(self, server: ModelServer) -> Provider:
        return scripted(server)


class TestFaultyProvider(ProviderSuite):
    @override
    def provider(self, server: ModelServer) -> Provider:
        return FaultyProvider(scripted(server), Faults.parse(""), "seed")


class TestRulesProvider(ProviderSuite):
    @override
    def provider(self, server: ModelServer) -> Provider:
        return RulesProvider({"question.v1": lambda envelope: server.reply(str(envelope.context)).text})


class TestRecordedAnswers(ProviderSuite):
    @override
    def provider(self, server: ModelServer) -> Provider:
        return RecordedAnswers(
            interaction(envelope=made.envelope, raw_output=self.answer(place), stop_reason="end_turn")
            for place, made in enumerate(self.requests())
        )


class Remote:
    """A right adapter of a remote server. A subclass spoils one part of it."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.calls = 0
        self.is_closed = False

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.calls += 1
        try:
            return self.spoilt(await self.asked(request), request)
        except ValueError as e:
            raise ProviderError(FailureKind.INVALID_REQUEST, str(e), sent=False) from e
        except ConnectionRefusedError as e:
            raise ProviderError(FailureKind.SERVER_ERROR, str(e), sent=False) from e
        except ConnectionResetError as e:
            raise ProviderError(FailureKind.SERVER_ERROR, str(e), sent=True) from e
        except TimeoutError as e:
            raise ProviderError(FailureKind.TIMEOUT, str(e), sent=True) from e

    async def asked(self, request: ModelRequest) -> ModelResponse:
        reply = await self.server.answer(request.user)
        usage = Usage(input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
        return ModelResponse(reply.text, "stop", usage, "house-1")

    def spoilt(self, answer: ModelResponse, request: ModelRequest) -> ModelResponse:
        return answer

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None:
        self.is_closed = True


class TestRemoteProvider(RemoteProviderSuite):
    @override
    def provider(self, server: ModelServer) -> Provider:
        return Remote(server)


class Nameless(Remote):
    def spoilt(self, answer: ModelResponse, request: ModelRequest) -> ModelResponse:
        return replace(answer, model="")


class Repairing(Remote):
    def spoilt(self, answer: ModelResponse, request: ModelRequest) -> ModelResponse:
        return replace(answer, text=answer.text.replace(" {", "").strip())


class Unmetered(Remote):
    def spoilt(self, answer: ModelResponse, request: ModelRequest) -> ModelResponse:
        return replace(answer, usage=Usage())


class Guessing(Remote):
    def spoilt(self, answer: ModelResponse, request: ModelRequest) -> ModelResponse:
        return replace(answer, usage=Usage(input_tokens=5, output_tokens=5))


class Remembering(Remote):
    def spoilt(self, answer: ModelResponse, request: ModelRequest) -> ModelResponse:
        return replace(answer, model=f"house-{self.calls}")


class Confusing(Remote):
    last: ModelRequest

    async def asked(self, request: ModelRequest) -> ModelResponse:
        self.last = request
        await asyncio.sleep(0)
        return await super().asked(self.last)


class Leaking(Remote):
    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self.asked(request)


class Undercounting(Remote):
    async def count_tokens(self, request: ModelRequest) -> int | None:
        return 1


class ClosingOnce(Remote):
    async def aclose(self) -> None:
        if self.is_closed:
            raise BrokenContractError("a provider can be closed twice", "an error")
        self.is_closed = True


class AskingTwice(Remote):
    async def asked(self, request: ModelRequest) -> ModelResponse:
        await super().asked(request)
        return await super().asked(request)


class Retrying(Remote):
    async def asked(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().asked(request)
        except (ConnectionError, TimeoutError):
            return await super().asked(request)


class BillingUnsent(Remote):
    async def complete(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().complete(request)
        except ProviderError as e:
            raise ProviderError(e.kind, str(e), sent=True) from e


class Hopeful(Remote):
    async def complete(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().complete(request)
        except ProviderError as e:
            raise ProviderError(e.kind, str(e), sent=False) from e


class Resigning(Remote):
    async def asked(self, request: ModelRequest) -> ModelResponse:
        if self.calls > 1:
            raise ConnectionRefusedError("closed by an earlier fault")
        return await super().asked(request)


class Swallowing(Remote):
    async def asked(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().asked(request)
        except asyncio.CancelledError:
            raise TimeoutError("cancelled") from None


class Stubborn(Remote):
    async def asked(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().asked(request)
        except asyncio.CancelledError:
            return await super().asked(request)


class BrokenSuite(RemoteProviderSuite):
    """The suite on a provider class. It gives up soon, because some of the providers hang."""

    timeout_s = 0.4
    make: ClassVar[Callable[[ModelServer], Provider]]

    @override
    def provider(self, server: ModelServer) -> Provider:
        return type(self).make(server)


def suite_of(provider: type[Remote]) -> type[BrokenSuite]:
    return type("Suite", (BrokenSuite,), {"make": staticmethod(provider)})


BROKEN: dict[type[Remote], set[str]] = {
    Nameless: {"test_answer_has_stop_reason_and_model"},
    Repairing: {"test_answer_is_passed_on_unchanged"},
    Unmetered: {"test_usage_is_reported_within_the_caps"},
    Guessing: {"test_usage_is_that_of_the_server"},
    Remembering: {"test_equal_requests_get_equal_answers"},
    Confusing: {"test_requests_at_once_get_their_own_answers"},
    Leaking: {"test_refused_request_is_provider_error", "test_unreachable_server_is_not_sent"},
    Undercounting: {"test_count_of_tokens_covers_the_usage"},
    ClosingOnce: {"test_provider_can_be_closed_twice"},
    AskingTwice: {"test_request_is_sent_once"},
    Retrying: {
        "test_unreachable_server_is_not_sent",
        "test_cut_connection_is_unknown_and_not_retried",
        "test_timeout_is_unknown_and_not_retried",
    },
    BillingUnsent: {"test_unreachable_server_is_not_sent"},
    Hopeful: {"test_cut_connection_is_unknown_and_not_retried"},
    Resigning: {"test_server_is_asked_again_after_a_fault"},
    Swallowing: {"test_cancelled_request_ends_at_once"},
    Stubborn: {"test_cancelled_request_ends_at_once"},
}


@pytest.mark.parametrize("provider", BROKEN)
def test_broken_provider_is_found(provider: type[Remote]) -> None:
    assert BROKEN[provider] <= failures(suite_of(provider))


def test_each_check_finds_a_broken_provider() -> None:
    assert unbroken(RemoteProviderSuite, BROKEN) == set()


def test_unmetered_answers_with_a_reason_pass() -> None:
    class Silent(Remote):
        def spoilt(self, answer: ModelResponse, request: ModelRequest) -> ModelResponse:
            return replace(answer, usage=Usage(unmetered="the cluster reports no tokens"))

    assert failures(suite_of(Silent)) == set()


def test_synchronous_adapter_is_not_taken_for_a_remote_one() -> None:
    class Direct(Remote):
        async def asked(self, request: ModelRequest) -> ModelResponse:
            return ModelResponse(self.server.reply(request.user).text, "stop", Usage(), "house-1")

    assert "test_cancelled_request_ends_at_once" in failures(suite_of(Direct))


def test_missing_hook_names_itself() -> None:
    with pytest.raises(TypeError, match="override `provider`"):
        ProviderSuite().test_provider_can_be_closed_twice()


def test_check_that_hangs_is_a_broken_promise() -> None:
    class Hanging(Remote):
        async def asked(self, request: ModelRequest) -> ModelResponse:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    with pytest.raises(BrokenContractError, match=r"a check ends within 0\.4 s"):
        suite_of(Hanging)().test_request_is_sent_once()


def test_runners_collect_every_check() -> None:
    assert len(checks_of(ProviderSuite)) == 8
    assert len(checks_of(RemoteProviderSuite)) == 15
