"""Entry points of installed packages, including ours. Packages are imported when an entry point is used."""

import ast
import re
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

from agentic_trading.errors import TradingError


class OfferError(TradingError):
    """An entry point cannot be used."""

    def __init__(self, offer: EntryPoint, reason: str) -> None:
        super().__init__(f"{offer.name} ({offer.group}) of the package {package_of(offer)} {reason}")


def offers(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, sorted by name and package. Blocks, because it reads files."""
    return sorted(_installed(group, tuple(sys.path)), key=lambda offer: (offer.name, package_of(offer)))


@lru_cache(maxsize=16)  # because each platform asks, and it takes 15 ms with 120 packages
def _installed(group: str, path: tuple[str, ...]) -> EntryPoints:  # noqa: ARG001 - another path has other packages
    return entry_points(group=group)


def package_of(offer: EntryPoint) -> str:
    """Return the normalized name of the package that has an entry point."""
    return "" if offer.dist is None else normalized(offer.dist.name)


def normalized(package: str) -> str:
    """Return a package name in lower case with dashes: `Acme_Desk` becomes `acme-desk`."""
    return re.sub(r"[-_.]+", "-", package).lower()


def offer_of(group: str, name: str) -> EntryPoint | None:
    """Return the entry point with a name, or None. Raises `OfferError` if several packages have it."""
    found = [offer for offer in offers(group) if offer.name == name]
    if len(found) > 1:
        others = " and ".join(map(package_of, found[1:]))
        raise OfferError(found[0], f"is also in {others}. Uninstall all but one of them")
    return found[0] if found else None


def loaded(offer: EntryPoint) -> Any:
    """Import and return the object of an entry point. Raises `OfferError` if that fails."""
    try:
        return offer.load()
    except Exception as e:  # because the package's code runs here and may raise anything
        reason = f"cannot be loaded ({type(e).__name__}: {e}). Repair or uninstall the package"
        raise OfferError(offer, reason) from e


def docstring_of(offer: EntryPoint) -> str:
    """Return the first docstring line of an entry point's module, without importing it."""
    module = Path(*offer.module.split("."))
    files = [Path(folder, file) for folder in sys.path for file in (f"{module}.py", module / "__init__.py")]
    with suppress(StopIteration, OSError, SyntaxError, ValueError):  # no source, or a broken one
        source = next(file for file in files if file.is_file())
        return (ast.get_docstring(ast.parse(source.read_bytes())) or "").partition("\n")[0]
    return ""
