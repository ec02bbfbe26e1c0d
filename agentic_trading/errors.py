"""The root of all errors of this package, and the error for a missing extra."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

EXTRAS: Final[Mapping[str, str]] = MappingProxyType({
    "duckdb": "export",
    "exchange_calendars": "calendars",
    "json_repair": "salvage",
    "matplotlib": "desk",
    "numpy": "desk",
    "polars": "data",
    "xllamacpp": "local",
})
"""The extra of each optional package."""


class TradingError(Exception):
    """The base class of all errors that `agentic_trading` raises on purpose."""


class MissingExtraError(TradingError, ImportError):
    """A package of an extra is not installed.

    Attributes:
        package: The missing package.
        extra: The extra that installs it.

    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.extra = EXTRAS[package]
        super().__init__(
            f"{package.replace('_', '-')} is not installed. Run pip install 'agentic-trading[{self.extra}]'"
        )


def require_extra(*packages: str) -> None:
    """Raise `MissingExtraError` for the first of these packages that is not installed.

    Does not import them.
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(package)


@contextmanager
def extra_named() -> Generator[None]:
    """Raise `MissingExtraError` if an import in this block needs an extra."""
    try:
        yield
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtraError(package) from e
