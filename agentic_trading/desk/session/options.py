"""The options of a run, and its configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Final, Literal

from pydantic import ValidationError
from typing_extensions import override

from agentic_trading.desk.inference import DOLLARS, InferenceRate, rate_for
from agentic_trading.desk.instrument import USDT
from agentic_trading.desk.market.bar_rows import NO_COLUMNS
from agentic_trading.desk.market.samples import PANELS
from agentic_trading.desk.planning.params import FAMILIES, PlanTerms, families_in_use, family_terms
from agentic_trading.desk.session.agents import OwnAgent
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.limits import NANO
from agentic_trading.operate import choices
from agentic_trading.operate.session_folder import RunManifest
from agentic_trading.platform.adapters import is_live
from agentic_trading.platform.config import (
    BACKTEST_APART,
    ModelConfig,
    PlatformConfig,
    RunMode,
    TenantConfig,
)
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.settings import load_config

Estimate = Literal["bound", "exact"]


DEFAULT_BUDGET_USD = Decimal(5)
GRACE: Final = timedelta(seconds=30)
"""The default grace period. The sender of bars needs a few seconds after their close."""
SILENT_AFTER: Final = 3
"""The default limit on the missing bars of a feed on paper."""

CACHE: Final = "strategies"
"""The folder next to the log of a search that keeps the evaluations of its sets."""


def refuse_search(folder: Path) -> None:
    """Raise `OptionError` for the folder or the log of a search. Blocks."""
    place = folder if folder.is_dir() else folder.parent
    if (place / CACHE).is_dir():
        command = f"agentic-trading strategy propose --provider recorded --from {quote(str(place))}"
        allowed = (
            "a session of `run`, or the record of a gateway or of `serve`. To repeat a search with its --data, --family "
            f"and --rounds: {command}"
        )
        raise OptionError("FOLDER", f"{folder}, a search of `strategy propose`", allowed)


@dataclass(frozen=True, slots=True)
class RunOptions(choices.ProviderOptions):
    """The options of a run: market data, configuration, provider and limits.

    Attributes:
        config: The configuration. A run does not use its name, its folder and the rows of other tenants.
        provider: The provider of every call, or `config` for the models of the configuration with their
            fallbacks.
        model: The model of the provider. An empty text is the provider's default.
        data: The samples, the CSV files, or `-` for standard input.
        out: The folder of the session.
        recorded_from: The session whose answers the provider `recorded` uses.
        timeframe: The length of the bars. Empty if it is found from the bars.
        bars: The maximum number of bars of each symbol, not counting the first `warm_up` bars.
        budget_usd: The maximum cost. None means the budget of the tenant in the configuration, else the limit
            on a shared server, else `DEFAULT_BUDGET_USD`.
        inject: The faults to inject, such as `malformed=5%,timeout=2%`.
        seed: The seed that selects the calls that faults hit.
        resume: Whether to continue the last run in `out`.
        answers_from: Logs of workers, or an archive, with answers that did not reach a run over a bus before
            it is resumed.
        record: Whether a backtest may use a network.
        max_calls: The maximum number of attempts.
        estimate: The basis of the reservation of a call: the bytes of its request, or the provider's token
            count.
        family: The strategy family of a portfolio plan, shipped or in use in this process. Empty means the
            default.
        rounds: The number of sets that a portfolio plan asks for. None means the default.
        agent: The agent of the user. None for the shipped agent of the data.
        inference_rate: The price of one US dollar in the quote currency. None for 1 in USD and USDT.
        columns: The names of columns in files and on standard input, by field, if they are not usual ones.
        calendar: The calendar of the exchange, by its name in `exchange_calendars`. Empty for a market that
            never closes.
        grace: The wait for the other symbols of standard input after the close of a bar, in mode `paper`.
        silent_after: The limit on the missing bars of a feed, or 0 for none. None for
            `SILENT_AFTER` in mode `paper`, and for 0 in a backtest.

    Raises:
        OptionError: If a value is not allowed, or values do not fit together.

    """

    data: tuple[str, ...]
    out: Path
    recorded_from: Path | None = None
    timeframe: str = ""
    bars: int | None = None
    warm_up: int = 0
    budget_usd: Decimal | None = None
    inject: str = ""
    seed: str = "1"
    resume: bool = False
    answers_from: tuple[Path, ...] = ()
    record: bool = False
    max_calls: int | None = None
    estimate: Estimate = "bound"
    family: str = ""
    rounds: int | None = None
    agent: OwnAgent | None = None
    inference_rate: InferenceRate | None = None
    columns: Mapping[str, str] = field(default_factory=lambda: NO_COLUMNS)
    calendar: str = ""
    grace: timedelta = GRACE
    silent_after: int | None = None

    def __post_init__(self) -> None:
        """Check all values that need no file."""
        if not self.data:
            raise OptionError("--data", "empty", "a sample's name, a CSV file, or - for standard input")
        if self.bars is not None and self.bars < 1:
            raise OptionError("--bars", self.bars, "1 or more")
        if (
            not self.budget.is_finite()
            or not choices.LEAST_BUDGET_USD <= self.budget <= choices.MOST_BUDGET_USD
        ):
            allowed = f"an amount above 0, up to {choices.MOST_BUDGET_USD}, because calls need a budget"
            raise OptionError("--budget-usd", self.budget, allowed)
        known = tuple(dict.fromkeys((*choices.PROVIDERS, *self.config.providers)))
        if self.provider not in known:
            raise OptionError("--provider", repr(self.provider), choices.listed(known))
        self._check_recorded()
        if self.model and not (self.asks_models and self.provider != choices.CONFIGURED):
            raise OptionError("--model", repr(self.model), f"a model of {choices.listed(choices.MODELS)}")
        self._check_calls()
        self._check_bus()
        self._check_plan()
        if self.calendar and self.data[0] in PANELS:
            allowed = f"files and standard input. {self.data[0]} has a calendar"
            raise OptionError("--calendar", self.calendar, allowed)
        rate_for(self.currency, self.inference_rate)
        tenants = self.config.tenant_ids
        if len(tenants) > 1 and DEFAULT_TENANT not in tenants:
            allowed = f"one tenant in the configuration of a run, or one with the name {DEFAULT_TENANT}"
            raise OptionError("[tenants]", ", ".join(tenants), allowed)

    def _check_recorded(self) -> None:
        is_recorded = self.provider == "recorded"
        if is_recorded != (self.recorded_from is not None):
            was = self.recorded_from or "left out"
            raise OptionError("--from", was, "a session's folder, together with --provider recorded")
        if is_recorded and self.inject:
            allowed = "faults in live answers only. A recording has the faults of its own run"
            raise OptionError("--inject", repr(self.inject), allowed)
        if is_recorded and self.max_calls is not None:
            allowed = "a limit on live calls only. A recording has the refusals of its own run"
            raise OptionError("--max-calls", self.max_calls, allowed)

    def _check_calls(self) -> None:
        if self.max_calls is not None and self.max_calls < 1:
            raise OptionError("--max-calls", self.max_calls, "1 or more")
        if self.mode == "backtest" and not self.record and (hosted := sorted(self.hosted)):
            allowed = (
                f"--record with {', '.join(hosted)}: a backtest uses a network only with it or --base-url"
            )
            raise OptionError("--record", "left out", allowed)

    def _check_bus(self) -> None:
        if self.answers_from and not (self.is_remote and self.resume):
            allowed = "--resume of a run with --bus, because only its answers may be in other logs"
            raise OptionError("--answers-from", self.answers_from[0], allowed)
        if not self.is_remote:
            return
        if self.provider == "recorded":
            raise OptionError(
                "--bus",
                "given",
                "--provider recorded without --bus, because this process serves recorded answers",
            )
        if self.inject:
            raise OptionError(
                "--inject", repr(self.inject), "faults in answers of this process, without --bus"
            )
        if self.mode == "backtest" and not self.config.bus.namespace:
            raise OptionError("--mode", "backtest, and the bus has no namespace", BACKTEST_APART)
        if self.config.ledger.url is None:
            allowed = "the ledger server of the workers on the bus, which has the limit of this run"
            raise OptionError("--ledger", "left out, and workers make the calls", allowed)

    def _check_plan(self) -> None:
        if not self.is_planned and (self.family or self.rounds is not None):
            option, was = ("--family", self.family) if self.family else ("--rounds", self.rounds)
            allowed = f"data that a planner trades as one portfolio: {', '.join(PANELS)}"
            raise OptionError(option, f"{was!r}, and the data is {','.join(self.data)}", allowed)
        if self.family and self.family not in families_in_use():
            raise OptionError("--family", repr(self.family), choices.listed(families_in_use()))
        if self.rounds is not None and self.rounds < 1:
            raise OptionError("--rounds", self.rounds, "1 or more")

    def plan_terms(self, earlier: PlanTerms | None = None) -> PlanTerms | None:
        """Return the terms of a plan, or None without a plan.

        Missing terms come from `earlier` or the defaults.
        """
        if not self.is_planned:
            return None
        kept = earlier or PlanTerms()
        if self.family:
            source = family_terms(self.family).source_sha256
            kept = PlanTerms(family=self.family, rounds=kept.rounds, source_sha256=source)
        return kept.model_copy(update={"rounds": self.rounds or kept.rounds})

    @property
    def is_planned(self) -> bool:
        """Whether the shipped planner trades the data, a sample of many stocks, as one portfolio."""
        return self.agent is None and self.data[0] in PANELS

    @property
    def has_new_terms(self) -> bool:
        """Whether a term is set that release 0.1.0 does not know, so that it must not replay the run."""
        config, is_own = self.config, self.family not in {"", *FAMILIES}
        has_limits = bool(config.risk.rules) or config.economics.is_set
        return has_limits or bool(self.calendar) or self.halts_silent_symbols or is_own

    @property
    def silence(self) -> int:
        """The limit on the missing bars of a feed. 0 for none."""
        if self.silent_after is not None:
            return self.silent_after
        return SILENT_AFTER if self.mode == "paper" else 0

    @property
    def halts_silent_symbols(self) -> bool:
        """Whether a symbol can be silent while another one has a bar."""
        return self.silence > 0 and (len(self.data) > 1 or self.data[0] in PANELS)

    @property
    def rate_text(self) -> str:
        """The given price of one US dollar. Empty without one."""
        return "" if self.inference_rate is None else self.inference_rate.text

    @property
    def currency(self) -> str:
        """The quote currency of the data."""
        return DOLLARS[0] if self.data[0] in PANELS else USDT

    @property
    def mode(self) -> RunMode:
        """The mode: simulated time in a backtest, or bars as they arrive on paper."""
        return self.config.mode

    @property
    def workers(self) -> int:
        """The maximum number of concurrent calls."""
        # One for a local model, because it answers one call at a time, and the other calls would only wait
        # for it.
        is_local = any(row.adapter_of(name) == LLMProvider.LOCAL for name, row in self.asked.items())
        return 1 if is_local else self.config.concurrency

    @property
    @override
    def workflows(self) -> tuple[EnvelopeWorkflow, ...]:
        """The workflows whose models the session asks."""
        if self.agent is not None:
            return self.agent.workflows
        return (EnvelopeWorkflow.PLANNING,) if self.is_planned else choices.WORKFLOWS

    @property
    def hosted(self) -> frozenset[str]:
        """The names of the asked providers that are reached over a network."""
        return frozenset(
            name
            for name, row in self.asked.items()
            if row.adapter_of(name) != LLMProvider.LOCAL and is_live(name, row)
        )

    @property
    def is_repeatable(self) -> bool:
        """Whether the run can be repeated: a backtest without models and without other processes."""
        return self.mode == "backtest" and not self.asks_models and not self.is_remote

    @property
    def most_bars(self) -> int | None:
        """The maximum number of bars of each symbol, including warm-up bars, or None."""
        return None if self.bars is None else self.warm_up + self.bars

    @property
    def tenant_row(self) -> TenantConfig:
        """The tenant's row in the configuration."""
        return self.config.tenants.get(self.tenant, TenantConfig())

    @property
    def budget_is_given(self) -> bool:
        """Whether a budget was given, as an option or in the configuration."""
        return self.budget_usd is not None or self.tenant_row.budget_usd is not None

    @property
    def budget(self) -> Decimal:
        """The budget in dollars."""
        if self.budget_usd is not None:
            return self.budget_usd
        row = self.tenant_row.budget_usd
        return DEFAULT_BUDGET_USD if row is None else row

    @property
    def budget_nusd(self) -> int:
        """The budget in whole nano-dollars, rounded down."""
        return int(self.budget * NANO)

    @property
    def limit(self) -> Limit:
        """The tenant's limit: on its total spending, or on its spending in the window of its row."""
        row = self.tenant_row
        is_the_rows = self.budget_usd is None and (row.budget_usd is not None or row.calls is not None)
        calls = self.max_calls if self.max_calls is not None else row.calls
        window = row.window if is_the_rows else Window.NONE
        return Limit(ScopeKind.TENANT, ANY, window, nusd=self.budget_nusd, calls=calls)


