"""Rules answer in text, as a model would."""

import json

import pytest

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.providers.offline import RulesProvider, append_sentinel
from agentic_trading.structured import Accepted, InstructorParser
from tests.structured.asking import SEALED, capability, request

PROMPTED = capability(native_schema=False)


def say_four(envelope: LLMEnvelope) -> str:
    """Answer with what the context says."""
    return json.dumps({"answer": envelope.context.get("symbol", "4")})


async def test_schema_rule_produces_answer() -> None:
    made = request()

    answer = await RulesProvider({"answer.v1": say_four}).complete(made)

    assert (answer.text, answer.stop_reason, answer.model) == ('{"answer": "BTCUSDT"}', "end_turn", "rules-1")


async def test_rule_lookup_requires_schema_id() -> None:
    provider = RulesProvider({"analyst": say_four})

    with pytest.raises(ProviderError, match="no rule for schema ''; known are analyst"):
        await provider.complete(request(expected_output_schema={}, agent_type="analyst"))


@pytest.mark.parametrize(("rules", "known"), [({"b": say_four, "a": say_four}, "a, b"), ({}, "none")])
async def test_missing_rule_error_lists_known_rules(rules: dict[str, object], known: str) -> None:
    provider = RulesProvider(rules)  # type: ignore[arg-type]

    with pytest.raises(ProviderError, match=f"no rule for schema 'answer.v1'; known are {known}") as failed:
        await provider.complete(request())

    assert (failed.value.kind, failed.value.sent) == (FailureKind.INVALID_REQUEST, False)


async def test_tokens_are_four_bytes_rounded_up() -> None:
    made, provider = request(), RulesProvider({"answer.v1": lambda _: "äb"})

    answer = await provider.complete(made)

    size = len((made.system + made.user).encode())
    assert answer.usage.output_tokens == 1
    assert answer.usage.input_tokens == await provider.count_tokens(made) == -(-size // 4)


async def test_text_over_cap_is_truncated() -> None:
    made = request(budget=LLMBudget(max_output_tokens=2))

    answer = await RulesProvider({"answer.v1": lambda _: "ääääää"}).complete(made)

    assert (answer.text, answer.stop_reason, answer.usage.output_tokens) == ("ääää", "max_tokens", 2)


async def test_sealed_request_gets_sentinel_and_parses() -> None:
    made = request(PROMPTED, output_policy=SEALED)

    answer = await RulesProvider({"answer.v1": say_four}).complete(made)

    assert answer.text == '{"answer": "BTCUSDT","end":"ok"}'
    outcome = InstructorParser().read(answer, made)
    assert isinstance(outcome, Accepted)
    assert outcome.value == {"answer": "BTCUSDT"}


@pytest.mark.parametrize(
    ("text", "sealed"),
    [
        ("{}", '{"end":"ok"}'),
        ("{ }\n", '{"end":"ok"}\n'),
        ('{"a": {}}', '{"a": {},"end":"ok"}'),
        ('{\n  "a": 1\n}', '{\n  "a": 1,"end":"ok"}'),
        ("prose", "prose"),
        ("{} prose", "{} prose"),
        ("", ""),
    ],
)
def test_sentinel_is_appended_as_last_member(text: str, sealed: str) -> None:
    assert append_sentinel(text) == sealed
