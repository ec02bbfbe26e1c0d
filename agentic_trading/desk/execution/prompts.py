"""The execution agent's instructions."""

from typing import Final

from agentic_trading.desk.prompts import Prompt, load_prompt

# Read at import, like the code that it belongs to: an agent made on a running loop must not read files.
FILL_STRATEGY_PROMPT: Final[Prompt] = load_prompt("agentic_trading.desk.execution", "fill_strategy.v2")
