"""What the commands of `strategy` do: search, show, check and run sets of parameters, and draw an equity."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from agentic_trading.cli.exits import ExitCode, confirm, say, stop
from agentic_trading.cli.output import PlainConsole, print_table, show_json, terminal_is_watching
from agentic_trading.desk.cli import strategy_tables
from agentic_trading.desk.cli.run_output import NOT_STARTED
from agentic_trading.desk.metrics import deflated_sharpe
from agentic_trading.desk.planning.agent import Plan, Round
from agentic_trading.desk.planning.allowlist import code_problems
from agentic_trading.desk.planning.backtest import TradeCosts
from agentic_trading.desk.planning.evaluation import RejectedSet
from agentic_trading.desk.planning.promises import broken_by_look_ahead
from agentic_trading.desk.planning.sandbox import SandboxJob
from agentic_trading.desk.planning.schema import EVERYTHING
from agentic_trading.desk.planning.template import TEMPLATES
from agentic_trading.desk.session.strategy import (
    ProposeOptions,
    Scene,
    check_provider,
    opened_evaluator,
    read_set,
    run_set,
    search_sets,
)
from agentic_trading.llm.errors import NoDecision
from agentic_trading.operate.choices import pluralize
from agentic_trading.platform.errors import OptionError

STRATEGY: Final = "#1b6ca8"
BESIDE: Final = "#8a8a8a"


def costs_in(text: str) -> TradeCosts:
    """Return the costs in `FEE,SLIPPAGE`; raises `OptionError` for what is none."""
    try:
        fee, slippage = (float(part) for part in text.split(","))
    except ValueError:
        fee = slippage = -1.0
    if not (fee >= 0 and slippage >= 0 and fee + slippage < 10_000):
        allowed = "two numbers of basis points, 0 or more and below 10000 together, such as 10,5"
        raise OptionError("--costs", repr(text), allowed)
    return TradeCosts(fee, slippage)


# --- propose ----------------------------------------------------------------------------------------------


def propose_and_print(options: ProposeOptions, *, plot: Path | None, yes: bool, as_json: bool) -> None:
    """Search, once the user confirms what a model may cost, and print what came of it."""
    check_plot(plot)
    if options.asks_models:
        is_free = check_provider(options)
        asked = f"{options.provider}: {pluralize(options.rounds, 'round')} of at most 6 answers"
        most = "at most 0 USD" if is_free else f"never more than --budget-usd {options.budget_usd}"
        say(f"{asked}, {most}.", err=True)
        confirm("the cost", yes=yes or is_free, otherwise=NOT_STARTED)
    try:
        with _bar(is_drawn=terminal_is_watching() and not as_json) as (on_round, on_random):
            found = search_sets(options, on_round=on_round, on_random=on_random)
    except KeyboardInterrupt:
        stop(ExitCode.INTERRUPTED, "ended at once; what was answered is on disk")
    if as_json:
        show_json(strategy_tables.proposals_json(found))
    else:
        print_table(*strategy_tables.proposals_lines(found))
    if plot is not None and isinstance(found.plan, Plan):
        draw_equity(plot, found.scene, found.plan.champion.evaluation.equity)
    if isinstance(found.plan, NoDecision):
        raise typer.Exit(ExitCode.FOUND_WRONG)


@contextmanager
def _bar(*, is_drawn: bool) -> Iterator[tuple[Callable[[Round], None], Callable[[int], None]]]:
    """Draw a bar on standard error: of the random searches, whose number is known; gone at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ProgressBar(
        *columns, console=PlainConsole(stderr=True), transient=True, disable=not is_drawn
    ) as drawn:
        task = drawn.add_task("rounds", total=None)

        def on_round(_played: Round) -> None:
            drawn.advance(task)

        def on_random(sets: int) -> None:
            if drawn.tasks[task].description == "rounds":
                drawn.reset(task, description="random sets", total=sets)
            else:
                drawn.advance(task, sets)

        yield on_round, on_random


# --- one set ----------------------------------------------------------------------------------------------


def show_params(path: Path, *, as_json: bool) -> None:
    """Print what a set means; raises what `read_set` does."""
    params = read_set(path)
    if as_json:
        effective = params.effective.model_dump()
        show_json({
            "params": params.model_dump(),
            "effective": effective,
            **strategy_tables.hashes_of(params),
        })
    else:
        print_table(*strategy_tables.set_lines(params))


