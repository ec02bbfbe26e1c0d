from agentic_trading.desk.planning.agent import (
    AutonomousLoop as AutonomousLoop,
)
from agentic_trading.desk.planning.agent import (
    Plan as Plan,
)
from agentic_trading.desk.planning.agent import (
    PlannerSettings as PlannerSettings,
)
from agentic_trading.desk.planning.agent import (
    PlanningAgent as PlanningAgent,
)
from agentic_trading.desk.planning.allowlist import CodeProblem as CodeProblem
from agentic_trading.desk.planning.allowlist import code_problems as code_problems
from agentic_trading.desk.planning.errors import FamilyError as FamilyError
from agentic_trading.desk.planning.errors import (
    GenerationFailedError as GenerationFailedError,
)
from agentic_trading.desk.planning.errors import (
    NotOfferedError as NotOfferedError,
)
from agentic_trading.desk.planning.errors import (
    PlanningError as PlanningError,
)
from agentic_trading.desk.planning.errors import (
    TemplateError as TemplateError,
)
from agentic_trading.desk.planning.errors import (
    UnknownFamilyError as UnknownFamilyError,
)
from agentic_trading.desk.planning.evaluation import Evaluation as Evaluation
from agentic_trading.desk.planning.evaluation import RejectedSet as RejectedSet
from agentic_trading.desk.planning.evaluator import PanelEvaluator as PanelEvaluator
from agentic_trading.desk.planning.families import use_family as use_family
from agentic_trading.desk.planning.generator import (
    GenerationResult as GenerationResult,
)
from agentic_trading.desk.planning.generator import (
    TemplateCodeGenerator as TemplateCodeGenerator,
)
from agentic_trading.desk.planning.generator import (
    TemplateParameterGenerator as TemplateParameterGenerator,
)
from agentic_trading.desk.planning.panel import load_panel as load_panel
from agentic_trading.desk.planning.panel_files import OwnPanel as OwnPanel
from agentic_trading.desk.planning.panel_files import load_own_panel as load_own_panel
from agentic_trading.desk.planning.params import CrossRule as CrossRule
from agentic_trading.desk.planning.params import FamilyParams as FamilyParams
from agentic_trading.desk.planning.params import (
    MeanReversionParams as MeanReversionParams,
)
from agentic_trading.desk.planning.params import (
    MomentumStrategyParams as MomentumStrategyParams,
)
from agentic_trading.desk.planning.params import OneOf as OneOf
from agentic_trading.desk.planning.params import OwnCatalyst as OwnCatalyst
from agentic_trading.desk.planning.params import (
    PriceMomentumParams as PriceMomentumParams,
)
from agentic_trading.desk.planning.params import (
    StrategyParamRequest as StrategyParamRequest,
)
from agentic_trading.desk.planning.params import (
    StrategyParams as StrategyParams,
)
from agentic_trading.desk.planning.params import (
    VolatilityParams as VolatilityParams,
)
from agentic_trading.desk.planning.params import (
    read_params as read_params,
)
from agentic_trading.desk.planning.rules import strategy_params_rule as strategy_params_rule
from agentic_trading.desk.planning.sandbox import Sandbox as Sandbox
from agentic_trading.desk.planning.schema import (
    STRATEGY_PARAMS as STRATEGY_PARAMS,
)
from agentic_trading.desk.planning.schema import (
    AvailableParams as AvailableParams,
)
from agentic_trading.desk.planning.schema import (
    PanelFacts as PanelFacts,
)
from agentic_trading.desk.planning.schema import (
    answer_schema as answer_schema,
)
from agentic_trading.desk.planning.schema import (
    check_strategy_params as check_strategy_params,
)
from agentic_trading.desk.planning.schema import (
    offered_by as offered_by,
)
from agentic_trading.desk.planning.template import (
    TEMPLATES as TEMPLATES,
)
from agentic_trading.desk.planning.template import (
    BaseTemplate as BaseTemplate,
)
from agentic_trading.desk.planning.template import (
    MeanReversionTemplate as MeanReversionTemplate,
)
from agentic_trading.desk.planning.template import (
    MomentumTemplate as MomentumTemplate,
)
from agentic_trading.desk.planning.template import (
    VolatilityTemplate as VolatilityTemplate,
)
from agentic_trading.errors import MissingExtraError as MissingExtraError
from agentic_trading.structured.feedback import (
    StructuredErrorFeedback as StructuredErrorFeedback,
)
from agentic_trading.structured.feedback import (
    ValidationErrorDetail as ValidationErrorDetail,
)

__all__ = [
    "STRATEGY_PARAMS",
    "TEMPLATES",
    "AutonomousLoop",
    "AvailableParams",
    "BaseTemplate",
    "CodeProblem",
    "CrossRule",
    "Evaluation",
    "FamilyError",
    "FamilyParams",
    "GenerationFailedError",
    "GenerationResult",
    "MeanReversionParams",
    "MeanReversionTemplate",
    "MissingExtraError",
    "MomentumStrategyParams",
    "MomentumTemplate",
    "NotOfferedError",
    "OneOf",
    "OwnCatalyst",
    "OwnPanel",
    "PanelEvaluator",
    "PanelFacts",
    "Plan",
    "PlannerSettings",
    "PlanningAgent",
    "PlanningError",
    "PriceMomentumParams",
    "RejectedSet",
    "Sandbox",
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
    "check_strategy_params",
    "code_problems",
    "load_own_panel",
    "load_panel",
    "offered_by",
    "read_params",
    "strategy_params_rule",
    "use_family",
]