def load_run_config(
    path: Path | None = None,
    *,
    provider: str = "",
    base_url: str | None = None,
    ledger_url: str | None = None,
    bus_url: str | None = None,
    own_model: ModelConfig | None = None,
    flags: Mapping[str, str] = MappingProxyType({}),
    **overrides: object,
) -> PlatformConfig:
    """Return the configuration of a run, loaded by `load_config`. The default mode is a backtest.

    A built-in `provider` is added even if no file has it, with the URL `base_url` and the model row
    `own_model`.

    Raises:
        OptionError: If a URL or a model row is given for a provider without a server.
        ConfigError: If the configuration is wrong.

    """
    if base_url is not None and provider in (
        *choices.WITHOUT_MODEL,
        LLMProvider.LOCAL,
        choices.CONFIGURED,
        "",
    ):
        raise OptionError(
            "--base-url",
            "given",
            f"the URL of a server with --provider {choices.listed(choices.HOSTED)}, or a configured one",
        )
    if provider in choices.MODELS or base_url is not None:
        overrides["providers"] = {provider: {} if base_url is None else {"base_url": base_url}}
    if ledger_url:
        overrides["ledger"] = {"url": ledger_url}
    if bus_url:
        overrides["bus"] = {"url": bus_url}
    config = load_config(path, flags={**flags, "providers": "--base-url"}, **overrides)
    config = choices.with_model(config, provider, own_model)
    is_left_out = config.origin_of("mode") == "default"
    return config.model_copy(update={"mode": "backtest"}) if is_left_out else config


def warm_up_bars(data: Sequence[str], agent: OwnAgent | None = None) -> int:
    """Return the number of warm-up bars before those that `--bars` counts.

    A planner of stocks and an agent of the user have no such bars.
    """
    return 0 if agent is not None or (data and data[0] in PANELS) else WARM_UP_BARS


WARM_UP_BARS = 12 * 26 - 1
"""The number of five-minute bars before the first bar at which an analyst can be asked.

A trend needs 26 hours: the average of 21 hours, five hours apart.
"""


def plan_on_record(manifest: RunManifest) -> PlanTerms | None:
    """Return the recorded terms of a run's plan, or None if there are none.

    Raises:
        OptionError: If this release does not support the terms.

    """
    if manifest.plan is None:
        return None
    try:
        return PlanTerms.model_validate(manifest.plan)
    except ValidationError as e:
        was = f"{dict(manifest.plan)} in the manifest of run {manifest.run_number}"
        raise OptionError("plan", was, "a family and a number of rounds, as `run` wrote them") from e