def print_code(path: Path, *, data: str, check: bool) -> None:
    """Print the code of a set, and with `check` what its checks say; the command ends with 1 if one of them fails."""
    if not check:
        params = read_set(path, EVERYTHING)
        typer.echo(TEMPLATES[params.strategy_type].generate_code(params), nl=False)
        return
    with opened_evaluator(data, TradeCosts()) as (evaluator, sandbox):
        params = read_set(path, evaluator.offered)
        code = TEMPLATES[params.strategy_type].generate_code(params, data_sha256=evaluator.data_sha256)
        typer.echo(code, nl=False)
        wrong = [problem.text for problem in code_problems(code)]
        say(_checked("gate", wrong), err=True)
        if not wrong:  # what the gate refuses is never run
            outcome = evaluator.evaluate(params)
            refused = [f"{outcome.by}: {outcome.detail}"] if isinstance(outcome, RejectedSet) else []
            say(_checked("run and promises", refused), err=True)
            job = SandboxJob.of(code, params, evaluator.panel.days)
            ahead = [each.message for each in broken_by_look_ahead(sandbox.run, job)]
            say(_checked("look-ahead", ahead), err=True)
            wrong = [*refused, *ahead]
    if wrong:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _checked(name: str, wrong: Sequence[str]) -> str:
    return f"{name}: {'; '.join(wrong) or 'passed'}"


def backtest_and_print(path: Path, *, data: str, costs: TradeCosts, plot: Path | None, as_json: bool) -> None:
    """Run the set in a file, and print its figures beside equal weight."""
    check_plot(plot)
    found = run_set(path, data, costs)
    deflated = deflated_sharpe(found.evaluation.returns(found.scene.window), [])
    if as_json:
        show_json({
            **strategy_tables.set_json(found.params, found.evaluation),
            **strategy_tables.scene_json(found.scene),
            "deflated_sharpe": deflated,
        })
    else:
        print_table(*strategy_tables.backtest_lines(found, deflated))
    if plot is not None:
        draw_equity(plot, found.scene, found.evaluation.equity)


# --- the picture --------------------------------------------------------------------------------------


def draw_equity(path: Path, scene: Scene, equity: Sequence[float]) -> None:
    """Draw an equity beside all stocks in equal weight, with the halves and the drawdown below, as a PNG.

    Raises `OptionError` for a place that cannot be written to.
    """
    from matplotlib.figure import Figure  # takes a second to load

    window = scene.window
    days = scene.panel.days[window.start :]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot(days, scene.hold, color=BESIDE, linewidth=1.2, label="equal weight")
    upper.plot(days, equity, color=STRATEGY, linewidth=1.6, label="strategy")
    lower.fill_between(days, _drawdown(scene.hold), 0, color=BESIDE, alpha=0.25, linewidth=0)
    lower.fill_between(days, _drawdown(equity), 0, color=STRATEGY, alpha=0.45, linewidth=0)
    for axes in (upper, lower):
        axes.axvline(scene.panel.days[window.split], color="black", linewidth=0.9, linestyle="--")
        axes.grid(alpha=0.25)
        axes.margins(x=0.01, y=0.1)
    for place, text in ((0.25, "chosen on this half"), (0.75, "reported on this one")):
        upper.text(place, 0.02, text, transform=upper.transAxes, ha="center", color="dimgray")
    upper.set_title(f"{scene.panel.name}: what 1 became", loc="left")
    upper.set_ylabel("equity")
    upper.legend(loc="upper left", frameon=False)
    lower.set_ylabel("drawdown, %")
    figure.autofmt_xdate()
    try:
        figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
    except OSError as e:
        raise OptionError("--plot", f"{path} ({e.strerror})", "a file that can be written") from e


def check_plot(path: Path | None) -> None:
    """Raise `OptionError` for a picture of another kind, before anything is asked or run."""
    if path is not None and (path.suffix.lower() != ".png" or not path.parent.is_dir()):
        raise OptionError("--plot", str(path), "a file that ends in .png, in a folder that is there")


def _drawdown(equity: Sequence[float]) -> list[float]:
    """Return how far below its peak so far each value is, in percent."""
    peaks = accumulate(equity, max)
    return [100 * (value / peak - 1) for value, peak in zip(equity, peaks, strict=True)]
