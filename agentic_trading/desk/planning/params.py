"""The parameters of strategies: the values to choose from, and rules between them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    TypeAdapter,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from agentic_trading.canonical import canonical_bytes, sha256_hex
from agentic_trading.desk.planning.errors import UnknownFamilyError
from agentic_trading.llm.result import Violation
from agentic_trading.structured.feedback import INCONSISTENT, nearest_option

Family = str
"""The name of a strategy family: a shipped one, or one of an installed package."""

ShippedFamily = Literal["momentum", "mean_reversion", "volatility"]
FAMILIES: Final[tuple[ShippedFamily, ...]] = get_args(ShippedFamily)

FundamentalCatalyst = Literal["revenue", "earnings"]
PriceCatalyst = Literal["none", "volume"]
OwnCatalyst = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
"""The name of a catalyst in an own panel. The schema of a question lists the names that the panel has."""

CatalystT = TypeVar("CatalystT", FundamentalCatalyst, PriceCatalyst, OwnCatalyst)

Value = int | float | str
Grid = Mapping[str, tuple[Value, ...]]
"""The values of each parameter, in order."""

REASONING_CHARS: Final = (50, 500)


class PlanTerms(BaseModel, frozen=True, extra="forbid"):
    """The terms of a session's search for a plan.

    Attributes:
        family: The strategy family to choose parameters of.
        rounds: The number of rounds.
        source_sha256: The hash of the source of an own family. Empty for a shipped one.

    """

    family: Family = Field(default="momentum", pattern=r"^[a-z][a-z0-9_]{0,39}$")
    rounds: int = Field(default=5, ge=1)
    source_sha256: str = ""

    @property
    def on_record(self) -> dict[str, Any]:
        """The terms as a manifest keeps them."""
        # Left out if empty, because releases without own families refuse a manifest with it.
        return self.model_dump(mode="json", exclude=None if self.source_sha256 else {"source_sha256"})


@dataclass(frozen=True, slots=True)
class OneOf:
    """The allowed values of a number, like `Literal` for integers.

    Texts and null are refused.
    """

    values: tuple[float, ...]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            self._member, core_schema.float_schema(strict=True)
        )

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "number", "enum": [*self.values]}

    def _member(self, value: float) -> float:
        if value in self.values:
            return value
        raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, self.values))})


def _not_bool(value: Any) -> Any:
    # Without this check false and true would be valid, because Python takes them for 0 and 1.
    if isinstance(value, bool):
        raise PydanticKnownError("literal_error", {"expected": "a number, not a bool"})
    return value


Offset = Annotated[Literal[0, 1, 2, 3, 4], BeforeValidator(_not_bool)]
TrendDays = Annotated[Literal[0, 50, 100, 200], BeforeValidator(_not_bool)]
"""Integers with 0 or 1 among them. Booleans are refused."""


@dataclass(frozen=True, slots=True)
class CrossRule:
    """A rule that two parameters must keep.

    Attributes:
        change: The parameter to change if the rule is broken.
        other: The other parameter.
        holds: Returns whether two values keep the rule.
        sentence: The message, with both names in braces for their values.

    """

    change: str
    other: str
    holds: Callable[[Any, Any], bool]
    sentence: str

    def kept_by(self, given: Mapping[str, Any]) -> bool:
        """Return whether the two parameters keep the rule."""
        return self.holds(given[self.change], given[self.other])


RULES: Final[Mapping[Family, tuple[CrossRule, ...]]] = MappingProxyType({
    "momentum": (
        CrossRule(
            "momentum_period",
            "ma_periods",
            lambda period, mean: period <= mean,
            "momentum_period ({momentum_period}) should be <= ma_periods ({ma_periods}) for proper trend confirmation",
        ),
    ),
    "mean_reversion": (
        CrossRule(
            "exit_z",
            "entry_z",
            lambda leave, enter: leave < enter,
            "exit_z ({exit_z}) must be < entry_z ({entry_z}): a position is left nearer to the mean than it is entered",
        ),
        CrossRule(
            "trend_filter",
            "lookback",
            lambda trend, lookback: trend == 0 or trend > lookback,
            "trend_filter ({trend_filter}) must be 0 or > lookback ({lookback}): a trend is longer than a swing",
        ),
    ),
    "volatility": (
        CrossRule(
            "max_weight",
            "n_stocks",
            lambda weight, stocks: round(weight * 100) * stocks >= 100,
            "max_weight ({max_weight}) times n_stocks ({n_stocks}) must be >= 1: else part of the account can never be invested",
        ),
    ),
})


class FamilyParams(BaseModel, frozen=True, extra="forbid"):
    """A set of parameters that keeps the rules of its family. The base class of the sets of own families.

    A set has `strategy_type`, `n_stocks`, `stop_loss` and `resample`, and any other parameters. Each one has
    a description, and lists its values with `Literal` or `OneOf`. Some optional names have a meaning:
    `resample_offset` is the weekday of a weekly rebalance, `catalyst_type` the frame that the code gets, and
    `max_weight` the maximum weight of a stock, which is 1 / `n_stocks` otherwise.
    """

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        given = self.model_dump()
        rules = family_terms(given["strategy_type"]).rules
        broken = [rule.sentence.format_map(given) for rule in rules if not rule.kept_by(given)]
        if broken:
            raise ValueError("; ".join(broken))
        return self

    @property
    def canonical(self) -> str:
        """The parameters and their family as canonical JSON."""
        return canonical_bytes(self.model_dump()).decode()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the canonical JSON.

        Sets that trade alike have an equal `effective.sha256`.
        """
        return sha256_hex(self.canonical.encode())

    @property
    def effective(self) -> Self:
        """The set with the first value for each parameter that has no effect.

        Sets that trade alike have equal effective sets.
        """
        given = self.model_dump()
        if given["resample"] != "W" and "resample_offset" in given:
            given["resample_offset"] = 0
        if given.get("catalyst_type") == "none" and "catalyst_lookback" in given:
            given["catalyst_lookback"] = grid_of(type(self))["catalyst_lookback"][0]
        # The weights of these modes are equal. `max_weight` has no effect because it is at least 1 / n_stocks.
        if given["strategy_type"] == "volatility" and given["mode"] in {"low_vol", "breakout"}:
            given["max_weight"] = next(
                value
                for value in grid_of(type(self))["max_weight"]
                if RULES["volatility"][0].kept_by({**given, "max_weight": value})
            )
        return type(self).model_validate(given)


