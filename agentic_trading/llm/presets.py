"""One table: what each workflow starts from, and what may be overridden."""

from dataclasses import dataclass

from agentic_trading.llm.envelope import DeterminismLevel, EnvelopeWorkflow
from agentic_trading.llm.limits import LLMBudget, OutputPolicy, SafetyConstraints


@dataclass(frozen=True, slots=True)
class Preset:
    """The starting point of a workflow. `model` is used where none is named for Anthropic.

    `fixed_output` names the fields of `output` that an envelope may not change. How `output` may be read loosely is a
    permission that this release does not use: see `OutputPolicy`.
    """

    model: str
    budget: LLMBudget
    safety: SafetyConstraints
    output: OutputPolicy
    determinism: DeterminismLevel
    temperature_may_change: bool
    priority: int
    fixed_output: tuple[str, ...] = ()


PRESETS: dict[EnvelopeWorkflow, Preset] = {
    EnvelopeWorkflow.ANALYSIS: Preset(
        model="claude-sonnet-5-5",
        budget=LLMBudget(max_output_tokens=4096, thinking_budget=8000),
        safety=SafetyConstraints(require_json=True),
        output=OutputPolicy(
            mode="reask",
            decode="lossless",
            candidates="last_valid",
            coerce=True,
            drop_extra=True,
            answers_read=2,
            on_truncated="raise_cap_once",
            on_exhausted="degraded",
        ),
        determinism=DeterminismLevel.PINNED,
        temperature_may_change=True,
        priority=1,
    ),
    EnvelopeWorkflow.PLANNING: Preset(
        model="claude-opus-5-5",
        budget=LLMBudget(max_output_tokens=8192),
        safety=SafetyConstraints(require_json=True),
        output=OutputPolicy(
            mode="reask",
            decode="lossless",
            candidates="exactly_one",
            coerce=True,
            drop_extra=False,
            answers_read=3,
            on_truncated="raise_cap_once",
            on_exhausted="fail",
        ),
        determinism=DeterminismLevel.PINNED,
        temperature_may_change=True,
        priority=2,
    ),
    EnvelopeWorkflow.EXECUTION: Preset(
        model="claude-haiku-5-5",
        budget=LLMBudget(max_output_tokens=2048),
        safety=SafetyConstraints(require_deterministic=True, require_json=True),
        output=OutputPolicy(
            mode="native",
            decode="strict",
            candidates="whole",
            coerce=False,
            drop_extra=False,
            answers_read=1,
            on_truncated="fail",
            on_exhausted="fail",
            require_sentinel=True,
        ),
        determinism=DeterminismLevel.PINNED,
        temperature_may_change=False,
        priority=3,
        fixed_output=(
            "mode",
            "decode",
            "candidates",
            "coerce",
            "drop_extra",
            "answers_read",
            "on_truncated",
            "on_exhausted",
            "require_sentinel",
        ),
    ),
    EnvelopeWorkflow.GENERAL: Preset(
        model="claude-sonnet-5-5",
        budget=LLMBudget(),
        safety=SafetyConstraints(),
        output=OutputPolicy(),
        determinism=DeterminismLevel.PINNED,
        temperature_may_change=True,
        priority=0,
    ),
}
