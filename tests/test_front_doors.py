"""The public API: the names of each door are pinned, documents show public names only, and every public name is documented."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentic_trading as at
from benchmarks import errors_page
from benchmarks.api_page import PAGE, PUBLIC, api_page, entries

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agentic_trading"
BLOCK = re.compile(r"^\s*```python\n(.*?)^\s*```", re.DOTALL | re.MULTILINE)

DOORS = {
    "agentic_trading": [
        "Alternative",
        "Answer",
        "AnswerNotKeptError",
        "Attempt",
        "BusConfig",
        "BusError",
        "ConfigError",
        "ConfigProblem",
        "DeterminismLevel",
        "Durability",
        "EnvelopeBuilder",
        "EnvelopeValidationError",
        "EnvelopeWorkflow",
        "Event",
        "EvidenceItem",
        "FailureKind",
        "FailureReason",
        "FallbackConfig",
        "FallbackGateway",
        "Fix",
        "Gateway",
        "GatewayContext",
        "InteractionStore",
        "JsonFileInteractionStore",
        "LLMBudget",
        "LLMCallError",
        "LLMEnvelope",
        "LLMInteraction",
        "LLMProvider",
        "LLMResult",
        "LedgerConfig",
        "LedgerError",
        "LogConfig",
        "LookAheadError",
        "MemoryInteractionStore",
        "ModelConfig",
        "ModelRequest",
        "ModelResponse",
        "NoDecision",
        "OutputPolicy",
        "Platform",
        "PlatformConfig",
        "Ports",
        "PriceConfig",
        "Provider",
        "ProviderConfig",
        "ProviderContext",
        "ProviderError",
        "RecordError",
        "RetryPolicy",
        "RulesProvider",
        "SafetyConstraints",
        "ScriptedProvider",
        "ScriptedReply",
        "Stage",
        "StoreError",
        "StructuredGateway",
        "StructuredOutcome",
        "SyncGateway",
        "TenantConfig",
        "ToolDefinition",
        "TotalUsage",
        "TradingError",
        "Usage",
        "Violation",
        "Window",
        "__version__",
        "load_config",
        "local_gateway",
        "remote_gateway",
    ],
    "agentic_trading.audit": [
        "ANY",
        "AmbiguousIdError",
        "ArchiveCheck",
        "Archiver",
        "CausalPath",
        "Fact",
        "FactSums",
        "FrameLibraryError",
        "Latency",
        "LogReport",
        "LoggedFact",
        "QueryError",
        "RecordFilters",
        "RecordQuery",
        "RecordReader",
        "SpendReport",
        "TraceTree",
        "UnknownRecordError",
        "check_archive",
        "open_records",
        "opened_archive",
        "spend_report",
        "verify_log",
        "why",
    ],
    "agentic_trading.brokers": [
        "Broker",
        "KafkaBroker",
        "KafkaSecurity",
        "KafkaSettings",
        "MemoryBroker",
        "RedisBroker",
        "RedisBusSettings",
    ],
    "agentic_trading.bus": [
        "DEAD_LETTERS",
        "ENVELOPES",
        "EVENTS",
        "HEADS",
        "RECORDS",
        "REPLIES",
        "Broker",
        "BusClosedError",
        "BusError",
        "Delivery",
        "Message",
        "MessageTooLargeError",
        "SignatureError",
        "SigningKeyError",
        "Subscription",
        "Topic",
        "UnreadableMessageError",
    ],
    "agentic_trading.client": [
        "ANSWER_SCHEMA",
        "FALLBACK_KINDS",
        "FALLS_BACK_ON",
        "Alternative",
        "AnswerNotKeptError",
        "Attempt",
        "CausalFrame",
        "Concluded",
        "EarlierCalls",
        "FallbackGateway",
        "Gateway",
        "GatewayClient",
        "Paused",
        "Recursion",
        "RecursionLimits",
        "RecursionOutcome",
        "ResumeError",
        "Savings",
        "StructuredOutcome",
        "StructuredResponse",
        "TotalUsage",
        "Unfinished",
        "extract_conclusion",
        "extract_sub_tasks",
        "measure_savings",
        "outcome_of",
        "parse_llm_response",
    ],
    "agentic_trading.desk": [
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
    ],
    "agentic_trading.desk.planning": [
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
    ],
    "agentic_trading.governance": [
        "ClosedWindowError",
        "CommandError",
        "ControlError",
        "ControlStore",
        "ControlsUnavailableError",
        "ControlsUnreadableError",
        "Gate",
        "Ledger",
        "LedgerError",
        "LedgerRolledBackError",
        "LedgerSettingsError",
        "LedgerUnavailableError",
        "Limit",
        "LimitError",
        "Limiter",
        "LimiterUnavailableError",
        "Policy",
        "PolicyError",
        "PriceBook",
        "ReservationConflictError",
        "ReservationRequestError",
        "ReservationStateError",
        "UnknownPriceError",
        "UnknownReservationError",
        "Window",
    ],
    "agentic_trading.llm": [
        "NANO",
        "AttemptTrace",
        "DeterminismLevel",
        "Durability",
        "EnvelopeBuilder",
        "EnvelopeValidationError",
        "EnvelopeWorkflow",
        "Event",
        "EvidenceItem",
        "FailureKind",
        "FailureReason",
        "Fix",
        "IInteractionStore",
        "InteractionStore",
        "JsonFileInteractionStore",
        "LLMBudget",
        "LLMBudgetExhaustedError",
        "LLMCallError",
        "LLMEnvelope",
        "LLMError",
        "LLMInteraction",
        "LLMProvider",
        "LLMResponseValidationError",
        "LLMResult",
        "LookAheadError",
        "MemoryInteractionStore",
        "NoDecision",
        "OutputPolicy",
        "ProviderError",
        "RecordConflictError",
        "RecordError",
        "ResponseFormat",
        "RetryPolicy",
        "SafetyConstraints",
        "Stage",
        "StoreError",
        "StoreLockedError",
        "TradingError",
        "UnknownModelError",
        "Usage",
        "Violation",
        "output_policy",
    ],
    "agentic_trading.operate": [
        "BudgetView",
        "CommandReach",
        "LedgerRebuild",
        "Policy",
        "PriceBook",
        "ReservationState",
        "halt",
        "open_log",
        "rebuild",
        "resume",
        "set_limit",
        "spend",
        "status",
    ],
    "agentic_trading.platform": [
        "BusConfig",
        "ConfigError",
        "ConfigProblem",
        "FallbackConfig",
        "LedgerConfig",
        "LogConfig",
        "ModelConfig",
        "Platform",
        "PlatformConfig",
        "Ports",
        "PriceConfig",
        "ProviderConfig",
        "ProviderContext",
        "RecoveryReport",
        "TenantConfig",
        "ToolDefinition",
        "load_config",
        "local_gateway",
        "remote_gateway",
    ],
    "agentic_trading.providers": [
        "AnthropicProvider",
        "FailureKind",
        "HttpSession",
        "Keys",
        "ModelConfig",
        "ModelRequest",
        "ModelResponse",
        "OneKey",
        "PriceConfig",
        "Provider",
        "ProviderConfig",
        "ProviderContext",
        "ProviderError",
        "RecordedAnswers",
        "RulesProvider",
        "ScriptedProvider",
        "ScriptedReply",
        "ToolDefinition",
        "Usage",
    ],
    "agentic_trading.recursion": [
        "ANSWER_SCHEMA",
        "CausalFrame",
        "Concluded",
        "Paused",
        "Recursion",
        "RecursionLimits",
        "RecursionOutcome",
        "ResumeError",
        "StructuredResponse",
        "Unfinished",
        "parse_llm_response",
    ],
    "agentic_trading.replay": [
        "Difference",
        "NetworkBlockedError",
        "first_difference",
        "no_network",
        "request_changes",
    ],
    "agentic_trading.structured": [
        "Accepted",
        "AskAgain",
        "GiveUp",
        "InstructorParser",
        "NextStep",
        "OutputParser",
        "ParserException",
        "Prepared",
        "RaiseCap",
        "Rejected",
        "SchemaLike",
        "SemanticCheck",
        "StructuredErrorFeedback",
        "StructuredLogProbsParser",
        "error_details",
        "next_step",
        "prepare",
        "read",
        "read_json",
        "schema_of",
        "schema_problem",
        "select",
        "validate",
    ],
    "agentic_trading.testing": [
        "AgentSuite",
        "BarFeedSuite",
        "BrokenContractError",
        "Clock",
        "ExchangeSuite",
        "FaultKind",
        "Faults",
        "FaultyProvider",
        "LiveBarFeedSuite",
        "MemoryBroker",
        "MemoryInteractionStore",
        "ModelServer",
        "ProviderSuite",
        "RecordedAnswers",
        "RemoteProviderSuite",
        "RulesProvider",
        "ScriptedProvider",
        "ScriptedReply",
        "ServerReply",
        "SimClock",
        "SystemClock",
    ],
    "agentic_trading.worker": [
        "CallRunner",
        "ClaimStore",
        "Recorder",
        "RunnerDependencies",
        "WorkerPool",
    ],
}
"""Every module that has `__all__`, with its names."""


def doors(package: Path = PACKAGE) -> list[str]:
    """Return every module of a package that has `__all__`."""
    found = []
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "__all__" not in text:
            continue
        tree = ast.parse(text)
        names = [getattr(node.targets[0], "id", "") for node in tree.body if isinstance(node, ast.Assign)]
        if "__all__" in names:
            module = path.relative_to(package.parent).with_suffix("").parts
            found.append(".".join(module).removesuffix(".__init__"))
    return sorted(found)


def stub_of(door: str) -> ast.Module:
    return ast.parse((ROOT / door.replace(".", "/") / "__init__.pyi").read_text(encoding="utf-8"))


def imports_in(code: str) -> list[tuple[str, str]]:
    """Return the names of ours that a piece of Python imports or uses from `at`, by module."""
    tree = ast.parse(code)
    found = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentic_trading")
        for alias in node.names
        if node.module is not None
    ]
    used = [
        ("agentic_trading", node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "at"
    ]
    return [*found, *used]


def shown() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of all Python that users see."""
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ):
        for code in BLOCK.findall(page.read_text(encoding="utf-8")):
            yield str(page.relative_to(ROOT)), code
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def private_in(place: str, code: str) -> list[str]:
    """Return the imports of a piece of Python that are no public names."""
    return [
        f"{place}: {module}.{name}"
        for module, name in imports_in(code)
        if module not in PUBLIC or name not in importlib.import_module(module).__all__
    ]


