"""Events of planning: each proposed set, its outcome, and the chosen set."""

from typing import Any

from pydantic import AwareDatetime

from agentic_trading.desk.metrics import Performance
from agentic_trading.desk.planning.evaluation import Halves, RejectedBy
from agentic_trading.desk.prompts import significant
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import JsonObject, Open, Text

DIGITS = 9
"""Significant digits of a recorded figure. Further digits differ between machines."""


class GenerationProposed(EventBody, frozen=True):
    """A model proposed a set that fits the schema.

    `repeat_of` is the hash of the earlier set that it trades like, or empty.
    """

    KIND = "generation.proposed"

    round: int
    family: str
    params: JsonObject
    params_sha256: str
    interaction_id: str
    repeat_of: str = ""


class GenerationRejected(EventBody, frozen=True):
    """A proposed set was rejected, so it has no figures.

    `by` names the check that rejected it. The interaction does not contain this reason.
    """

    KIND = "generation.rejected"

    round: int
    params_sha256: str
    by: Open[RejectedBy]
    detail: Text


class GenerationAccepted(EventBody, frozen=True):
    """A proposed set became code, which was run: its hashes and figures.

    `cached` means that it was run earlier.
    """

    KIND = "generation.accepted"

    round: int
    params_sha256: str
    code_sha256: str
    template_sha256: str
    data_sha256: str
    in_sample: Performance
    out_of_sample: Performance
    cached: bool


class PlanChosen(EventBody, frozen=True):
    """The best of `tried` distinct sets, by their figures in the first half.

    `regime` is the market regime at the time of the plan.
    """

    KIND = "plan.chosen"

    regime: str
    params: JsonObject
    params_sha256: str
    tried: int
    deflated_sharpe: float | None
    as_of: AwareDatetime


class PlanUndecided(NoDecision, EventBody, frozen=True):
    """A session has no new plan, or no weights of its plan at a close.

    The holdings stay unchanged.
    """

    KIND = "plan.undecided"

    family: str


def recorded_halves(halves: Halves) -> dict[str, Performance]:
    """Return the figures of both halves, rounded for the record."""
    return {"in_sample": recorded(halves.in_sample), "out_of_sample": recorded(halves.out_of_sample)}


def recorded(figures: Performance) -> Performance:
    """Return figures rounded to `DIGITS` digits."""
    values: dict[str, Any] = figures.model_dump()
    return Performance.model_validate({
        name: significant(value, DIGITS) if isinstance(value, float) else value
        for name, value in values.items()
    })
