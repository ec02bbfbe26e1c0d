"""The sets tried so far, the evidence from them, and random search for comparison."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any, Final

from agentic_trading.desk.metrics import Performance, deflated_sharpe
from agentic_trading.desk.planning.evaluation import Evaluation, Evaluator, Halves, SampleBars
from agentic_trading.desk.planning.params import Family, Grid, StrategyParams, Value, read_params
from agentic_trading.desk.prompts import ratio
from agentic_trading.ids import fraction

BEST_SHOWN: Final = 20
LAST_SHOWN: Final = 10
RANDOM_SEARCHES: Final = 20
SHOWN: Final = ("sharpe", "cagr", "max_drawdown", "turnover")
"""The figures of the first half that a planner sees for each set."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A set that was run, as it was first proposed, and its result."""

    number: int
    params: StrategyParams
    evaluation: Evaluation

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The set as a planner sees it, with figures of the first half only."""
        figures = self.evaluation.in_sample.model_dump(include=set(SHOWN))
        return {
            "params": self.params.model_dump(),
            "in_sample": {name: ratio(figures[name]) for name in SHOWN},
        }


@dataclass(slots=True)
class Search:
    """The distinct sets tried so far, in order. Sets that trade alike count once."""

    window: SampleBars
    _tried: dict[str, TrialResult] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of distinct sets."""
        return len(self._tried)

    def known(self, params: StrategyParams) -> TrialResult | None:
        """Return the tried set that trades like `params`, or None."""
        return self._tried.get(params.effective.sha256)

    def add(self, params: StrategyParams, evaluation: Evaluation) -> TrialResult:
        """Add a set, unless one that trades alike was tried.

        Returns the set that was tried first.
        """
        tried = TrialResult(len(self._tried) + 1, params, evaluation)
        return self._tried.setdefault(params.effective.sha256, tried)

    @property
    def champion(self) -> TrialResult | None:
        """The set with the highest Sharpe ratio in the first half, or None.

        Of sets with equal ratios it is the first. None if no set has a ratio.
        """
        return next(iter(self._ranked()), None)

    @property
    def deflated_sharpe(self) -> float | None:
        """The probability that the champion is better than the luck of so many tries.

        None without a champion.
        """
        champion = self.champion
        if champion is None:
            return None
        # A set that never traded counts as a try with a ratio of 0, because cash earns no interest here.
        ratios = [tried.evaluation.sharpe_a_bar or 0.0 for tried in self._tried.values()]
        return deflated_sharpe(champion.evaluation.returns(self.window), ratios)

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The evidence for a planner: the number of sets, the best, the last, each once."""
        best = self._ranked()[:BEST_SHOWN]
        last = [tried for tried in [*self._tried.values()][-LAST_SHOWN:] if tried not in best]
        return {
            "count": len(self),
            "best": [tried.evidence for tried in best],
            "last": [tried.evidence for tried in last],
        }

    def _ranked(self) -> list[TrialResult]:
        rated = [tried for tried in self._tried.values() if tried.evaluation.in_sample.sharpe is not None]
        return sorted(rated, key=lambda tried: (-(tried.evaluation.in_sample.sharpe or 0.0), tried.number))


# --- random choice ----------------------------------------------------------------------------------------


def random_median(
    evaluator: Evaluator,
    family: Family,
    sets: int,
    *,
    searches: int = RANDOM_SEARCHES,
    seed: str = "1",
    on_run: Callable[[], None] = lambda: None,
) -> Halves | None:
    """Return the median of each figure over the champions of random searches. Blocks.

    Each search draws `sets` sets from the offered values, and takes the best by the first half, as a planner
    does. `on_run` is called after each set. Returns None if no search has a champion.
    """
    champions: list[Halves] = []
    for number in range(searches):
        search = Search(evaluator.window)
        for params in random_sets(evaluator.offered.grids[family], family, sets, seed=f"{seed}.{number}"):
            outcome = evaluator.evaluate(params)
            if isinstance(outcome, Evaluation):
                search.add(params, outcome)
            on_run()
        if (champion := search.champion) is not None:
            champions.append(champion.evaluation)
    if not champions:
        return None
    return Halves(
        in_sample=_median([each.in_sample for each in champions]),
        out_of_sample=_median([each.out_of_sample for each in champions]),
    )


def random_sets(grid: Grid, family: Family, most: int, *, seed: str) -> Iterator[StrategyParams]:
    """Yield valid sets that trade differently, the same sets for the same seed.

    Yields fewer than `most` sets if the grid does not have more.
    """
    seen: set[str] = set()
    misses = 0
    for draw in count():
        # The bound on misses ends the search, because a grid may have fewer sets than requested.
        if len(seen) == most or misses > 100 * (len(seen) + 10):
            return
        given = {name: _drawn(values, seed, draw, name) for name, values in grid.items()}
        try:
            params = read_params({"strategy_type": family, **given})
        except ValueError:  # it breaks a rule between two of its parameters
            misses += 1
            continue
        if params.effective.sha256 in seen:
            misses += 1
            continue
        seen.add(params.effective.sha256)
        yield params


def _drawn(values: Sequence[Value], *parts: str | int) -> Value:
    return values[int(fraction("random set", *parts) * len(values))]


def _median(figures: Sequence[Performance]) -> Performance:
    def middle(name: str) -> float | None:
        found = [value for each in figures if (value := getattr(each, name)) is not None]
        return median(found) if found else None

    names = [name for name in Performance.model_fields if name != "bars"]
    return Performance.model_validate({"bars": figures[0].bars, **{name: middle(name) for name in names}})
