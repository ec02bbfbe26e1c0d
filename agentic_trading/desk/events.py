"""Every kind of event that the desk puts on record, and who reads what is inside."""

from agentic_trading.desk.analysis.assessment import Assessment
from agentic_trading.desk.analysis.events import Skipped, Triggered, Undecided
from agentic_trading.desk.exchange import Cancellation, Fill, Order
from agentic_trading.desk.execution.events import (
    IntentDenied,
    IntentSkipped,
    IntentUndecided,
    OrderDenied,
    StrategyChosen,
)
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.planning.events import (
    GenerationAccepted,
    GenerationProposed,
    GenerationRejected,
    PlanChosen,
    PlanUndecided,
)
from agentic_trading.llm.event import Kinds

DeskBody = (
    Triggered
    | Skipped
    | Assessment
    | Undecided
    | IntentSkipped
    | IntentDenied
    | OrderIntent
    | IntentUndecided
    | StrategyChosen
    | Order
    | OrderDenied
    | Cancellation
    | Fill
    | GenerationProposed
    | GenerationRejected
    | GenerationAccepted
    | PlanChosen
    | PlanUndecided
)


KINDS = Kinds[DeskBody](
    Triggered,
    Skipped,
    Assessment,
    Undecided,
    IntentSkipped,
    IntentDenied,
    OrderIntent,
    IntentUndecided,
    StrategyChosen,
    Order,
    OrderDenied,
    Cancellation,
    Fill,
    GenerationProposed,
    GenerationRejected,
    GenerationAccepted,
    PlanChosen,
    PlanUndecided,
)
