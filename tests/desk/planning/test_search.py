"""The sets that were tried: the best, what a planner is shown, random choice, and the offline rule."""

import json
from collections.abc import Iterator
from itertools import product
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.metrics import Performance, deflated_sharpe, returns_of
from agentic_trading.desk.planning.evaluation import Evaluation, SampleBars
from agentic_trading.desk.planning.evaluator import PanelEvaluator
from agentic_trading.desk.planning.params import FAMILIES, Family, StrategyParams, read_params
from agentic_trading.desk.planning.rules import ROUNDS_APART, strategy_params_rule
from agentic_trading.desk.planning.sandbox import Sandbox
from agentic_trading.desk.planning.schema import (
    AvailableParams,
    PanelFacts,
    answer_schema,
    check_strategy_params,
    offered_by,
)
from agentic_trading.desk.planning.search import Search, random_median, random_sets
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope
from tests.desk.planning.searching import market, momentum

OFFERED = offered_by(PanelFacts("test", 245))
WINDOW = SampleBars(0, 3, 5)


def figures(sharpe: float | None) -> Performance:
    return Performance(
        bars=2, total_return=0.1, cagr=0.2, sharpe=sharpe, sortino=1.0, max_drawdown=-0.1, turnover=3.0
    )


def evaluation(params: StrategyParams, sharpe: float | None, later: float = 9.0) -> Evaluation:
    return Evaluation(
        key="k", params_sha256=params.effective.sha256, code_sha256="c", template_sha256="t", data_sha256="d",
        in_sample=figures(sharpe), out_of_sample=figures(later), equity=(1.0, 1.1, 1.05, 1.0, 1.0),
        stopped=0, vanished=(),
    )  # fmt: skip


def searched(*sharpes: float | None) -> Search:
    """Return a search in which as many distinct sets had these ratios."""
    search = Search(WINDOW)
    grid = product((5, 10, 20), (60, 90, 120), (5, 10, 15, 20))
    for sharpe, (period, mean, stocks) in zip(sharpes, grid, strict=False):
        params = momentum(momentum_period=period, ma_periods=mean, n_stocks=stocks)
        search.add(params, evaluation(params, sharpe))
    return search


def test_champion_is_first_in_sample_best() -> None:
    search = searched(0.5, None, 2.0, -1.0, 2.0)

    champion = search.champion

    assert champion is not None
    assert champion.number == 3


def test_no_ratio_means_no_champion() -> None:
    search = searched(None, None)

    assert (search.champion, search.deflated_sharpe) == (None, None)


def test_deflated_sharpe_counts_distinct_sets() -> None:
    search = searched(0.5, 2.0, None)
    alike = momentum(momentum_period=5, ma_periods=60, n_stocks=5, catalyst_lookback=6)
    search.add(alike, evaluation(alike, 3.0))

    returns = returns_of([1.0, 1.1, 1.05])
    assert len(search) == 3
    assert search.known(alike) is not None
    assert search.deflated_sharpe == deflated_sharpe(returns, [0.5 / 252**0.5, 2.0 / 252**0.5, 0.0])


def test_evidence_has_20_best_10_last() -> None:
    search = searched(*(float(number) for number in range(36, 0, -1)))

    evidence = search.evidence

    assert evidence["count"] == 36
    assert [each["in_sample"]["sharpe"] for each in evidence["best"]] == list(range(36, 16, -1))
    assert [each["in_sample"]["sharpe"] for each in evidence["last"]] == list(range(10, 0, -1))
    assert set(evidence["best"][0]) == {"params", "in_sample"}


@pytest.mark.parametrize("family", FAMILIES)
def test_random_sets_are_distinct_and_seeded(family: Family) -> None:
    def drawn(seed: str) -> list[str]:
        sets = random_sets(OFFERED.grids[family], family, 50, seed=seed)
        return [params.effective.sha256 for params in sets]

    assert len(set(drawn("1"))) == 50
    assert drawn("1") == drawn("1") != drawn("2")


