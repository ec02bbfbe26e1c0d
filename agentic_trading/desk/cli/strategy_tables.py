"""What `strategy` prints, as tables and as values: rounds, and the chosen set beside what it must be better than."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType

from agentic_trading.cli.output import (
    command_line,
    counts,
    facts,
    heading,
    paragraph,
    rows,
    table,
    usd,
)
from agentic_trading.desk.metrics import DAYS_PER_YEAR, Performance
from agentic_trading.desk.planning.agent import Plan, Round
from agentic_trading.desk.planning.evaluation import Evaluation, Halves
from agentic_trading.desk.planning.params import CLASSES, RULES, Family, StrategyParams
from agentic_trading.desk.planning.template import TEMPLATES
from agentic_trading.desk.session.strategy import Proposals, Scene, SetResult
from agentic_trading.llm.errors import NoDecision
from agentic_trading.operate.choices import pluralize

CONFIDENT: Final = 0.95
"""From this deflated Sharpe ratio on a champion is said to be better than luck."""

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
"""The columns of a round's set, by the parameter that each shows."""

FIGURES: Final = ("Sharpe in", "max DD", "out", "max DD out")
SHARES: Final = frozenset({"stop_loss", "target_vol", "max_weight"})


def proposals_lines(found: Proposals) -> Iterator[RenderableType]:
    yield scene_line(found.scene)
    own = (f"{found.family}.", f"{found.family}:")
    yield from (paragraph(each) for each in found.scene.offered.withheld if each.startswith(own))
    names = COLUMNS[found.family]
    drawn = table("round", *names, *FIGURES, "", right=("round", *names, *FIGURES))
    rows(drawn, [_round_cells(each, found.family) for each in found.rounds])
    yield drawn
    yield paragraph(_totals(found))
    if isinstance(found.plan, NoDecision):
        reason = found.plan.reason
        yield heading(f"Nothing chosen: {reason.category}")
        yield paragraph(reason.description)
    else:
        yield from _champion(found, found.plan)
    yield heading("Trace")
    yield command_line(f"agentic-trading trace show {found.trace_id} --store {found.log}")


def scene_line(scene: Scene) -> RenderableType:
    days, window = scene.panel.days, scene.window
    span = f"{len(scene.panel.symbols)} stocks, {len(days)} days, {days[0]} … {days[-1]}, {DAYS_PER_YEAR:.0f} a year"
    halves = f"chosen on bars {window.start}-{window.split - 1}, reported on {window.split}-{window.end - 1}"
    return paragraph(f"{scene.panel.name}: {span} · {halves}", "bold")


def _round_cells(played: Round, family: Family) -> list[str]:
    params = {} if played.params is None else played.params.model_dump()
    shown = [_value(params, name) for name in COLUMNS[family].values()]
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
    if name == "catalyst_type" and value != "none":
        return f"{value} {params['catalyst_lookback']}m"
    return str(value)


def _totals(found: Proposals) -> str:
    valid, distinct, answers = found.valid, found.distinct, found.answers
    share = f" ({100 * distinct / valid:.0f} %)" if valid else ""
    each = f"{answers.attempts / len(found.rounds):.3g}" if found.rounds else "0"
    said = "1 answer each" if answers.attempts == len(found.rounds) else f"{each} answers a round"
    useless = f" · of no use: {counts(dict(answers.useless))}" if answers.useless else ""
    rounds = pluralize(len(found.rounds), "round")
    return f"{rounds} · {valid} valid · {distinct} distinct{share} · {said} · cost {usd(answers.cost_nusd)} USD{useless}"


def _champion(found: Proposals, plan: Plan) -> Iterator[RenderableType]:
    accepted = [each for each in found.rounds if each.state == "accepted"]
    number = accepted[plan.champion.number - 1].number
    lines = {"this strategy": plan.champion.evaluation, "equal weight": found.scene.equal_weight}
    if found.random is not None:
        lines[f"random, median of {found.searches}"] = found.random
    yield halves_table(f"champion, round {number}", lines)
    yield paragraph(luck_line(plan.deflated_sharpe, plan.tried))
    yield paragraph(caution(found.scene, found.knowledge))


def halves_table(title: str, lines: Mapping[str, Halves]) -> RenderableType:
    names = ("Sharpe in", "out", "CAGR out", "max DD out", "turnover")
    drawn = table(title, *names, right=names)
    return rows(drawn, [(name, *_halves_cells(halves)) for name, halves in lines.items()])


def _halves_cells(halves: Halves) -> Sequence[str]:
    first, second = halves.in_sample, halves.out_of_sample
    turnover = "-" if second.turnover is None else f"{second.turnover:.0f}x"
    return (
        _ratio(first.sharpe),
        _ratio(second.sharpe),
        _percent(second.cagr),
        _percent(second.max_drawdown),
        turnover,
    )


def luck_line(deflated: float | None, tried: int) -> str:
    if deflated is None:
        return "deflated Sharpe: not defined"
    verdict = "better than luck" if deflated >= CONFIDENT else "not distinguishable from luck"
    return f"deflated Sharpe {deflated:.2f} ({pluralize(tried, 'set')} tried): {verdict}"


def caution(scene: Scene, knowledge: str) -> str:
    bars = scene.window.end - scene.window.start
    read = {
        "in_sample": "in_sample: the model may have read about these days while it was trained",
        "post_cutoff": "post_cutoff: these days are after the model's training",
        "unknown": "in_sample unknown: nothing says what the model has read",
    }[knowledge]
    return f"{read}. {bars} bars of one year prove nothing."


def backtest_lines(found: SetResult, deflated: float | None) -> Iterator[RenderableType]:
    yield scene_line(found.scene)
    lines = {"this strategy": found.evaluation, "equal weight": found.scene.equal_weight}
    yield halves_table(found.params.strategy_type, lines)
    stops, lost = pluralize(found.evaluation.stopped, "stop"), found.evaluation.vanished
    yield paragraph(f"{stops} hit · vanished while held: {', '.join(lost) or 'none'}")
    yield paragraph(luck_line(deflated, 1))
    yield paragraph(caution(found.scene, "unknown"))


def set_lines(params: StrategyParams) -> Iterator[RenderableType]:
    """Yield what each parameter of a set means, the rules that it keeps, and its hashes."""
    values, family = params.model_dump(), params.strategy_type
    fields = CLASSES[family][0].model_fields
    drawn = table("parameter", "value", "meaning")
    meanings = [(name, _value(values, name), str(field.description)) for name, field in fields.items()]
    yield rows(drawn, meanings)
    yield heading("Rules")
    yield from (paragraph(rule.sentence.format_map(values)) for rule in RULES[family])
    yield heading("Hashes")
    yield facts(hashes_of(params).items())


# --- as values -------------------------------------------------------------------------------------------------


def proposals_json(found: Proposals) -> dict[str, Any]:
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
    """Return the hashes of a set, of the one that it trades like, and of its template."""
    return {
        "params_sha256": params.sha256,
        "effective_sha256": params.effective.sha256,
        "template_sha256": TEMPLATES[params.strategy_type].sha256,
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


def scene_json(scene: Scene) -> dict[str, Any]:
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
