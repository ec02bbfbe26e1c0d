"""Refuse what cannot repeat itself as it was asked to; never fix it silently."""

from datetime import date
from typing import Literal

from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import DeterminismLevel, LLMEnvelope
from agentic_trading.llm.failure import FailureKind, FailureReason

ClockMode = Literal["backtest", "paper", "shadow", "live", "replay"]

SIMULATED: frozenset[ClockMode] = frozenset({"backtest", "replay"})
"""Modes in which the time of the market is not the time of day."""


def determinism_problem(
    envelope: LLMEnvelope, capability: Capability, *, mode: ClockMode, today: date
) -> FailureReason | None:
    """Return why a live call must not be made, or None.

    `today` is the provider's day (UTC), whatever day it is on the market: on it the model must not have retired.
    """
    if mode in SIMULATED and envelope.as_of is None:
        return _refused(f"a {mode} knows no present; an envelope without as_of is not allowed in it")
    if envelope.determinism is DeterminismLevel.REPLAY_ONLY:
        reason = "no recorded answer, and determinism 'replay_only' allows no other"
        return FailureReason(category=FailureKind.REPLAY_MISS, description=reason)
    if envelope.determinism is DeterminismLevel.GREEDY:
        return _greedy_problem(envelope, capability) or _retired_problem(capability, today)
    return _retired_problem(capability, today)


def freezes(envelope: LLMEnvelope) -> bool:
    """Whether the first accepted answer to `envelope` is frozen until its deadline, and served again.

    It must ask for `recorded` and say at which moment of the market it stands: without `as_of` the same words may mean
    another question an hour later.
    """
    return envelope.determinism is DeterminismLevel.RECORDED and envelope.as_of is not None


def level_of(
    envelope: LLMEnvelope, capability: Capability, *, sampling_applied: bool, accepted: bool
) -> DeterminismLevel:
    """Return the level that a live answer really has, which may be lower than the one its envelope asks for.

    `recorded` if the answer is frozen: `accepted`, from the model that was asked, and `freezes(envelope)`. Else `greedy`
    if temperature 0 was really sent, else `pinned`.
    """
    if accepted and freezes(envelope):
        return DeterminismLevel.RECORDED
    if sampling_applied and capability.sampling and envelope.temperature == 0.0:
        return DeterminismLevel.GREEDY
    return DeterminismLevel.PINNED


def level_served_again(envelope: LLMEnvelope) -> DeterminismLevel:
    """Return the level of an answer that comes from a recording: the same each time it is asked for."""
    is_demanded = envelope.determinism is DeterminismLevel.REPLAY_ONLY
    return DeterminismLevel.REPLAY_ONLY if is_demanded else DeterminismLevel.RECORDED


def _greedy_problem(envelope: LLMEnvelope, capability: Capability) -> FailureReason | None:
    if not capability.sampling:
        return _refused(
            f"{capability.model} takes no temperature; it allows determinism pinned, recorded, replay_only"
        )
    if envelope.budget.thinking_budget > 0:
        return _refused(
            f"{capability.model} takes no temperature while it thinks; allowed is a thinking budget of 0"
        )
    return None


def _retired_problem(capability: Capability, today: date) -> FailureReason | None:
    if capability.retires_on is None or today <= capability.retires_on:
        return None
    return _refused(
        f"{capability.model} retired on {capability.retires_on}; allowed are replays, recorded answers, other models"
    )


def _refused(description: str) -> FailureReason:
    return FailureReason(category=FailureKind.NOT_ALLOWED, description=description)
