"""The topics of the bus."""

from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS, HEADS, RECORDS, REPLIES
from agentic_trading.llm.envelope import EnvelopeWorkflow


def test_each_workflow_has_a_separate_lane() -> None:
    assert {workflow: topic.name for workflow, topic in ENVELOPES.items()} == {
        EnvelopeWorkflow.ANALYSIS: "llm.envelopes.analysis",
        EnvelopeWorkflow.PLANNING: "llm.envelopes.planning",
        EnvelopeWorkflow.EXECUTION: "llm.envelopes.execution",
        EnvelopeWorkflow.GENERAL: "llm.envelopes.general",
    }


def test_stream_names_are_part_of_contract() -> None:
    assert [topic.name for topic in (REPLIES, EVENTS, DEAD_LETTERS, RECORDS, HEADS)] == [
        "llm.replies",
        "llm.events",
        "llm.dead-letters",
        "llm.records",
        "llm.heads",
    ]
