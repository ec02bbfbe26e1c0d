"""The presets of the workflows, and the rules of envelopes.

`build()` and the worker check them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from agentic_trading.llm.envelope import (
    DeterminismLevel,
    EnvelopeWorkflow,
    LLMEnvelope,
    LLMProvider,
    ResponseFormat,
)
from agentic_trading.llm.errors import EnvelopeValidationError, LookAheadError
from agentic_trading.llm.fields import long_ids
from agentic_trading.llm.limits import LLMBudget, OutputMode, OutputPolicy, SafetyConstraints
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.verbatim import VerbatimRequest, verbatim_problems


@dataclass(frozen=True, slots=True)
class Preset:
    """The starting values of a workflow.

    Attributes:
        model: Used if the provider is Anthropic and no model is given.
        fixed_output: Fields of `output` that an envelope must not change.

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
    """Return the policy for reading answers of a workflow or of a mode.

    Args:
        workflow: The workflow whose preset is used.
        mode: The mode. With a workflow, it changes the preset to this mode. Without both, it is `lossless`.

    Raises:
        ValueError: If the workflow does not allow the mode.

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


_KEPT = "_rules_are_kept"  # in the instance, so that a copy, which may have other fields, is checked again
_IDS = (
    "envelope_id",
    "trace_id",
    "causation_id",
    "parent_envelope_id",
    "idempotency_key",
    "tenant_id",
    "agent_id",
    "agent_type",
    "step",
)
_ids_of = attrgetter(*_IDS)
_EVIDENCE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def check_envelope(envelope: LLMEnvelope) -> None:
    """Check an envelope against all rules.

    A second check of the same envelope is free.

    Raises:
        EnvelopeValidationError: If rules are broken. It lists all problems.
        LookAheadError: If dated evidence or context is newer than `as_of`.

    """
    if _KEPT in envelope.__dict__:
        return
    problems = [
        *_text_problems(envelope),
        *_answer_problems(envelope),
        *_determinism_problems(envelope),
        *_identity_problems(envelope),
        *_id_problems(envelope),
    ]
    if problems:
        raise EnvelopeValidationError(problems)
    check_look_ahead(envelope)
    envelope.__dict__[_KEPT] = True


def check_look_ahead(envelope: LLMEnvelope) -> None:
    """Raise `LookAheadError` if dated evidence or context is newer than `as_of`.

    Without `as_of`, no check is made. Texts cannot be checked: an instruction may describe the future.
    """
    if envelope.as_of is None:
        return
    if envelope.context_as_of is not None and envelope.context_as_of > envelope.as_of:
        raise LookAheadError("the context", envelope.context_as_of, envelope.as_of)
    for item in envelope.retrieved_evidence:
        if item.available_at is not None and item.available_at > envelope.as_of:
            what = f"evidence {item.evidence_id} ({item.source})"
            raise LookAheadError(what, item.available_at, envelope.as_of)


def _text_problems(envelope: LLMEnvelope) -> list[str]:
    if envelope.instructions.strip():
        return []
    return ["instructions are missing; say what the model shall do"]


def _answer_problems(envelope: LLMEnvelope) -> Iterator[str]:
    """Yield contradictions in the form of the answer, and rules looser than the workflow's."""
    if envelope.response_format is ResponseFormat.TEXT:
        contradicts = {
            f"workflow {EnvelopeWorkflow.EXECUTION}": envelope.workflow is EnvelopeWorkflow.EXECUTION,
            "require_json": envelope.safety_constraints.require_json,
            "an expected_output_schema": bool(envelope.expected_output_schema),
        }
        for what, is_there in contradicts.items():
            if is_there:
                yield f"response_format is 'text'; {what} allows 'json' only"
    elif envelope.response_format is ResponseFormat.VERBATIM:
        yield from _verbatim_problems(envelope)
    preset = PRESETS[envelope.workflow]
    for name in preset.fixed_output:
        given, allowed = getattr(envelope.output_policy, name), getattr(preset.output, name)
        if given != allowed:
            yield f"output_policy.{name} is {given!r}; workflow {envelope.workflow} allows {allowed!r} only"


