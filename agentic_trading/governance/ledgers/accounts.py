"""The counters of one tenant in the memory ledger: one a scope and window, found fast, forgotten when they are over."""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo

from agentic_trading.governance.errors import ClosedWindowError
from agentic_trading.governance.estimate import NOTHING, Amount
from agentic_trading.governance.ledger import Ask
from agentic_trading.governance.ledgers.rules import Cap, Caps, Rules, cap
from agentic_trading.governance.limit import Ceiling, ScopeKind
from agentic_trading.governance.windows import Span, Window, Windows

_UNLIMITED = Ceiling()
_OPEN = cap(_UNLIMITED)
_MINUTE = timedelta(minutes=1)
_AT_ONCE = 250
_SHORT_LIVED = frozenset({ScopeKind.CALL, ScopeKind.TRACE})

Spans = Mapping[Window, Span]


class Account:
    """What one scope may still use in one window: `cap` is the most, and `left` what is neither spent nor held of it.

    What is in doubt is spent too. `left` is below zero where more was charged than the cap.
    """

    __slots__ = (
        "cap", "in_doubt", "left_calls", "left_nusd", "left_tokens", "scope", "span", "spent_calls", "spent_nusd",
        "spent_tokens", "window",
    )  # fmt: skip

    def __init__(self, scope: "Scope", window: Window, span: Span, most: Cap) -> None:
        self.scope = scope
        self.window = window
        self.span = span
        self.cap = most
        self.left_nusd = most.nusd
        self.left_tokens = most.tokens
        self.left_calls = most.calls
        self.spent_nusd = self.spent_tokens = self.spent_calls = 0
        self.in_doubt = NOTHING

    @property
    def used(self) -> tuple[int, int, int]:
        """Nano-dollars, tokens, calls: spent and held together."""
        cap = self.cap
        return cap.nusd - self.left_nusd, cap.tokens - self.left_tokens, cap.calls - self.left_calls

    @property
    def spent(self) -> Amount:
        """What was charged, with what is in doubt."""
        return Amount(self.spent_nusd, self.spent_tokens, self.spent_calls)

    @property
    def held(self) -> Amount:
        """What calls in flight may give back."""
        nusd, tokens, calls = self.used
        return Amount(nusd - self.spent_nusd, tokens - self.spent_tokens, calls - self.spent_calls)

    @property
    def is_limited(self) -> bool:
        """Whether it has a ceiling."""
        return self.cap.ceiling != _UNLIMITED

    def allow(self, most: Cap) -> None:
        """Have this cap in place of the one before."""
        was, self.cap = self.cap, most
        self.left_nusd += most.nusd - was.nusd
        self.left_tokens += most.tokens - was.tokens
        self.left_calls += most.calls - was.calls

    def is_over(self, before: datetime) -> bool:
        """Whether its window ended before a moment, or it counts nothing: it can be made anew as it is."""
        cap, over_by = self.cap, self.span.over_by
        counts_nothing = (
            self.left_nusd == cap.nusd and self.left_tokens == cap.tokens and self.left_calls == cap.calls
        )
        return counts_nothing or (over_by is not None and over_by <= before)


class Scope:
    """One call, trace, agent, workflow or tenant; `current` are its accounts of the minute that `spans` stands for.

    It was last asked for within a minute from `last_at`.
    """

    __slots__ = ("caps", "current", "id", "kind", "last_at", "others", "spans", "tenant")

    def __init__(
        self, tenant: str, kind: ScopeKind, id_: str, caps: Caps, spans: Spans, at: datetime
    ) -> None:
        self.tenant = tenant
        self.kind = kind
        self.id = id_
        self.caps = caps
        self.spans: Spans | None = spans
        self.last_at = at
        self.current: list[Account] = []
        self.others: dict[tuple[Window, str], Account] | None = None
        for window, most in caps.items():
            self.current.append(Account(self, window, spans[window], most))

    def move_to(self, spans: Spans, at: datetime) -> None:
        """Make the accounts of `spans` the current ones, old ones found again and missing ones new."""
        self.spans = spans
        self.last_at = max(self.last_at, at)
        known = {(account.window, account.span.id): account for account in self}
        self.current = current = []
        for window, most in self.caps.items():
            key = window, spans[window].id
            current.append(known.pop(key) if key in known else Account(self, window, spans[window], most))
        self.others = known or None

    def count_in(self, window: Window) -> None:
        """Be counted in `window` from now on, without a ceiling of the scope's own."""
        if window not in self.caps:
            self.caps = {**self.caps, window: _OPEN}
            self.spans = None

    def allow(self, caps: Caps) -> None:
        """Have these caps in place of those before, and be counted in all windows of both."""
        self.caps = {**dict.fromkeys(self.caps, _OPEN), **caps}
        self.spans = None
        for account in self:
            account.allow(self.caps[account.window])

    def forget(self, before: datetime, in_use: Collection[Account]) -> bool:
        """Drop accounts not in use that were over before a moment; return whether nothing worth keeping is left."""
        rests = self.kind in _SHORT_LIVED and self.last_at + _MINUTE <= before
        kept = {account for account in self if account in in_use or not (rests or account.is_over(before))}
        if self.others:
            self.others = {key: account for key, account in self.others.items() if account in kept} or None
        return not kept

    def __iter__(self) -> Iterator[Account]:
        yield from self.current
        if self.others:
            yield from self.others.values()