_STOCKS: Final = "how many stocks are held at most"
_STOP: Final = "share of the entry price at whose loss a position is sold"
_OFFSET: Final = "weekday of a weekly rebalance, 0 Monday; unused if monthly"


class _Momentum(FamilyParams, Generic[CatalystT], frozen=True, extra="forbid"):
    strategy_type: Literal["momentum"] = Field(default="momentum", description="the family of the strategy")
    momentum_period: Literal[5, 10, 20, 30] = Field(description="days over which the return is measured")
    ma_periods: Literal[20, 60, 90, 120] = Field(
        description="days of the mean that the price must be above, at least momentum_period"
    )
    catalyst_type: CatalystT = Field(
        description="what must have happened; volume is a day of more than twice its 20-day mean, none asks for nothing"
    )
    catalyst_lookback: Literal[2, 3, 4, 6] = Field(
        description="months within which the catalyst must have been"
    )
    n_stocks: Literal[5, 10, 15, 20] = Field(description=_STOCKS)
    stop_loss: Annotated[float, OneOf((0.08, 0.10, 0.12, 0.15))] = Field(description=_STOP)
    resample: Literal["W", "M"] = Field(description="W: rebalance weekly; M: monthly")
    resample_offset: Offset = Field(description=_OFFSET)


class MomentumStrategyParams(_Momentum[FundamentalCatalyst], frozen=True, extra="forbid"):
    """Hold the strongest stocks in an upward trend with a fundamental catalyst."""


class PriceMomentumParams(_Momentum[PriceCatalyst], frozen=True, extra="forbid"):
    """Momentum on data without fundamentals: with a volume catalyst, or no catalyst."""


class OwnMomentumParams(_Momentum[OwnCatalyst], frozen=True, extra="forbid"):
    """Momentum on an own panel, with one of its catalysts."""


class MeanReversionParams(FamilyParams, frozen=True, extra="forbid"):
    """Hold stocks far below their mean, until they recover or time is up."""

    strategy_type: Literal["mean_reversion"] = Field(
        default="mean_reversion", description="the family of the strategy"
    )
    lookback: Literal[10, 20, 40, 60] = Field(description="days of the mean and of the deviation")
    entry_z: Annotated[float, OneOf((1.0, 1.5, 2.0, 2.5))] = Field(
        description="deviations below the mean at which a position is entered"
    )
    exit_z: Annotated[float, OneOf((0.0, 0.5, 1.0))] = Field(
        description="deviations below the mean at which it is left, less than entry_z"
    )
    trend_filter: TrendDays = Field(
        description="days of a mean that the price must be above to enter, more than lookback; 0: none"
    )
    max_hold_days: Literal[5, 10, 20] = Field(description="days after which a position is left in any case")
    n_stocks: Literal[5, 10, 15, 20] = Field(description=_STOCKS)
    stop_loss: Annotated[float, OneOf((0.05, 0.08, 0.10, 0.12))] = Field(description=_STOP)
    resample: Literal["D", "W"] = Field(description="when positions are entered: D daily, W on Mondays")


