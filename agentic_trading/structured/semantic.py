"""Rules beyond JSON Schema: a function of the accepted text that says what is wrong with it."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import ValidationError

from agentic_trading.llm.attempt_trace import Violation
from agentic_trading.structured.violations import MAX_VIOLATIONS, json_path, more_broken


class SemanticCheck(Protocol):
    """Return what is wrong with an accepted JSON text, or nothing.

    A `ValueError` counts as what is wrong, so that `Model.model_validate_json` may be called in it as it is. Anything
    else that it raises is a fault of its own, by which no answer passes either.
    """

    def __call__(self, text: str, /) -> Sequence[Violation]: ...


def violations_of(check: SemanticCheck, text: str) -> list[Violation]:
    """Run `check` on an accepted text; at most `MAX_VIOLATIONS` are named, the rest are counted. Raises nothing."""
    try:
        found = list(_sound(check(text)))
    except ValidationError as e:
        found = [
            violation_at(error["loc"], error["type"], error["msg"]) for error in e.errors(include_url=False)
        ]
    except ValueError as e:
        found = [violation_at((), "semantic", str(e))]
    except Exception as e:  # noqa: BLE001 - a check that fails must neither pass an answer nor lose one that was paid
        found = [violation_at((), "check_failed", f"the check failed: {type(e).__name__}: {e}")]
    more = len(found) - MAX_VIOLATIONS
    return [*found[:MAX_VIOLATIONS], more_broken(more)] if more > 0 else found


def violation_at(place: Sequence[str | int], keyword: str, message: str) -> Violation:
    """Return what is wrong at the place that pydantic calls `loc`."""
    return Violation(path=json_path(place), keyword=keyword, message=message)


def _sound(found: Sequence[Violation]) -> Sequence[Violation]:
    for violation in found:
        if not isinstance(violation, Violation):
            raise TypeError(f"a {type(violation).__name__} is no Violation")
    return found
