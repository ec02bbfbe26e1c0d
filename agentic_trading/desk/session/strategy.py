"""The functions of the `strategy` commands: search for sets with a model, and run a set from a file."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Final

from agentic_trading.canonical import exact_bytes, exact_value
from agentic_trading.clock import SystemClock
from agentic_trading.desk.market.samples import SP500
from agentic_trading.desk.planning.agent import Plan, PlannerSettings, PlanningAgent, Round
from agentic_trading.desk.planning.backtest import TradeCosts
from agentic_trading.desk.planning.errors import GenerationFailedError
from agentic_trading.desk.planning.evaluation import Evaluation, Halves, RejectedSet, SampleBars
from agentic_trading.desk.planning.evaluator import PanelEvaluator, offers_of
from agentic_trading.desk.planning.families import load_family, template_of
from agentic_trading.desk.planning.generator import TemplateCodeGenerator
from agentic_trading.desk.planning.panel import Panel, load_panel
from agentic_trading.desk.planning.panel_files import TERMS, OwnPanel, load_own_panel
from agentic_trading.desk.planning.params import (
    FAMILIES,
    Family,
    StrategyParams,
    family_of,
    family_terms,
    grid_of,
)
from agentic_trading.desk.planning.sandbox import Sandbox
from agentic_trading.desk.planning.schema import EVERYTHING, AvailableParams
from agentic_trading.desk.planning.search import random_median
from agentic_trading.desk.planning.template import TEMPLATES, BaseTemplate
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.options import CACHE, load_run_config
from agentic_trading.files import read_file
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities, Capability, Knowledge
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.result import Stage
from agentic_trading.operate import providers
from agentic_trading.operate.choices import (
    HOSTED,
    LEAST_BUDGET_USD,
    MODELS,
    MOST_BUDGET_USD,
    WITHOUT_MODEL,
    listed,
)
from agentic_trading.operate.providers import model_row
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import (
    BusConfig,
    ModelConfig,
    PlatformConfig,
    ProviderConfig,
    TenantConfig,
)
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.tables import Tables, factories_of, tables_of

PROVIDERS: Final = (*WITHOUT_MODEL, LLMProvider.SCRIPTED.value, *MODELS)
"""The values of `--provider`, in addition to the providers of the configuration."""

PANEL: Final = "panel"
"""The folder next to the log that keeps an own panel."""

_REASONING: Final = "Read from a file: nothing was asked, and there is no other reason."


@dataclass(frozen=True, slots=True)
class ProposeOptions:
    """The options of a search: model, data, number of rounds, and budget. The log is in the folder `out`."""

    data: str
    out: Path
    family: str = "momentum"
    rounds: int = 10
    config: Path | None = None
    provider: str = ""
    recorded_from: Path | None = None
    model: str = ""
    base_url: str | None = None
    own_model: ModelConfig | None = None
    record: bool = False
    budget_usd: Decimal = Decimal(5)
    costs: TradeCosts = field(default_factory=TradeCosts)
    searches: int = 20
    seed: str = "1"

    def __post_init__(self) -> None:
        """Raise `OptionError` for a budget out of range."""
        budget = self.budget_usd
        if not budget.is_finite() or not LEAST_BUDGET_USD <= budget <= MOST_BUDGET_USD:
            raise OptionError("--budget-usd", budget, f"an amount above 0, up to {MOST_BUDGET_USD}")

    @property
    def asks_models(self) -> bool:
        """Whether models are asked, which takes time and may cost money."""
        return self.provider not in {"", *WITHOUT_MODEL, LLMProvider.SCRIPTED}


@dataclass(slots=True)
class Answers:
    """The attempts of a search: their number, the unusable ones by reason, and their cost."""

    attempts: int = 0
    useless: Counter[str] = field(default_factory=Counter)
    cost_nusd: int = 0

    def add(self, attempt: LLMInteraction) -> None:
        """Count an attempt."""
        result = attempt.result
        self.attempts += 1
        self.cost_nusd += result.cost_nusd
        if result.reading is not None and result.reading.verdict is not Stage.DONE:
            self.useless[str(result.reading.verdict)] += 1
        elif result.failure is not None:
            self.useless[str(result.failure.category)] += 1


@dataclass(frozen=True, slots=True)
class Scene:
    """The data of a search: the panel, the bars of both halves, the offered parameters, and equal weight."""

    panel: Panel
    window: SampleBars
    offered: AvailableParams
    equal_weight: Halves
    hold: Sequence[float]
    """The equity of all stocks in equal weight, at each close of the window."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """The result of a search: its rounds, its plan or the reason for no plan, and the comparisons."""

    scene: Scene
    family: Family
    rounds: Sequence[Round]
    plan: Plan | NoDecision
    answers: Answers
    knowledge: Knowledge
    trace_id: str
    log: Path
    searches: int
    random: Halves | None

    @property
    def valid(self) -> int:
        """The number of proposed sets that match the schema and the rules."""
        return sum(each.proposals for each in self.rounds)

    @property
    def distinct(self) -> int:
        """The number of rounds with a set that trades differently from all sets before."""
        return sum(each.state in {"accepted", "rejected"} for each in self.rounds)


@dataclass(frozen=True, slots=True)
class SetResult:
    """The result of a single set."""

    scene: Scene
    params: StrategyParams
    evaluation: Evaluation


@contextmanager
def opened_evaluator(
    own: OwnPanel, costs: TradeCosts, folder: Path | None = None, family: str = ""
) -> Iterator[tuple[PanelEvaluator, Sandbox]]:
    """Open an evaluator of sets over a panel, and its sandbox. Blocks the thread.

    It evaluates sets of the shipped families, and of `family`.

    Raises `SandboxStartError` if the sandbox cannot start.
    """
    with Sandbox(own.panel, catalysts=own.catalysts) as sandbox:
        described = own.descriptions
        yield (
            PanelEvaluator(
                own.panel,
                sandbox,
                costs=costs,
                folder=folder,
                templates=templates_with(family),
                descriptions=described,
            ),
            sandbox,
        )


def templates_with(family: str) -> dict[Family, BaseTemplate]:
    """Return the templates of the shipped families, and of `family` unless it is empty. Blocks."""
    return {**TEMPLATES, **({family: load_family(family)} if family else {})}


def panel_of(data: str) -> OwnPanel:
    """Return the panel that `--data` names: the shipped one, or the one in a file or a folder. Blocks.

    Raises:
        OptionError: If it is neither.
        SampleDamagedError: If the file of the shipped panel was changed.
        MarketError: If the file or the folder is wrong, as `load_own_panel` does.

    """
    if data == SP500.name:
        return OwnPanel(load_panel(), {}, {})
    path = Path(data)
    if not path.exists():
        allowed = f"{SP500.name}, or a file of prices, or a folder with {TERMS}"
        raise OptionError("--data", repr(data), allowed)
    return load_own_panel(path)


def offered_by_data(data: str, family: str = "") -> AvailableParams:
    """Return the parameters of sets over an own panel, or all of them for the shipped one.

    They are those of the shipped families, and of `family` unless it is empty.
    """
    added = [name for name in templates_with(family) if name not in FAMILIES]
    if data == SP500.name:
        grids = {name: grid_of(*family_terms(name).classes) for name in added}
        return replace(EVERYTHING, grids={**EVERYTHING.grids, **grids})
    own = panel_of(data)
    return offers_of(own.panel, catalysts=own.catalysts, descriptions=own.descriptions, own_families=added)


def keep_panel(own: OwnPanel, out: Path) -> None:
    """Keep an own panel in the folder of a search, so that later runs have the same prices and events.

    Raises:
        OptionError: If the folder has another panel.

    """
    folder, texts = out / PANEL, own.files()
    if (folder / TERMS).is_file():
        kept = {name: (folder / name).read_text("utf-8") for name in texts if (folder / name).is_file()}
        if kept != texts:
            raise OptionError("--out", f"{out}, with the panel of another search", "a new folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():  # `panel.toml` is last, because a folder without it is not complete
        (folder / name).write_text(text, "utf-8")


def search_sets(
    options: ProposeOptions,
    *,
    on_round: Callable[[Round], None] = lambda _round: None,
    on_random: Callable[[int], None] = lambda _sets: None,
) -> Proposals:
    """Run the rounds of a search, then the random searches. All calls are recorded in `options.out`.

    Args:
        options: The options of the search.
        on_round: Called after each round.
        on_random: Called with the number of random sets before they run, then with 1 after each of them.

    Raises:
        UnknownFamilyError: If the family does not exist.
        OptionError: If options are wrong or do not fit together.
        StoreError: If the folder cannot be used.
        TradingError: If the provider cannot be used.

    """
    family = load_family(options.family).family
    own = panel_of(options.data)
    with opened_evaluator(own, options.costs, options.out / CACHE, family) as (evaluator, _):
        evaluator.offered.require((family,))
        if options.data != SP500.name:
            keep_panel(own, options.out)
        search = _Search(options, family, evaluator, on_round)
        plan = asyncio.run(search.played())
        tried, random = (plan.tried if isinstance(plan, Plan) else 0), None
        if tried and options.searches:
            on_random(tried * options.searches)
            random = random_median(
                evaluator,
                family,
                tried,
                searches=options.searches,
                seed=options.seed,
                on_run=lambda: on_random(1),
            )
        return Proposals(
            scene=scene_of(evaluator),
            family=family,
            rounds=search.rounds,
            plan=plan,
            answers=search.answers,
            knowledge=search.knowledge,
            trace_id=search.trace_id,
            log=SessionFolder(options.out).log,
            searches=options.searches,
            random=random,
        )


def check_provider(options: ProposeOptions) -> bool:
    """Check the provider of a search, and return whether its model is free. Blocks the thread.

    Raises:
        OptionError: If the provider or the model cannot be asked.
        ConfigError: If the configuration is wrong.

    """
    load_family(options.family)
    config, name = _configured(options, None)
    tables = Tables(*tables_of(config, factories_of(config)))
    row = _row(tables, name, options.model)
    return tables.prices.price(row.provider, row.model, at=SystemClock().now()).is_free


def run_set(path: Path, data: str, costs: TradeCosts, family: str = "") -> SetResult:
    """Run the set in a file over a panel. `family` is that of the set, if it is not a shipped one.

    Raises the errors of `read_set`, and `OptionError` for refused code.
    """
    with opened_evaluator(panel_of(data), costs, family=family) as (evaluator, _):
        params = read_set(path, evaluator.offered)
        outcome = evaluator.evaluate(params)
        if isinstance(outcome, RejectedSet):
            raise OptionError("PARAMS", f"refused by {outcome.by}: {outcome.detail}", "a set that can be run")
        return SetResult(scene_of(evaluator), params, outcome)


def read_set(path: Path, offered: AvailableParams = EVERYTHING) -> StrategyParams:
    """Return the parameters in a file, which has a set or a complete answer of a model.

    Raises:
        OptionError: If the file cannot be read.
        UnknownFamilyError: If the family of the set does not exist.
        GenerationFailedError: If the set has mistakes.

    """
    try:
        text = read_file(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise OptionError("PARAMS", f"{path} ({e})", "a JSON file with the parameters of a strategy") from e
    family, answer = _as_answer(text)
    result = TemplateCodeGenerator(template_of(family), offered).generate(answer)
    if result.params is None:
        raise GenerationFailedError(result.errors)
    return result.params


def scene_of(evaluator: PanelEvaluator) -> Scene:
    """Return the data that sets are run on."""
    start = evaluator.window.start
    return Scene(
        panel=evaluator.panel,
        window=evaluator.window,
        offered=evaluator.offered,
        equal_weight=evaluator.equal_weight,
        hold=evaluator.hold().equity[start:].tolist(),
    )


def _as_answer(text: str) -> tuple[Family, str]:
    """Return the family of a set, and the set as an answer of a model."""
    # A text that is not a JSON object is returned unchanged, because the reader of answers has the better
    # errors.
    try:
        value = exact_value(text.encode())
    except ValueError:
        return FAMILIES[0], text
    if not isinstance(value, dict):
        return FAMILIES[0], text
    params = value.get("params", value)
    family = params.get("strategy_type", FAMILIES[0]) if isinstance(params, dict) else FAMILIES[0]
    return family_of(family), exact_bytes({"reasoning": _REASONING, "params": params}).decode()


class _Search:
    """A search in progress: its provider, its log, and its result."""

    def __init__(
        self,
        options: ProposeOptions,
        family: Family,
        evaluator: PanelEvaluator,
        on_round: Callable[[Round], None],
    ) -> None:
        self.rounds: list[Round] = []
        self.answers = Answers()
        self.knowledge: Knowledge = "unknown"
        self.trace_id = ""
        self._options = options
        self._family = family
        self._evaluator = evaluator
        self._on_round = on_round

    async def played(self) -> Plan | NoDecision:
        """Run the rounds, and count their attempts in the log."""
        log = SessionFolder(self._options.out).log
        async with self._agent(log) as agent:
            self.trace_id = agent.trace_id
            plan = await agent.plan(self._options.rounds, on_round=self._add)
        async with aclosing(port_adapters.records_of(log)) as records:
            for record in await records.trace(agent.trace_id):
                if isinstance(record, LLMInteraction):
                    self.answers.add(record)
        return plan

    def _add(self, played: Round) -> None:
        self.rounds.append(played)
        self._on_round(played)

    @asynccontextmanager
    async def _agent(self, log: Path) -> AsyncGenerator[PlanningAgent]:
        options = self._options
        recorded = None if options.recorded_from is None else await _recorded(options.recorded_from)
        config, name = await asyncio.to_thread(_configured, options, recorded)
        tables = Tables(*await asyncio.to_thread(lambda: tables_of(config, factories_of(config))))
        row = _row(tables, name, options.model if recorded is None else recorded.model)
        self.knowledge = Capabilities.knowledge(row, self._evaluator.chosen_at)
        clock = trading.clock_for("backtest", paced=options.asks_models)
        clock.advance_to(self._evaluator.chosen_at)
        store = port_adapters.log_for("backtest", log, can_be_repeated=not options.asks_models, config=config)
        async with aclosing(store):
            await asyncio.to_thread(SessionFolder(options.out).prepare)
            await store.open()
            ports = Ports(store=store, tables=tables, clock=clock)
            if recorded is not None:
                served = Providers.every(recorded.answers)
                ports = replace(ports, providers=served, recorded=recorded.answers)
            session = derived_id(
                CACHE, row.provider, row.model, self._family, self._evaluator.data_sha256, options.seed,
                (await store.head())[0],
            )  # fmt: skip
            settings = PlannerSettings(
                session_id=session,
                provider=row.provider,
                model=row.model,
                family=self._family,
                tenant_id=config.tenant_ids[0],
                retry_policy=providers.patience_of(config.providers).get(row.provider),
            )
            async with Platform(config, ports, checks=trading.CHECKS, rules=trading.RULES) as platform:
                yield PlanningAgent(platform, clock, self._evaluator, settings)


@dataclass(frozen=True, slots=True)
class _Recorded:
    answers: port_adapters.Recording
    provider: LLMProvider
    model: str


async def _recorded(folder: Path) -> _Recorded:
    """Return the answers in the log of an earlier search. Raises `OptionError` if it has no answers."""
    found: list[LLMInteraction] = []
    log = SessionFolder(folder).log
    if await asyncio.to_thread(log.is_file):
        async with aclosing(port_adapters.records_of(log)) as records, aclosing(records.scan(0)) as entries:
            attempts = [entry.record async for entry in entries if isinstance(entry.record, LLMInteraction)]
            found = [one for one in attempts if one.envelope.workflow is EnvelopeWorkflow.PLANNING]
    if not found:
        raise OptionError(
            "--from", f"{folder}, without an answer", "a folder that `strategy propose --out` made"
        )
    first = found[0].envelope
    return _Recorded(port_adapters.recording(found), first.provider, first.model)


def _configured(options: ProposeOptions, recorded: _Recorded | None) -> tuple[PlatformConfig, str]:
    """Return the configuration with the one provider of the search, and its name. Blocks the thread."""
    name = options.provider or LLMProvider.RULES.value
    if (name == "recorded") != (recorded is not None):
        was = options.recorded_from or "left out"
        raise OptionError("--from", was, "a folder of an earlier search, together with --provider recorded")
    if recorded is not None:
        name = recorded.provider.value
    known = "" if name in {LLMProvider.RULES, LLMProvider.SCRIPTED} else name
    config = load_run_config(
        options.config, provider=known, base_url=options.base_url, own_model=options.own_model
    )
    row = config.providers.get(name)
    if row is None and name not in PROVIDERS:
        raise OptionError("--provider", repr(options.provider), listed([*PROVIDERS, *config.providers]))
    row = row or ProviderConfig()
    if recorded is None and row.adapter_of(name) in HOSTED and not options.record:
        allowed = f"--record with {name}: a backtest uses a network only with it or --base-url"
        raise OptionError("--record", "left out", allowed)
    tenant = config.tenant_ids[0]
    changes = {
        "mode": "backtest",
        "providers": {} if recorded is not None else {name: row},
        "models": {},
        "fallback": {},
        "folder": None,
        "bus": BusConfig(),
        "concurrency": 1,
        "tenants": {tenant: TenantConfig(budget_usd=options.budget_usd)},
    }
    return config.model_copy(update=changes), name


def _row(tables: Tables, name: str, model: str) -> Capability:
    if not model and name == LLMProvider.ANTHROPIC:
        model = PRESETS[EnvelopeWorkflow.PLANNING].model
    model = model or trading.OFFLINE_MODELS.get(name, "")
    return model_row(tables, LLMProvider(name), model, now=SystemClock().now())
