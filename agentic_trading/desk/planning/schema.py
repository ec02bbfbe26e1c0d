"""The schema of strategy parameters for given data, and the check of an answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, get_args

from agentic_trading.canonical import exact_value
from agentic_trading.desk.planning import params as param_types
from agentic_trading.desk.planning.errors import NotOfferedError
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.result import Violation

STRATEGY_PARAMS: Final = "strategy_params.v1"
"""The schema's `$id`, which names the check of the answer."""

HALF_BARS: Final = 60
"""The minimum number of bars in each half of an evaluation."""

FUNDAMENTALS: Final[tuple[str, ...]] = get_args(param_types.FundamentalCatalyst)

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PanelFacts:
    """The facts about a panel that decide which parameters it can serve.

    Attributes:
        name: The name of the panel.
        bars: The number of bars, or None without a limit.
        frames: The frames besides prices: `volume`, `revenue`, `earnings`, and the catalysts of an own panel.
        sha256: The digest by which code names the data.
        catalysts: The catalysts of an own panel with their descriptions. They are offered next to `none` and
            `volume`.

    """

    name: str
    bars: int | None = None
    frames: frozenset[str] = frozenset({"volume"})
    sha256: str = ""
    catalysts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AvailableParams:
    """The parameters that a panel can serve.

    Attributes:
        facts: The facts about the panel.
        grids: The values of each family that is offered.
        withheld: The reasons why other values and families are not offered.

    """

    facts: PanelFacts
    grids: Mapping[param_types.Family, param_types.Grid]
    withheld: tuple[str, ...]

    @property
    def warm_up(self) -> int:
        """The bars that the slowest offered value needs before its first weight.

        Evaluation starts after them.
        """
        return max(
            (
                needed_bars(name, value, param_types.family_terms(family).warm_up)
                for family, grid in self.grids.items()
                for name, values in grid.items()
                for value in values
            ),
            default=0,
        )

    def require(
        self, families: Sequence[param_types.Family] = param_types.FAMILIES
    ) -> tuple[param_types.Family, ...]:
        """Return those of `families` that are offered.

        Raises:
            NotOfferedError: If the panel offers none of them.

        """
        found = tuple(family for family in self.grids if family in families)
        if not found:
            raise NotOfferedError(self.facts.name, families, self.withheld)
        return found


def offered_by(
    facts: PanelFacts, families: Sequence[param_types.Family] = param_types.FAMILIES
) -> AvailableParams:
    """Return the parameters that a panel can serve.

    A value is offered if its warm-up leaves `HALF_BARS` bars in each half, and a catalyst if the panel has
    its frame. Without fundamentals the catalysts are `none`, and `volume` if there are volumes. A family is
    not offered if one of its parameters has no value.
    """
    grids: dict[param_types.Family, param_types.Grid] = {}
    withheld: list[str] = []
    for family in families:
        grid, reasons = _narrowed(family, facts)
        withheld += reasons
        empty = [name for name, values in grid.items() if not values]
        if empty:
            withheld.append(
                f"{family}: not offered by this data, no value of {', '.join(empty)} can be served"
            )
        else:
            grids[family] = grid
    return AvailableParams(facts, MappingProxyType(grids), tuple(withheld))


def needed_bars(name: str, value: param_types.Value, warm_up: Mapping[str, int] = param_types.WARM_UP) -> int:
    """Return how many bars the value of a parameter needs before the first weight."""
    return int(value) + warm_up[name] if value and name in warm_up else 0


def _narrowed(family: param_types.Family, facts: PanelFacts) -> tuple[param_types.Grid, list[str]]:
    grid, reasons = {}, []
    terms = param_types.family_terms(family)
    for name, values in param_types.grid_of(*terms.classes).items():
        kept = tuple(value for value in values if _is_served(name, value, facts, terms.warm_up))
        if name == "catalyst_type" and terms.takes_own_catalysts:
            kept = (*kept, *(own for own, _ in facts.catalysts if own not in kept))
        grid[name] = kept
        if left_out := [value for value in values if value not in kept]:
            reasons.append(f"{family}.{name}: {', '.join(map(str, left_out))} {_why(name, facts)}")
    return MappingProxyType(grid), reasons


def _is_served(name: str, value: param_types.Value, facts: PanelFacts, warm_up: Mapping[str, int]) -> bool:
    if name == "catalyst_type":
        return value in _catalysts(facts)
    if name not in warm_up or facts.bars is None:
        return True
    return needed_bars(name, value, warm_up) + 2 * HALF_BARS <= facts.bars


def _catalysts(facts: PanelFacts) -> list[str]:
    fundamental = [name for name in FUNDAMENTALS if name in facts.frames and not facts.catalysts]
    return fundamental or ["none", *(["volume"] if "volume" in facts.frames else [])]


def _why(name: str, facts: PanelFacts) -> str:
    if name != "catalyst_type":
        return f"needs more than {facts.bars} bars, with {HALF_BARS} in each half of the evaluation"
    has = ", ".join(sorted(facts.frames)) or "no frame"
    return f"not offered: beside prices the data has {has}"


