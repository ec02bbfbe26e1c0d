from agentic_trading.desk.agents.agent import Agent as Agent
from agentic_trading.desk.agents.desk import Desk as Desk
from agentic_trading.desk.agents.errors import AgentFailedError as AgentFailedError
from agentic_trading.desk.agents.errors import DeskError as DeskError
from agentic_trading.desk.agents.questions import Question as Question
from agentic_trading.desk.agents.questions import known as known
from agentic_trading.desk.exchange import Cancellation as Cancellation
from agentic_trading.desk.exchange import Fill as Fill
from agentic_trading.desk.execution.order import FillLimits as FillLimits
from agentic_trading.desk.execution.risk import Approved as Approved
from agentic_trading.desk.execution.risk import Rejection as Rejection
from agentic_trading.desk.execution.risk import RiskLimits as RiskLimits
from agentic_trading.desk.market.bar import Bar as Bar
from agentic_trading.desk.session.agent_check import AgentCheck as AgentCheck
from agentic_trading.desk.session.agent_check import check_agent as check_agent

__all__ = [
    "Agent",
    "AgentCheck",
    "AgentFailedError",
    "Approved",
    "Bar",
    "Cancellation",
    "Desk",
    "DeskError",
    "Fill",
    "FillLimits",
    "Question",
    "Rejection",
    "RiskLimits",
    "check_agent",
    "known",
]
