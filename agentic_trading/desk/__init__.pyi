from agentic_trading.desk.agents.agent import Agent as Agent
from agentic_trading.desk.agents.desk import Desk as Desk
from agentic_trading.desk.agents.errors import AgentFailedError as AgentFailedError
from agentic_trading.desk.agents.errors import DeskError as DeskError
from agentic_trading.desk.agents.questions import Question as Question
from agentic_trading.desk.agents.questions import known as known
from agentic_trading.desk.exchange import Account as Account
from agentic_trading.desk.exchange import Cancellation as Cancellation
from agentic_trading.desk.exchange import CancelReason as CancelReason
from agentic_trading.desk.exchange import Exchange as Exchange
from agentic_trading.desk.exchange import Fill as Fill
from agentic_trading.desk.exchange import OpenOrder as OpenOrder
from agentic_trading.desk.exchange import Order as Order
from agentic_trading.desk.exchange import OrderRefusedError as OrderRefusedError
from agentic_trading.desk.exchange import Position as Position
from agentic_trading.desk.execution.order import FillLimits as FillLimits
from agentic_trading.desk.execution.risk import Approved as Approved
from agentic_trading.desk.execution.risk import Rejection as Rejection
from agentic_trading.desk.execution.risk import RiskLimits as RiskLimits
from agentic_trading.desk.instrument import Instrument as Instrument
from agentic_trading.desk.market.bar import Bar as Bar
from agentic_trading.desk.market.bar import Timeframe as Timeframe
from agentic_trading.desk.market.errors import BarFormatError as BarFormatError
from agentic_trading.desk.market.errors import BarSequenceError as BarSequenceError
from agentic_trading.desk.market.errors import MarketError as MarketError
from agentic_trading.desk.market.feed import BarFeed as BarFeed
from agentic_trading.desk.market.feed import Continuity as Continuity
from agentic_trading.desk.market.feed import Duplicate as Duplicate
from agentic_trading.desk.market.feed import Gap as Gap
from agentic_trading.desk.market.feed import UnclosedBar as UnclosedBar
from agentic_trading.desk.session.agent_check import AgentCheck as AgentCheck
from agentic_trading.desk.session.agent_check import check_agent as check_agent
from agentic_trading.desk.session.backtest import run_backtest as run_backtest
from agentic_trading.desk.session.report import RunReport as RunReport
from agentic_trading.trading_limits import Economics as Economics

__all__ = [
    "Account",
    "Agent",
    "AgentCheck",
    "AgentFailedError",
    "Approved",
    "Bar",
    "BarFeed",
    "BarFormatError",
    "BarSequenceError",
    "CancelReason",
    "Cancellation",
    "Continuity",
    "Desk",
    "DeskError",
    "Duplicate",
    "Economics",
    "Exchange",
    "Fill",
    "FillLimits",
    "Gap",
    "Instrument",
    "MarketError",
    "OpenOrder",
    "Order",
    "OrderRefusedError",
    "Position",
    "Question",
    "Rejection",
    "RiskLimits",
    "RunReport",
    "Timeframe",
    "UnclosedBar",
    "check_agent",
    "known",
    "run_backtest",
]
