"""Run a trading session."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from agentic_trading.cli import options as cli_options

FLAGS = {
    "mode": "--mode",
    "concurrency": "--workers",
    "ledger": "--ledger",
    "bus": "--bus",
    "policy": "--policy",
    "sign_as": "--principal",
}
"""The options that say what the configuration says too."""


def sample_names() -> list[str]:
    """Return what the shell may complete after `--data`."""
    from agentic_trading.desk.market.samples import SAMPLES

    return list(SAMPLES)


def provider_names() -> list[str]:
    """Return what `--provider` may be without a configuration, for a shell that completes it."""
    from agentic_trading.operate.choices import PROVIDERS

    return list(PROVIDERS)


MarketData = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="NAMES",
        help="Samples, CSV files, or - for standard input, with commas between; SYMBOL= may stand before each.",
        autocompletion=sample_names,
    ),
]
TimeframeOption = Annotated[
    str,
    typer.Option(
        "--timeframe",
        metavar="5m",
        help="Length of the bars in files and on standard input; if left out, their shortest step shows it.",
    ),
]
Mode = Annotated[
    Literal["backtest", "paper"] | None,
    typer.Option(
        "--mode",
        help="Simulated time, or bars as they come; if left out, the configuration's, else backtest.",
    ),
]
ProviderOption = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="NAME",
        autocompletion=provider_names,
        help="Provider of every call: rules (built in), recorded (an earlier session), one with models (see `models list`), "
        "one of the configuration; config asks its [models], as without this option if it has any.",
    ),
]
Record = Annotated[
    bool, typer.Option("--record", help="Let a backtest ask over a network; its answers are recorded.")
]
RecordedFrom = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="DIR",
        help="The session whose answers --provider recorded gives, or smollm2, which is shipped.",
    ),
]
MaxCalls = Annotated[
    int | None,
    typer.Option("--max-calls", metavar="N", help="At most N calls; retries count."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Run a model without asking for confirmation.")]
Bars = Annotated[
    int | None,
    typer.Option(
        "--bars",
        metavar="N",
        help="At most N bars of each symbol, not counting warm-up bars.",
    ),
]
BudgetUsd = Annotated[
    Decimal | None,
    typer.Option(
        "--budget-usd",
        metavar="X",
        parser=cli_options.usd_amount,
        help="What all calls may cost, in dollars; if left out, the configuration's, the limit at --ledger, or 5.",
    ),
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="A server whose ledger workers share, redis://HOST:PORT; if left out, the configuration's, else one of the run's own.",
    ),
]
HowEstimated = Annotated[
    Literal["bound", "exact"],
    typer.Option(
        "--estimate",
        help="How much is reserved for a call: by the bytes of the request, or by the provider's own count, one call more.",
    ),
]
PrincipalOption = Annotated[
    str,
    typer.Option(
        "--principal", metavar="NAME", help="Principal of --policy the agents run as; if left out, sign_as."
    ),
]
PolicyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--policy", metavar="FILE", help="Who may do what, and how fast; if left out, the configuration's."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", help="How many calls at once; if left out, the configuration's, else 4."
    ),
]
Inject = Annotated[
    str,
    typer.Option(
        "--inject",
        metavar="FAULTS",
        help="Faults to inject: malformed=5%,timeout=2%,refusal=1%,truncated=1%.",
    ),
]
Seed = Annotated[str, typer.Option("--seed", metavar="TEXT", help="Decides which calls the faults hit.")]
PlanFamily = Annotated[
    str,
    typer.Option(
        "--family",
        metavar="NAME",
        help="Of the plans over a sample of many stocks: momentum, mean_reversion or volatility; if left out, momentum.",
    ),
]
PlanRounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        metavar="N",
        help="How many sets each of these plans asks for; if left out, 5.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where the session goes; if left out, below AGENTIC_RUNS."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on after the last closed bar of the last run in --out.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON, without a progress bar.")]


def run_command(
    *,
    data: MarketData,
    timeframe: TimeframeOption = "",
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
    answers_from: cli_options.AnswersFrom = None,
    ledger: LedgerUrl = None,
    bus: cli_options.RunBus = None,
    policy: PolicyFileOption = None,
    principal: PrincipalOption = "",
    estimate: HowEstimated = "bound",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Run a trading session: bars in, calls under budget, paper fills out, everything on record.

    A model is asked only after you confirm the estimated cost. Ctrl-C stops after calls in flight.
    """
    from agentic_trading.desk.cli.run_output import run_and_print
    from agentic_trading.desk.session.options import RunOptions, warm_up_bars
    from agentic_trading.operate.choices import CONFIGURED, own_model_row

    own: dict[str, Any] = {"provider": provider, "base_url": base_url, "ledger_url": ledger, "bus_url": bus}
    own |= {"mode": mode, "concurrency": workers, "policy": policy, "sign_as": principal or None}
    session: dict[str, Any] = {"inject": inject, "seed": seed, "family": family, "rounds": rounds}
    session |= {"bars": bars, "budget_usd": budget_usd, "max_calls": max_calls, "estimate": estimate}
    runs, loaded = _started(config, own_model=own_model_row(model, price, context), **own)
    options = RunOptions(
        data=(names := names_in(data)),
        out=out or runs / folder_for(names),
        config=loaded,
        provider=provider or (CONFIGURED if loaded.models else "rules"),
        recorded_from=recorded_from,
        warm_up=warm_up_bars(names) if bars else 0,
        resume=resume,
        answers_from=tuple(answers_from or ()),
        model=model,
        timeframe=timeframe,
        record=record or base_url is not None,
        **session,
    )
    run_and_print(options, yes=yes, as_json=as_json)


def _started(path: Path | None, **given: Any) -> tuple[Path, Any]:
    """Return the folder of all runs, and the configuration: what it keeps secret stays out of the log."""
    from agentic_trading.cli.settings import configure_logging, start
    from agentic_trading.desk.session.options import load_run_config

    settings = start()
    loaded = load_run_config(path, flags=FLAGS, **given)
    configure_logging(settings.log_level, settings.log_format, loaded.redaction)
    return settings.runs, loaded


def names_in(data: str) -> tuple[str, ...]:
    """Return the names that stand in `--data`, with commas between."""
    return tuple(name.strip() for name in data.split(",") if name.strip())


def folder_for(names: tuple[str, ...]) -> str:
    """Return the folder of a session that was given none: named after its data."""
    sources = [name.rpartition("=")[2] for name in names]
    return "+".join("stdin" if source == "-" else Path(source).name.partition(".")[0] for source in sources)
