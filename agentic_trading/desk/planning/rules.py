"""A baseline that answers the planner's question without a model, by small steps."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Final

from agentic_trading.canonical import canonical_bytes, exact_bytes
from agentic_trading.desk.planning.params import (
    Family,
    Grid,
    StrategyParams,
    Value,
    families_in_use,
    read_params,
)
from agentic_trading.desk.planning.schema import offered_in
from agentic_trading.ids import fraction
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, ProviderError

ROUNDS_APART: Final = 64
"""The number of consecutive rounds that share out the sets, so that no two of them choose the same set."""


def strategy_params_rule(envelope: LLMEnvelope) -> str:
    """Answer the planner's question. Equal context and evidence give equal text.

    The answer changes one parameter of the best set so far, or as few more as it takes to find a set that is
    assigned to the round. The first round begins in the middle of each range. Candidates are drawn by
    `ids.fraction`. The sets of `ROUNDS_APART` consecutive rounds are distinct, even if the evidence leaves
    some out.

    Raises:
        ProviderError: If a family is not in use in this process, such as in a worker on a bus.

    """
    families = dict(offered_in(envelope.expected_output_schema))
    if unknown := [family for family in families if family not in families_in_use()]:
        # Refused before a candidate is read, because a set of an unknown family has no rules.
        message = (
            f"the rules cannot answer about the strategy family {unknown[0]!r}: this process has not loaded its package. "
            "Workers have the shipped families only. Use a model, or run without --bus"
        )
        raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False)
    tried = next(item.content for item in envelope.retrieved_evidence if item.source == "tried")
    shown = [each["params"] for each in (*tried["best"], *tried["last"])]
    if repeated := envelope.context.get("repeated"):
        shown.append(repeated["params"])
    best = next((each for each in shown if each["strategy_type"] in families), None)
    number = int(envelope.context["round"])
    family = best["strategy_type"] if best else next(iter(families))
    chosen = _chosen(family, families[family], best or {}, _seen(shown), number)
    why = _reason(best or {}, chosen.model_dump())
    return exact_bytes({"reasoning": why, "params": chosen.model_dump()}).decode()


def _chosen(
    family: Family, grid: Grid, best: Mapping[str, Any], seen: set[str], number: int
) -> StrategyParams:
    """Return the unseen set nearest to `best` that is assigned to the round.

    Without such a set, return another unseen set, or else any valid set.
    """
    start = {name: best.get(name, values[len(values) // 2]) for name, values in grid.items()}
    valid: list[StrategyParams] = []
    for changes in range(len(grid) + 1):
        moves = list(_moves(family, grid, start, changes))
        unseen = [params for params in moves if params.effective.canonical not in seen]
        dealt = [params for params in unseen if _turn(params) == number % ROUNDS_APART]
        if dealt:
            return min(dealt, key=lambda params: fraction("move", number, params.canonical))
        valid = [*unseen[:1], *valid, *moves[:1]]
    return valid[0]


def _moves(family: Family, grid: Grid, start: Mapping[str, Value], changes: int) -> Iterator[StrategyParams]:
    """Yield the valid sets that differ from `start` in so many parameters."""
    for names in combinations(grid, changes):
        others = [[value for value in grid[name] if value != start[name]] for name in names]
        for values in product(*others):
            try:
                yield read_params({"strategy_type": family, **start, **dict(zip(names, values, strict=True))})
            except ValueError:  # it breaks a rule between two of its parameters
                continue


def _turn(params: StrategyParams) -> int:
    return int(fraction("turn", params.effective.canonical) * ROUNDS_APART)


def _seen(shown: Sequence[Mapping[str, Any]]) -> set[str]:
    return {read_params(each).effective.canonical for each in shown}


def _reason(best: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Return the change as the reasoning of an answer: 50 to 500 characters."""
    if not best:
        return "Nothing was tried yet: near the middle of each range, where no value is an end of its grid."
    changed = [
        f"{name} {_spelled(best[name])} to {_spelled(value)}"
        for name, value in chosen.items()
        if value != best[name]
    ]
    return f"From the best set so far, with the others as they are, because one step shows what it is worth: {', '.join(changed)}."


def _spelled(value: Any) -> str:
    return canonical_bytes(value).decode().strip('"')
