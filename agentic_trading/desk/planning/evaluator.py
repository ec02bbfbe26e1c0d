"""From parameters to figures: template, gate, sandbox, promises, backtest, cache."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final

from agentic_trading.canonical import canonical_bytes, sha256_hex
from agentic_trading.desk.planning.allowlist import code_problems, split_header
from agentic_trading.desk.planning.backtest import (
    ENGINE_VERSION,
    Backtest,
    TradeCosts,
    backtest,
    hold_equal_weight,
)
from agentic_trading.desk.planning.evaluation import (
    Evaluation,
    EvaluationCache,
    Halves,
    RejectedSet,
    SampleBars,
)
from agentic_trading.desk.planning.panel import COLUMNS, Floats, Panel
from agentic_trading.desk.planning.params import FAMILIES, Family, StrategyParams
from agentic_trading.desk.planning.promises import WeightRules, broken_by_header, broken_promises
from agentic_trading.desk.planning.sandbox import Aborted, Sandbox, SandboxJob
from agentic_trading.desk.planning.schema import AvailableParams, PanelFacts, offered_by
from agentic_trading.desk.planning.template import TEMPLATES, BaseTemplate
from agentic_trading.errors import extra_named

with extra_named():
    import numpy as np

KEPT_WEIGHTS: Final = 256
"""The number of weight arrays kept in memory, 100 kB each for the shipped panel."""


class PanelEvaluator:
    """An `Evaluator` over one panel, in a sandbox that the caller opens and closes.

    All sets are compared on the same bars, in two halves: the bars after the warm-up of the slowest value
    that the panel can serve in any family. The constructor blocks.

    Args:
        panel: The prices.
        sandbox: A sandbox over the same prices. It must be open when a set is run.
        costs: The costs of a trade.
        folder: The folder of the cache, or None without a cache.
        templates: The template of each family, with own families after the shipped ones.
        descriptions: The descriptions of the sandbox's catalysts, if they are those of an own panel.

    Attributes:
        data_sha256: The digest of the panel's file, or of its contents. It also covers the frames of
            catalysts.

    Raises:
        NotOfferedError: If the panel is too short for any set.
        ValueError: If the sandbox has the prices of another panel.

    Example:
        panel = load_panel()
        with Sandbox(panel) as sandbox:
            result = PanelEvaluator(panel, sandbox).evaluate(params)

    """

    def __init__(
        self,
        panel: Panel,
        sandbox: Sandbox,
        *,
        costs: TradeCosts | None = None,
        folder: Path | None = None,
        templates: Mapping[Family, BaseTemplate] = TEMPLATES,
        descriptions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._contents = _digest(panel, sandbox.catalysts)
        if sandbox.panel is not panel and _digest(sandbox.panel, sandbox.catalysts) != self._contents:
            raise ValueError(
                f"the sandbox runs code over other prices than the panel {panel.name}. Use Sandbox(panel)."
            )
        self.panel = panel
        self.costs = costs or TradeCosts()
        self.data_sha256 = _data_sha256(panel, sandbox.catalysts)
        self.offered = offers_of(
            panel,
            self.data_sha256,
            catalysts=sandbox.catalysts,
            descriptions=descriptions,
            own_families=[family for family in templates if family not in FAMILIES],
        )
        self.offered.require([*self.offered.grids] or FAMILIES)
        self.window = window_of(self.offered, panel)
        self.chosen_at = closed_at(panel, self.window.split - 1)
        self.equal_weight = self._halves(self.hold())
        self._sandbox = sandbox
        self._templates = templates
        self._cache = EvaluationCache(folder)
        self._weights: OrderedDict[tuple[str, bytes], Floats] = OrderedDict()

    def evaluate(self, params: StrategyParams) -> Evaluation | RejectedSet:
        """Return the result of a set. Blocks for about 60 ms, or 1 ms if it is cached.

        Returns:
            The result, or a `RejectedSet` if the gate, the sandbox or a promise of weights refused the set.

        Raises:
            ValueError: If the sandbox is not open, or has no frame for the catalyst.
            SandboxStartError: If an ended sandbox process cannot be replaced.
            TemplateError: If the template cannot be rendered.

        """
        params = params.effective
        code = self._templates[params.strategy_type].generate_code(params, data_sha256=self.data_sha256)
        key = self._key(params, code)
        return self._cache.read(key) or self._run(params, code, key)

    def hold(self) -> Backtest:
        """Return the account that buys all stocks at the window's start and holds them."""
        return hold_equal_weight(self.panel, start=self.window.start, costs=self.costs)

    def _run(self, params: StrategyParams, code: str, key: str) -> Evaluation | RejectedSet:
        template = self._templates[params.strategy_type]
        if problems := code_problems(code):
            return RejectedSet("gate", "; ".join(problem.text for problem in problems))
        job = SandboxJob.of(code, params, self.panel.days)
        weights = self._weights_of(job)
        if isinstance(weights, Aborted):
            return RejectedSet("sandbox", weights.text)
        rules = WeightRules.of(params)
        broken = (
            *broken_promises(weights, self.panel.filled, job.rebalance, rules),
            *broken_by_header(code, params),
        )
        if broken:
            return RejectedSet("promises", "; ".join(f"{each.promise}: {each.message}" for each in broken))
        account = backtest(
            self.panel,
            weights,
            job.rebalance,
            stop_loss=params.stop_loss,
            costs=self.costs,
            start=self.window.start,
        )
        halves = self._halves(account)
        evaluation = Evaluation(
            key=key,
            params_sha256=params.sha256,
            code_sha256=sha256_hex(code.encode()),
            template_sha256=template.sha256,
            data_sha256=self.data_sha256,
            in_sample=halves.in_sample,
            out_of_sample=halves.out_of_sample,
            equity=tuple(account.equity[self.window.start :].tolist()),
            stopped=account.stopped,
            vanished=account.vanished,
        )
        self._cache.write(evaluation)
        return evaluation

    def _halves(self, account: Backtest) -> Halves:
        window = self.window
        return Halves(
            in_sample=account.performance(window.start + 1, window.split),
            out_of_sample=account.performance(window.split, window.end),
        )

    def _weights_of(self, job: SandboxJob) -> Floats | Aborted:
        """Return the weights of code. Code that differs in comments only is run once."""
        header, body = split_header(job.code)
        place = (f"{job.catalyst}\n{body}", job.rebalance.tobytes())
        if place in self._weights:
            self._weights.move_to_end(place)
            return self._weights[place]
        # Empty lines replace the header, so that line numbers in errors are right.
        outcome = self._sandbox.run(replace(job, code="\n" * header.count("\n") + body))
        if isinstance(outcome, Aborted):
            return outcome  # not kept, because a busy machine may be the reason
        self._weights[place] = outcome.weights
        if len(self._weights) > KEPT_WEIGHTS:
            self._weights.popitem(last=False)
        return outcome.weights

    def _key(self, params: StrategyParams, code: str) -> str:
        """Return the cache key: a hash of every input that can change the evaluation."""
        # The contents are hashed because a changed panel may still have the digest of its file.
        # The limits of the sandbox are left out because they end a set without an evaluation.
        window = self.window
        parts = {
            "params": params.sha256,
            "code": sha256_hex(code.encode("utf-8", "surrogatepass")),
            "data": self.data_sha256,
            "contents": self._contents,
            "window": [window.start, window.split, window.end],
            "template": self._templates[params.strategy_type].sha256,
            "engine": ENGINE_VERSION,
            "numpy": np.__version__,
            "costs": asdict(self.costs),
        }
        return sha256_hex(canonical_bytes(parts))


