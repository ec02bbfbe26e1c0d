"""Run a trading session."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from agentic_trading.cli import options as cli_options
from agentic_trading.desk.cli.report import Rate

FLAGS = {
    "mode": "--mode",
    "concurrency": "--workers",
    "ledger": "--ledger",
    "bus": "--bus",
    "policy": "--policy",
    "sign_as": "--principal",
}
"""The options that override a key of the configuration, by key."""


def sample_names() -> list[str]:
    """Return the names that the shell completes after `--data`."""
    from agentic_trading.desk.market.samples import SAMPLES

    return list(SAMPLES)


def provider_names() -> list[str]:
    """Return the names that the shell completes after `--provider`, without a configuration."""
    from agentic_trading.operate.choices import PROVIDERS

    return list(PROVIDERS)


MarketData = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="NAMES",
        help="Market data: samples, CSV files, or - for standard input, separated by commas. Write SYMBOL= before a source "
        "to set its symbol.",
        autocompletion=sample_names,
    ),
]
TimeframeOption = Annotated[
    str,
    typer.Option(
        "--timeframe",
        metavar="5m",
        help="Length of the bars in files and on standard input. [default: found from the times of the bars]",
    ),
]
ColumnsOption = Annotated[
    str,
    typer.Option(
        "--columns",
        metavar="FIELD=NAME,…",
        help="Names of columns that are not usual ones, such as open_time=unix,volume=Shares.",
    ),
]
CalendarOption = Annotated[
    str,
    typer.Option(
        "--calendar",
        metavar="NAME",
        help="Exchange whose hours decide which bars are missing, such as XNYS, from exchange_calendars. "
        "[default: the market never closes]",
    ),
]
Mode = Annotated[
    Literal["backtest", "paper"] | None,
    typer.Option(
        "--mode",
        help="backtest runs in simulated time, paper uses bars as they arrive. [default: the configuration's, else backtest]",
    ),
]
ProviderOption = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="NAME",
        autocompletion=provider_names,
        help="Provider of every call: rules (built in), recorded (an earlier session), a provider with models (see `models list`), "
        "or a provider of the configuration. config uses its [models]. [default: config if it has [models], else rules]",
    ),
]
Record = Annotated[
    bool, typer.Option("--record", help="Allow live model calls in a backtest. The answers are recorded.")
]
RecordedFrom = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="DIR",
        help="With --provider recorded: the folder of the session whose answers are used, or a shipped session: smollm2, faults.",
    ),
]
MaxCalls = Annotated[
    int | None,
    typer.Option(
        "--max-calls",
        metavar="N",
        help="Maximum number of calls, including retries. [default: the configuration's, if any]",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Run a model without asking you to confirm the cost.")]
Bars = Annotated[
    int | None,
    typer.Option(
        "--bars",
        metavar="N",
        help="Maximum number of bars of each symbol, without warm-up bars. [default: all]",
    ),
]
BudgetUsd = Annotated[
    Decimal | None,
    typer.Option(
        "--budget-usd",
        metavar="X",
        parser=cli_options.usd_amount,
        help="Maximum cost of all calls, in US dollars. [default: the configuration's, else the limit at --ledger, else 5]",
    ),
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="Server of the ledger that workers share, redis://HOST:PORT. [default: the configuration's, else a ledger of this run]",
    ),
]
HowEstimated = Annotated[
    Literal["bound", "exact"],
    typer.Option(
        "--estimate",
        help="How the cost to reserve for a call is found: bound uses the size of the request in bytes, exact asks the provider to "
        "count tokens, with an additional call.",
    ),
]
PrincipalOption = Annotated[
    str,
    typer.Option(
        "--principal",
        metavar="NAME",
        help="Principal of --policy that the agents act as. [default: sign_as of the configuration]",
    ),
]
PolicyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Policy file: the permissions and rates of each principal. [default: the configuration's]",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Maximum number of concurrent calls. [default: the configuration's, else 4]",
    ),
]
Inject = Annotated[
    str,
    typer.Option(
        "--inject",
        metavar="FAULTS",
        help="Faults to inject into answers, such as malformed=5%,timeout=2%,refusal=1%,truncated=1%. [default: none]",
    ),
]
Seed = Annotated[
    str, typer.Option("--seed", metavar="TEXT", help="Seed that selects the calls that the faults hit.")
]
PlanFamily = Annotated[
    str,
    typer.Option(
        "--family",
        metavar="NAME",
        help="Strategy family of the plans, for a sample of many stocks: momentum, mean_reversion, volatility, or "
        "one of an installed package. [default: momentum]",
    ),
]
PlanRounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        metavar="N",
        help="Number of parameter sets that each plan asks for, for a sample of many stocks. [default: 5]",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder of the session. [default: a folder in AGENTIC_RUNS, named after the data]",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the last run in --out after its last closed bar.")
]
AutoResume = Annotated[
    bool,
    typer.Option("--auto-resume", help="As --resume if --out has a run, otherwise begin one. For services."),
]
Grace = Annotated[
    str,
    typer.Option(
        "--grace",
        metavar="DURATION",
        help="In mode paper, wait this long after a close for the bars of other symbols on standard input.",
    ),
]
SilentAfter = Annotated[
    int | None,
    typer.Option(
        "--silent-after",
        metavar="N",
        min=0,
        help="Halt the entries of a symbol after N missing bars, until its next bar. 0: never. "
        "[default: 3 in mode paper, 0 in a backtest]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON, without a progress bar.")]

AgentPath = Annotated[
    str,
    typer.Option(
        "--agent",
        metavar="MODULE:CLASS",
        help="Your own agent, from an installed package or the working directory, or a shipped one: cmt, planner. Its module is run. "
        "[default: the shipped agent of the data]",
    ),
]
AgentConfig = Annotated[
    Path | None,
    typer.Option("--agent-config", metavar="FILE", help="TOML file with the settings of --agent."),
]

MinNetPnl = Annotated[
    Decimal | None,
    typer.Option(
        "--min-net-pnl",
        metavar="X",
        parser=cli_options.decimal_number,
        help="Exit code 1 if the P&L net of inference is below this.",
    ),
]
MaxInferenceShare = Annotated[
    Decimal | None,
    typer.Option(
        "--max-inference-share",
        metavar="X",
        parser=cli_options.decimal_number,
        help="Exit code 1 if inference costs more than this share of the P&L before it, such as 0.2.",
    ),
]
Page = Annotated[bool, typer.Option("--report", help="Also write the page of the run, as `report` does.")]


def run_command(
    *,
    data: MarketData,
    timeframe: TimeframeOption = "",
    columns: ColumnsOption = "",
    calendar: CalendarOption = "",
    agent: AgentPath = "",
    agent_config: AgentConfig = None,
    config: cli_options.ConfigFile = None,
    mode: Mode = None,
    provider: ProviderOption = "",
    model: cli_options.Model = "",
    base_url: cli_options.BaseUrl = None,
    price: cli_options.PriceOption = None,
    context: cli_options.ContextTokens = None,
    record: Record = False,
    recorded_from: RecordedFrom = None,
    bars: Bars = None,
    budget_usd: BudgetUsd = None,
    max_calls: MaxCalls = None,
    workers: Workers = None,
    inject: Inject = "",
    seed: Seed = "1",
    family: PlanFamily = "",
    rounds: PlanRounds = None,
    out: Out = None,
    resume: Resume = False,
    auto_resume: AutoResume = False,
    grace: Grace = "30s",
    silent_after: SilentAfter = None,
    answers_from: cli_options.AnswersFrom = None,
    ledger: LedgerUrl = None,
    bus: cli_options.RunBus = None,
    policy: PolicyFileOption = None,
    principal: PrincipalOption = "",
    estimate: HowEstimated = "bound",
    inference_rate: Rate = None,
    min_net_pnl: MinNetPnl = None,
    max_inference_share: MaxInferenceShare = None,
    yes: Yes = False,
    report: Page = False,
    as_json: AsJson = False,
) -> None:
    """Run a trading session: ask models within a budget, fill orders on paper, and record everything.

    A model is asked only after you confirm the estimated cost. Ctrl-C stops the run after calls in flight.
    """
    from agentic_trading.desk.cli.run_output import run_and_print
    from agentic_trading.desk.session.options import RunOptions
    from agentic_trading.operate.choices import CONFIGURED, own_model_row

    own: dict[str, Any] = {"provider": provider, "base_url": base_url, "ledger_url": ledger, "bus_url": bus}
    own |= {"mode": mode, "concurrency": workers, "policy": policy, "sign_as": principal or None}
    session: dict[str, Any] = {"inject": inject, "seed": seed, "rounds": rounds}
    session |= {"bars": bars, "budget_usd": budget_usd, "max_calls": max_calls, "estimate": estimate}
    runs, loaded = _started(config, own_model=own_model_row(model, price, context), **own)
    session |= {"model": model, "timeframe": timeframe, "silent_after": silent_after, "calendar": calendar}
    session |= _traded(names := names_in(data), columns, agent, agent_config, family, bars)
    session |= {"record": record or base_url is not None, "recorded_from": recorded_from}
    session |= {"provider": provider or (CONFIGURED if loaded.models else "rules")}
    session |= {"grace": cli_options.duration_in("--grace", grace), "inference_rate": inference_rate}
    session |= _placed(out or runs / folder_for(names), resume, auto_resume, answers_from)
    gate = _gate(min_net_pnl, max_inference_share)
    run_and_print(RunOptions(config=loaded, **session), yes=yes, as_json=as_json, page=report, gate=gate)


def _placed(out: Path, resume: bool, auto_resume: bool, answers_from: list[Path] | None) -> dict[str, Any]:  # noqa: FBT001 - the flags of `run`
    """Return the folder of the session, and whether its last run is continued."""
    from agentic_trading.operate.session_folder import SessionFolder

    resumes = resume or (auto_resume and SessionFolder(out).last_run() > 0)
    return {"out": out, "resume": resumes, "answers_from": tuple(answers_from or ())}


def _gate(min_net_pnl: Decimal | None, max_share: Decimal | None) -> Any:
    """Return the conditions on the result."""
    from agentic_trading.desk.inference import InferenceGate

    return InferenceGate(min_net_pnl, max_share)


def _traded(
    names: tuple[str, ...], columns: str, agent: str, config: Path | None, family: str, bars: int | None
) -> dict[str, Any]:
    """Return the options of the data, and of the agent and the family that trade it."""
    from agentic_trading.desk.session.agents import named_agent
    from agentic_trading.desk.session.columns import named_columns
    from agentic_trading.desk.session.families import named_family
    from agentic_trading.desk.session.options import warm_up_bars

    own = named_agent(agent, config, names)
    # Warm-up bars come first, so that the first of --bars can be decided on.
    session = {"data": names, "columns": named_columns(columns), "family": named_family(family)}
    return session | {"agent": own, "warm_up": warm_up_bars(names, own) if bars else 0}


def _started(path: Path | None, **given: Any) -> tuple[Path, Any]:
    """Return the folder of all runs and the configuration.

    The program's log leaves out the secrets of the configuration.
    """
    from agentic_trading.cli.settings import configure_logging, start
    from agentic_trading.desk.session.options import load_run_config

    settings = start()
    loaded = load_run_config(path, flags=FLAGS, **given)
    configure_logging(settings.log_level, settings.log_format, loaded.redaction)
    return settings.runs, loaded


def names_in(data: str) -> tuple[str, ...]:
    """Return the names in `--data`, which are separated by commas."""
    return tuple(name.strip() for name in data.split(",") if name.strip())


def folder_for(names: tuple[str, ...]) -> str:
    """Return the default folder name of a session, made from the names of its data."""
    sources = [name.rpartition("=")[2] for name in names]
    return "+".join("stdin" if source == "-" else Path(source).name.partition(".")[0] for source in sources)
