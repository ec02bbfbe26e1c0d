"""Count tokens where there is no tokenizer: one token is four UTF-8 bytes, so that budgets have something to count."""

from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import Usage

BYTES_PER_TOKEN = 4


def stand_in_tokens(*texts: str) -> int:
    """Return the UTF-8 bytes of `texts` in fours, rounded up: a stand-in, not the count of any real tokenizer."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return -(-size // BYTES_PER_TOKEN)


def stand_in_usage(request: ModelRequest, text: str) -> Usage:
    """Return what answering `request` with `text` uses by that count."""
    return Usage(
        input_tokens=stand_in_tokens(request.system, request.user), output_tokens=stand_in_tokens(text)
    )


def cut_to(text: str, tokens: int) -> str:
    """Return as much of `text` as `tokens` of that count cover, whole characters only."""
    return text.encode("utf-8", "surrogatepass")[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore")
