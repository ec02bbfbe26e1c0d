"""Whose call it is, in the words by which calls are counted, allowed and halted."""

from agentic_trading.llm.envelope import LLMEnvelope

UNNAMED = "unnamed"
"""The agent of an envelope that names none."""


def agent_of(envelope: LLMEnvelope) -> str:
    """Return the agent that the call is counted for: its id, else its type."""
    return envelope.agent_id or envelope.agent_type or UNNAMED
