"""Errors of agents.

TradingError
├── AgentFailedError     a handler of an agent raised an error, which ended a backtest
└── DeskError            an agent used its desk in an invalid way
"""

from agentic_trading.errors import TradingError


class DeskError(TradingError):
    """An agent used its desk in an invalid way. The message names the allowed use."""


class AgentFailedError(TradingError):
    """A handler of an agent raised an error, which ended a backtest.

    Attributes:
        agent: The name of the agent.
        handler: The handler.
        place: The file and the line of the error.

    """

    def __init__(self, agent: str, handler: str, place: str, error: BaseException) -> None:
        self.agent = agent
        self.handler = handler
        self.place = place
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        super().__init__(
            f"{agent}.{handler} raised {text} ({place}). Correct the agent, and start the run again. "
            "For a traceback, run: agentic-trading --debug …"
        )