class VolatilityParams(FamilyParams, frozen=True, extra="forbid"):
    """Hold stocks by their volatility, scaled down to a target."""

    strategy_type: Literal["volatility"] = Field(
        default="volatility", description="the family of the strategy"
    )
    mode: Literal["low_vol", "inverse_vol", "breakout"] = Field(
        description="low_vol: calmest; inverse_vol: weighted; breakout: at a high"
    )
    vol_lookback: Literal[20, 40, 60, 120] = Field(description="days over which volatility is measured")
    target_vol: Annotated[float, OneOf((0.08, 0.10, 0.15, 0.20))] = Field(
        description="volatility a year above which all weights are scaled down"
    )
    max_weight: Annotated[float, OneOf((0.10, 0.15, 0.20, 0.25))] = Field(
        description="most of the account in one stock; times n_stocks at least 1"
    )
    n_stocks: Literal[5, 10, 15, 20] = Field(description=_STOCKS)
    stop_loss: Annotated[float, OneOf((0.08, 0.10, 0.12, 0.15))] = Field(description=_STOP)
    resample: Literal["W", "M"] = Field(description="W: rebalance weekly; M: monthly")
    resample_offset: Offset = Field(description=_OFFSET)


CLASSES: Final[Mapping[Family, tuple[type[FamilyParams], ...]]] = MappingProxyType({
    "momentum": (MomentumStrategyParams, PriceMomentumParams),
    "mean_reversion": (MeanReversionParams,),
    "volatility": (VolatilityParams,),
})
"""The parameter classes of each shipped family. Classes of one family need different data."""

WARM_UP: Final[Mapping[str, int]] = MappingProxyType({
    "momentum_period": 1,  # because a return over n days needs n + 1 closes
    "ma_periods": 0,
    "lookback": 0,
    "trend_filter": 0,
    "vol_lookback": 1,
})
"""The bars that each parameter of a shipped family needs before the first weight, beyond its value."""


@dataclass(frozen=True, slots=True)
class FamilyTerms:
    """The parameters of a family, and the rules of its sets.

    Attributes:
        classes: The classes of parameters.
        rules: Rules between two parameters.
        warm_up: The bars that a parameter needs before the first weight, beyond its value.
        exits_between: Whether a weight may fall to 0 between rebalance days.
        takes_own_catalysts: Whether `catalyst_type` may be any catalyst of an own panel.
        source_sha256: The hash of the source of an own family. Empty for a shipped one.

    """

    classes: tuple[type[FamilyParams], ...]
    rules: tuple[CrossRule, ...]
    warm_up: Mapping[str, int]
    exits_between: bool = False
    takes_own_catalysts: bool = False
    source_sha256: str = ""


_TERMS: Final[dict[Family, FamilyTerms]] = {
    family: FamilyTerms(
        CLASSES[family],
        RULES[family],
        WARM_UP,
        exits_between=family == "mean_reversion",
        takes_own_catalysts=family == "momentum",
    )
    for family in FAMILIES
}


def add_terms(family: Family, terms: FamilyTerms) -> None:
    """Add the terms of an own family, for this process. `use_family` does it."""
    _TERMS[family] = terms


def drop_terms(family: Family) -> None:
    """Remove the terms of an own family."""
    _TERMS.pop(family, None)


def family_terms(family: Family) -> FamilyTerms:
    """Return the terms of a family. Raises `UnknownFamilyError` if it is neither shipped nor in use."""
    return _TERMS[family_of(family)]


_PRICE_MOMENTUM: Final = "price_momentum"
_OWN_MOMENTUM: Final = "own_momentum"
_OF_OWN_FAMILY: Final = "own family"


def _class_tag(given: Any) -> str:
    value = given.model_dump() if isinstance(given, BaseModel) else given
    if not isinstance(value, Mapping):
        return ""
    family = value.get("strategy_type", "momentum")
    if isinstance(family, str) and family in _TERMS and family not in FAMILIES:
        return _OF_OWN_FAMILY
    if family == "momentum":
        catalyst = value.get("catalyst_type")
        if catalyst in get_args(PriceCatalyst):
            return _PRICE_MOMENTUM
        if isinstance(catalyst, str) and catalyst not in get_args(FundamentalCatalyst):
            return _OWN_MOMENTUM
    return str(family)


