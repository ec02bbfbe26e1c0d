"""What can go wrong between the bus and the gate.

TradingError
└── LLMError
    ├── AttemptTakenError     another run has sent this attempt; what comes of it is that run's to tell
    └── UndeliverableError    a delivery must not be tried again; it becomes a dead letter
"""

from agentic_trading.llm.errors import LLMError


class AttemptTakenError(LLMError):
    """Attempt `attempt` at `envelope_id` was sent before, and is `state`: it is not this run's to settle or to keep."""

    def __init__(self, envelope_id: str, attempt: int, state: str) -> None:
        self.envelope_id = envelope_id
        self.attempt = attempt
        self.state = state
        super().__init__(
            f"attempt {attempt} at {envelope_id} is {state} already; allowed is an envelope with another id"
        )


class UndeliverableError(LLMError):
    """A delivery for `envelope_id` of `trace_id` cannot be served, for `reason`, and trying again does not help."""

    def __init__(self, reason: str, detail: str, *, envelope_id: str = "", trace_id: str = "") -> None:
        self.reason = reason
        self.detail = detail
        self.envelope_id = envelope_id
        self.trace_id = trace_id
        super().__init__(f"{reason}: {detail}")
