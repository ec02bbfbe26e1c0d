"""One set of parameters from code to figures: template, gate, sandbox, promises, backtest; what was run once is remembered."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
from agentic_trading.desk.planning.params import Family, StrategyParams
from agentic_trading.desk.planning.promises import WeightRules, broken_by_header, broken_promises
from agentic_trading.desk.planning.sandbox import Aborted, Sandbox, SandboxJob
from agentic_trading.desk.planning.schema import AvailableParams, PanelFacts, offered_by
from agentic_trading.desk.planning.template import TEMPLATES, BaseTemplate
from agentic_trading.errors import extra_named

with extra_named():
    import numpy as np

KEPT_WEIGHTS: Final = 256
"""Weights that are kept in memory: 100 kB each over the shipped panel. A stop loss has no part in them."""


class PanelEvaluator:
    """Runs sets over one panel in a sandbox that its caller opens and closes; the promise is that of `Evaluator`.

    All sets are judged on the same bars: behind the warm-up of the slowest value that the panel can serve in any family, in
    two halves. `folder` remembers evaluations, under a key made of everything that changes one: see `_key`.
    `data_sha256` is that of the panel's file, or of its contents; with frames of catalysts it covers these too.
    """

    def __init__(
        self,
        panel: Panel,
        sandbox: Sandbox,
        *,
        costs: TradeCosts | None = None,
        folder: Path | None = None,
        templates: Mapping[Family, BaseTemplate] = TEMPLATES,
    ) -> None:
        """Raise `NotOfferedError` for a panel that is too short for any set, `ValueError` for a sandbox of another panel; it blocks."""
        self._contents = _digest(panel, sandbox.catalysts)
        if sandbox.panel is not panel and _digest(sandbox.panel, sandbox.catalysts) != self._contents:
            raise ValueError(
                f"the sandbox runs code over other prices than the panel {panel.name}; allowed: Sandbox(panel)"
            )
        self.panel = panel
        self.costs = costs or TradeCosts()
        self.data_sha256 = _data_sha256(panel, sandbox.catalysts)
        self.offered = offers_of(panel, self.data_sha256, catalysts=sandbox.catalysts)
        self.offered.require()
        self.window = window_of(self.offered, panel)
        self.chosen_at = closed_at(panel, self.window.split - 1)
        self.equal_weight = self._halves(self.hold())
        self._sandbox = sandbox
        self._templates = templates
        self._cache = EvaluationCache(folder)
        self._weights: OrderedDict[tuple[str, bytes], Floats] = OrderedDict()

    def evaluate(self, params: StrategyParams) -> Evaluation | RejectedSet:
        """Return what came of a set; it blocks for some 60 ms, or 1 if the set is remembered.

        Raises `ValueError` for a catalyst whose frame the sandbox does not have.
        """
        params = params.effective
        code = self._templates[params.strategy_type].generate_code(params, data_sha256=self.data_sha256)
        key = self._key(params, code)
        return self._cache.read(key) or self._run(params, code, key)

    def hold(self) -> Backtest:
        """Return the account that buys all stocks at the start of the window, and holds them."""
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
        """Return the weights of code, which is run once for all sets whose code differs in its comments alone."""
        header, body = split_header(job.code)
        place = (f"{job.catalyst}\n{body}", job.rebalance.tobytes())
        if place in self._weights:
            self._weights.move_to_end(place)
            return self._weights[place]
        outcome = self._sandbox.run(replace(job, code="\n" * header.count("\n") + body))  # of the same lines
        if isinstance(outcome, Aborted):
            return outcome  # a busy machine may be the reason: the next one is run
        self._weights[place] = outcome.weights
        if len(self._weights) > KEPT_WEIGHTS:
            self._weights.popitem(last=False)
        return outcome.weights

    def _key(self, params: StrategyParams, code: str) -> str:
        """Return what an evaluation is remembered by: every input that can change it.

        The contents of the panel are hashed, because a changed panel may still have the digest of its file. The limits of the
        sandbox are left out: they end a set without an evaluation.
        """
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


def offers_of(panel: Panel, data_sha256: str = "", *, catalysts: Iterable[str] = ()) -> AvailableParams:
    """Return what a panel of prices and volumes can serve, with the frames of these catalysts."""
    frames = frozenset({"volume", *catalysts})
    return offered_by(PanelFacts(panel.name, len(panel.days), frames, data_sha256 or panel.sha256))


def window_of(offered: AvailableParams, panel: Panel) -> SampleBars:
    """Return the bars that sets are judged on: all behind the warm-up, in halves."""
    start, end = offered.warm_up, len(panel.days)
    return SampleBars(start, start + (end - start) // 2, end)


def closed_at(panel: Panel, bar: int) -> datetime:
    """Return when a bar had closed: at the next midnight, UTC."""
    day = panel.days[bar].astype("datetime64[D]").item()
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


def _data_sha256(panel: Panel, catalysts: Mapping[str, Floats]) -> str:
    prices = panel.sha256 or _digest_of(panel, COLUMNS)
    return sha256_hex(prices.encode(), *_frames(catalysts)) if catalysts else prices


def _digest(panel: Panel, catalysts: Mapping[str, Floats]) -> str:
    """Return the digest of all that code and engine read."""
    prices = _digest_of(panel, (*COLUMNS, "filled", "marks"))
    return sha256_hex(prices.encode(), *_frames(catalysts))


def _digest_of(panel: Panel, names: Iterable[str]) -> str:
    columns = (np.ascontiguousarray(getattr(panel, name)).tobytes() for name in names)
    return sha256_hex(panel.days.tobytes(), "\n".join(panel.symbols).encode(), *columns)


def _frames(catalysts: Mapping[str, Floats]) -> Iterator[bytes]:
    for name in sorted(catalysts):
        yield f"\n{name}\n".encode()
        yield np.ascontiguousarray(catalysts[name]).tobytes()
