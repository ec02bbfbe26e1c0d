"""The public suites on broken adapters: which checks fail, and which checks no broken adapter fails."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from agentic_trading.testing.suite import Suite


def checks_of(suite: type[Suite]) -> list[str]:
    """Return the checks of a suite, as a test runner collects them."""
    return [name for name in dir(suite) if name.startswith("test_")]


def failures(suite: type[Suite], but: Iterable[str] = ()) -> set[str]:
    """Return the checks that an adapter fails, with a broken promise or with an error of its own."""
    failed = set()
    for name in {*checks_of(suite)} - {*but}:
        try:
            getattr(suite(), name)()
        except Exception:  # noqa: BLE001 - an adapter may break in any way
            failed.add(name)
    return failed


def unbroken(suite: type[Suite], broken: Mapping[type, AbstractSet[str]]) -> set[str]:
    """Return the checks that no broken adapter fails."""
    return {*checks_of(suite)} - {name for names in broken.values() for name in names}
