"""Propose, show, generate and backtest strategies."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cli import options as cli_options
from agentic_trading.desk.cli.run import Record, Yes, provider_names
from agentic_trading.errors import require_extra

app = typer.Typer(
    help="Strategies: propose parameters, generate code, backtest.",
    no_args_is_help=True,
)


def panel_names() -> list[str]:
    """Return the names that the shell completes after `--data`."""
    from agentic_trading.desk.market.samples import SP500

    return [SP500.name]


ParamsFile = Annotated[
    Path,
    typer.Argument(
        metavar="PARAMS.json", help="JSON file with a set of parameters, or with a model's complete answer."
    ),
]
PanelData = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="NAME|PATH",
        help="Daily prices of many stocks: the shipped panel, a file (CSV or Parquet), or a folder with panel.toml.",
        autocompletion=panel_names,
    ),
]
FamilyName = Annotated[
    str,
    typer.Option(
        "--family",
        metavar="NAME",
        help="Strategy family: momentum, mean_reversion, volatility, or one of an installed package.",
    ),
]
OwnFamily = Annotated[
    str,
    typer.Option("--family", metavar="NAME", help="Family of an installed package, if the set is of one."),
]
Rounds = Annotated[
    int, typer.Option("--rounds", metavar="N", min=1, help="Number of parameter sets to ask for.")
]
Searches = Annotated[
    int,
    typer.Option(
        "--random",
        metavar="N",
        min=0,
        help="Number of random searches to compare with, each over as many sets.",
    ),
]
Seed = Annotated[str, typer.Option("--seed", metavar="TEXT", help="Seed of the random searches.")]
Budget = Annotated[
    Decimal,
    typer.Option(
        "--budget-usd",
        metavar="X",
        parser=cli_options.usd_amount,
        help="Maximum cost of all calls, in US dollars.",
    ),
]
Costs = Annotated[
    str,
    typer.Option("--costs", metavar="FEE,SLIPPAGE", help="Cost of a trade, in basis points of its value."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "--store",
        metavar="DIR",
        help="Folder of the log. [default: a folder in AGENTIC_RUNS, named after the data]",
    ),
]
ProviderOption = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="NAME",
        autocompletion=provider_names,
        help="Provider of every call: rules (built in), recorded, a provider with models (see `models list`), "
        "or a provider of the configuration. [default: rules]",
    ),
]
RecordedFrom = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="DIR", help="With --provider recorded: the folder whose recorded answers are used."
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.png", help="Draw the equity next to that of equal weight."),
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Check the code against the gate, run it, and test it for look-ahead."),
]


@app.command("propose", short_help="Ask a model for sets, run them, choose one.")
def propose_command(
    *,
    data: PanelData = "sp500-sample",
    family: FamilyName = "momentum",
    rounds: Rounds = 10,
    config: cli_options.ConfigFile = None,
    provider: ProviderOption = "",
    model: cli_options.Model = "",
    base_url: cli_options.BaseUrl = None,
    price: cli_options.PriceOption = None,
    context: cli_options.ContextTokens = None,
    record: Record = False,
    recorded_from: RecordedFrom = None,
    budget_usd: Budget = Decimal(5),
    costs: Costs = "10,5",
    random: Searches = 20,
    seed: Seed = "1",
    out: Out = None,
    plot: Plot = None,
    yes: Yes = False,
    as_json: cli_options.AsJson = False,
) -> None:
    """Ask a model for sets of parameters, run each on past prices, and choose the best one by the first half.

    The chosen set is reported on the second half, next to all stocks in equal weight and the median of random
    searches. Exit code 1 means that no set could be chosen.
    """
    from agentic_trading.cli.settings import configured, start

    configured(config)
    _require_desk(plot=plot)
    from agentic_trading.desk.cli.strategy_output import costs_in, propose_and_print
    from agentic_trading.desk.session.strategy import ProposeOptions
    from agentic_trading.operate.choices import own_model_row

    options = ProposeOptions(
        data=data,
        out=out or start().runs / f"{Path(data).name.partition('.')[0]}-strategies",
        family=family,
        rounds=rounds,
        config=config,
        provider=provider,
        recorded_from=recorded_from,
        model=model,
        base_url=base_url,
        own_model=own_model_row(model, price, context),
        record=record or base_url is not None,
        budget_usd=budget_usd,
        costs=costs_in(costs),
        searches=random,
        seed=seed,
    )
    propose_and_print(options, plot=plot, yes=yes, as_json=as_json)


@app.command("show", short_help="Explain a set, or its mistakes.")
def show_set(
    params: ParamsFile,
    *,
    data: PanelData = "sp500-sample",
    family: OwnFamily = "",
    as_json: cli_options.AsJson = False,
) -> None:
    """Print the meaning of each parameter of a set, and its hashes.

    For an invalid set, print each mistake with the allowed values.
    """
    _require_desk()
    from agentic_trading.desk.cli.strategy_output import show_params

    show_params(params, data=data, family=family, as_json=as_json)


@app.command("code", short_help="Print the code of a set.")
def show_code(
    params: ParamsFile, *, check: Check = False, data: PanelData = "sp500-sample", family: OwnFamily = ""
) -> None:
    """Print the code that a template generates from a set.

    With --check, also print the results of its checks on standard error.
    """
    _require_desk()
    from agentic_trading.desk.cli.strategy_output import print_code

    print_code(params, data=data, family=family, check=check)


@app.command("backtest", short_help="Run a set on past prices.")
def backtest_set(
    params: ParamsFile,
    *,
    data: PanelData = "sp500-sample",
    family: OwnFamily = "",
    costs: Costs = "10,5",
    plot: Plot = None,
    as_json: cli_options.AsJson = False,
) -> None:
    """Run a set on past prices, next to all stocks in equal weight, with the same two halves as `propose`."""
    _require_desk(plot=plot)
    from agentic_trading.desk.cli.strategy_output import backtest_and_print, costs_in

    backtest_and_print(params, data=data, family=family, costs=costs_in(costs), plot=plot, as_json=as_json)


def _require_desk(*, plot: Path | None = None) -> None:
    """Raise `MissingExtraError` if a package that the command needs is not installed."""
    # Checked first, because otherwise calls would be paid for before their code fails to render or the chart
    # to draw.
    require_extra("numpy", *(("matplotlib",) if plot else ()))
