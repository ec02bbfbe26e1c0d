"""What a provider's directory lists is held against the row; what it leaves out is no difference."""

from typing import Any

from agentic_trading.app.models.directory import differences
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.models import Capabilities

SONNET = Capabilities.load().of(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")


def levels(*supported: str, among: str) -> dict[str, Any]:
    """Return a directory's spelling of which of `among` are supported."""
    return {name: {"supported": name in supported} for name in among.split()}


def entry(**changes: Any) -> dict[str, Any]:
    """Return the directory's entry of a model that is as its row says."""
    offered = {
        "structured_outputs": {"supported": True},
        "effort": {"supported": True, **levels(*SONNET.effort, among="low medium high xhigh max")},
        "thinking": {
            "supported": True,
            "types": levels("adaptive", "between_tools", among="adaptive between_tools disabled enabled"),
        },
    }
    facts = {"max_input_tokens": 1_000_000, "max_tokens": 128_000, "retires_at": None}
    return {**facts, "capabilities": offered | changes.pop("capabilities", {}), **changes}


def test_an_entry_like_the_row_has_no_difference() -> None:
    assert differences(SONNET, entry()) == []


def test_an_entry_that_lists_nothing_has_no_difference() -> None:
    assert differences(SONNET, {"capabilities": None}) == []


def test_every_difference_is_told_with_both_sides() -> None:
    offered = {
        "structured_outputs": {"supported": False},
        "effort": levels("low", among="low medium"),
        "thinking": {"types": levels(among="adaptive")},
    }

    found = differences(SONNET, entry(retires_at="2027-05-01T00:00:00Z", capabilities=offered))

    assert found == [
        "native_schema True in the row, False in the directory",
        "effort high, low, max, medium, xhigh in the row, low in the directory",
        "thinking adaptive, between_tools in the row, none in the directory",
        "retires_on unknown in the row, 2027-05-01 in the directory",
    ]
