"""Templates that render parameters as code: one pure function over arrays."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, ClassVar, Final

from agentic_trading.canonical import sha256_hex
from agentic_trading.desk.planning import params as param_types
from agentic_trading.desk.planning.errors import TemplateError

ENTRY: Final = "target_weights"
ARGUMENTS: Final = ("close", "volume", "catalyst", "rebalance")
"""The arguments of the code's one public function.

`close`, `volume` and `catalyst` are read-only arrays of float64, one row per bar and one column per stock.
`rebalance` has one flag per bar. The function returns the target weights at the close of each bar, each row
computed from rows up to its own only. In `close` a gap of at most five bars is filled by the last close. A
longer gap is NaN, and its weight falls to 0. `catalyst` is the frame that `catalyst_type` names, above 0
where the event happened. The engine handles stops and costs.
"""

_FOLDER: Final = "agentic_trading.desk.planning"


class BaseTemplate:
    """The template of one family. Equal inputs give equal bytes of code.

    For another template of a shipped family, subclass its template and override `source`. An own family is
    a subclass of this class with all of the attributes below.

    Attributes:
        family: The name of the family.
        version: A number for the header of the code.
        PARAMS: The class of the family's parameters. Shipped families may have several.
        RULES: Rules between two parameters.
        DEFAULTS: A set that keeps the rules, without `strategy_type`.
        WARM_UP: The parameters that count bars, each with the bars that it needs before the first weight
            beyond its value: 0 for a mean over n closes, 1 for a return over n days.
        EXITS_BETWEEN: Whether a weight may fall to 0 between rebalance days.

    """

    family: ClassVar[param_types.Family]
    version: ClassVar[int] = 1
    PARAMS: ClassVar[tuple[type[param_types.FamilyParams], ...]]
    RULES: ClassVar[tuple[param_types.CrossRule, ...]] = ()
    PARAM_GRID: ClassVar[param_types.Grid]
    DEFAULTS: ClassVar[Mapping[str, param_types.Value]]
    WARM_UP: ClassVar[Mapping[str, int]] = MappingProxyType({})
    EXITS_BETWEEN: ClassVar[bool] = False

    @property
    def source(self) -> str:
        """The Jinja text of the function. Its variables are the parameters."""
        return _packaged(self.family)

    @property
    def sha256(self) -> str:
        """The SHA-256 over all texts that code is made from, besides parameters and data."""
        return sha256_hex(
            *(text.encode() for text in (_packaged("header"), _packaged("functions"), self.source))
        )

    def compile(self) -> None:
        """Compile the template, so that generating code reads no file later. Blocks.

        Raises:
            TemplateError: If the template's text has an error.

        """
        for name, source in (("header", _packaged("header")), (self.family, self.source)):
            _compiled(name, source)
        _packaged("functions")

    def generate_code(self, params: param_types.StrategyParams, *, data_sha256: str = "") -> str:
        """Return the code of `params`. Equal inputs give equal bytes.

        Args:
            params: Parameters of the template's family.
            data_sha256: The digest of the data. It is in the header of the code, with the hashes of
                parameters and template.

        Raises:
            TemplateError: If a variable is undefined, or the parameters are of another family.

        """
        given = params.strategy_type
        if given != self.family:
            raise TemplateError(self.family, f"the parameters are of {given}. Allowed: {self.family}")
        canonical = params.canonical
        header = {
            "family": self.family,
            "version": self.version,
            "template_sha256": self.sha256,
            "params_sha256": sha256_hex(canonical.encode()),
            "data_sha256": data_sha256,
            "canonical": canonical,
        }
        body = _rendered(self.family, self.source, params.model_dump())
        return _rendered("header", _packaged("header"), header) + _packaged("functions") + body


class MomentumTemplate(BaseTemplate):
    """The momentum template: the strongest stocks in an upward trend with a catalyst."""

    family: ClassVar[param_types.Family] = "momentum"
    PARAMS = param_types.CLASSES["momentum"]
    RULES = param_types.RULES["momentum"]
    WARM_UP = param_types.WARM_UP
    PARAM_GRID: ClassVar[param_types.Grid] = param_types.grid_of(param_types.MomentumStrategyParams)
    DEFAULTS: ClassVar[Mapping[str, param_types.Value]] = MappingProxyType({
        "momentum_period": 20,
        "ma_periods": 60,
        "catalyst_type": "revenue",
        "catalyst_lookback": 3,
        "n_stocks": 15,
        "stop_loss": 0.1,
        "resample": "W",
        "resample_offset": 0,
    })


class MeanReversionTemplate(BaseTemplate):
    """The mean-reversion template: stocks far below their mean until they recover."""

    family: ClassVar[param_types.Family] = "mean_reversion"
    PARAMS = param_types.CLASSES["mean_reversion"]
    RULES = param_types.RULES["mean_reversion"]
    WARM_UP = param_types.WARM_UP
    EXITS_BETWEEN = True
    PARAM_GRID: ClassVar[param_types.Grid] = param_types.grid_of(param_types.MeanReversionParams)
    DEFAULTS: ClassVar[Mapping[str, param_types.Value]] = MappingProxyType({
        "lookback": 20,
        "entry_z": 2.0,
        "exit_z": 0.5,
        "trend_filter": 0,
        "max_hold_days": 10,
        "n_stocks": 10,
        "stop_loss": 0.08,
        "resample": "D",
    })


class VolatilityTemplate(BaseTemplate):
    """The volatility template: stocks by their volatility."""

    family: ClassVar[param_types.Family] = "volatility"
    PARAMS = param_types.CLASSES["volatility"]
    RULES = param_types.RULES["volatility"]
    WARM_UP = param_types.WARM_UP
    PARAM_GRID: ClassVar[param_types.Grid] = param_types.grid_of(param_types.VolatilityParams)
    DEFAULTS: ClassVar[Mapping[str, param_types.Value]] = MappingProxyType({
        "mode": "inverse_vol",
        "vol_lookback": 60,
        "target_vol": 0.15,
        "max_weight": 0.1,
        "n_stocks": 15,
        "stop_loss": 0.1,
        "resample": "M",
        "resample_offset": 0,
    })


TEMPLATES: Final[Mapping[param_types.Family, BaseTemplate]] = MappingProxyType({
    template.family: template
    for template in (MomentumTemplate(), MeanReversionTemplate(), VolatilityTemplate())
})
"""The shipped template of each family."""


@cache
def _packaged(name: str) -> str:
    return files(_FOLDER).joinpath("templates", f"{name}.j2").read_text(encoding="utf-8")


def _rendered(name: str, source: str, variables: Mapping[str, Any]) -> str:
    try:
        return str(_compiled(name, source).render(variables))
    except _jinja2().UndefinedError as e:
        raise TemplateError(name, str(e)) from e


@cache
def _compiled(name: str, source: str) -> Any:
    jinja2 = _jinja2()
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as e:
        raise TemplateError(name, str(e)) from e


def _jinja2() -> Any:
    import jinja2  # noqa: PLC0415 - only commands that generate code need it

    return jinja2