class Horizon:
    """How far back asks may go, for all tenants: `keep` before the newest moment that something was reserved for.

    Who asks in vain moves nothing. `windows` are those of the ledger's zone.
    """

    def __init__(self, zone: tzinfo, keep: timedelta) -> None:
        self.windows = Windows(zone)
        self.keep = keep
        self.newest = datetime.min.replace(tzinfo=UTC) + keep

    @property
    def oldest(self) -> datetime:
        """The oldest moment that can still be asked about."""
        return self.newest - self.keep

    def move_to(self, at: datetime) -> None:
        """Note that something was reserved for a moment."""
        if at > self.newest:
            self.newest = at


class Accounts:
    """All accounts of a tenant, and the rules by which an ask finds its own.

    Counters of a window are kept until the horizon has passed its end, those of a call or a trace until it has rested
    for as long. What belongs to an agent, a workflow or a tenant and has no window stays. A counter that counted
    nothing may go.
    """

    def __init__(self, tenant: str, rules: Rules, horizon: Horizon) -> None:
        self._tenant = tenant
        self._rules = rules
        self._horizon = horizon
        self._scopes: dict[ScopeKind, dict[str, Scope]] = {kind: {} for kind in ScopeKind}

    def of(self, ask: Ask, at: datetime) -> list[Account]:
        """Return the accounts that `ask` is counted in; raises `ClosedWindowError` for a moment too long ago."""
        horizon = self._horizon
        if at < horizon.newest and at < horizon.oldest:
            raise ClosedWindowError(ask.key, at, horizon.oldest)
        return self.kept(ask, at)

    def kept(self, ask: Ask, at: datetime) -> list[Account]:
        """Return the accounts that `ask` is counted in, for who knows that they are kept, or have to be made."""
        spans = self._horizon.windows.at(at)
        if ask.limits:
            self._count_own(ask, spans, at)
        found: list[Account] = []
        for kind, id_ in ask.scope_ids.items():
            scopes = self._scopes[kind]
            scope = scopes.get(id_)
            if scope is None:
                caps = self._rules.caps(kind, id_)
                if not caps:
                    continue
                scope = scopes[id_] = Scope(self._tenant, kind, id_, caps, spans, at)
            elif scope.spans is not spans:
                scope.move_to(spans, at)
            found += scope.current
        return found

    def adopt(self, rules: Rules) -> frozenset[tuple[ScopeKind, str, Window]]:
        """Count against `rules` from now on, and go on counting what was; return what was counted so far."""
        known = frozenset(
            (scope.kind, scope.id, window)
            for scopes in self._scopes.values()
            for scope in scopes.values()
            for window in scope.caps
        )
        self._rules = rules
        for kind, scopes in self._scopes.items():
            for id_, scope in scopes.items():
                scope.allow(rules.caps(kind, id_))
        return known

    def forget(self, in_use: Collection[Account]) -> None:
        """Drop the counters whose time is over, but for those that are still in use."""
        before = self._horizon.oldest
        for scopes in self._scopes.values():
            for id_ in [id_ for id_, scope in scopes.items() if scope.forget(before, in_use)]:
                del scopes[id_]

    def pieces(self, newest: datetime | None, *, limited: bool) -> Iterator[list[Account]]:
        """Yield all accounts, so many at once; with `limited`, those with a ceiling of what lasts, in the windows of `newest`."""
        scopes: list[Scope] = []
        for kind, of_kind in self._scopes.items():
            if not (limited and kind in _SHORT_LIVED):
                scopes += of_kind.values()
        spans = self._horizon.windows.at(newest) if limited and newest is not None else {}
        ids = {window: span.id for window, span in spans.items()}
        for start in range(0, len(scopes), _AT_ONCE):
            yield [
                account
                for scope in scopes[start : start + _AT_ONCE]
                for account in scope
                if not limited or (account.is_limited and account.span.id == ids.get(account.window))
            ]

    def _count_own(self, ask: Ask, spans: Spans, at: datetime) -> None:
        """Have the counters that the ask's own limits are about, whether a rule counts them or not."""
        for limit in ask.limits:
            id_ = ask.scope_ids[limit.scope]
            scope = self._scopes[limit.scope].get(id_)
            if scope is None:
                caps = self._rules.caps(limit.scope, id_)
                scope = self._scopes[limit.scope][id_] = Scope(
                    self._tenant, limit.scope, id_, caps, spans, at
                )
            scope.count_in(limit.window)
