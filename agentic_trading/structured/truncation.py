"""Find out that an answer was cut off: a cut answer is never read (D7)."""

import re

from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.attempt_trace import Stage, Violation
from agentic_trading.structured.errors import UnreadableError
from agentic_trading.structured.strict_json import MAX_BYTES

_STOPPED_EARLY = frozenset({"max_tokens", "length", "model_context_window_exceeded"})
_BRACKET = re.compile(r"[{\[]")
# A whole string, a string that nothing closes, or a bracket.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*("?)|[{}\[\]]', re.DOTALL)


def truncation_sign(response: ModelResponse, max_tokens: int | None) -> str:
    """Return what says that the provider stopped early, or nothing.

    Servers give wrong reasons, so that an answer as long as the cap counts as cut whatever its reason.
    """
    if response.stop_reason in _STOPPED_EARLY:
        return f"stop reason {response.stop_reason}"
    used = response.usage.output_tokens
    if max_tokens is not None and used >= max_tokens:
        return f"{used} output tokens reach the cap of {max_tokens}"
    return ""


def check_closed(text: str) -> None:
    """Raise `UnreadableError` (`truncated`) if `text` ends inside a JSON string, object or array."""
    if len(text) <= MAX_BYTES and is_open(text):
        message = "the answer was cut: it ends inside a string, an object or an array"
        raise UnreadableError(Stage.TRUNCATED, [Violation(path="$", keyword="json", message=message)])


def is_open(text: str) -> bool:
    """Whether something is not closed, in linear time."""
    position = 0
    while root := _BRACKET.search(text, position):
        depth = 0
        for token in _TOKEN.finditer(text, root.start()):
            position = token.end()
            match token[0][0]:
                case "{" | "[":
                    depth += 1
                case "}" | "]":
                    depth -= 1
                case _:
                    if not token[1]:
                        return True
            if depth == 0:
                break
        else:
            return True
    return False