def test_every_door_is_listed() -> None:
    assert doors() == sorted(DOORS)
    assert set(PUBLIC) <= set(DOORS)


def test_planted_door_is_found(tmp_path: Path) -> None:
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "package" / "inner" / "hidden.py").write_text('__all__ = ["x"]\n', encoding="utf-8")

    assert doors(tmp_path / "package") == ["package.inner.hidden"]


@pytest.mark.parametrize("door", DOORS)
def test_front_door_offers_exactly_listed_names(door: str) -> None:
    module = importlib.import_module(door)

    assert module.__all__ == DOORS[door]
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []


@pytest.mark.parametrize(
    "door",
    [
        "agentic_trading",
        "agentic_trading.operate",
        "agentic_trading.desk",
        "agentic_trading.desk.planning",
        "agentic_trading.testing",
    ],
)
def test_lazy_door_stub_and_table_agree(door: str) -> None:
    module, stub = importlib.import_module(door), stub_of(door)
    in_table = {
        (f"agentic_trading.{home}", name) for home, names in module.NAMES_OF.items() for name in names
    }
    in_stub = {
        (node.module, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
        if alias.asname == alias.name
    }
    (listed,) = [node.value for node in stub.body if isinstance(node, ast.Assign)]

    assert in_table == in_stub
    assert ast.literal_eval(listed) == module.__all__
    assert {name for _, name in in_table} == {*module.__all__} - {"__version__"}
    assert [
        name
        for home, name in in_table
        if getattr(module, name) is not getattr(importlib.import_module(home), name)
    ] == []
    assert dir(module) == sorted(module.__all__)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'agentic_trading' has no attribute 'Answers'"):
        at.Answers  # type: ignore[attr-defined]  # noqa: B018 - it is loaded by its name


def loaded_by(code: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split())


def test_package_import_is_lazy() -> None:
    alone = loaded_by("import agentic_trading as at")
    contract = loaded_by("import agentic_trading.llm")

    assert {name for name in alone if name.startswith("agentic_trading")} == {
        "agentic_trading",
        "agentic_trading.lazy",
    }
    assert "pydantic" not in alone
    unneeded = "agentic_trading.(platform|client|worker|structured|governance|bus|desk|operate|cli)"
    assert [name for name in contract if re.match(unneeded, name)] == []
    assert "agentic_trading.platform.embedded" in loaded_by("import agentic_trading as at; at.local_gateway")


def test_documents_show_public_names_only() -> None:
    breaches = [breach for place, code in shown() for breach in private_in(place, code)]

    assert breaches == []


@pytest.mark.parametrize(
    "code",
    [
        "from agentic_trading.platform.port_adapters import records_of",
        "from agentic_trading.platform import local_gateway",
        "from agentic_trading.llm import Nothing",
        "import agentic_trading as at\nat.port_adapters",
    ],
)
def test_planted_private_name_is_found(code: str) -> None:
    assert len(private_in("planted.md", code)) == 1


def test_api_page_matches_the_doors() -> None:
    page = api_page()

    assert PAGE.read_text(encoding="utf-8") == page, "run: python -m benchmarks.api_page"
    assert api_page(PUBLIC[1:]) != page


@pytest.mark.parametrize("door", PUBLIC)
def test_every_public_name_is_explained(door: str) -> None:
    module = importlib.import_module(door)
    explained = list(entries(module))

    assert len(explained) == len(module.__all__)
    assert [use for use, text in explained if not text] == []


def test_errors_page_has_the_tree_and_every_public_error() -> None:
    assert errors_page.PAGE.read_text(encoding="utf-8") == errors_page.errors_page(), (
        "run: python -m benchmarks.errors_page"
    )
    assert errors_page.NOTES.keys() == {error.__name__ for error in errors_page.homes()}
