"""The `strategy` commands and their output: search, show, check and run sets, and draw an equity."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from agentic_trading.cli import output
from agentic_trading.cli.exits import ExitCode, confirm, say, stop
from agentic_trading.desk.cli.run_output import NOT_STARTED
from agentic_trading.desk.metrics import DAYS_PER_YEAR, Performance, deflated_sharpe
from agentic_trading.desk.planning.agent import Plan, Round
from agentic_trading.desk.planning.allowlist import code_problems
from agentic_trading.desk.planning.backtest import TradeCosts
from agentic_trading.desk.planning.evaluation import Evaluation, Halves, RejectedSet
from agentic_trading.desk.planning.families import template_of
from agentic_trading.desk.planning.params import Family, StrategyParams, family_terms, grid_of
from agentic_trading.desk.planning.promises import broken_by_look_ahead
from agentic_trading.desk.planning.sandbox import SandboxJob
from agentic_trading.desk.session import strategy
from agentic_trading.llm.errors import NoDecision
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import usd
from agentic_trading.platform.errors import OptionError

SHORT_DAYS: Final = 548
"""A panel of fewer days counts as one of a single year."""

CONFIDENT: Final = 0.95
"""Minimum deflated Sharpe ratio of a champion that is reported as better than luck."""

COLUMNS: Final[Mapping[Family, Mapping[str, str]]] = {
    "momentum": {
        "period": "momentum_period",
        "mean": "ma_periods",
        "catalyst": "catalyst_type",
        "stocks": "n_stocks",
        "stop": "stop_loss",
        "when": "resample",
    },
    "mean_reversion": {
        "lookback": "lookback",
        "entry": "entry_z",
        "exit": "exit_z",
        "trend": "trend_filter",
        "days": "max_hold_days",
        "stocks": "n_stocks",
        "stop": "stop_loss",
        "when": "resample",
    },
    "volatility": {
        "mode": "mode",
        "lookback": "vol_lookback",
        "target": "target_vol",
        "most": "max_weight",
        "stocks": "n_stocks",
        "stop": "stop_loss",
        "when": "resample",
    },
}
"""The columns for the set of a round by shipped family, each with the parameter that it shows."""

FIGURES: Final = ("Sharpe in", "max DD", "out", "max DD out")
SHARES: Final = frozenset({"stop_loss", "target_vol", "max_weight"})


def columns_of(family: Family) -> Mapping[str, str]:
    """Return the columns of a family. Those of an own family are named like its parameters."""
    return COLUMNS.get(family) or {name: name for name in grid_of(*family_terms(family).classes)}


def proposals_lines(found: strategy.Proposals) -> Iterator[RenderableType]:
    yield scene_line(found.scene)
    own = (f"{found.family}.", f"{found.family}:")
    yield from (output.paragraph(each) for each in found.scene.offered.withheld if each.startswith(own))
    names = columns_of(found.family)
    drawn = output.table("round", *names, *FIGURES, "", right=("round", *names, *FIGURES))
    output.rows(drawn, [_round_cells(each, found.family) for each in found.rounds])
    yield drawn
    yield output.paragraph(_totals(found))
    if isinstance(found.plan, NoDecision):
        reason = found.plan.reason
        yield output.heading(f"No set was chosen: {reason.category}")
        yield output.paragraph(reason.description)
    else:
        yield from _champion(found, found.plan)
    yield output.heading("Trace")
    yield output.command_line(f"agentic-trading trace show {found.trace_id} --store {found.log}")


def scene_line(scene: strategy.Scene) -> RenderableType:
    days, window = scene.panel.days, scene.window
    span = f"{len(scene.panel.symbols)} stocks, {len(days)} days, {days[0]} … {days[-1]}, {DAYS_PER_YEAR:.0f} a year"
    halves = f"chosen on bars {window.start}-{window.split - 1}, reported on {window.split}-{window.end - 1}"
    return output.paragraph(f"{scene.panel.name}: {span} · {halves}", "bold")


def _round_cells(played: Round, family: Family) -> list[str]:
    params = {} if played.params is None else played.params.model_dump()
    shown = [_value(params, name) for name in columns_of(family).values()]
    figures = [""] * len(FIGURES)
    if played.evaluation is not None:
        first, second = played.evaluation.in_sample, played.evaluation.out_of_sample
        figures = [
            _ratio(first.sharpe),
            _percent(first.max_drawdown),
            _ratio(second.sharpe),
            _percent(second.max_drawdown),
        ]
    return [str(played.number), *shown, *figures, "" if played.state == "accepted" else _outcome(played)]


def _outcome(played: Round) -> str:
    return f"{played.state}: {played.failure.description}" if played.failure else played.state


def _value(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if value is None:
        return "-"
    if name in SHARES:
        return f"{100 * value:.0f} %"
    if name == "resample":
        offset = params.get("resample_offset")
        return f"{value}+{offset}" if value == "W" and offset is not None else str(value)
    if name == "catalyst_type" and value != "none" and "catalyst_lookback" in params:
        return f"{value} {params['catalyst_lookback']}m"
    return str(value)


def _totals(found: strategy.Proposals) -> str:
    valid, distinct, answers = found.valid, found.distinct, found.answers
    share = f" ({100 * distinct / valid:.0f} %)" if valid else ""
    each = f"{answers.attempts / len(found.rounds):.3g}" if found.rounds else "0"
    said = "1 answer each" if answers.attempts == len(found.rounds) else f"{each} answers a round"
    useless = f" · unusable answers: {output.counts(dict(answers.useless))}" if answers.useless else ""
    rounds = pluralize(len(found.rounds), "round")
    return f"{rounds} · {valid} valid · {distinct} distinct{share} · {said} · cost {usd(answers.cost_nusd)} USD{useless}"


def _champion(found: strategy.Proposals, plan: Plan) -> Iterator[RenderableType]:
    accepted = [each for each in found.rounds if each.state == "accepted"]
    number = accepted[plan.champion.number - 1].number
    lines = {"this strategy": plan.champion.evaluation, "equal weight": found.scene.equal_weight}
    if found.random is not None:
        lines[f"random, median of {found.searches}"] = found.random
    yield halves_table(f"champion, round {number}", lines)
    yield output.paragraph(luck_line(plan.deflated_sharpe, plan.tried))
    yield output.paragraph(caution(found.scene, found.knowledge))


def halves_table(title: str, lines: Mapping[str, Halves]) -> RenderableType:
    figures: dict[str, Callable[[tuple[str, Halves]], str]] = {
        "Sharpe in": lambda line: _ratio(line[1].in_sample.sharpe),
        "out": lambda line: _ratio(line[1].out_of_sample.sharpe),
        "CAGR out": lambda line: _percent(line[1].out_of_sample.cagr),
        "max DD out": lambda line: _percent(line[1].out_of_sample.max_drawdown),
        "turnover": lambda line: _times(line[1].out_of_sample.turnover),
    }
    return output.listing(lines.items(), {title: lambda line: line[0], **figures}, right=figures)


def _times(turnover: float | None) -> str:
    return "-" if turnover is None else f"{turnover:.0f}x"


def luck_line(deflated: float | None, tried: int) -> str:
    if deflated is None:
        return "deflated Sharpe: not defined"
    verdict = "better than luck" if deflated >= CONFIDENT else "not distinguishable from luck"
    return f"deflated Sharpe {deflated:.2f} ({pluralize(tried, 'set')} tried): {verdict}"


def caution(scene: strategy.Scene, knowledge: str) -> str:
    bars, days = scene.window.end - scene.window.start, scene.panel.days
    read = {
        "in_sample": "in_sample: the model's training data may include these days",
        "post_cutoff": "post_cutoff: these days are after the model's training cutoff",
        "unknown": "in_sample unknown: the model's training cutoff is not known",
    }[knowledge]
    is_short = (days[-1] - days[0]).astype(int) < SHORT_DAYS
    few = f"{bars} bars of one year are too few for a conclusion"
    return f"{read}. {few if is_short else 'One panel is one sample of the market'}."


def backtest_lines(found: strategy.SetResult, deflated: float | None) -> Iterator[RenderableType]:
    yield scene_line(found.scene)
    lines = {"this strategy": found.evaluation, "equal weight": found.scene.equal_weight}
    yield halves_table(found.params.strategy_type, lines)
    stops, lost = pluralize(found.evaluation.stopped, "stop"), found.evaluation.vanished
    yield output.paragraph(f"{stops} hit · vanished while held: {', '.join(lost) or 'none'}")
    yield output.paragraph(luck_line(deflated, 1))
    yield output.paragraph(caution(found.scene, "unknown"))


def set_lines(params: StrategyParams) -> Iterator[RenderableType]:
    """Yield the meaning of each parameter of a set, the rules that it keeps, and its hashes."""
    values, family = params.model_dump(), params.strategy_type
    fields = family_terms(family).classes[0].model_fields
    columns: dict[str, Callable[[str], str]] = {
        "parameter": str,
        "value": lambda name: _value(values, name),
        "meaning": lambda name: str(fields[name].description),
    }
    yield output.listing(fields, columns)
    yield output.heading("Rules")
    yield from (output.paragraph(rule.sentence.format_map(values)) for rule in family_terms(family).rules)
    yield output.heading("Hashes")
    yield output.facts(hashes_of(params).items())


# --- as values -------------------------------------------------------------------------------------------------


def proposals_json(found: strategy.Proposals) -> dict[str, Any]:
    plan = found.plan
    chosen = (
        {"reason": plan.reason.model_dump(mode="json")}
        if isinstance(plan, NoDecision)
        else {
            "champion": set_json(plan.champion.params, plan.champion.evaluation),
            "tried": plan.tried,
            "deflated_sharpe": plan.deflated_sharpe,
        }
    )
    return {
        **scene_json(found.scene),
        "family": found.family,
        "withheld": list(found.scene.offered.withheld),
        "knowledge": found.knowledge,
        "rounds": [_round_json(each) for each in found.rounds],
        "valid": found.valid,
        "distinct": found.distinct,
        "attempts": found.answers.attempts,
        "of_no_use": dict(found.answers.useless),
        "cost_nusd": found.answers.cost_nusd,
        **chosen,
        "random_median": found.random,
        "random_searches": found.searches if found.random else 0,
        "trace_id": found.trace_id,
        "log": str(found.log),
    }


def _round_json(played: Round) -> dict[str, Any]:
    return {
        "round": played.number,
        "state": played.state,
        **({} if played.params is None else {"params": played.params.model_dump()}),
        **({} if played.evaluation is None else _figures(played.evaluation)),
        **({} if played.failure is None else {"failure": played.failure.model_dump(mode="json")}),
    }


def hashes_of(params: StrategyParams) -> dict[str, str]:
    """Return the hashes of a set, of the set that it trades like, and of its template."""
    return {
        "params_sha256": params.sha256,
        "effective_sha256": params.effective.sha256,
        "template_sha256": template_of(params.strategy_type).sha256,
    }


def set_json(params: StrategyParams, evaluation: Evaluation) -> dict[str, Any]:
    hashes = evaluation.model_dump(include={"code_sha256", "template_sha256", "data_sha256"})
    return {
        "params": params.model_dump(),
        "params_sha256": params.sha256,
        **hashes,
        **_figures(evaluation),
        "stopped": evaluation.stopped,
        "vanished": list(evaluation.vanished),
    }


def scene_json(scene: strategy.Scene) -> dict[str, Any]:
    window = scene.window
    return {
        "data": scene.panel.name,
        "bars": {"start": window.start, "split": window.split, "end": window.end},
        "equal_weight": _figures(scene.equal_weight),
    }


def _figures(halves: Halves) -> dict[str, Performance]:
    return {"in_sample": halves.in_sample, "out_of_sample": halves.out_of_sample}


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


STRATEGY: Final = "#1b6ca8"
BESIDE: Final = "#8a8a8a"


def costs_in(text: str) -> TradeCosts:
    """Return the costs in `FEE,SLIPPAGE`, in basis points.

    Raises:
        OptionError: If the text is not two numbers in the allowed range.

    """
    try:
        fee, slippage = (float(part) for part in text.split(","))
    except ValueError:
        fee = slippage = -1.0
    if not (fee >= 0 and slippage >= 0 and fee + slippage < 10_000):
        allowed = "two numbers of basis points, 0 or more and below 10000 together, such as 10,5"
        raise OptionError("--costs", repr(text), allowed)
    return TradeCosts(fee, slippage)


# --- propose ----------------------------------------------------------------------------------------------


def propose_and_print(
    options: strategy.ProposeOptions, *, plot: Path | None, yes: bool, as_json: bool
) -> None:
    """Search for a set and print the result. If a model is asked, the user confirms the cost first."""
    check_plot(plot)
    if options.asks_models:
        is_free = strategy.check_provider(options)
        asked = f"{options.provider}: {pluralize(options.rounds, 'round')} of at most 6 answers"
        most = "at most 0 USD" if is_free else f"never more than --budget-usd {options.budget_usd}"
        say(f"{asked}, {most}.", err=True)
        confirm("the cost", yes=yes or is_free, otherwise=NOT_STARTED)
    try:
        with _bar(is_drawn=output.terminal_is_watching() and not as_json) as (on_round, on_random):
            found = strategy.search_sets(options, on_round=on_round, on_random=on_random)
    except KeyboardInterrupt:
        stop(ExitCode.INTERRUPTED, "stopped immediately. All answers so far are on disk")
    if as_json:
        output.show_json(proposals_json(found))
    else:
        output.print_table(*proposals_lines(found))
    if plot is not None and isinstance(found.plan, Plan):
        draw_equity(plot, found.scene, found.plan.champion.evaluation.equity)
    if isinstance(found.plan, NoDecision):
        raise typer.Exit(ExitCode.FOUND_WRONG)


@contextmanager
def _bar(*, is_drawn: bool) -> Iterator[tuple[Callable[[Round], None], Callable[[int], None]]]:
    """Show a progress bar on standard error, and remove it at the end.

    Only the random searches have a known total.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ProgressBar(
        *columns, console=output.PlainConsole(stderr=True), transient=True, disable=not is_drawn
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


def show_params(path: Path, *, data: str, family: str, as_json: bool) -> None:
    """Print the meaning of a set. Raises the errors of `read_set`."""
    params = strategy.read_set(path, strategy.offered_by_data(data, family))
    if as_json:
        effective = params.effective.model_dump()
        output.show_json({
            "params": params.model_dump(),
            "effective": effective,
            **hashes_of(params),
        })
    else:
        output.print_table(*set_lines(params))


def print_code(path: Path, *, data: str, family: str, check: bool) -> None:
    """Print the code of a set.

    With `check`, print the results of its checks, and exit with code 1 if one fails.
    """
    if not check:
        params = strategy.read_set(path, strategy.offered_by_data(data, family))
        typer.echo(template_of(params.strategy_type).generate_code(params), nl=False)
        return
    panel = strategy.panel_of(data)
    with strategy.opened_evaluator(panel, TradeCosts(), family=family) as (evaluator, sandbox):
        params = strategy.read_set(path, evaluator.offered)
        code = template_of(params.strategy_type).generate_code(params, data_sha256=evaluator.data_sha256)
        typer.echo(code, nl=False)
        wrong = [problem.text for problem in code_problems(code)]
        say(_checked("gate", wrong), err=True)
        # Code that the gate rejects is never run, because on a system without user namespaces only the gate
        # and an audit hook keep it from the network.
        if not wrong:
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


def backtest_and_print(
    path: Path, *, data: str, family: str, costs: TradeCosts, plot: Path | None, as_json: bool
) -> None:
    """Run the set in a file, and print its figures next to those of equal weight."""
    check_plot(plot)
    found = strategy.run_set(path, data, costs, family)
    deflated = deflated_sharpe(found.evaluation.returns(found.scene.window), [])
    if as_json:
        output.show_json({
            **set_json(found.params, found.evaluation),
            **scene_json(found.scene),
            "deflated_sharpe": deflated,
        })
    else:
        output.print_table(*backtest_lines(found, deflated))
    if plot is not None:
        draw_equity(plot, found.scene, found.evaluation.equity)


# --- the picture --------------------------------------------------------------------------------------


def draw_equity(path: Path, scene: strategy.Scene, equity: Sequence[float]) -> None:
    """Write a PNG of an equity and of all stocks in equal weight, with the two halves and the drawdown.

    Raises:
        OptionError: If the file cannot be written.

    """
    from matplotlib.figure import Figure  # here, because it takes a second to load

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
    for place, text in ((0.25, "chosen on this half"), (0.75, "reported on this half")):
        upper.text(place, 0.02, text, transform=upper.transAxes, ha="center", color="dimgray")
    upper.set_title(f"{scene.panel.name}: growth of 1", loc="left")
    upper.set_ylabel("equity")
    upper.legend(loc="upper left", frameon=False)
    lower.set_ylabel("drawdown, %")
    figure.autofmt_xdate()
    try:
        figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
    except OSError as e:
        raise OptionError("--plot", f"{path} ({e.strerror})", "a file that can be written") from e


def check_plot(path: Path | None) -> None:
    """Raise `OptionError` if the plot cannot be written, before a model is asked or a set is run."""
    if path is not None and (path.suffix.lower() != ".png" or not path.parent.is_dir()):
        raise OptionError("--plot", str(path), "a file that ends in .png, in an existing folder")


def _drawdown(equity: Sequence[float]) -> list[float]:
    """Return the change of each value from the peak so far, in percent."""
    peaks = accumulate(equity, max)
    return [100 * (value / peak - 1) for value, peak in zip(equity, peaks, strict=True)]
