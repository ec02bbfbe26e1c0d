"""The merged limits of one tenant: in which windows a scope is counted, and up to what."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from agentic_trading.governance.limits import ANY, UNLIMITED, Ceiling, Limit, ScopeKind, Window

_ENDLESS = 1 << 200


@dataclass(frozen=True, slots=True)
class Cap:
    """A ceiling whose absent units are spelled as numbers that nothing reaches: a check then needs no branch."""

    ceiling: Ceiling
    nusd: int
    tokens: int
    calls: int


CountedWindows = Collection[tuple[ScopeKind, Window]]
Ceilings = Mapping[Window, Ceiling]


@dataclass(frozen=True, slots=True)
class _Rule:
    """The ceilings of one kind of scope, by window; a named scope has its own."""

    default: dict[Window, Ceiling] = field(default_factory=dict)
    named: dict[str, dict[Window, Ceiling]] = field(default_factory=dict)


class LimitSet:
    """Where every scope is counted.

    Of several limits on the same scope and window the lower holds, unit by unit; a named one goes before that on
    everyone. `counted` are kept without a ceiling where no limit needs them.
    """

    def __init__(self, limits: Iterable[Limit] = (), counted: CountedWindows = ()) -> None:
        self._ceilings: dict[ScopeKind, _Rule] = {kind: _Rule() for kind in ScopeKind}
        for kind, window in counted:
            self._ceilings[kind].default[window] = UNLIMITED
        for limit in limits:
            rule = self._ceilings[limit.scope]
            ceilings = rule.default if limit.id == ANY else rule.named.setdefault(limit.id, {})
            ceilings[limit.window] = ceilings.get(limit.window, UNLIMITED).tighter(limit.ceiling)
        for rule in self._ceilings.values():
            for named in rule.named.values():
                for window, ceiling in rule.default.items():
                    named[window] = named.get(window, UNLIMITED).or_else(ceiling)

    def of(self, kind: ScopeKind, id_: str) -> Ceilings:
        """Return the windows that a scope is counted in, each with its ceiling; it may be open."""
        rule = self._ceilings[kind]
        return rule.named.get(id_, rule.default)

    def is_named(self, kind: ScopeKind, id_: str) -> bool:
        """Whether a scope has a limit by its name."""
        return id_ in self._ceilings[kind].named

    def limited(self, kind: ScopeKind) -> Iterator[tuple[str, Window]]:
        """Yield the scopes of a kind that have a ceiling, with its window; `*` is every one."""
        rule = self._ceilings[kind]
        for id_, ceilings in ((ANY, rule.default), *rule.named.items()):
            for window, ceiling in ceilings.items():
                if ceiling != UNLIMITED:
                    yield id_, window

    def windows(self, kind: ScopeKind) -> list[Window]:
        """Return the windows in which a scope of a kind is counted, whatever its id is."""
        rule = self._ceilings[kind]
        return list(dict.fromkeys(chain(rule.default, *rule.named.values())))

    def caps(self, kind: ScopeKind, window: Window) -> tuple[Cap | None, Mapping[str, Cap]]:
        """Return the cap in a window of every scope of a kind, None where it is not counted, and of the named ones."""
        rule = self._ceilings[kind]
        default = cap(rule.default[window]) if window in rule.default else None
        return default, {id_: cap(own[window]) for id_, own in rule.named.items() if window in own}


def cap(ceiling: Ceiling) -> Cap:
    """Return a ceiling as a cap."""
    return Cap(ceiling, *(_ENDLESS if most is None else most for most in ceiling.units))
