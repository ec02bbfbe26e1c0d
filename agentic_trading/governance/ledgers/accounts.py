"""The counters of the memory ledger: one a scope and window, found fast, forgotten when they are over."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

from agentic_trading.governance.errors import ClosedWindowError
from agentic_trading.governance.ledger import ANY, Ask, Ceiling, Limit, ScopeKind
from agentic_trading.governance.windows import Span, Window, Windows

_OPEN = Ceiling()
_ENDLESS = 1 << 200
_SHORT_LIVED = frozenset({ScopeKind.CALL, ScopeKind.TRACE})

Ceilings = Mapping[Window, Ceiling]
Spans = Mapping[Window, Span]


@dataclass(slots=True, eq=False)
class Account:
    """What one scope has used in one window: spent, held and in doubt together."""

    scope: "Scope"
    window: Window
    span: Span
    ceiling: Ceiling
    used_nusd: int = 0
    used_tokens: int = 0
    used_calls: int = 0
    max_nusd: int = field(init=False)
    max_tokens: int = field(init=False)
    max_calls: int = field(init=False)

    def __post_init__(self) -> None:
        """Spell an absent ceiling as one that nothing reaches: the check then needs no branch."""
        ceiling = self.ceiling
        self.max_nusd = _ENDLESS if ceiling.nusd is None else ceiling.nusd
        self.max_tokens = _ENDLESS if ceiling.tokens is None else ceiling.tokens
        self.max_calls = _ENDLESS if ceiling.calls is None else ceiling.calls

    @property
    def used(self) -> tuple[int, int, int]:
        """Nano-dollars, tokens, calls."""
        return self.used_nusd, self.used_tokens, self.used_calls

    def is_over(self, before: datetime) -> bool:
        """Whether its window ended before a moment, or nothing was ever counted: it can be made anew as it is."""
        over_by = self.span.over_by
        return (over_by is not None and over_by <= before) or not any(self.used)


@dataclass(slots=True, eq=False)
class Scope:
    """One call, trace, agent, workflow or tenant; `current` are its accounts of the minute that `spans` stands for."""

    tenant: str
    kind: ScopeKind
    id: str
    ceilings: Ceilings
    last_at: datetime
    spans: Spans | None = None
    current: list[Account] = field(default_factory=list)
    others: dict[tuple[Window, str], Account] | None = None

    def move_to(self, spans: Spans) -> None:
        """Make the accounts of `spans` the current ones, old ones found again and missing ones new."""
        known = {(account.window, account.span.id): account for account in self} if self.current else {}
        self.spans = spans
        self.current = current = []
        for window, ceiling in self.ceilings.items():
            span = spans[window]
            account = known.pop((window, span.id), None)
            current.append(Account(self, window, span, ceiling) if account is None else account)
        self.others = known or None

    def count_in(self, window: Window) -> None:
        """Be counted in `window` from now on, without a ceiling of the scope's own."""
        if window not in self.ceilings:
            self.ceilings = {**self.ceilings, window: _OPEN}
            self.spans = None

    def forget(self, before: datetime, in_use: Collection[Account]) -> bool:
        """Drop accounts not in use that were over before a moment; return whether nothing worth keeping is left."""
        rests = self.kind in _SHORT_LIVED and self.last_at < before

        def is_kept(account: Account) -> bool:
            return account in in_use or not (rests or account.is_over(before))

        if self.others:
            self.others = {key: account for key, account in self.others.items() if is_kept(account)} or None
        return self.others is None and not any(map(is_kept, self.current))

    def __iter__(self) -> Iterator[Account]:
        yield from self.current
        if self.others:
            yield from self.others.values()


@dataclass(frozen=True, slots=True)
class _Rule:
    """In which windows scopes of a kind are counted, and up to what; a named scope has its own."""

    everyone: dict[Window, Ceiling] = field(default_factory=dict)
    named: dict[str, dict[Window, Ceiling]] = field(default_factory=dict)


