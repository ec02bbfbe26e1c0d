"""The attempts of one envelope: each read, kept, and followed by the right next one."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from structlog.testing import capture_logs

from agentic_trading.governance.admission import Admitted, Charge
from agentic_trading.governance.ledger import ReservationRequest
from agentic_trading.governance.prices import Amount
from agentic_trading.llm import (
    FailureKind,
    LLMEnvelope,
    LLMProvider,
    Stage,
    Violation,
)
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.providers.offline import RulesProvider, ScriptedProvider
from agentic_trading.llm.result import AttemptTrace, Usage
from agentic_trading.structured.outcome import Accepted
from agentic_trading.worker.attempt_result import Timing, answered_result
from agentic_trading.worker.call_context import READ_AT_ONCE_CHARS
from tests.gateway import CAPABILITIES, GOOD, START, asking, attempts, gateway
from tests.governance.requests import request


async def test_accepted_answer_records_cost_and_numbers() -> None:
    desk = gateway([GOOD])
    envelope = asking().build()

    interaction = await desk.runner.run(envelope)

    result = interaction.result
    assert await attempts(desk, envelope) == [interaction]
    assert result.parsed_output == {"action": "buy", "size": Decimal("1.50")}
    assert str(result.parsed_output["size"]) == "1.50"
    assert (result.success, result.validation_passed, result.actionable) == (True, True, True)
    assert (result.raw_output, result.stop_reason, result.served_from) == (GOOD, "end_turn", "live")
    assert 0 < result.cost_nusd <= result.reserved_nusd
    assert result.cost_nusd == desk.ledger.statistics().charged_nusd
    assert result.reading is not None
    assert result.reading.verdict is Stage.DONE


async def test_schema_violation_names_the_path() -> None:
    desk = gateway(['{"action":"buy","size":11}', GOOD])
    envelope = asking().build()

    await desk.runner.run(envelope)

    first = (await attempts(desk, envelope))[0].result
    assert first.parsed_output == {}
    assert not first.actionable
    assert any("$.size" in problem for problem in first.validation_errors)


async def test_analysis_ends_degraded_after_last_answer() -> None:
    desk = gateway(['{"action":"hold","size":1}', '{"action":"buy"}'])

    final = (await desk.runner.run(asking().build())).result

    assert (final.attempt_number, final.success, final.actionable) == (2, True, False)
    assert final.parsed_output == {}
    assert final.failure is not None
    assert final.failure.category is FailureKind.PARSING_ERROR


async def test_execution_fails_closed_after_first_answer() -> None:
    desk = gateway(['{"action":"buy","size":11,"end":"ok"}', GOOD])

    final = (await desk.runner.run(asking("execution").build())).result

    assert (final.attempt_number, final.success, final.actionable) == (1, False, False)
    assert final.parsed_output == {}


async def test_execution_without_sentinel_is_truncated() -> None:
    desk = gateway([GOOD])

    final = (await desk.runner.run(asking("execution").build())).result

    assert final.failure is not None
    assert final.failure.category is FailureKind.TRUNCATED


async def test_execution_removes_the_sentinel() -> None:
    desk = gateway(['{"action":"buy","size":1.50,"end":"ok"}'])

    final = (await desk.runner.run(asking("execution").build())).result

    assert final.actionable
    assert final.parsed_output == {"action": "buy", "size": Decimal("1.50")}


async def test_a_refusal_is_terminal() -> None:
    refusal = ModelResponse(text="", stop_reason="refusal", usage=Usage(input_tokens=9), model="scripted-1")
    desk = gateway([refusal, GOOD])

    final = (await desk.runner.run(asking().build())).result

    assert final.attempt_number == 1
    assert final.failure is not None
    assert final.failure.category is FailureKind.REFUSAL
    assert final.cost_nusd > 0


async def test_truncated_answer_raises_cap_once() -> None:
    cut = ModelResponse(
        text='{"action":"bu', stop_reason="max_tokens", usage=Usage(output_tokens=9), model="scripted-1"
    )
    provider = ScriptedProvider([cut, cut, GOOD])
    desk = gateway(provider)

    final = (await desk.runner.run(asking().build())).result

    caps = [request.max_tokens for request in provider.requests]
    assert len(caps) == 2
    assert caps[1] > caps[0]
    assert final.failure is not None
    assert final.failure.category is FailureKind.TRUNCATED


async def test_failing_check_rejects_the_answer() -> None:
    def broken(_envelope: LLMEnvelope, _text: str) -> Sequence[Violation]:
        raise KeyError("limits")

    desk = gateway([GOOD, GOOD], checks={"advice.v1": broken})

    final = (await desk.runner.run(asking().build())).result

    assert not final.actionable
    assert "the check itself failed: KeyError" in final.validation_errors[0]


async def test_check_may_reject_by_value_error() -> None:
    def refusing(_envelope: LLMEnvelope, _text: str) -> Sequence[Violation]:
        raise ValueError("never on a Friday")

    desk = gateway([GOOD, GOOD], checks={"advice.v1": refusing})

    final = (await desk.runner.run(asking().build())).result

    assert final.validation_errors == ["$: never on a Friday"]


async def test_unknown_model_refusal_lists_known_models() -> None:
    desk = gateway([GOOD])

    final = (await desk.runner.run(asking(model="claude-sonnet-99").build())).result

    assert final.failure is not None
    assert final.failure.category is FailureKind.INVALID_REQUEST
    assert "scripted-1" in final.failure.description


async def test_schema_id_selects_the_custom_check() -> None:
    def odd_lots(envelope: LLMEnvelope, text: str) -> Sequence[Violation]:
        assert envelope.agent_id == "adviser-1"
        assert text == GOOD
        return [Violation(path="$.size", keyword="lots", message="whole lots only")]

    desk = gateway([GOOD, GOOD], checks={"advice.v1": odd_lots})

    final = (await desk.runner.run(asking().build())).result

    assert not final.actionable
    assert final.validation_errors == ["$.size: whole lots only"]
    assert final.reading is not None
    assert final.reading.verdict is Stage.SEMANTIC


async def test_substituted_model_must_not_execute() -> None:
    text = '{"action":"buy","size":1,"end":"ok"}'
    other = ModelResponse(text=text, stop_reason="end_turn", usage=Usage(output_tokens=9), model="scripted-2")

    final = (await gateway([other]).runner.run(asking("execution").build())).result

    assert (final.success, final.parsed_output) == (False, {})
    assert final.failure is not None
    assert final.failure.category is FailureKind.WRONG_MODEL
    assert (final.model, final.model_requested) == ("scripted-2", "scripted-1")
    assert final.cost_nusd > 0


async def test_analysis_reports_the_serving_model() -> None:
    other = ModelResponse(text=GOOD, stop_reason="end_turn", usage=Usage(output_tokens=9), model="scripted-2")

    final = (await gateway([other]).runner.run(asking().build())).result

    assert final.actionable
    assert (final.model, final.model_requested) == ("scripted-2", "scripted-1")


async def test_deterministic_call_rejects_substituted_model() -> None:
    other = ModelResponse(text=GOOD, stop_reason="end_turn", usage=Usage(output_tokens=9), model="scripted-2")
    envelope = asking().with_safety(require_deterministic=True).build()

    final = (await gateway([other]).runner.run(envelope)).result

    assert (final.success, final.actionable) == (False, False)
    assert final.failure is not None
    assert final.failure.category is FailureKind.WRONG_MODEL


async def test_unraisable_cap_is_not_retried() -> None:
    cut = ModelResponse(
        text='{"a', stop_reason="max_tokens", usage=Usage(output_tokens=9), model="scripted-1"
    )
    most = CAPABILITIES.of(LLMProvider.SCRIPTED, "scripted-1").max_output_tokens
    provider = ScriptedProvider([cut, GOOD])
    envelope = asking().with_budget(max_output_tokens=most).build()

    final = (await gateway(provider).runner.run(envelope)).result

    assert len(provider.requests) == 1
    assert final.failure is not None
    assert final.failure.category is FailureKind.TRUNCATED


async def test_long_answer_is_read_off_loop() -> None:
    threads: list[int] = []

    def noting(_envelope: LLMEnvelope, text: str) -> Sequence[Violation]:
        threads.append(threading.get_ident())
        return []

    text = '{"action":"buy","size":1' + " " * READ_AT_ONCE_CHARS + "}"
    long = ModelResponse(text=text, stop_reason="end_turn", usage=Usage(output_tokens=9), model="scripted-1")
    desk = gateway([GOOD, long], checks={"advice.v1": noting})

    for number in range(2):
        assert (await desk.runner.run(asking(n=number).build())).result.actionable

    assert threads[0] == threading.get_ident() != threads[1]


async def test_answer_text_is_never_logged() -> None:
    def refusing(_envelope: LLMEnvelope, text: str) -> Sequence[Violation]:
        raise ValueError(f"I do not like {text}")

    odd = '{"action":"buy","size":1,"private words":"private"}'
    desk = gateway([odd, '{"action":"private","size":1}'] * 2 + ["private"] * 2)

    with capture_logs() as logs:
        for number in range(3):
            await desk.runner.run(asking(n=number).build())
        await gateway(
            [odd.replace(',"private words":"private"', ""), GOOD], checks={"advice.v1": refusing}
        ).runner.run(asking(private="x").build())

    assert any(entry["event"] == "answer_rejected" for entry in logs)
    assert "private" not in str(logs)
    assert "like" not in str(logs)


async def test_rules_provider_runs_the_same_way() -> None:
    desk = gateway(RulesProvider({"advice.v1": lambda _envelope: GOOD}))
    envelope = asking(model="rules-1").with_provider(LLMProvider.RULES, "rules-1").build()

    final = (await desk.runner.run(envelope)).result

    assert final.actionable
    assert (final.cost_nusd, final.output_tokens) == (0, 7)


@pytest.mark.parametrize(("takes_a_temperature", "level"), [(True, "greedy"), (False, "pinned")])
def test_model_without_temperature_is_never_greedy(level: str, *, takes_a_temperature: bool) -> None:
    capability = CAPABILITIES.of(LLMProvider.SCRIPTED, "scripted-1")
    capability = capability.model_copy(update={"sampling": takes_a_temperature})
    asked = replace(request(), temperature=0.0)
    outcome = Accepted({}, "{}", "{}", AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE))
    admission = Admitted(ReservationRequest("id", 1, {}, Amount(1, 1)), capability, "book", START)
    response = ModelResponse("{}", "end_turn", Usage(), "scripted-1")

    result = answered_result(
        asked, response, outcome, admission, Charge(0), Timing(START, START, 0.0), next_step="final"
    )

    assert result.determinism_level == level