class _OfOwnFamily(FamilyParams, frozen=True, extra="forbid"):
    """The parameters of any set of an own family, which is validated by the class of its family."""

    strategy_type: str
    n_stocks: int
    stop_loss: float
    resample: Literal["D", "W", "M"]

    @model_validator(mode="wrap")
    @classmethod
    def _by_family(cls, value: Any, _handler: Callable[[Any], Self]) -> Self:
        if isinstance(value, FamilyParams):
            return cast("Self", value)
        (found,) = family_terms(value["strategy_type"]).classes
        return cast("Self", found.model_validate(value))


StrategyParams = Annotated[
    Annotated[MomentumStrategyParams, Tag("momentum")]
    | Annotated[PriceMomentumParams, Tag(_PRICE_MOMENTUM)]
    | Annotated[OwnMomentumParams, Tag(_OWN_MOMENTUM)]
    | Annotated[MeanReversionParams, Tag("mean_reversion")]
    | Annotated[VolatilityParams, Tag("volatility")]
    | Annotated[_OfOwnFamily, Tag(_OF_OWN_FAMILY)],
    Discriminator(_class_tag),
]
"""Any set of parameters. `strategy_type` names the family, and may be absent for momentum."""

_ANY: Final[TypeAdapter[StrategyParams]] = TypeAdapter(StrategyParams)


class StrategyParamRequest(BaseModel, frozen=True, extra="forbid"):
    """A model's answer: parameters, and the reasons for them."""

    reasoning: str = Field(
        min_length=REASONING_CHARS[0],
        max_length=REASONING_CHARS[1],
        description="why these values, from the evidence",
    )
    params: StrategyParams = Field(description="the parameters of the strategy")


def read_params(value: Mapping[str, Any]) -> StrategyParams:
    """Return decoded JSON as parameters of its family.

    Raises:
        pydantic.ValidationError: If the values are not a valid set. It is a `ValueError`.

    """
    return _ANY.validate_python(value)


def family_of(name: object) -> Family:
    """Return the name of a family that is shipped or in use.

    Raises:
        UnknownFamilyError: If no such family has this name.

    """
    for family in _TERMS:
        if family == name:
            return family
    raise UnknownFamilyError(name, [*_TERMS])


def families_in_use() -> tuple[Family, ...]:
    """Return the names of the shipped families and of those that are in use in this process."""
    return tuple(_TERMS)


@cache
def grid_of(*models: type[BaseModel]) -> Grid:
    """Return the values of each parameter, read from the classes.

    Values of several classes are merged. Without values is only a `catalyst_type` of the type `OwnCatalyst`.
    """
    grid: dict[str, tuple[Value, ...]] = {}
    for model in models:
        for name, member in model.model_json_schema()["properties"].items():
            if name != "strategy_type":
                is_open = name == "catalyst_type" and "pattern" in member
                values = () if is_open else member["enum"]
                grid[name] = tuple(dict.fromkeys([*grid.get(name, ()), *values]))
    return MappingProxyType(grid)


def rule_violations(family: Family, given: Mapping[str, Any], grid: Grid) -> Iterator[Violation]:
    """Yield each rule of a family that a set of parameters breaks.

    A violation has the field to change and its allowed values. Allowed values keep every rule about the field
    while the other fields stay as given. If there is no such value, the other field of the rule is the one to
    change.
    """
    for rule in family_terms(family).rules:
        if not rule.kept_by(given):
            name, allowed = _field_to_change(family, rule, given, grid)
            yield Violation(
                path=f"$.params.{name}",
                keyword=INCONSISTENT,
                message=rule.sentence.format_map(given),
                actual=given[name],
                allowed=allowed,
                suggestion=nearest_option(given[name], allowed),
            )


def _field_to_change(
    family: Family, rule: CrossRule, given: Mapping[str, Any], grid: Grid
) -> tuple[str, list[Value]]:
    for name in (rule.change, rule.other):
        allowed = [
            value
            for value in grid[name]
            if all(other.kept_by({**given, name: value}) for other in _rules_about(family, name))
        ]
        if allowed:
            return name, allowed
    return rule.change, []


def _rules_about(family: Family, name: str) -> Sequence[CrossRule]:
    return [rule for rule in family_terms(family).rules if name in {rule.change, rule.other}]
