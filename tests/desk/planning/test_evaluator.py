"""A set from parameters to figures: what is run, what is remembered, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic_trading.desk.planning.backtest import TradeCosts, backtest
from agentic_trading.desk.planning.errors import NotOfferedError, TemplateError
from agentic_trading.desk.planning.evaluation import Evaluation, RejectedSet
from agentic_trading.desk.planning.evaluator import PanelEvaluator
from agentic_trading.desk.planning.panel import Panel, rebalance_mask
from agentic_trading.desk.planning.params import StrategyParams
from agentic_trading.desk.planning.sandbox import Ran, Sandbox, SandboxJob, SandboxLimits
from agentic_trading.desk.planning.template import TEMPLATES
from tests.desk.planning.searching import OwnTemplate, market, momentum, source
from tests.desk.planning.strategy_code import panel


@pytest.fixture(scope="module")
def prices() -> Panel:
    return market()


@pytest.fixture(scope="module")
def sandbox(prices: Panel) -> Iterator[Sandbox]:
    with Sandbox(prices, SandboxLimits(cpu_s=1)) as sandbox:
        yield sandbox


def evaluated(evaluator: PanelEvaluator, params: StrategyParams) -> Evaluation:
    outcome = evaluator.evaluate(params)
    assert isinstance(outcome, Evaluation), outcome
    return outcome


def with_template(prices: Panel, sandbox: Sandbox, *lines: str) -> PanelEvaluator:
    return PanelEvaluator(prices, sandbox, templates={"momentum": OwnTemplate(source(*lines))})


def test_the_figures_are_those_of_the_engine_over_the_weights_of_the_code(
    prices: Panel, sandbox: Sandbox
) -> None:
    evaluator, params = PanelEvaluator(prices, sandbox), momentum(resample_offset=2)
    code = TEMPLATES["momentum"].generate_code(params)
    ran = sandbox.run(SandboxJob.of(code, params, prices.days))
    assert isinstance(ran, Ran)

    found = evaluated(evaluator, params)

    mask = rebalance_mask(prices.days, "W", 2)
    account = backtest(prices, ran.weights, mask, stop_loss=0.1, start=121)
    assert (found.in_sample, found.out_of_sample) == (
        account.performance(122, 183),
        account.performance(183),
    )
    assert found.equity == tuple(account.equity[121:].tolist())
    assert (found.in_sample.bars, found.out_of_sample.bars) == (61, 62)
    assert len(found.returns(evaluator.window)) == 61


def test_sets_that_trade_alike_are_one(prices: Panel, sandbox: Sandbox, tmp_path: Path) -> None:
    evaluator = PanelEvaluator(prices, sandbox, folder=tmp_path)
    first = evaluated(evaluator, momentum(resample="M", resample_offset=1))

    again = evaluated(evaluator, momentum(resample="M", resample_offset=4, catalyst_lookback=6))

    assert (first.cached, again.cached) == (False, True)
    assert again == first.model_copy(update={"cached": True})
    assert [file.name for file in tmp_path.iterdir()] == [f"{first.key}.json"]


def test_a_set_is_remembered_by_another_process_but_not_with_other_costs_or_another_template(
    prices: Panel, sandbox: Sandbox, tmp_path: Path
) -> None:
    evaluated(PanelEvaluator(prices, sandbox, folder=tmp_path), momentum())

    class Renamed(type(TEMPLATES["momentum"])):  # type: ignore[misc]
        source = TEMPLATES["momentum"].source + "\n"

    same = PanelEvaluator(prices, sandbox, folder=tmp_path)
    dearer = PanelEvaluator(prices, sandbox, folder=tmp_path, costs=TradeCosts(20.0, 5.0))
    other = PanelEvaluator(prices, sandbox, folder=tmp_path, templates={"momentum": Renamed()})

    cached = [evaluated(each, momentum()).cached for each in (same, dearer, other)]
    assert cached == [True, False, False]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"stopped":', '"stopped":1'),
        lambda text: json.dumps({**json.loads(text), "sha256": "0" * 64}),
    ],
    ids=["empty", "cut", "another form", "another figure", "another digest"],
)
def test_a_damaged_file_is_run_again_and_written_anew(
    prices: Panel, sandbox: Sandbox, tmp_path: Path, damage: object
) -> None:
    assert callable(damage)
    evaluator = PanelEvaluator(prices, sandbox, folder=tmp_path)
    whole = evaluated(evaluator, momentum())
    [file] = tmp_path.iterdir()
    file.write_text(damage(file.read_text()))

    again = evaluated(evaluator, momentum())

    assert (again, again.cached) == (whole, False)
    assert evaluated(evaluator, momentum()).cached


def test_a_folder_that_cannot_be_written_to_only_costs_time(
    prices: Panel, sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file")
    evaluator = PanelEvaluator(prices, sandbox, folder=tmp_path / "taken")

    assert evaluated(evaluator, momentum()) == evaluated(evaluator, momentum())


def test_code_that_the_gate_refuses_is_never_run(prices: Panel, tmp_path: Path) -> None:
    never_opened = Sandbox(prices)
    evaluator = with_template(prices, never_opened, f"open({str(tmp_path / 'written')!r})", "return close")

    outcome = evaluator.evaluate(momentum())

    assert isinstance(outcome, RejectedSet)
    assert outcome.by == "gate"
    assert "open" in outcome.detail


def test_an_endless_loop_is_ended_by_its_limit_and_the_next_set_is_run(
    prices: Panel, sandbox: Sandbox
) -> None:
    endless = with_template(
        prices, sandbox, "for t in range(10000000):", "    x = np.sum(close)", "return close"
    )

    outcome = endless.evaluate(momentum())

    assert isinstance(outcome, RejectedSet)
    assert (outcome.by, outcome.detail.partition(":")[0]) == ("sandbox", "cpu")
    assert evaluated(PanelEvaluator(prices, sandbox), momentum()).in_sample.bars == 61


def test_weights_that_break_a_promise_have_no_figures(prices: Panel, sandbox: Sandbox) -> None:
    outcome = with_template(prices, sandbox, "return np.ones(close.shape)").evaluate(momentum())

    assert isinstance(outcome, RejectedSet)
    assert outcome.by == "promises"
    assert "row_sum" in outcome.detail


def test_a_template_with_an_undefined_variable_is_an_error_with_its_name(
    prices: Panel, sandbox: Sandbox
) -> None:
    with pytest.raises(TemplateError, match="typo"):
        with_template(prices, sandbox, "return {{ typo }}").evaluate(momentum())


def test_a_panel_that_is_too_short_for_any_family_is_refused() -> None:
    short = panel(100, 4)

    with pytest.raises(NotOfferedError, match="test offers none of"):
        PanelEvaluator(short, Sandbox(short))


def test_panels_of_ones_own_are_told_apart_by_their_prices(prices: Panel) -> None:
    other = panel(245, 9)

    digests = {PanelEvaluator(each, Sandbox(each)).data_sha256 for each in (prices, market(), other)}

    assert len(digests) == 2


@pytest.mark.parametrize("ends", ["\u2028", "\x0b", "\x1c", "\x85"])
def test_what_is_run_is_what_the_gate_has_read(prices: Panel, sandbox: Sandbox, ends: str) -> None:
    class Noted(type(TEMPLATES["momentum"])):  # type: ignore[misc]
        def generate_code(self, params: StrategyParams, *, data_sha256: str = "") -> str:
            code: str = super().generate_code(params, data_sha256=data_sha256)
            return code.replace("\n", f"{ends}import os\n", 1)

    evaluator = PanelEvaluator(prices, sandbox, templates={"momentum": Noted()})

    assert (
        evaluated(evaluator, momentum()).stopped
        == evaluated(PanelEvaluator(prices, sandbox), momentum()).stopped
    )


def test_an_error_names_the_line_of_the_whole_code(prices: Panel, sandbox: Sandbox) -> None:
    template = OwnTemplate(source("weights = close * 0.0", "return weights[:, 0, 0]"))
    outcome = PanelEvaluator(prices, sandbox, templates={"momentum": template}).evaluate(momentum())

    assert isinstance(outcome, RejectedSet)
    lines = template.generate_code(momentum()).split("\n")
    number = 1 + next(place for place, line in enumerate(lines) if "weights[:, 0, 0]" in line)
    assert f"error: line {number}: IndexError" in outcome.detail
