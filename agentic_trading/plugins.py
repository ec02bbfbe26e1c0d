"""What installed packages offer by entry points, ours among them: found by its name, and loaded only when it is used."""

import re
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from itertools import accumulate
from typing import Any, Final

from agentic_trading.errors import TradingError

_DOCSTRING: Final = re.compile(r"""(?:\s|\#[^\n]*\n)*[rR]?(\"{3}|'{3}|["'])(.*?)\1""", re.DOTALL)
"""The docstring of a source, without parsing the rest of it."""


class OfferError(TradingError):
    """A package offers what cannot be used: `group` and `name` say what of, `package` is its own name."""

    def __init__(self, group: str, name: str, package: str, reason: str) -> None:
        self.group = group
        self.name = name
        self.package = package
        super().__init__(f"{name} of {group}, which {package} offers, {reason}")


def offers(group: str) -> list[EntryPoint]:
    """Return what packages offer in a group, sorted by name and package; nothing of it is loaded."""
    return sorted(entry_points(group=group), key=lambda offer: (offer.name, package_of(offer)))


def package_of(offer: EntryPoint) -> str:
    """Return the name of the package that makes an offer, as a configuration spells it."""
    return "" if offer.dist is None else offer.dist.name.replace("_", "-").lower()


def offer_of(group: str, name: str) -> EntryPoint | None:
    """Return the offer with a name, None if there is none; raises `OfferError` where two packages make it."""
    found = [offer for offer in offers(group) if offer.name == name]
    if len(found) > 1:
        first, second = map(package_of, found[:2])
        raise OfferError(group, name, first, f"is offered by {second} too; uninstall one of them")
    return found[0] if found else None


def loaded(group: str, offer: EntryPoint) -> Any:
    """Load what is offered; raises `OfferError` where that fails."""
    try:
        return offer.load()
    except Exception as e:  # code of others is imported here, and may raise anything
        reason = f"cannot be loaded ({type(e).__name__}: {e}); repair or uninstall the package"
        raise OfferError(group, offer.name, package_of(offer), reason) from e


def docstring_of(offer: EntryPoint) -> str:
    """Return the first line of the docstring of an offer's module, read from its source: the module is not loaded."""
    spec: ModuleSpec | None = None
    for name in accumulate(offer.module.split("."), "{}.{}".format):
        folders = None if spec is None else spec.submodule_search_locations
        found = (finder.find_spec(name, folders) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return ""
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(offer.module)
    doc = _DOCSTRING.match(source or "")
    return doc[2].strip().partition("\n")[0] if doc else ""
