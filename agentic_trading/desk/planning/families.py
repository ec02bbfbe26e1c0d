"""Own strategy families: templates that installed packages register as entry points."""

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from agentic_trading.canonical import sha256_hex
from agentic_trading.desk.planning import params as param_types
from agentic_trading.desk.planning.allowlist import code_problems
from agentic_trading.desk.planning.errors import FamilyError, PlanningError, UnknownFamilyError
from agentic_trading.desk.planning.template import TEMPLATES, BaseTemplate
from agentic_trading.plugins import loaded, offer_of, offers

GROUP: Final = "agentic_trading.families"
"""The group of entry points. The name of an entry point is that of the family, its object the template's class."""

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
REQUIRED: Final = ("strategy_type", "n_stocks", "stop_loss", "resample")
SHARE: Final = "shares of the entry price, above 0 and below 1"

_IN_USE: Final[dict[param_types.Family, BaseTemplate]] = {**TEMPLATES}


def load_family(name: str) -> BaseTemplate:
    """Return the template of a family, and use it in this process. Blocks, and imports the family's package.

    Only the named family is imported. Shipped families take precedence.

    Raises:
        UnknownFamilyError: If no installed package has a family of this name.
        OfferError: If several packages have one, or it cannot be imported.
        FamilyError: If its template or its parameters are wrong.
        TemplateError: If its template cannot be rendered.

    """
    if name in param_types.FAMILIES:
        return TEMPLATES[name]  # without a look at packages, so that they cannot replace it
    offer = offer_of(GROUP, name)
    if offer is None:
        raise UnknownFamilyError(
            name, list(dict.fromkeys([*param_types.FAMILIES, *(each.name for each in offers(GROUP))]))
        )
    found = loaded(offer)
    template = found() if isinstance(found, type) and issubclass(found, BaseTemplate) else found
    if not isinstance(template, BaseTemplate) or getattr(template, "family", None) != name:
        reason = f"{offer.value} must be a subclass of BaseTemplate with family = {name!r}"
        raise FamilyError(name, reason)
    return use_family(template)


def use_family(template: BaseTemplate) -> BaseTemplate:
    """Use a family of your own in this process, and return it. Blocks.

    Its parameters and its template are checked first, and the code of its defaults against the gate.

    Raises the errors of `load_family`.
    """
    family = template.family
    if not NAME.fullmatch(family) or family in param_types.FAMILIES:
        reason = f"its name must have 1 to 40 lower-case letters, digits and _, and not be one of {', '.join(param_types.FAMILIES)}"
        raise FamilyError(family, reason)
    params = _checked_params(family, template)
    terms = param_types.FamilyTerms(
        classes=(params,),
        rules=template.RULES,
        warm_up=template.WARM_UP,
        exits_between=template.EXITS_BETWEEN,
        takes_own_catalysts=param_types.grid_of(params).get("catalyst_type") == (),
        source_sha256=_source_sha256(template),
    )
    param_types.add_terms(family, terms)
    try:
        _check_code(template)
    except PlanningError:
        # Otherwise a set of the refused family would be read later in this process.
        drop_family(family)
        raise
    _IN_USE[family] = template
    return template


def drop_family(family: param_types.Family) -> None:
    """Use a family of your own no longer. Shipped families stay."""
    if family not in param_types.FAMILIES:
        param_types.drop_terms(family)
        _IN_USE.pop(family, None)


def _source_sha256(template: BaseTemplate) -> str:
    """Return the hash of a template's module and of its Jinja text."""
    file = getattr(sys.modules.get(type(template).__module__), "__file__", None)
    module = Path(file).read_bytes() if file else b""
    # With the text too, because a template may read it from another file.
    return sha256_hex(module, template.source.encode())


def _check_code(template: BaseTemplate) -> None:
    """Raise `FamilyError` or `TemplateError` unless the code of the defaults passes the gate."""
    template.compile()
    try:
        defaults = param_types.read_params({"strategy_type": template.family, **template.DEFAULTS})
    except (ValidationError, AttributeError) as e:
        raise FamilyError(template.family, f"DEFAULTS must be a valid set ({e})") from e
    if problems := code_problems(template.generate_code(defaults)):
        listed = "; ".join(each.text for each in problems)
        raise FamilyError(template.family, f"the gate refuses its code: {listed}")


def template_of(family: param_types.Family) -> BaseTemplate:
    """Return the template of a family that is shipped or in use, or raise `UnknownFamilyError`."""
    return _IN_USE[param_types.family_of(family)]


def _checked_params(family: param_types.Family, template: BaseTemplate) -> type[param_types.FamilyParams]:
    """Return the one class of a family's parameters, or raise `FamilyError` with what to change."""
    classes: tuple[type[param_types.FamilyParams], ...] = getattr(template, "PARAMS", ())
    if len(classes) != 1 or not issubclass(classes[0], param_types.FamilyParams):
        raise FamilyError(family, "PARAMS must be a tuple of one subclass of FamilyParams")
    params = classes[0]
    if reason := next(chain(_wrong_fields(family, params), _wrong_values(params, template.WARM_UP)), None):
        raise FamilyError(family, reason)
    return params


def _wrong_fields(family: param_types.Family, params: type[param_types.FamilyParams]) -> Iterator[str]:
    fields = params.model_fields
    if missing := [name for name in REQUIRED if name not in fields]:
        yield f"{params.__name__} must have the parameters {', '.join(missing)}"
    elif fields["strategy_type"].default != family:
        yield f"the default of {params.__name__}.strategy_type must be {family!r}"
    for name, field in fields.items():
        if not field.description:
            yield f"{params.__name__}.{name} must have a description"


def _wrong_values(params: type[param_types.FamilyParams], warm_up: Iterable[str]) -> Iterator[str]:
    try:
        grid = param_types.grid_of(params)
    except KeyError:
        yield f"each parameter of {params.__name__} must list two values or more, with Literal or OneOf"
        return
    if not {*grid["resample"]} <= {"D", "W", "M"}:
        yield f"resample has {', '.join(map(str, grid['resample']))}. Allowed: D, W, M"
    if not all(0 < float(value) < 1 for value in grid["stop_loss"]):
        yield f"the values of stop_loss must be {SHARE}"
    if not all(int(value) >= 1 for value in grid["n_stocks"]):
        yield "the values of n_stocks must be 1 or more"
    if unknown := [name for name in warm_up if name not in grid]:
        yield f"WARM_UP has {', '.join(unknown)}. Allowed: {', '.join(grid)}"
