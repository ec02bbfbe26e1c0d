"""The contract suites of model providers."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from agentic_trading.clock import SimClock
from agentic_trading.ids import seeded_ids
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.structured.engine import select
from agentic_trading.testing.model_server import ModelServer, ServerFault, ServerReply, answer_to
from agentic_trading.testing.suite import Suite, raised_by, require, require_equal

SCHEMA_ID: Final = "question.v1"
"""The `$id` of the schema of the suite's questions."""

_QUESTIONS: Final = 8
_CAP: Final = 50
_NOW: Final = datetime(2026, 1, 5, tzinfo=UTC)


def _request(model: str, context: dict[str, Any], schema_id: str) -> ModelRequest:
    takes = Capability(
        provider=LLMProvider("suite"),
        model=model,
        sampling=False,
        native_schema=False,
        context_tokens=32_768,
        max_output_tokens=4096,
        overhead_tokens=0,
        source="the contract suite",
        checked_on=_NOW.date(),
    )
    schema = {"$id": schema_id, "type": "object", "properties": {"answer": {"type": "string"}}}
    builder = EnvelopeBuilder(clock=SimClock(_NOW), ids=seeded_ids(f"{model} {schema_id} {context}"))
    builder.with_instructions("Answer the question.").with_context(context).with_output_schema(schema)
    builder.with_provider(LLMProvider("suite"), model).with_budget(max_output_tokens=_CAP)
    envelope = builder.build()
    return select(takes, envelope).request(envelope, takes, attempt=1, answer=1)


@cache
def _questions(model: str) -> Sequence[ModelRequest]:
    """Return the questions. Cached, so that all suites ask with the same envelopes."""
    return tuple(_request(model, {"question": f"question-{n}"}, SCHEMA_ID) for n in range(_QUESTIONS))


class ProviderSuite(Suite):
    """The promises of `Provider`, tested on your adapter. Override `provider`.

    Use `RemoteProviderSuite` for an adapter that reaches a server.

    Attributes:
        model: The model of the requests, for adapters that know their models.

    Example:
        class TestHouseProvider(ProviderSuite):
            def provider(self, server):
                return HouseProvider(ask=lambda prompt: server.reply(prompt).text)

    """

    model: str = "suite-1"

    def provider(self, server: ModelServer) -> Provider:  # noqa: ARG002 - a subclass uses it
        """Return a new adapter whose answers come from `server`. It is called within an event loop."""
        raise TypeError("override `provider`: return your adapter, connected to the server")

    def requests(self) -> Sequence[ModelRequest]:
        """Return the requests that the suite asks, for adapters that must have them before."""
        return _questions(self.model)

    def answer(self, number: int) -> str:
        """Return the answer text to the request at this place, from 0."""
        return answer_to(number)

    def test_answer_has_stop_reason_and_model(self) -> None:
        """Reports need the model, and the reading of an answer needs the reason of its end."""

        async def check(provider: Provider, _server: ModelServer) -> None:
            answer = await provider.complete(self.requests()[1])
            require("an answer has the model that answered", repr(answer.model), kept=bool(answer.model))
            require(
                "an answer has the reason of its end", repr(answer.stop_reason), kept=bool(answer.stop_reason)
            )

        self._run(check)

    def test_answer_is_passed_on_unchanged(self) -> None:
        """The gateway reads answers. A provider that repairs them hides a fault of the model."""

        async def check(provider: Provider, _server: ModelServer) -> None:
            for number in (1, 2):
                text = (await provider.complete(self.requests()[number])).text
                require_equal("the text of an answer is unchanged", text, answer_to(number))

        self._run(check)

    def test_usage_is_reported_within_the_caps(self) -> None:
        """The call is charged by its usage, and its reservation by the caps."""

        async def check(provider: Provider, _server: ModelServer) -> None:
            for request in self.requests():
                usage = (await provider.complete(request)).usage
                if usage.unmetered:
                    continue
                most = len((request.system + request.user).encode())
                require(
                    "an answer has its input tokens, at most one a byte",
                    usage.total_input_tokens,
                    kept=0 < usage.total_input_tokens <= most,
                )
                require(
                    "an answer has its output tokens, within the cap of the request",
                    usage.output_tokens,
                    kept=0 < usage.output_tokens <= request.max_tokens,
                )

        self._run(check)

    def test_equal_requests_get_equal_answers(self) -> None:
        """A provider has no memory of earlier requests."""

        async def check(provider: Provider, _server: ModelServer) -> None:
            first = _content(await provider.complete(self.requests()[3]))
            await provider.complete(self.requests()[4])
            again = _content(await provider.complete(self.requests()[3]))
            require_equal("an equal request gets an equal answer", again, first)

        self._run(check)

    def test_requests_at_once_get_their_own_answers(self) -> None:
        """Workers ask concurrently."""

        async def check(provider: Provider, _server: ModelServer) -> None:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(provider.complete(request)) for request in self.requests()]
            texts = [task.result().text for task in asked]
            require_equal(
                "requests at once get their own answers", texts, [answer_to(n) for n in range(_QUESTIONS)]
            )

        self._run(check)

    def test_refused_request_is_provider_error(self) -> None:
        """A request that cannot be answered is a failure of one kind, and costs no money."""
        request = _request(self.model, {"unrelated": True}, "unrelated.v1")

        async def check(provider: Provider, _server: ModelServer) -> None:
            promise = "a request that the server refuses raises a ProviderError"
            error = await raised_by(provider.complete(request), ProviderError, promise)
            require(
                "a refused request is of kind invalid_request or replay_miss",
                error.kind,
                kept=error.kind in {FailureKind.INVALID_REQUEST, FailureKind.REPLAY_MISS},
            )
            require(
                "a refused request is sent=False, because it is not billed", "sent=True", kept=not error.sent
            )

        self._run(check)

    def test_count_of_tokens_covers_the_usage(self) -> None:
        """A reservation by count must not be too small."""

        async def check(provider: Provider, _server: ModelServer) -> None:
            counted = await provider.count_tokens(self.requests()[4])
            used = (await provider.complete(self.requests()[4])).usage.total_input_tokens
            require(
                f"count_tokens is None, or at least the {used} input tokens that are used",
                counted,
                kept=counted is None or counted >= used,
            )

        self._run(check)

    def test_provider_can_be_closed_twice(self) -> None:
        """A platform may close a provider that is already closed."""

        async def check(provider: Provider, _server: ModelServer) -> None:
            await provider.aclose()
            await provider.aclose()

        self._run(check)

    def _run(
        self,
        check: Callable[[Provider, ModelServer], Coroutine[Any, Any, None]],
        fault: ServerFault = "",
    ) -> None:
        async def checked() -> None:
            server = ModelServer(fault)
            provider = self.provider(server)
            try:
                await check(provider, server)
            finally:
                await provider.aclose()

        self.run_check(checked())


