"""In which windows a scope is counted, and up to what: the limits of one tenant, merged."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agentic_trading.governance.limit import ANY, Ceiling, Limit, ScopeKind
from agentic_trading.governance.windows import Window

_ENDLESS = 1 << 200
_OPEN = Ceiling()
_Most = TypeVar("_Most")


@dataclass(frozen=True, slots=True)
class Cap:
    """A ceiling whose absent units are spelled as numbers that nothing reaches: a check then needs no branch."""

    ceiling: Ceiling
    nusd: int
    tokens: int
    calls: int


Counted = Collection[tuple[ScopeKind, Window]]
Ceilings = Mapping[Window, Ceiling]
Caps = Mapping[Window, Cap]


@dataclass(frozen=True, slots=True)
class _Rule(Generic[_Most]):
    """For one kind of scope; a named scope has its own."""

    everyone: dict[Window, _Most] = field(default_factory=dict)
    named: dict[str, dict[Window, _Most]] = field(default_factory=dict)


class Rules:
    """Say what every scope is counted in.

    Of several limits on the same scope and window the lower holds, unit by unit; a named one goes before that on
    everyone. `counted` are kept without a ceiling where no limit needs them.
    """

    def __init__(self, limits: Iterable[Limit] = (), counted: Counted = ()) -> None:
        self._ceilings: dict[ScopeKind, _Rule[Ceiling]] = {kind: _Rule() for kind in ScopeKind}
        for kind, window in counted:
            self._ceilings[kind].everyone[window] = _OPEN
        for limit in limits:
            rule = self._ceilings[limit.scope]
            ceilings = rule.everyone if limit.id == ANY else rule.named.setdefault(limit.id, {})
            ceilings[limit.window] = ceilings.get(limit.window, _OPEN).tighter(limit.ceiling)
        for rule in self._ceilings.values():
            for named in rule.named.values():
                for window, ceiling in rule.everyone.items():
                    named[window] = named.get(window, _OPEN).or_else(ceiling)
        self._caps = {kind: _capped(rule) for kind, rule in self._ceilings.items()}

    def of(self, kind: ScopeKind, id_: str) -> Ceilings:
        """Return the windows that a scope is counted in, each with its ceiling; it may be open."""
        rule = self._ceilings[kind]
        return rule.named.get(id_, rule.everyone)

    def limited(self, kind: ScopeKind) -> Iterator[tuple[str, Window]]:
        """Say which scopes of a kind have a ceiling, and in which windows; `*` is every one."""
        rule = self._ceilings[kind]
        for id_, ceilings in ((ANY, rule.everyone), *rule.named.items()):
            for window, ceiling in ceilings.items():
                if ceiling != _OPEN:
                    yield id_, window

    def caps(self, kind: ScopeKind, id_: str) -> Caps:
        """Return the same windows, each with its cap."""
        rule = self._caps[kind]
        return rule.named.get(id_, rule.everyone)


def cap(ceiling: Ceiling) -> Cap:
    """Return a ceiling as a cap."""
    return Cap(ceiling, *(_ENDLESS if most is None else most for most in ceiling.units))


def _capped(rule: _Rule[Ceiling]) -> _Rule[Cap]:
    return _Rule(_caps(rule.everyone), {id_: _caps(named) for id_, named in rule.named.items()})


def _caps(ceilings: Ceilings) -> dict[Window, Cap]:
    return {window: cap(ceiling) for window, ceiling in ceilings.items()}
