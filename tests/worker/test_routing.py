"""Each attempt is sent to the provider that its envelope names, and to no other."""

import pytest

from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from tests.gateway import GOOD, asking, attempts, gateway
from tests.governance.asking import tenant

RICH = [tenant(10**12)]


async def test_named_provider_answers_the_envelope() -> None:
    scripted, rules = ScriptedProvider([GOOD]), ScriptedProvider([GOOD, GOOD])
    desk = gateway(Providers({"scripted": scripted, "rules": rules}), limits=RICH)

    for provider, model in (("rules", "rules-1"), ("scripted", "scripted-1"), ("rules", "rules-1")):
        asked = asking(n=len(rules.requests)).with_provider(LLMProvider(provider), model).build()
        answered = await desk.runner.run(asked)
        assert (answered.result.provider, answered.result.model, answered.actionable) == (
            provider,
            model,
            True,
        )

    assert (len(scripted.requests), len(rules.requests)) == (1, 2)


async def test_unserved_provider_is_refused_unpaid() -> None:
    rules = ScriptedProvider([GOOD])
    desk = gateway(Providers({"rules": rules}), limits=RICH)
    asked = asking().build()

    answered = await desk.runner.run(asked)

    failure = answered.result.failure
    assert failure is not None
    assert (failure.category, failure.recoverable) == (FailureKind.NOT_SERVED, True)
    assert failure.description == "provider scripted is not served here; served are rules"
    assert (answered.result.cost_nusd, answered.result.dispatched_at) == (0, None)
    assert await attempts(desk, asked) == [answered]
    assert (rules.requests, desk.ledger.statistics().settled) == ([], 0)


async def test_a_recorded_answer_needs_no_provider() -> None:
    asked = asking().build()
    recorded = await gateway([GOOD], limits=RICH).runner.run(asked)
    desk = gateway(Providers({}), recorded=RecordedAnswers([recorded]))

    answered = await desk.runner.run(asked)

    assert (answered.result.served_from, answered.actionable) == ("recorded", True)


def test_single_provider_serves_every_name() -> None:
    only = ScriptedProvider([])

    assert Providers.every(only).names is None
    assert Providers.every(only).of("house") is only


def test_unserved_provider_name_raises_before_sending() -> None:
    served = Providers({"rules": ScriptedProvider([])})

    with pytest.raises(ProviderError, match="provider house is not served here; served are rules") as refused:
        served.of("house")
    assert (refused.value.kind, refused.value.sent) == (FailureKind.NOT_SERVED, False)


class Closing(ScriptedProvider):
    """A provider that counts how often it is closed, and may fail to close."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__([])
        self.closed = 0
        self._fails = fails

    async def aclose(self) -> None:
        self.closed += 1
        if self._fails:
            raise ConnectionError("gone")


async def test_providers_close_once_despite_failures() -> None:
    shared, broken, last = Closing(), Closing(fails=True), Closing()

    with pytest.raises(ConnectionError):
        await Providers({"a": shared, "b": shared, "c": broken, "d": last}).aclose()

    assert (shared.closed, broken.closed, last.closed) == (1, 1, 1)
