"""Errors between a question about a strategy and its code.

```
TradingError
└── PlanningError
    ├── UnknownFamilyError    the name of the strategy family is unknown
    ├── FamilyError           an own strategy family cannot be used
    ├── NotOfferedError       the data cannot serve the requested families
    ├── TemplateError         a template cannot be rendered
    ├── SandboxStartError     the process that runs code did not start
    └── GenerationFailedError no answer was a valid set of parameters
```
"""

from collections.abc import Sequence

from agentic_trading.errors import TradingError
from agentic_trading.llm.errors import FailureReason
from agentic_trading.structured.feedback import StructuredErrorFeedback, ValidationErrorDetail


class PlanningError(TradingError):
    """Base class of all errors about a strategy, its parameters or its code."""


class UnknownFamilyError(PlanningError):
    """The name of the strategy family is unknown."""

    def __init__(self, family: object, allowed: Sequence[str]) -> None:
        self.family = family
        self.allowed = tuple(allowed)
        super().__init__(
            f"no strategy family is called {family!r}. Allowed: {', '.join(self.allowed)}, or with --family the "
            "name of a family of an installed package"
        )


class FamilyError(PlanningError):
    """A strategy family of an installed package cannot be used. `reason` has what to change."""

    def __init__(self, family: str, reason: str) -> None:
        self.family = family
        self.reason = reason
        super().__init__(f"strategy family {family} cannot be used: {reason}")


class NotOfferedError(PlanningError):
    """The data cannot serve any of the requested families. `withheld` has the reasons."""

    def __init__(self, data: str, families: Sequence[str], withheld: Sequence[str]) -> None:
        self.data = data
        self.families = tuple(families)
        self.withheld = tuple(withheld)
        why = "; ".join(self.withheld) or "no family was asked for"
        super().__init__(f"{data} offers none of {', '.join(self.families) or 'no family'}: {why}")


class TemplateError(PlanningError):
    """A template cannot be rendered.

    `reason` names the undefined variable, or the error in the template's text.
    """

    def __init__(self, template: str, reason: str) -> None:
        self.template = template
        self.reason = reason
        super().__init__(f"template {template} cannot be rendered: {reason}")


class SandboxStartError(PlanningError):
    """The sandbox process ended, or was not ready in time, before it got any code."""

    def __init__(self, output: str) -> None:
        self.output = output
        super().__init__(f"the sandbox did not start ({output or 'no output'}). Use a Python that has numpy.")


class GenerationFailedError(PlanningError):
    """No answer was a valid set of parameters.

    Attributes:
        errors: The errors of the last answer that could be read.
        interaction_ids: The recorded attempts.
        failure: The failure of the call.

    """

    def __init__(
        self,
        errors: Sequence[ValidationErrorDetail],
        interaction_ids: Sequence[str] = (),
        failure: FailureReason | None = None,
    ) -> None:
        self.errors = tuple(errors)
        self.interaction_ids = tuple(interaction_ids)
        self.failure = failure
        tried = f" in {len(self.interaction_ids)} attempts" if self.interaction_ids else ""
        why = f": {failure.description}" if failure else ""
        listed = StructuredErrorFeedback().format_errors(self.errors)
        super().__init__("\n\n".join([f"no valid parameters{tried}{why}", *filter(None, [listed])]))
