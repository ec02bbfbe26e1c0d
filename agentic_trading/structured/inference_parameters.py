"""Translate what an envelope asks for into what its model takes (D4, D5)."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache

from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import Effort, LLMEnvelope

_EFFORTS: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
_NO_THINKING = frozenset({"disabled"})
_BUDGET_UP_TO = (2_000, 8_000, 16_000, 32_000)  # tokens of thinking that an effort below `max` stands for


@dataclass(frozen=True, slots=True)
class InferenceParameters:
    """The settings of one request. `max_tokens` caps answer and thinking together; None is not sent."""

    max_tokens: int
    thinking_budget: int
    effort: Effort | None
    temperature: float | None


def inference_parameters(envelope: LLMEnvelope, capability: Capability) -> InferenceParameters:
    """Return the settings that the model takes, the nearest to what the envelope asks for.

    A thinking budget becomes an effort on a model that knows efforts only, and nothing on one that does not think.
    The temperature is sent where the model takes one and does not think.
    """
    asked = envelope.budget.thinking_budget
    thinks = asked > 0 and not _NO_THINKING.issuperset(capability.thinking)
    total = envelope.budget.max_output_tokens + (asked if thinks else 0)
    max_tokens = min(total, capability.max_output_tokens)
    takes_budget = thinks and "enabled" in capability.thinking
    effort = envelope.effort or (_effort_for(asked) if thinks and not takes_budget else None)
    return InferenceParameters(
        max_tokens=max_tokens,
        thinking_budget=min(asked, max_tokens - 1) if takes_budget else 0,
        effort=None if effort is None else _nearest(effort, capability.effort),
        temperature=envelope.temperature if capability.sampling and not thinks else None,
    )


def _effort_for(thinking_budget: int) -> Effort:
    return _EFFORTS[bisect_left(_BUDGET_UP_TO, thinking_budget)]


@cache  # of five efforts and the few sets of them that models know
def _nearest(asked: Effort, known: tuple[Effort, ...]) -> Effort | None:
    """Return the asked effort, or the next lower one that is known, or the lowest; None where none is."""
    in_order = [effort for effort in _EFFORTS if effort in known]
    if not in_order:
        return None
    not_above = [effort for effort in in_order if _EFFORTS.index(effort) <= _EFFORTS.index(asked)]
    return not_above[-1] if not_above else in_order[0]
