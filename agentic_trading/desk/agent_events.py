"""Events of an agent: why a handler ran, its missing answers, its notes, and its errors."""

from typing import Literal

from agentic_trading.desk.analysis.events import TriggerBar
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import JsonObject, Open

HandlerName = Literal["on_start", "on_fill", "on_timer", "on_bar", "on_close"]


class AgentWoken(EventBody, frozen=True):
    """A handler of an agent asked, requested an order or made a note. The explanation of an order ends here.

    Other calls of handlers leave no event.

    Attributes:
        symbol: The symbol of the bar or the fill. Empty for a handler of all symbols.
        timer: The name of the timer. Empty for other handlers.
        bar: The bar of `on_bar`. None for other handlers.

    """

    KIND = "agent.woken"

    agent: str
    handler: Open[HandlerName]
    symbol: str
    timer: str = ""
    bar: TriggerBar | None = None


class AgentUndecided(NoDecision, EventBody, frozen=True):
    """A question of an agent has no usable answer."""

    KIND = "agent.undecided"

    agent: str
    symbol: str
    step: str
    request_hash: str


class AgentNoted(EventBody, frozen=True):
    """A note of an agent, with its facts."""

    KIND = "agent.noted"

    agent: str
    symbol: str
    text: str
    facts: JsonObject


class AgentFailed(EventBody, frozen=True):
    """A handler of an agent raised an error. Its order requests were dropped.

    Attributes:
        symbol: The symbol of the handler. Empty for a handler of all symbols.
        error: The type of the error.
        place: The file and the line, such as `breakout.py:17`, without its folder.
        in_a_row: The number of errors of this handler without a success between them, for this symbol or
            timer.
        halts_entries: Whether the agent may open no further positions until an operator resumes entries.

    """

    KIND = "agent.failed"

    agent: str
    handler: Open[HandlerName]
    symbol: str
    error: str
    place: str
    in_a_row: int
    halts_entries: bool
