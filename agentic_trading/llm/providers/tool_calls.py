"""What a model's tool calls say as the text of its answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agentic_trading.llm.provider import ANSWER_TOOL

TOOL_DESCRIPTION = "Takes the whole answer to the request as its input. Call it once."


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is its input as the model wrote it: digits, repeated keys and white space kept."""

    name: str
    arguments: str


def text_of(calls: Sequence[ToolCall]) -> str:
    """Return the input of the one call of the answer tool.

    Several calls, or one of a tool that was not offered, are no answer: they are spelled as a JSON list of calls, which
    no policy reads as one object. Two objects in a row would not do, for a policy may take the last of them.
    """
    if len(calls) == 1 and calls[0].name == ANSWER_TOOL:
        return calls[0].arguments
    return json.dumps([{"name": call.name, "arguments": call.arguments} for call in calls])
