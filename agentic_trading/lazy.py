"""Names of a package that are loaded when they are first used (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, names_of: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are those of its modules, by module."""
    module_of = {name: f"agentic_trading.{module}" for module, names in names_of.items() for name in names}

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; dir({package}) lists its names"
            )
        found = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return [*sys.modules[package].__all__]

    return load, names