def test_random_sets_end_with_grid() -> None:
    grid = {name: values[:1] for name, values in OFFERED.grids["momentum"].items()}

    assert len(list(random_sets(grid, "momentum", 5, seed="1"))) == 1


@pytest.fixture(scope="module")
def evaluator() -> Iterator[PanelEvaluator]:
    panel = market()
    with Sandbox(panel) as sandbox:
        yield PanelEvaluator(panel, sandbox)


def test_random_median_is_over_champions(evaluator: PanelEvaluator) -> None:
    runs: list[None] = []

    found = random_median(evaluator, "momentum", 4, searches=3, seed="s", on_run=lambda: runs.append(None))

    champions = []
    for number in range(3):
        search = Search(evaluator.window)
        for params in random_sets(evaluator.offered.grids["momentum"], "momentum", 4, seed=f"s.{number}"):
            outcome = evaluator.evaluate(params)
            assert isinstance(outcome, Evaluation)
            search.add(params, outcome)
        assert search.champion is not None
        champions.append(search.champion.evaluation.out_of_sample.sharpe)
    assert found is not None
    assert found.out_of_sample.sharpe == median(each for each in champions if each is not None)
    assert len(runs) == 12


# --- the offline rule -------------------------------------------------------------------------------------


def question(
    family: Family | None, number: int, search: Search, offered: AvailableParams = OFFERED, **context: Any
) -> LLMEnvelope:
    families = FAMILIES if family is None else (family,)
    return (
        EnvelopeBuilder()
        .for_planning()
        .with_instructions("Choose.")
        .with_context({"round": number, **context})
        .add_evidence("tried", dict(search.evidence))
        .with_output_schema(answer_schema(offered, families))
        .build()
    )


def answered(envelope: LLMEnvelope) -> StrategyParams:
    """Return the set of the rule's answer, which must fit schema and rules."""
    text = strategy_params_rule(envelope)
    assert check_strategy_params(envelope, text) == []
    answer = json.loads(text)
    assert 50 <= len(answer["reasoning"]) <= 500
    return read_params(answer["params"])


@pytest.mark.parametrize(
    "family", [None, *(pytest.param(family, marks=pytest.mark.soak) for family in FAMILIES)]
)
def test_rounds_apart_choose_distinct_sets(family: Family | None) -> None:
    search = Search(WINDOW)

    for number in range(1, ROUNDS_APART + 1):
        params = answered(question(family, number, search))
        assert search.known(params) is None
        search.add(params, evaluation(params, float(number * 37 % 11)))

    assert len(search) == ROUNDS_APART


@given(st.lists(st.one_of(st.none(), st.floats(-3, 3)), max_size=36), st.integers(1, 500))
def test_rule_never_repeats_shown_sets(sharpes: list[float | None], number: int) -> None:
    search = searched(*sharpes)
    envelope = question("momentum", number, search)

    params = answered(envelope)

    shown = [read_params(each["params"]) for kind in ("best", "last") for each in search.evidence[kind]]
    assert params.effective.sha256 not in {each.effective.sha256 for each in shown}
    assert strategy_params_rule(envelope) == strategy_params_rule(envelope)


def test_repeat_is_answered_by_other_set() -> None:
    search = searched(1.0, 0.5)
    first = answered(question("momentum", 7, search))
    repeated = {"params": first.model_dump(), "in_sample": {}}

    assert answered(question("momentum", 7, search, repeated=repeated)).effective != first.effective


def test_exhausted_grid_repeats_a_set() -> None:
    grid = {name: values[:1] for name, values in OFFERED.grids["momentum"].items()} | {"n_stocks": (5, 10)}
    search = Search(WINDOW)
    for params in random_sets(grid, "momentum", 2, seed="1"):
        search.add(params, evaluation(params, 1.0))

    chosen = answered(question("momentum", 1, search, AvailableParams(OFFERED.facts, {"momentum": grid}, ())))

    assert len(search) == 2
    assert search.known(chosen) is not None
