"""A provider of which nothing more can be expected is noticed; what may pass is not held against it."""

from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.client.gateway import GatewayReply
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision, ProviderError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.result import AttemptTrace, Stage
from agentic_trading.operate.providers import ProviderOutage, UnusableProviderError, refuse_unusable
from tests.build import NOW, envelope, event, interaction
from tests.gateway import AskedEitherWay


def failed(kind: FailureKind, **changes: Any) -> LLMInteraction:
    """Return a call that was sent and failed of `kind`."""
    reason = FailureReason(category=kind, description="told by the server")
    fields = {"dispatched_at": NOW, "reading": None, "failure": reason, "success": False}
    return interaction(**{**fields, **changes})


def answered() -> LLMInteraction:
    return interaction(
        dispatched_at=NOW, reading=AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE)
    )


def heard(*answers: GatewayReply) -> FailureKind | None:
    outage = ProviderOutage()
    for answer in answers:
        outage.note(answer)
    return outage.failure[1].category if outage.failure else None


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.AUTH_ERROR,
        FailureKind.BILLING,
        FailureKind.SERVER_ERROR,
        FailureKind.INVALID_REQUEST,
        FailureKind.INTERNAL_ERROR,
    ],
)
def test_permanent_first_failure_is_an_outage(kind: FailureKind) -> None:
    assert heard(failed(kind)) is kind


@pytest.mark.parametrize(
    "kind", [FailureKind.TIMEOUT, FailureKind.RATE_LIMIT, FailureKind.REFUSAL, FailureKind.SHUTDOWN]
)
def test_transient_first_failure_is_no_outage(kind: FailureKind) -> None:
    assert heard(failed(kind)) is None


def test_later_outage_needs_auth_or_billing_failure() -> None:
    assert heard(answered(), failed(FailureKind.SERVER_ERROR)) is None
    assert heard(answered(), failed(FailureKind.INVALID_REQUEST)) is None
    assert heard(answered(), failed(FailureKind.BILLING)) is FailureKind.BILLING
    assert heard(answered(), failed(FailureKind.AUTH_ERROR), answered()) is FailureKind.AUTH_ERROR


def test_unsent_or_recorded_failure_is_ignored() -> None:
    reason = FailureReason(category=FailureKind.AUTH_ERROR, description="no worker")

    assert heard(failed(FailureKind.INVALID_REQUEST, dispatched_at=None)) is None
    assert heard(failed(FailureKind.AUTH_ERROR, served_from="recorded")) is None
    assert heard(NoDecision(reason=reason)) is None


async def test_watched_gateway_passes_answers_through() -> None:
    outage, answer, told = ProviderOutage(), failed(FailureKind.AUTH_ERROR), event("analysis.skipped")
    recorded: list[object] = []

    class Stub(AskedEitherWay):
        @override
        async def ask(
            self, _envelope: object, *, earlier: list[LLMInteraction] | None = None
        ) -> GatewayReply:
            return answer

        async def record(self, what: object) -> None:
            recorded.append(what)

    watched = outage.around(Stub())

    assert await watched.ask(envelope()) is answer
    await watched.record(told)

    assert recorded == [told]
    assert outage.failure is not None


def test_unusable_provider_error_names_remedy() -> None:
    reason = FailureReason(category=FailureKind.AUTH_ERROR, description="invalid key")

    assert str(UnusableProviderError("openai", reason, begun=True)) == (
        "openai cannot be used (auth_error): invalid key. Fix this, or use another --provider. "
        "Its calls are on record. Continue after them with --resume"
    )
    assert "--resume" not in str(UnusableProviderError("openai", reason, begun=False))


class Counting(ScriptedProvider):
    """Fail to count as it is told, and note what was asked."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__([])
        self.error = error
        self.counted: list[str] = []

    async def count_tokens(self, request: ModelRequest) -> int | None:
        self.counted.append(request.envelope.model)
        if self.error is not None:
            raise self.error
        return 7


def request(model: str) -> ModelRequest:
    asked = envelope(model=model)
    return ModelRequest(asked, 1, 1, "system", "user", "text", max_tokens=16)


def error(kind: FailureKind, *, sent: bool = False) -> ProviderError:
    return ProviderError(kind, "told by the server", sent=sent)


async def proven(failure: Exception | None, *, has_own_server: bool = False) -> list[str]:
    provider = Counting(failure)
    requests = [request("one"), request("two")]
    await refuse_unusable(provider, requests, has_own_server=has_own_server)
    return provider.counted


async def test_each_model_is_counted_once() -> None:
    assert await proven(None) == ["one", "two"]


@pytest.mark.parametrize(
    "kind", [FailureKind.AUTH_ERROR, FailureKind.SERVER_ERROR, FailureKind.INVALID_REQUEST]
)
async def test_permanent_count_failure_is_raised(kind: FailureKind) -> None:
    with pytest.raises(UnusableProviderError, match=f"{kind}.*told by the server") as refused:
        await proven(error(kind))

    assert not refused.value.begun


async def test_transient_count_failure_is_tolerated() -> None:
    assert await proven(error(FailureKind.RATE_LIMIT)) == ["one", "two"]
    assert await proven(TimeoutError()) == ["one"]


async def test_own_server_may_refuse_token_count() -> None:
    assert len(await proven(error(FailureKind.INVALID_REQUEST), has_own_server=True)) == 2
    assert len(await proven(error(FailureKind.SERVER_ERROR, sent=True), has_own_server=True)) == 2
    with pytest.raises(UnusableProviderError):
        await proven(error(FailureKind.SERVER_ERROR), has_own_server=True)
    with pytest.raises(UnusableProviderError):
        await proven(error(FailureKind.AUTH_ERROR), has_own_server=True)