def offers_of(
    panel: Panel,
    data_sha256: str = "",
    *,
    catalysts: Iterable[str] = (),
    descriptions: Mapping[str, str] = MappingProxyType({}),
    own_families: Iterable[Family] = (),
) -> AvailableParams:
    """Return the parameters that a panel can serve, with frames of these catalysts."""
    frames = frozenset({*(["volume"] if panel.volume.any() else []), *catalysts})
    own = tuple(descriptions.items())
    facts = PanelFacts(panel.name, len(panel.days), frames, data_sha256 or panel.sha256, own)
    return offered_by(facts, (*FAMILIES, *own_families))


def window_of(offered: AvailableParams, panel: Panel) -> SampleBars:
    """Return the bars of both halves: all bars after the warm-up."""
    start, end = offered.warm_up, len(panel.days)
    return SampleBars(start, start + (end - start) // 2, end)


def closed_at(panel: Panel, bar: int) -> datetime:
    """Return the closing time of a bar: the next midnight in UTC."""
    day = panel.days[bar].astype("datetime64[D]").item()
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


def _data_sha256(panel: Panel, catalysts: Mapping[str, Floats]) -> str:
    prices = panel.sha256 or _digest_of(panel, COLUMNS)
    return sha256_hex(prices.encode(), *_frames(catalysts)) if catalysts else prices


def _digest(panel: Panel, catalysts: Mapping[str, Floats]) -> str:
    """Return the digest of all data that the code and the engine read."""
    prices = _digest_of(panel, (*COLUMNS, "filled", "marks"))
    return sha256_hex(prices.encode(), *_frames(catalysts))


def _digest_of(panel: Panel, names: Iterable[str]) -> str:
    columns = (np.ascontiguousarray(getattr(panel, name)).tobytes() for name in names)
    return sha256_hex(panel.days.tobytes(), "\n".join(panel.symbols).encode(), *columns)


def _frames(catalysts: Mapping[str, Floats]) -> Iterator[bytes]:
    for name in sorted(catalysts):
        yield f"\n{name}\n".encode()
        yield np.ascontiguousarray(catalysts[name]).tobytes()
