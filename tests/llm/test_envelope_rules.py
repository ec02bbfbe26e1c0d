"""What no envelope may be, however it was built."""

import re
from typing import Any

import pytest

from agentic_trading.llm import (
    EnvelopeBuilder,
    EnvelopeValidationError,
    EnvelopeWorkflow,
    LLMEnvelope,
    LLMProvider,
    OutputPolicy,
    ResponseFormat,
    SafetyConstraints,
)
from agentic_trading.llm.envelope_rules import PRESETS, check_envelope
from tests.build import envelope

EXECUTION = PRESETS[EnvelopeWorkflow.EXECUTION].output
LOOSER: dict[str, Any] = {
    "mode": "reask",
    "decode": "lossless",
    "candidates": "last_valid",
    "coerce": True,
    "drop_extra": True,
    "answers_read": 2,
    "on_truncated": "raise_cap_once",
    "on_exhausted": "degraded",
    "require_sentinel": False,
}


def problems(**changes: Any) -> tuple[str, ...]:
    with pytest.raises(EnvelopeValidationError) as e:
        check_envelope(envelope(**changes))
    return e.value.problems


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"safety_constraints": SafetyConstraints(require_json=True)},
            "response_format is 'text'; require_json allows 'json' only",
        ),
        (
            {"expected_output_schema": {"type": "object"}},
            "response_format is 'text'; an expected_output_schema allows 'json' only",
        ),
    ],
)
def test_text_format_refused_when_json_required(changes: dict[str, Any], problem: str) -> None:
    assert problems(response_format=ResponseFormat.TEXT, **changes) == (problem,)


def test_text_format_refused_for_execution() -> None:
    found = problems(
        response_format=ResponseFormat.TEXT,
        workflow=EnvelopeWorkflow.EXECUTION,
        safety_constraints=SafetyConstraints(require_deterministic=True),
        output_policy=EXECUTION,
    )

    assert found == ("response_format is 'text'; workflow execution allows 'json' only",)


def test_text_format_accepted_without_json_requirement() -> None:
    check_envelope(envelope(response_format=ResponseFormat.TEXT))


@pytest.mark.parametrize("field", LOOSER)
def test_execution_policy_cannot_be_loosened(field: str) -> None:
    policy = EXECUTION.model_copy(update={field: LOOSER[field]})

    found = problems(
        workflow=EnvelopeWorkflow.EXECUTION,
        safety_constraints=SafetyConstraints(require_deterministic=True),
        output_policy=policy,
    )

    allowed = getattr(EXECUTION, field)
    assert found == (
        f"output_policy.{field} is {LOOSER[field]!r}; workflow execution allows {allowed!r} only",
    )


def test_execution_lists_all_general_policy_problems() -> None:
    builder = EnvelopeBuilder().for_execution().with_instructions("x").with_output_policy(OutputPolicy())

    with pytest.raises(EnvelopeValidationError) as e:
        builder.build()

    named = [re.split(r"[. ]", problem)[1] for problem in e.value.problems]
    assert named == [name for name in LOOSER if name != "on_truncated"]


@pytest.mark.parametrize("workflow", [each for each in EnvelopeWorkflow if each != "execution"])
def test_other_workflows_may_loosen_policy(workflow: EnvelopeWorkflow) -> None:
    check_envelope(envelope(workflow=workflow, output_policy=OutputPolicy(answers_read=4)))


@pytest.mark.parametrize("evidence_id", ["", "a b", "é", "x\n", "a/b", "x" * 129])
def test_malformed_evidence_id_is_refused(evidence_id: str) -> None:
    (problem,) = problems(retrieved_evidence=[{"evidence_id": evidence_id, "source": "s", "content": 1}])

    assert "allowed are 1 to 128 of A-Z a-z 0-9 . _ : -" in problem


@pytest.mark.parametrize(
    ("provider", "hint"), [(LLMProvider.RULES, "; e.g. rules-1"), (LLMProvider.SCRIPTED, "; e.g. scripted-1")]
)
def test_provider_without_preset_needs_model(provider: LLMProvider, hint: str) -> None:
    with pytest.raises(EnvelopeValidationError, match=f"name a model for provider {provider}{hint}"):
        EnvelopeBuilder().with_instructions("x").with_provider(provider).build()
    with pytest.raises(EnvelopeValidationError, match=r"name a model for provider openai$"):
        EnvelopeBuilder().with_instructions("x").with_provider(LLMProvider.OPENAI).build()


def test_anthropic_planning_uses_preset_model() -> None:
    built = EnvelopeBuilder().for_planning().with_instructions("x").with_provider(LLMProvider.ANTHROPIC)

    assert built.build().model == PRESETS[EnvelopeWorkflow.PLANNING].model


@pytest.mark.parametrize(
    "name",
    [
        "envelope_id",
        "trace_id",
        "causation_id",
        "parent_envelope_id",
        "idempotency_key",
        "tenant_id",
        "agent_id",
        "agent_type",
        "step",
    ],
)
def test_long_id_is_refused_but_readable(name: str) -> None:
    check_envelope(envelope(**{"idempotency_key": "k", name: "é" * 128}))
    longer = envelope(**{"idempotency_key": "k", name: "é" * 128 + "x"})

    with pytest.raises(EnvelopeValidationError) as e:
        check_envelope(longer)

    assert e.value.problems == (f"{name} has 257 bytes; allowed are up to 256: take a shorter one",)
    assert LLMEnvelope.from_wire(longer.wire) == longer
