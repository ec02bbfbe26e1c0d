"""What can go wrong between a question about a strategy and its code.

```
TradingError
└── PlanningError
    ├── UnknownFamilyError    a family of strategies that there is not
    ├── NotOfferedError       the data can serve no family that was asked for
    ├── TemplateError         a template that cannot be rendered
    ├── SandboxStartError     the process that runs code did not start
    └── GenerationFailedError no answer was a valid set of parameters
```
"""

from collections.abc import Sequence

from agentic_trading.errors import TradingError
from agentic_trading.llm.errors import FailureReason
from agentic_trading.structured.feedback import StructuredErrorFeedback, ValidationErrorDetail


class PlanningError(TradingError):
    """Anything that is wrong with a strategy, its parameters or its code."""


class UnknownFamilyError(PlanningError):
    """A name that no family of strategies has."""

    def __init__(self, family: object, allowed: Sequence[str]) -> None:
        self.family = family
        self.allowed = tuple(allowed)
        super().__init__(f"no family of strategies is called {family!r}; allowed: {', '.join(self.allowed)}")


class NotOfferedError(PlanningError):
    """The data can serve none of the families; `withheld` says why."""

    def __init__(self, data: str, families: Sequence[str], withheld: Sequence[str]) -> None:
        self.data = data
        self.families = tuple(families)
        self.withheld = tuple(withheld)
        why = "; ".join(self.withheld) or "no family was asked for"
        super().__init__(f"{data} offers none of {', '.join(self.families) or 'no family'}: {why}")


class TemplateError(PlanningError):
    """A template that cannot be rendered: `reason` names the variable that is not defined, or the fault in its text."""

    def __init__(self, template: str, reason: str) -> None:
        self.template = template
        self.reason = reason
        super().__init__(f"template {template} cannot be rendered: {reason}")


class SandboxStartError(PlanningError):
    """The process that runs generated code ended, or was not ready in time, before any was given to it."""

    def __init__(self, output: str) -> None:
        self.output = output
        super().__init__(
            f"the sandbox did not start ({output or 'no output'}); allowed: a Python that has numpy"
        )


class GenerationFailedError(PlanningError):
    """The last answer that was read is no valid set of parameters either.

    `errors` are what is wrong with it, `interaction_ids` the attempts on record, `failure` is that of the call.
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