class Accounts:
    """All accounts, and the rules by which an ask finds its own.

    Counters of a window are kept until `keep` after its end, those of a call or a trace until it has rested for
    `keep`; time goes by the newest moment that something was reserved for: who asks in vain moves nothing. What
    belongs to an agent, a workflow or a tenant and has no window stays. A counter that counted nothing may go.
    """

    def __init__(
        self,
        limits: Sequence[Limit],
        *,
        zone: tzinfo,
        keep: timedelta,
        counted: Collection[tuple[ScopeKind, Window]],
    ) -> None:
        self._windows = Windows(zone)
        self._keep = keep
        self._rules = _rules(limits, counted)
        self._tenants: dict[str, dict[ScopeKind, dict[str, Scope]]] = {}
        self.newest = datetime.min.replace(tzinfo=UTC) + keep

    @property
    def oldest(self) -> datetime:
        """The oldest moment that can still be asked about."""
        return self.newest - self._keep

    def of(self, ask: Ask) -> list[Account]:
        """Return the accounts that `ask` is counted in; raises `ClosedWindowError` for a moment too long ago."""
        at = ask.at
        spans = self._windows.at(at)
        if at < self.newest and at < self.oldest:
            raise ClosedWindowError(ask.key, at, self.oldest)
        tenant = ask.scope_ids.get(ScopeKind.TENANT, "")
        scopes = self._tenants.get(tenant) or self._new_tenant(tenant)
        if ask.limits:
            self._count_own(ask, scopes)
        found: list[Account] = []
        for kind, id_ in ask.scope_ids.items():
            scope = scopes[kind].get(id_)
            if scope is None:
                ceilings = self._ceilings(kind, id_)
                if not ceilings:
                    continue
                scope = scopes[kind][id_] = Scope(tenant, kind, id_, ceilings, at)
            if at > scope.last_at:
                scope.last_at = at
            if scope.spans is not spans:
                scope.move_to(spans)
            found += scope.current
        return found

    def move_to(self, at: datetime) -> None:
        """Note that something was reserved for a moment."""
        if at > self.newest:
            self.newest = at

    def forget(self, in_use: Collection[Account]) -> None:
        """Drop the counters whose time is over, but for those that are still in use."""
        before = self.oldest
        for kinds in self._tenants.values():
            for scopes in kinds.values():
                for id_ in [id_ for id_, scope in scopes.items() if scope.forget(before, in_use)]:
                    del scopes[id_]

    def __iter__(self) -> Iterator[Account]:
        for kinds in self._tenants.values():
            for scopes in kinds.values():
                for scope in scopes.values():
                    yield from scope

    def _new_tenant(self, tenant: str) -> dict[ScopeKind, dict[str, Scope]]:
        self._tenants[tenant] = {kind: {} for kind in ScopeKind}
        return self._tenants[tenant]

    def _count_own(self, ask: Ask, scopes: dict[ScopeKind, dict[str, Scope]]) -> None:
        """Have the counters that the ask's own limits are about, whether a rule counts them or not."""
        for limit in ask.limits:
            id_ = ask.scope_ids[limit.scope]
            scope = scopes[limit.scope].get(id_)
            if scope is None:
                tenant = ask.scope_ids.get(ScopeKind.TENANT, "")
                ceilings = self._ceilings(limit.scope, id_)
                scope = scopes[limit.scope][id_] = Scope(tenant, limit.scope, id_, ceilings, ask.at)
            scope.count_in(limit.window)

    def _ceilings(self, kind: ScopeKind, id_: str) -> Ceilings:
        rule = self._rules[kind]
        return rule.named.get(id_, rule.everyone) if rule.named else rule.everyone


def _rules(limits: Sequence[Limit], counted: Collection[tuple[ScopeKind, Window]]) -> dict[ScopeKind, _Rule]:
    rules = {kind: _Rule() for kind in ScopeKind}
    for kind, window in counted:
        rules[kind].everyone[window] = _OPEN
    for limit in limits:
        rule = rules[limit.scope]
        ceilings = rule.everyone if limit.id == ANY else rule.named.setdefault(limit.id, {})
        ceilings[limit.window] = ceilings.get(limit.window, _OPEN).tighter(limit.ceiling)
    for rule in rules.values():
        for named in rule.named.values():
            for window, ceiling in rule.everyone.items():
                named[window] = named.get(window, _OPEN).or_else(ceiling)
    return rules
