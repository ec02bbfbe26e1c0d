"""A limit on what a scope may use: money, tokens and calls, within a window."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from agentic_trading.governance.errors import LimitError
from agentic_trading.governance.windows import Window

Unit = Literal["nano-USD", "tokens", "calls"]

UNITS: tuple[Unit, Unit, Unit] = ("nano-USD", "tokens", "calls")
"""The order in which amounts and ceilings list theirs."""

LARGEST = 2**53
"""What a ledger counts exactly, wherever it runs: 9 million dollars in nano-dollars."""

ANY = "*"
"""As the id of a limit: every one of that kind, each by itself."""


class ScopeKind(StrEnum):
    """What spending is counted for. All of it is counted within the tenant: two tenants share no counter."""

    CALL = "call"
    TRACE = "trace"
    AGENT = "agent"
    WORKFLOW = "workflow"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most of each unit, or what is left of it; None where there is no ceiling."""

    nusd: int | None = None
    tokens: int | None = None
    calls: int | None = None

    @property
    def units(self) -> tuple[int | None, int | None, int | None]:
        """In the order of `UNITS`."""
        return self.nusd, self.tokens, self.calls

    def tighter(self, other: "Ceiling") -> "Ceiling":
        """Return the lower of both ceilings, unit by unit."""
        return Ceiling(*map(_lower, self.units, other.units))

    def or_else(self, other: "Ceiling") -> "Ceiling":
        """Return this ceiling, with what it leaves open taken from `other`."""
        return Ceiling(*(
            mine if mine is not None else theirs for mine, theirs in zip(self.units, other.units, strict=True)
        ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limit:
    """A ceiling on what a scope may use within each window: nano-dollars, tokens, calls; at least one of them.

    `id` names the scope; `*` is every one of the kind by itself. A named limit goes before the `*` one of the same
    kind and window, unit by unit. Raises `LimitError`.
    """

    scope: ScopeKind
    id: str
    window: Window
    nusd: int | None = None
    tokens: int | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        """Refuse a limit that names nothing, limits nothing or is out of range."""
        span = "in all" if self.window is Window.NONE else f"per {self.window}"
        subject = f"{self.scope} {self.id!r} {span}"
        given = {"nusd": self.nusd, "tokens": self.tokens, "calls": self.calls}
        if not self.id:
            raise LimitError(subject, "has no id; allowed are the id of a scope and '*'")
        if all(value is None for value in given.values()):
            raise LimitError(subject, "has no ceiling; allowed are nusd, tokens and calls, one at least")
        for unit, value in given.items():
            if value is not None and not 0 <= value <= LARGEST:
                raise LimitError(subject, f"{unit} is {value}; allowed are 0 (nothing may run) to {LARGEST}")

    @property
    def ceiling(self) -> Ceiling:
        """What this limit allows."""
        return Ceiling(self.nusd, self.tokens, self.calls)


def _lower(one: int | None, other: int | None) -> int | None:
    given = [value for value in (one, other) if value is not None]
    return min(given, default=None)
