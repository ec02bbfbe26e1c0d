"""The promises of a strategy's weights: form, limits, change days, no look-ahead."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Self

from agentic_trading.desk.planning.allowlist import split_header
from agentic_trading.desk.planning.panel import Flags, Floats
from agentic_trading.desk.planning.params import StrategyParams, family_terms
from agentic_trading.desk.planning.sandbox import Aborted, Completed, SandboxJob
from agentic_trading.errors import extra_named
from agentic_trading.ids import fraction

with extra_named():
    import numpy as np
    import numpy.typing as npt

TOLERANCE: Final = 1e-9
"""The tolerance of sums and limits, because n times 1/n is not always 1."""

CUTS: Final = 8
"""The number of extra cuts of the panel, at bars drawn from the hash of the code."""


class Promise(StrEnum):
    """A promise of a strategy's weights."""

    FORM = "form"
    FINITE = "finite"
    PRICED = "priced"
    NOT_NEGATIVE = "not_negative"
    ROW_SUM = "row_sum"
    N_STOCKS = "n_stocks"
    MAX_WEIGHT = "max_weight"
    CHANGES = "changes"
    HEADER = "header"
    """The header of the code names the parameters that it was made from."""
    TRUNCATION = "truncation"
    """Weights do not change if later bars are cut off."""
    ALTERATION = "alteration"
    """Weights do not change if later bars have other figures."""


