"""Planning: parameters that a model chooses, code that templates make of them, its gate, and the agent that asks."""

from agentic_trading.desk.planning.agent import AutonomousLoop, Plan, PlannerSettings, PlanningAgent
from agentic_trading.desk.planning.allowlist import CodeProblem, code_problems
from agentic_trading.desk.planning.errors import (
    GenerationFailedError,
    NotOfferedError,
    PlanningError,
    TemplateError,
    UnknownFamilyError,
)
from agentic_trading.desk.planning.evaluation import Evaluation, RejectedSet
from agentic_trading.desk.planning.generator import (
    GenerationResult,
    TemplateCodeGenerator,
    TemplateParameterGenerator,
)
from agentic_trading.desk.planning.params import (
    MeanReversionParams,
    MomentumStrategyParams,
    PriceMomentumParams,
    StrategyParamRequest,
    StrategyParams,
    VolatilityParams,
    read_params,
)
from agentic_trading.desk.planning.schema import Offered, PanelFacts, answer_schema, offered_by
from agentic_trading.desk.planning.template import (
    TEMPLATES,
    BaseTemplate,
    MeanReversionTemplate,
    MomentumTemplate,
    VolatilityTemplate,
)
from agentic_trading.errors import MissingExtraError
from agentic_trading.structured.feedback import StructuredErrorFeedback, ValidationErrorDetail

__all__ = [
    "TEMPLATES",
    "AutonomousLoop",
    "BaseTemplate",
    "CodeProblem",
    "Evaluation",
    "GenerationFailedError",
    "GenerationResult",
    "MeanReversionParams",
    "MeanReversionTemplate",
    "MissingExtraError",
    "MomentumStrategyParams",
    "MomentumTemplate",
    "NotOfferedError",
    "Offered",
    "PanelFacts",
    "Plan",
    "PlannerSettings",
    "PlanningAgent",
    "PlanningError",
    "PriceMomentumParams",
    "RejectedSet",
    "StrategyParamRequest",
    "StrategyParams",
    "StructuredErrorFeedback",
    "TemplateCodeGenerator",
    "TemplateError",
    "TemplateParameterGenerator",
    "UnknownFamilyError",
    "ValidationErrorDetail",
    "VolatilityParams",
    "VolatilityTemplate",
    "answer_schema",
    "code_problems",
    "offered_by",
    "read_params",
]
