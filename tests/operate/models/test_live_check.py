"""A live check reports what a model shows, says what it could not find out, and spends no more than it may."""

from dataclasses import dataclass, field

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ScopeKind
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.models import Capabilities, Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.operate.models.live_check import LiveCheck, LiveCheckProof
from tests.build import NOW
from tests.governance.gates import PRICES, tenant

CAPABILITIES = Capabilities.load()
SONNET = CAPABILITIES.of(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")
USD = 1_000_000_000
REFUSED = ProviderError(FailureKind.INVALID_REQUEST, "400 not permitted", sent=False)


@dataclass
class Model:
    """A model that is as its row says, but for what a test changes."""

    takes_schema: bool = True
    takes_effort: bool = True
    takes_temperature: bool = False
    fails_with: ProviderError | None = None
    counted: int | None = 100
    served_as: str = "claude-sonnet-5-5"
    usage: Usage = field(default_factory=lambda: Usage(input_tokens=100, output_tokens=2))
    stop_reason: str = "end_turn"
    received: list[ModelRequest] = field(default_factory=list)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.received.append(request)
        if self.fails_with is not None:
            raise self.fails_with
        if request.temperature is not None and not self.takes_temperature:
            raise REFUSED
        if request.effort == "max" and not self.takes_effort:
            raise REFUSED
        enforced = request.response_schema is not None and self.takes_schema
        text = '{"colour": "vermilion"}' if enforced else "green"
        return ModelResponse(text, self.stop_reason, self.usage, self.served_as)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return self.counted

    async def aclose(self) -> None:
        """Hold nothing."""


async def proof(
    model: Model, *, usd: float = 1.0, ledger: MemoryLedger | None = None, row: Capability = SONNET
) -> LiveCheckProof:
    """Return what a live check finds out about `model`."""
    gate = Gate(
        ledger=ledger or MemoryLedger([tenant(int(usd * USD))]),
        prices=PRICES,
        capabilities=CAPABILITIES,
        clock=SimClock(NOW),
        mode="live",
    )
    return await LiveCheck(gate, model, tenant="default").prove(row)


def verdicts(of: LiveCheckProof) -> dict[str, str]:
    """Return each line's verdict by what the line is about."""
    return {line.about: line.verdict for line in of.lines}


async def test_matching_model_is_proved_with_four_requests() -> None:
    model = Model()

    found = await proof(model)

    assert set(verdicts(found).values()) == {"as told"}
    assert len(model.received) == 4
    # three answers of 100 tokens in at 2000 and 2 out at 10,000; the refused temperature costs nothing
    assert found.cost_nusd == 3 * (100 * 2_000 + 2 * 10_000)


@pytest.mark.parametrize(
    ("model", "about"),
    [
        (Model(takes_schema=False), "native schema"),
        (Model(takes_effort=False), "effort"),
        (Model(takes_temperature=True), "temperature"),
        (Model(served_as="claude-haiku-5-5"), "answer and usage"),
        (Model(usage=Usage()), "answer and usage"),
        (Model(stop_reason=""), "answer and usage"),
        (Model(usage=Usage(input_tokens=100, output_tokens=2, service_tier="priority")), "price"),
        (Model(counted=1_000_000), "tokens of a request"),
        (Model(usage=Usage(input_tokens=5_000, output_tokens=2)), "tokens of a request"),
    ],
)
async def test_differing_model_is_found(model: Model, about: str) -> None:
    found = await proof(model)

    assert verdicts(found)[about] == "differs"


async def test_truncated_answer_leaves_schema_unproved() -> None:
    found = await proof(Model(stop_reason="max_tokens"))

    assert verdicts(found)["native schema"] == "not proved"


async def test_unanswered_first_request_ends_the_check() -> None:
    model = Model(fails_with=ProviderError(FailureKind.AUTH_ERROR, "wrong key", sent=False))

    found = await proof(model)

    assert verdicts(found) == {"answer and usage": "not proved"}
    assert found.stopped == "auth_error: wrong key"
    assert len(model.received) == 1


async def test_refused_plain_request_differs_from_table() -> None:
    found = await proof(Model(fails_with=REFUSED))

    assert verdicts(found) == {"answer and usage": "differs"}


async def test_lost_answer_is_charged_in_full() -> None:
    ledger = MemoryLedger([tenant(USD)])

    found = await proof(
        Model(fails_with=ProviderError(FailureKind.TIMEOUT, "lost", sent=True)), ledger=ledger
    )

    [balance] = [balance for balance in await ledger.balances("default") if balance.scope is ScopeKind.TENANT]
    assert found.cost_nusd == balance.spent.nusd > 256 * 10_000


async def test_request_over_ceiling_is_not_sent() -> None:
    model = Model()

    found = await proof(model, usd=0.001)

    assert model.received == []
    assert verdicts(found) == {"answer and usage": "not proved"}
    assert "has 0.001 USD left" in found.stopped


async def test_ceiling_holds_for_any_answer_cost() -> None:
    usage = Usage(input_tokens=1_200, output_tokens=256)
    cost = 1_200 * 2_000 + 256 * 10_000
    model = Model(usage=usage)

    found = await proof(model, usd=0.015)

    assert len(model.received) < 4
    assert found.cost_nusd == len(model.received) * cost <= 0.015 * USD
    assert "not proved" in verdicts(found).values()


async def test_uncounted_bill_is_compared_with_bound() -> None:
    found = await proof(Model(counted=None))

    [line] = [line for line in found.lines if line.about == "tokens of a request"]
    assert (line.verdict, line.seen) == ("as told", "100 billed, not counted beforehand")


async def test_requests_have_caller_tenant_and_own_envelope() -> None:
    model = Model()

    await proof(model)

    assert {request.envelope.tenant_id for request in model.received} == {"default"}
    assert len({request.envelope.envelope_id for request in model.received}) == 4
    assert model.received[0].envelope.agent_id == "models-check"


async def test_model_without_effort_receives_no_effort() -> None:
    model = Model(takes_temperature=True, served_as="smollm2-135m")

    found = await proof(model, row=CAPABILITIES.of(LLMProvider.LOCAL, "smollm2-135m"))

    assert "effort" not in verdicts(found)
    assert {request.effort for request in model.received} == {None}
    assert set(verdicts(found).values()) == {"as told"}