@dataclass(frozen=True, slots=True)
class WeightRules:
    """The limits that a set of parameters promises for its weights."""

    n_stocks: int
    max_weight: float = 1.0
    exits_between: bool = False
    """Whether a weight may fall to 0 between rebalance bars. Otherwise only that of a vanished stock may."""

    @classmethod
    def of(cls, params: StrategyParams) -> Self:
        """Return the rules of `params`.

        A family of equal weights holds at most 1/n of each stock.
        """
        most = getattr(params, "max_weight", 1 / params.n_stocks)
        return cls(params.n_stocks, most, exits_between=family_terms(params.strategy_type).exits_between)


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A broken promise, and the first bar that breaks it.

    The bar is None if it is not a single bar.
    """

    promise: Promise
    message: str
    bar: int | None = None


def broken_promises(
    weights: npt.NDArray[Any], close: Floats, rebalance: Flags, rules: WeightRules
) -> tuple[BrokenPromise, ...]:
    """Return the broken promises, each once with its first bar.

    `close` is the array that the code got.
    """
    if weights.dtype != np.float64 or weights.shape != close.shape:
        allowed = f"float64 {close.shape}"
        return (_broken_form(f"weights are {weights.dtype} {weights.shape}; allowed: {allowed}"),)
    return tuple(
        BrokenPromise(promise, f"{given[bar]:g} at bar {bar}; allowed: {allowed}", bar)
        for promise, wrong, given, allowed in _checks(weights, np.isnan(close), rebalance, rules)
        for bar in np.flatnonzero(wrong)[:1].tolist()
    )


def _checks(
    weights: Floats, vanished: Flags, rebalance: Flags, rules: WeightRules
) -> Iterator[tuple[Promise, Flags, Floats, str]]:
    """Yield each promise, the bars that break it, their figures, and the limit."""
    infinite = (~np.isfinite(weights)).sum(axis=1)
    yield Promise.FINITE, infinite > 0, infinite, "no weight that is NaN or infinite"
    weights = np.nan_to_num(weights, nan=0.0, posinf=0.0, neginf=0.0)
    least, most, held = weights.min(axis=1), weights.max(axis=1), (weights > 0).sum(axis=1)
    lost = (vanished & (weights != 0)).sum(axis=1)
    yield Promise.PRICED, lost > 0, lost, "no weight of a stock without a price"
    yield Promise.NOT_NEGATIVE, least < 0, least, "0 or more"
    yield Promise.ROW_SUM, weights.sum(axis=1) > 1 + TOLERANCE, weights.sum(axis=1), "1 or less in all"
    yield Promise.N_STOCKS, held > rules.n_stocks, held, f"{rules.n_stocks} stocks or fewer"
    yield (
        Promise.MAX_WEIGHT,
        most > rules.max_weight + TOLERANCE,
        most,
        f"{rules.max_weight:g} a stock or less",
    )
    before = np.vstack((np.zeros_like(weights[:1]), weights[:-1]))
    may_exit = vanished | rules.exits_between
    changed = (weights != before) & ~rebalance[:, None] & ~(may_exit & (weights == 0))
    allowed = "exits alone" if rules.exits_between else "no change"
    yield Promise.CHANGES, changed.any(axis=1), changed.sum(axis=1), f"{allowed} between rebalance bars"


def broken_by_header(code: str, params: StrategyParams) -> tuple[BrokenPromise, ...]:
    """Return a broken promise if the comments above the code do not name `params`."""
    comments = [line.removeprefix("# ") for line in split_header(code)[0].split("\n")]
    named = [line for line in comments if line.startswith(("parameters:", "{"))]
    if named == [f"parameters: sha256 {params.sha256}", params.canonical]:
        return ()
    return (BrokenPromise(Promise.HEADER, f"the header names other parameters; allowed: {params.canonical}"),)


def broken_by_look_ahead(
    run: Callable[[SandboxJob], Completed | Aborted], job: SandboxJob
) -> tuple[BrokenPromise, ...]:
    """Return the promises about later bars that the weights break.

    The first n rows must equal, bit for bit, those of a run over n bars only, and those of a run with other
    figures in all later bars. Bars are cut off after every change of weights and every rebalance bar, because
    a look-ahead shows there. They are also cut off after bars drawn from the hash of the code.

    Args:
        run: The `run` of a sandbox.
        job: The code and its arguments.

    """
    full = run(replace(job, bars=None, altered_from=None))
    if isinstance(full, Aborted):
        return (_broken_form(full.text),)
    cuts = _cuts(full.weights, job)
    shown = _cuts(full.weights) or cuts
    late = shown[len(shown) * 5 // 8]
    truncated = (
        _difference(Promise.TRUNCATION, full.weights, cut, run(replace(job, bars=cut))) for cut in cuts
    )
    altered = _difference(Promise.ALTERATION, full.weights, late, run(replace(job, altered_from=late)))
    return tuple(filter(None, (next(filter(None, truncated), None), altered)))


def _cuts(weights: Floats, job: SandboxJob | None = None) -> list[int]:
    """Return the numbers of bars to cut the panel to, sorted."""
    last = len(weights) - 1  # the last bar is left out, because no bar is later
    before = np.vstack((np.zeros_like(weights[:1]), weights[:-1]))
    changed = np.flatnonzero((weights != before)[:last].any(axis=1)).tolist()
    if job is not None:
        # Rebalance bars are cut too, because a look-ahead may prevent a change.
        # Drawn bars are cut too, because code cannot contain its own hash, and so cannot avoid them.
        digest = sha256(job.code.encode("utf-8", "surrogatepass")).hexdigest()
        changed += np.flatnonzero(job.rebalance[:last]).tolist()
        changed += [int(fraction(digest, number) * last) for number in range(CUTS)]
    return sorted({bar + 1 for bar in changed})


def _difference(
    promise: Promise, full: Floats, cut: int, outcome: Completed | Aborted
) -> BrokenPromise | None:
    seen = "bars alone" if promise is Promise.TRUNCATION else "bars as they are, and others after them"
    if isinstance(outcome, Aborted):
        return BrokenPromise(promise, f"with the first {cut} {seen}: {outcome.text}; allowed: weights")
    bits = full[:cut].view(np.int64) != outcome.weights[:cut].view(np.int64)
    bars = np.flatnonzero(bits.any(axis=1)).tolist()
    if not bars:
        return None
    return BrokenPromise(
        promise, f"other weights at bar {bars[0]} with the first {cut} {seen}; allowed: the same", bars[0]
    )


def _broken_form(message: str) -> BrokenPromise:
    return BrokenPromise(Promise.FORM, message)