def _verbatim_problems(envelope: LLMEnvelope) -> Iterator[str]:
    """Yield contradictions to a request that is passed on, and its faults."""
    contradicts = {
        f"workflow {EnvelopeWorkflow.EXECUTION}": envelope.workflow is EnvelopeWorkflow.EXECUTION,
        "require_json": envelope.safety_constraints.require_json,
        "evidence": bool(envelope.retrieved_evidence),
        "tools_allowed": bool(envelope.tools_allowed),
        "a thinking_budget": envelope.budget.thinking_budget > 0,
    }
    for part, is_there in contradicts.items():
        if is_there:
            yield f"response_format is 'verbatim', which allows no {part}"
    problems = [*verbatim_problems(envelope.context)]
    yield from problems
    cap = envelope.budget.max_output_tokens
    if not problems and cap < (choices := VerbatimRequest.of(envelope.context).choices):
        yield f"max_output_tokens is {cap} for {choices} answers. Allowed: one token or more for each"


def _determinism_problems(envelope: LLMEnvelope) -> list[str]:
    problems = []
    if envelope.temperature != 0.0:
        if envelope.safety_constraints.require_deterministic:
            problems.append(f"temperature is {envelope.temperature}; require_deterministic allows 0.0 only")
        elif not PRESETS[envelope.workflow].temperature_may_change:
            problems.append(
                f"temperature is {envelope.temperature}; workflow {envelope.workflow} allows 0.0 only"
            )
    preset = PRESETS[envelope.workflow]
    if preset.safety.require_deterministic and not envelope.safety_constraints.require_deterministic:
        problems.append(f"workflow {envelope.workflow} demands require_deterministic=True")
    if envelope.determinism is DeterminismLevel.GREEDY and envelope.temperature != 0.0:
        problems.append(f"determinism 'greedy' allows temperature 0.0 only, not {envelope.temperature}")
    return problems


def _identity_problems(envelope: LLMEnvelope) -> list[str]:
    problems = []
    if not envelope.model:
        problems.append(
            f"model is missing; name a model for provider {envelope.provider}{_example(envelope.provider)}"
        )
    if close := close_name(envelope.provider):
        problems.append(f"provider {envelope.provider} is close to a built-in one; did you mean {close}?")
    if envelope.causation_id and envelope.causation_id == envelope.envelope_id:
        problems.append("causation_id is the envelope itself; allowed is the id of another event")
    ids = [item.evidence_id for item in envelope.retrieved_evidence]
    problems.extend(
        f"evidence id {name!r:.140} is not allowed; allowed are 1 to 128 of A-Z a-z 0-9 . _ : -"
        for name in ids
        if not _EVIDENCE_ID.fullmatch(name)
    )
    if len(ids) != len(set(ids)):
        repeated = sorted({i for i in ids if ids.count(i) > 1})
        problems.append(f"evidence ids {', '.join(repeated)} stand twice; allowed are distinct ids")
    if envelope.deadline is not None and envelope.as_of is not None and envelope.deadline < envelope.as_of:
        problems.append("deadline is before as_of; allowed is a deadline at or after it")
    return problems


def _id_problems(envelope: LLMEnvelope) -> list[str]:
    return long_ids(_IDS, _ids_of(envelope))


_BUILT_IN = frozenset(map(str, LLMProvider))


@lru_cache(maxsize=256)
def close_name(name: str) -> str | None:
    """Return the built-in provider that `name` probably misspells, or None.

    It differs in at most two letters, and contains no separator.
    """
    # A name with a separator, such as `openai-eu`, is deliberate and would otherwise be refused as a slip.
    if name in _BUILT_IN or set("._-") & set(name):
        return None
    return next((known for known in _BUILT_IN if _edits(name, known) <= 2), None)


def _edits(one: str, other: str) -> int:
    """Return the Levenshtein distance of two short texts."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, start=1):
        before, row[0] = row[0], number
        for place, of_other in enumerate(other, start=1):
            before, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, before + (letter != of_other)),
            )
    return row[-1]


@lru_cache(maxsize=64)
def _example(provider: LLMProvider) -> str:
    models = (row.model for row in Capabilities.load() if row.provider == provider)
    return next((f"; e.g. {model}" for model in models), "")
