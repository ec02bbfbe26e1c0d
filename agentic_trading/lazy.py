"""Names of a package that are imported on first use (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, names_of: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, given the names of its modules."""
    module_of = {name: f"agentic_trading.{module}" for module, names in names_of.items() for name in names}

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}. dir({package}) lists its names"
            )
        found = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return [*sys.modules[package].__all__]

    return load, names