def _content(answer: ModelResponse) -> tuple[object, ...]:
    """Return an answer without the ids that its server gives to each request."""
    return answer.text, answer.stop_reason, answer.usage, answer.model, answer.structured


class RemoteProviderSuite(ProviderSuite):
    """The promises of `Provider`, and those of an adapter that reaches a server.

    Connect the transport of the adapter to `await server.answer(prompt)`. The errors of `ModelServer.reply`
    stand for those of your client library.
    """

    def test_request_is_sent_once(self) -> None:
        """A second request would be a second bill."""

        async def check(provider: Provider, server: ModelServer) -> None:
            await provider.complete(self.requests()[0])
            require_equal("one completion is one request to the server", server.asked, 1)

        self._run(check)

    def test_usage_is_that_of_the_server(self) -> None:
        """The call costs as many tokens as the server bills."""

        async def check(provider: Provider, server: ModelServer) -> None:
            usage = (await provider.complete(self.requests()[0])).usage
            if usage.unmetered:
                return
            billed: ServerReply = server.reply(self.requests()[0].user)
            found = (usage.total_input_tokens, usage.output_tokens)
            require_equal(
                "the usage has the tokens of the server", found, (billed.input_tokens, billed.output_tokens)
            )

        self._run(check)

    def test_unreachable_server_is_not_sent(self) -> None:
        """A request that has not arrived costs no money."""

        async def check(provider: Provider, server: ModelServer) -> None:
            error = await self._failure(provider)
            require("a request that has not arrived is sent=False", "sent=True", kept=not error.sent)
            require_equal("a request that has not arrived is not asked again", server.asked, 1)

        self._run(check, "refused")

    def test_cut_connection_is_unknown_and_not_retried(self) -> None:
        """The server may have answered, and may bill it."""
        self._run(self._unknown_outcome, "cut")

    def test_timeout_is_unknown_and_not_retried(self) -> None:
        """A late answer is billed too."""
        self._run(self._unknown_outcome, "slow")

    def test_server_is_asked_again_after_a_fault(self) -> None:
        """One failed request must not close the adapter."""

        async def check(provider: Provider, server: ModelServer) -> None:
            await self._failure(provider)
            server.fault = ""
            text = (await provider.complete(self.requests()[1])).text
            require_equal("a request after a fault is answered", text, answer_to(1))

        self._run(check, "cut")

    def test_cancelled_request_ends_at_once(self) -> None:
        """A shutdown cancels requests, and the adapter answers others."""
        self._run(self._cancel)

    async def _failure(self, provider: Provider) -> ProviderError:
        promise = "a fault of the server raises a ProviderError"
        return await raised_by(provider.complete(self.requests()[0]), ProviderError, promise)

    async def _unknown_outcome(self, provider: Provider, server: ModelServer) -> None:
        error = await self._failure(provider)
        require("a request with an unknown outcome is sent=True", "sent=False", kept=error.sent)
        require_equal("a request with an unknown outcome is not asked again", server.asked, 1)

    async def _cancel(self, provider: Provider, server: ModelServer) -> None:
        server.hangs = True
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(_end_of_request(provider, self.requests()[0]))
            waiting = group.create_task(server.is_waiting.wait())
            await asyncio.wait(
                {asking, waiting}, timeout=self.timeout_s / 4, return_when=asyncio.FIRST_COMPLETED
            )
            asking.cancel()
            await asyncio.wait({asking}, timeout=self.timeout_s / 4)
            is_done = asking.done()
            asking.cancel()
            waiting.cancel()
        require("the adapter asks `server.answer`", "it did not", kept=server.is_waiting.is_set())
        require("a cancelled request ends", "it still waited", kept=is_done)
        end = "cancelled" if asking.cancelled() else asking.result()
        require_equal("a cancelled request is cancelled", end, "cancelled")
        require_equal("a cancelled request is not asked again", server.asked, 1)
        server.hangs = False
        text = (await provider.complete(self.requests()[1])).text
        require_equal("a request after a cancellation is answered", text, answer_to(1))


async def _end_of_request(provider: Provider, request: ModelRequest) -> str:
    """Return the answer or the error of a request as text."""
    try:
        return repr(await provider.complete(request))
    except Exception as e:  # noqa: BLE001 - it is reported as the end of a cancelled request
        return f"{type(e).__name__}: {e}"