# --- schemas ----------------------------------------------------------------------------------------------


def answer_schema(
    offered: AvailableParams,
    families: Sequence[param_types.Family] = param_types.FAMILIES,
    *,
    reasoning_apart: bool = False,
) -> Mapping[str, Any]:
    """Return the JSON Schema of an answer.

    The schema of a single family is flat. For several families it is a choice, in which `strategy_type` is
    required.

    Args:
        offered: The parameters that the data can serve.
        families: The families to choose from.
        reasoning_apart: Leave the reasoning out of the object. For models that write it in front of the
            object.

    Raises:
        NotOfferedError: If none of the families is offered.

    """
    found = offered.require(families)
    own = offered.facts.catalysts
    branches = [
        _params_schema(family, offered.grids[family], is_alone=len(found) == 1, own=own) for family in found
    ]
    properties: Schema = {} if reasoning_apart else {"reasoning": _reasoning()}
    properties["params"] = branches[0] if len(branches) == 1 else {"anyOf": branches}
    return MappingProxyType({"$id": STRATEGY_PARAMS, **_object(properties, [*properties])})


def family_schema(family: param_types.Family) -> Mapping[str, Any]:
    """Return the published schema of a family's parameters, with all values."""
    grid = param_types.grid_of(*param_types.CLASSES[family])
    return MappingProxyType({"$id": f"{family}_params.v1", **_params_schema(family, grid, is_alone=True)})


def _params_schema(
    family: param_types.Family,
    grid: param_types.Grid,
    *,
    is_alone: bool,
    own: Sequence[tuple[str, str]] = (),
) -> Schema:
    described = param_types.family_terms(family).classes[0].model_fields
    tag = {"const": family, "description": described["strategy_type"].description}
    values = {name: _choice(values, described[name].description) for name, values in grid.items()}
    if own and "catalyst_type" in values:
        texts = [values["catalyst_type"]["description"], *(f"{name}: {text}" for name, text in own)]
        values["catalyst_type"]["description"] = "; ".join(texts)
    return _object({"strategy_type": tag, **values}, [*values] if is_alone else ["strategy_type", *values])


def _choice(values: Sequence[param_types.Value], description: str | None) -> Schema:
    kinds = {type(value) for value in values}
    kind = "string" if str in kinds else "number" if float in kinds else "integer"
    return {"type": kind, "enum": [*values], "description": description}


def _reasoning() -> Schema:
    least, most = param_types.REASONING_CHARS
    description = param_types.StrategyParamRequest.model_fields["reasoning"].description
    return {"type": "string", "minLength": least, "maxLength": most, "description": description}


def _object(properties: Schema, required: Sequence[str]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def _everything() -> AvailableParams:
    """Return all families with all values."""
    grids: dict[param_types.Family, param_types.Grid] = {
        family: param_types.grid_of(*param_types.CLASSES[family]) for family in param_types.FAMILIES
    }
    return AvailableParams(PanelFacts("any data", frames=frozenset({*FUNDAMENTALS, "volume"})), grids, ())


EVERYTHING: Final = _everything()
"""The published parameters. Every narrowed schema allows a subset of them."""

STRATEGY_PARAMS_SCHEMA: Final = answer_schema(EVERYTHING)
FAMILY_SCHEMAS: Final = tuple(family_schema(family) for family in param_types.FAMILIES)


# --- the check --------------------------------------------------------------------------------------------


def check_strategy_params(envelope: LLMEnvelope, text: str) -> list[Violation]:
    """Return the rules between parameters that an accepted answer breaks.

    The allowed values of a violation are values that the envelope offers. Answers of an own family that is not
    in use in this process pass, because the planner checks each answer again.
    """
    return _checked(envelope, text, param_types.families_in_use())


def check_shipped_params(envelope: LLMEnvelope, text: str) -> list[Violation]:
    """Return the violations that a worker on a bus finds, where no own family is in use."""
    return _checked(envelope, text, param_types.FAMILIES)


def _checked(envelope: LLMEnvelope, text: str, families: Sequence[param_types.Family]) -> list[Violation]:
    schema = envelope.expected_output_schema
    if any(family not in families for family, _ in offered_in(schema)):
        return []
    return disagreements(exact_value(text.encode()), schema)


def disagreements(answer: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Violation]:
    """Return the rules between parameters that an answer breaks.

    The answer must fit `schema`, which is a result of `answer_schema`.
    """
    given = answer["params"]
    for family, grid in offered_in(schema):
        if given.get("strategy_type", family) == family:
            return list(param_types.rule_violations(family, given, grid))
    return []


def offered_in(schema: Mapping[str, Any]) -> Iterator[tuple[param_types.Family, param_types.Grid]]:
    """Yield the families that a result of `answer_schema` offers, with their values."""
    params = schema["properties"]["params"]
    for branch in params.get("anyOf", [params]):
        members = dict(branch["properties"])
        family = members.pop("strategy_type")["const"]
        yield family, {name: tuple(member["enum"]) for name, member in members.items()}
