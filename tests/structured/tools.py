"""Definitions of tools, and a call of one."""

from agentic_trading.llm.provider import ToolDefinition

BOOK = ToolDefinition(
    name="order_book",
    description="The best bids and asks now.",
    parameters={
        "type": "object",
        "required": ["symbol"],
        "additionalProperties": False,
        "properties": {"symbol": {"type": "string"}, "depth": {"type": "integer", "maximum": 50}},
    },
)
NEWS = ToolDefinition(name="news", description="Headlines.", parameters={"type": "object"})
CALL = '{"symbol": "BTCUSDT", "depth": 10}'
