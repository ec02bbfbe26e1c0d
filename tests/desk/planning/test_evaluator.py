"""A set from parameters to figures: what is run, what is remembered, and what is refused."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from agentic_trading.desk.planning.backtest import ENGINE_VERSION, TradeCosts, backtest
from agentic_trading.desk.planning.errors import NotOfferedError, TemplateError
from agentic_trading.desk.planning.evaluation import Evaluation, RejectedSet
from agentic_trading.desk.planning.evaluator import PanelEvaluator
from agentic_trading.desk.planning.panel import Floats, Panel, rebalance_mask
from agentic_trading.desk.planning.params import StrategyParams
from agentic_trading.desk.planning.sandbox import Completed, Sandbox, SandboxJob, SandboxLimits
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


def test_figures_match_engine_on_code_weights(prices: Panel, sandbox: Sandbox) -> None:
    evaluator, params = PanelEvaluator(prices, sandbox), momentum(resample_offset=2)
    code = TEMPLATES["momentum"].generate_code(params)
    ran = sandbox.run(SandboxJob.of(code, params, prices.days))
    assert isinstance(ran, Completed)

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


def test_equivalent_sets_share_cached_evaluation(prices: Panel, sandbox: Sandbox, tmp_path: Path) -> None:
    evaluator = PanelEvaluator(prices, sandbox, folder=tmp_path)
    first = evaluated(evaluator, momentum(resample="M", resample_offset=1))

    again = evaluated(evaluator, momentum(resample="M", resample_offset=4, catalyst_lookback=6))

    assert (first.cached, again.cached) == (False, True)
    assert again == first.model_copy(update={"cached": True})
    assert [file.name for file in tmp_path.iterdir()] == [f"{first.key}.json"]


def test_evaluation_cache_separates_costs_and_templates(
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


def revenue(seed: int, prices: Panel, share: float = 0.05) -> Floats:
    """Return a frame of events, a number above 0 in this share of its places."""
    frame = np.zeros(prices.close.shape)
    frame.flat[seed :: round(1 / share)] = 1.0
    return frame


def test_evaluation_cache_depends_on_catalyst_frames(prices: Panel, tmp_path: Path) -> None:
    found = []
    for frame in (revenue(0, prices), revenue(7, prices), revenue(0, prices)):
        with Sandbox(prices, catalysts={"revenue": frame}) as sandbox:
            evaluator = PanelEvaluator(prices, sandbox, folder=tmp_path)
            found.append((evaluated(evaluator, momentum(catalyst_type="revenue")), evaluator))

    assert [evaluation.cached for evaluation, _ in found] == [False, False, True]
    assert found[0][0].equity != found[1][0].equity
    assert found[0][0].data_sha256 == found[2][0].data_sha256 != found[1][0].data_sha256
    assert found[0][1].offered.grids["momentum"]["catalyst_type"] == ("revenue",)


def test_later_frame_change_has_no_effect(prices: Panel, tmp_path: Path) -> None:
    frame = revenue(0, prices)
    sandbox = Sandbox(prices, catalysts={"revenue": frame})
    before = PanelEvaluator(prices, sandbox).data_sha256

    frame[:] = 0.0

    assert PanelEvaluator(prices, sandbox).data_sha256 == before
    with pytest.raises(ValueError, match="read-only"):
        sandbox.catalysts["revenue"][0] = 1.0


class RenamedTemplate(type(TEMPLATES["momentum"])):  # type: ignore[misc]
    """A template with the source of momentum's that makes other code of it."""

    def generate_code(self, params: StrategyParams, *, data_sha256: str = "") -> str:
        code: str = super().generate_code(params, data_sha256=data_sha256)
        return code + "\n# another\n"


OTHER_INPUTS: dict[str, Callable[[Panel], dict[str, Any]]] = {
    "close": lambda prices: {"panel": other_panel(prices, "close", 1.01)},
    "open": lambda prices: {"panel": other_panel(prices, "open", 1.01)},
    "volume": lambda prices: {"panel": other_panel(prices, "volume", 2.0)},
    "filled prices": lambda prices: {"panel": replace(prices, filled=prices.filled * 1.01)},
    "days": lambda prices: {"panel": replace(prices, days=prices.days + np.timedelta64(1, "D"))},
    "symbols": lambda prices: {"panel": replace(prices, symbols=(*prices.symbols[1:], "Z"))},
    "fee": lambda _: {"costs": TradeCosts(11.0, 5.0)},
    "slippage": lambda _: {"costs": TradeCosts(10.0, 6.0)},
    "code of the template": lambda _: {"templates": {"momentum": RenamedTemplate()}},
    "catalysts": lambda prices: {"catalysts": {"revenue": revenue(0, prices)}},
}


def other_panel(prices: Panel, column: str, factor: float) -> Panel:
    """Return a panel with another column, which still claims the digest of its file."""
    return replace(prices, **{column: getattr(prices, column) * factor})


