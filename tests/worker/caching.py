"""Requests whose first accepted answer is frozen."""

from datetime import timedelta
from typing import Any

from agentic_trading.llm import DeterminismLevel, EnvelopeBuilder, LLMEnvelope, LLMResult
from tests.gateway import START, MemoryGateway, asking

OTHER = '{"action":"wait","size":0}'
DEADLINE = START + timedelta(minutes=5)


def fixed(workflow: str = "analysis", **more: Any) -> EnvelopeBuilder:
    """Return a builder of a request whose answer is frozen."""
    return asking(workflow, **more).with_determinism(DeterminismLevel.RECORDED).with_as_of(START)


async def run(desk: MemoryGateway, *envelopes: LLMEnvelope) -> list[LLMResult]:
    """Run these, one after the other."""
    return [(await desk.runner.run(envelope)).result for envelope in envelopes]
