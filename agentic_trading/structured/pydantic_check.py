"""Make the instance of a pydantic model out of an accepted text, as the last check of it."""

from collections.abc import Sequence

import orjson
from pydantic import BaseModel, ValidationError

from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.attempt_trace import Violation
from agentic_trading.structured.patch import is_protected
from agentic_trading.structured.strict_json import keys_in
from agentic_trading.structured.semantic import SemanticCheck, violation_at


class PydanticCheck:
    """A model's own validators as a check, followed by the one of the caller; what they let through is in `made`."""

    def __init__(self, model: type[BaseModel], then: SemanticCheck | None, policy: OutputPolicy) -> None:
        self.model = model
        self.made: dict[str, BaseModel] = {}
        self._then = then
        self._policy = policy

    def __call__(self, text: str, /) -> Sequence[Violation]:
        """Return what is wrong with `text`."""
        instance = self.made[text] = self.model.model_validate_json(text)
        if lost := self._lost(text, instance):
            return lost
        return self._then(text) if self._then else ()

    def _lost(self, text: str, instance: BaseModel) -> list[Violation]:
        """Return the protected properties that `instance` does not hold: pydantic leaves out what it does not know."""
        if not any(is_protected(key, self._policy) for key in keys_in(orjson.loads(text))):
            return []
        try:
            self.model.model_validate_json(text, extra="forbid")
        except ValidationError as e:
            unknown = [
                error["loc"] for error in e.errors(include_url=False) if error["type"] == "extra_forbidden"
            ]
        else:
            return []
        kept = set(keys_in(instance.model_dump()))  # a model inside may keep what it does not know
        return [
            violation_at(place, "protected", f"is protected, and {self.model.__name__} has no such property")
            for place in unknown
            if is_protected(str(place[-1]), self._policy) and place[-1] not in kept
        ]