def keys_of(panel: Panel, *, catalysts: Mapping[str, Floats] = MappingProxyType({}), **options: Any) -> str:
    evaluator = PanelEvaluator(panel, Sandbox(panel, catalysts=catalysts), **options)
    template = evaluator._templates["momentum"]
    return evaluator._key(momentum(), template.generate_code(momentum(), data_sha256=evaluator.data_sha256))


@pytest.mark.parametrize("name", OTHER_INPUTS)
def test_evaluation_key_covers_every_input(prices: Panel, name: str) -> None:
    shipped = replace(prices, sha256="5" * 64)
    changed = {"panel": shipped, **OTHER_INPUTS[name](shipped)}

    assert keys_of(shipped) == keys_of(replace(shipped))
    assert keys_of(**changed) != keys_of(shipped)


@pytest.mark.parametrize(
    ("name", "value"), [("ENGINE_VERSION", ENGINE_VERSION + 1), ("np.__version__", "0.0.0")]
)
def test_evaluation_key_covers_engine_and_numpy(
    prices: Panel, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys_of(prices)

    monkeypatch.setattr(f"agentic_trading.desk.planning.evaluator.{name}", value)

    assert keys_of(prices) != before


def test_file_panel_digest_is_file_digest(prices: Panel) -> None:
    shipped = replace(prices, sha256="5" * 64)

    assert PanelEvaluator(shipped, Sandbox(shipped)).data_sha256 == "5" * 64


def test_sandbox_of_other_panel_is_rejected(prices: Panel) -> None:
    with pytest.raises(ValueError, match="the sandbox runs code over other prices"):
        PanelEvaluator(prices, Sandbox(panel(245, 9)))


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
def test_damaged_cache_file_is_rewritten(
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


def test_unwritable_cache_folder_is_tolerated(prices: Panel, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    evaluator = PanelEvaluator(prices, sandbox, folder=tmp_path / "taken")

    assert evaluated(evaluator, momentum()) == evaluated(evaluator, momentum())


def test_gate_rejected_code_is_never_run(prices: Panel, tmp_path: Path) -> None:
    never_opened = Sandbox(prices)
    evaluator = with_template(prices, never_opened, f"open({str(tmp_path / 'written')!r})", "return close")

    outcome = evaluator.evaluate(momentum())

    assert isinstance(outcome, RejectedSet)
    assert outcome.by == "gate"
    assert "open" in outcome.detail


def test_endless_loop_ends_at_cpu_limit(prices: Panel, sandbox: Sandbox) -> None:
    endless = with_template(
        prices, sandbox, "for t in range(10000000):", "    x = np.sum(close)", "return close"
    )

    outcome = endless.evaluate(momentum())

    assert isinstance(outcome, RejectedSet)
    assert (outcome.by, outcome.detail.partition(":")[0]) == ("sandbox", "cpu")
    assert evaluated(PanelEvaluator(prices, sandbox), momentum()).in_sample.bars == 61


def test_broken_promise_gives_no_figures(prices: Panel, sandbox: Sandbox) -> None:
    outcome = with_template(prices, sandbox, "return np.ones(close.shape)").evaluate(momentum())

    assert isinstance(outcome, RejectedSet)
    assert outcome.by == "promises"
    assert "row_sum" in outcome.detail


def test_undefined_template_variable_is_named(prices: Panel, sandbox: Sandbox) -> None:
    with pytest.raises(TemplateError, match="typo"):
        with_template(prices, sandbox, "return {{ typo }}").evaluate(momentum())


def test_panel_too_short_is_rejected() -> None:
    short = panel(100, 4)

    with pytest.raises(NotOfferedError, match="test offers none of"):
        PanelEvaluator(short, Sandbox(short))


def test_custom_panels_differ_by_prices(prices: Panel) -> None:
    other = panel(245, 9)

    digests = {PanelEvaluator(each, Sandbox(each)).data_sha256 for each in (prices, market(), other)}

    assert len(digests) == 2


@pytest.mark.parametrize("ends", ["\u2028", "\x0b", "\x1c", "\x85"])
def test_executed_code_equals_checked_code(prices: Panel, sandbox: Sandbox, ends: str) -> None:
    class Noted(type(TEMPLATES["momentum"])):  # type: ignore[misc]
        def generate_code(self, params: StrategyParams, *, data_sha256: str = "") -> str:
            code: str = super().generate_code(params, data_sha256=data_sha256)
            return code.replace("\n", f"{ends}import os\n", 1)

    evaluator = PanelEvaluator(prices, sandbox, templates={"momentum": Noted()})

    assert (
        evaluated(evaluator, momentum()).stopped
        == evaluated(PanelEvaluator(prices, sandbox), momentum()).stopped
    )


def test_error_line_refers_to_full_code(prices: Panel, sandbox: Sandbox) -> None:
    template = OwnTemplate(source("weights = close * 0.0", "return weights[:, 0, 0]"))
    outcome = PanelEvaluator(prices, sandbox, templates={"momentum": template}).evaluate(momentum())

    assert isinstance(outcome, RejectedSet)
    lines = template.generate_code(momentum()).split("\n")
    number = 1 + next(place for place, line in enumerate(lines) if "weights[:, 0, 0]" in line)
    assert f"error: line {number}: IndexError" in outcome.detail
