"""Rules beyond JSON Schema: a function of the accepted text that says what is wrong with it."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import ValidationError

from agentic_trading.llm.reading import Violation
from agentic_trading.structured.reading import member_path


class SemanticCheck(Protocol):
    """Return what is wrong with an accepted JSON text, or nothing.

    A `ValueError` counts as what is wrong, so that `Model.model_validate_json` may be called in it as it is.
    """

    def __call__(self, text: str, /) -> Sequence[Violation]: ...


def violations_of(check: SemanticCheck, text: str) -> list[Violation]:
    """Run `check` on an accepted text."""
    try:
        return list(check(text))
    except ValidationError as e:
        return [
            _violation(error["loc"], error["type"], error["msg"]) for error in e.errors(include_url=False)
        ]
    except ValueError as e:
        return [_violation((), "semantic", str(e))]


def _violation(place: tuple[int | str, ...], keyword: str, message: str) -> Violation:
    path = "$"
    for step in place:
        path = f"{path}[{step}]" if isinstance(step, int) else member_path(path, step)
    return Violation(path=path, keyword=keyword, message=message)
