"""One table: what each workflow starts from, and what may be overridden."""

from dataclasses import dataclass

from agentic_trading.llm.envelope import DeterminismLevel, EnvelopeWorkflow
from agentic_trading.llm.limits import LLMBudget, OutputMode, OutputPolicy, SafetyConstraints


@dataclass(frozen=True, slots=True)
class Preset:
    """The starting point of a workflow. `model` is used where none is named for Anthropic.

    `fixed_output` names the fields of `output` that an envelope may not change.
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
            candidates="only_valid",
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

_BY_MODE: dict[OutputMode, OutputPolicy] = {
    "native": PRESETS[EnvelopeWorkflow.EXECUTION].output.model_copy(update={"require_sentinel": False}),
    "lossless": OutputPolicy(
        mode="lossless", decode="lossless", candidates="only_valid", answers_read=1, on_exhausted="fail"
    ),
    "reask": OutputPolicy(mode="reask", decode="lossless", candidates="only_valid", on_exhausted="fail"),
    "salvage": OutputPolicy(),
}


def output_policy(workflow: EnvelopeWorkflow | None = None, mode: OutputMode | None = None) -> OutputPolicy:
    """Return how answers are read: by a workflow's preset, by a mode, or by the preset changed to that mode.

    Without either it is `lossless`. Raises `ValueError` for a mode that the workflow does not allow.
    """
    if workflow is None:
        return _BY_MODE[mode or "lossless"]
    preset = PRESETS[workflow]
    if mode is None or mode == preset.output.mode:
        return preset.output
    if "mode" in preset.fixed_output:
        raise ValueError(f"{workflow} is always read in mode {preset.output.mode!r}, not in {mode!r}")
    strictness = ("candidates", "coerce", "drop_extra") if mode == "native" else ()
    changes = {name: getattr(_BY_MODE[mode], name) for name in ("mode", "decode", *strictness)}
    return preset.output.model_copy(update=changes)
