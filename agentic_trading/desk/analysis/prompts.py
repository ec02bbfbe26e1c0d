"""The analyst's instructions."""

from typing import Final

from agentic_trading.desk.prompts import Prompt, load_prompt

# Read at import, like the code that it belongs to: an agent made on a running loop must not read files.
CMT_ASSESSMENT_PROMPT: Final[Prompt] = load_prompt("agentic_trading.desk.analysis", "cmt_assessment.v2")
