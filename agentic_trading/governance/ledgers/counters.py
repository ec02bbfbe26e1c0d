"""The counters of one tenant in the memory ledger: one a scope and window, found fast, forgotten when they are over."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import chain

from agentic_trading.governance.ledger import ReservationRequest
from agentic_trading.governance.ledgers.limit_set import Cap, LimitSet, cap
from agentic_trading.governance.limits import Ceiling, Limit, ScopeKind, TimeWindow, Window, Windows
from agentic_trading.governance.prices import NOTHING, Amount

SHORT_LIVED = frozenset({ScopeKind.CALL, ScopeKind.TRACE})

_UNLIMITED = Ceiling()
_OPEN = cap(_UNLIMITED)
_NOT_YET = TimeWindow("", None)
_NEVER = datetime.max.replace(tzinfo=UTC)

TimeWindows = Mapping[Window, TimeWindow]


class WindowCounter:
    """What one scope may still use in one window: `cap` is the most, and `left` what is neither spent nor held of it.

    What is in doubt is spent too. `left` is below zero where more was charged than the cap. It was asked for in no
    minute that ended after `asked_until`; `spans` stand for the one in which it was last asked for.
    """

    __slots__ = (
        "asked_until", "cap", "id", "in_doubt", "left_calls", "left_nusd", "left_tokens", "span", "spans", "spent_calls",
        "spent_nusd", "spent_tokens", "table",
    )  # fmt: skip

    def __init__(self, table: "CounterTable", id_: str, span: TimeWindow, most: Cap) -> None:
        self.table = table
        self.id = id_
        self.span = span
        self.spans = table.spans
        self.asked_until = table.asked_until
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

    def go_on(self, asked_until: datetime, nusd: int, tokens: int, calls: int) -> None:
        """Count what was spent before."""
        self.asked_until = max(self.asked_until, asked_until)
        self.spent_nusd, self.spent_tokens, self.spent_calls = nusd, tokens, calls
        self.left_nusd -= nusd
        self.left_tokens -= tokens
        self.left_calls -= calls

    def allow(self, most: Cap) -> None:
        """Have this cap in place of the one before."""
        was, self.cap = self.cap, most
        self.left_nusd += most.nusd - was.nusd
        self.left_tokens += most.tokens - was.tokens
        self.left_calls += most.calls - was.calls


class WindowBucket:
    """The accounts of one span, by id: those in use, and of each at rest what it spent, after when it was last asked for.

    Plain values cost the garbage collector nothing: as objects, which it walks through, a day's calls would cost every
    other call as much as all else that the ledger does. Those that have rested longest stand first, but for those that
    moments going back and forth leave behind younger ones.
    """

    __slots__ = ("at_rest", "in_use", "span")

    def __init__(self, span: TimeWindow) -> None:
        self.span = span
        self.in_use: dict[str, WindowCounter] = {}
        self.at_rest: dict[str, tuple[datetime, int, int, int]] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self.in_use
        yield from self.at_rest

    def __len__(self) -> int:
        return len(self.in_use) + len(self.at_rest)

    def quiet(self, before: datetime) -> Iterator[str]:
        """Say who was last asked for in a minute that ended before a moment; of those at rest, up to the first who was not."""
        for id_, account in self.in_use.items():
            if account.asked_until <= before:
                yield id_
        for id_, (asked_until, *_) in self.at_rest.items():
            if asked_until > before:
                break
            yield id_


class CounterTable:
    """All accounts of one kind of scope in one window: on the shelf of the span that is asked for now, and on `others`.

    `everyone` is counted up to that cap, or not at all; `named` have their own.
    """

    __slots__ = (
        "_is_short_lived", "_is_wanted", "asked_until", "everyone", "in_use", "kind", "named", "others", "shelf", "spans",
        "tenant", "window",
    )  # fmt: skip

    def __init__(self, tenant: str, kind: ScopeKind, window: Window) -> None:
        self._is_short_lived = kind in SHORT_LIVED
        self._is_wanted = False
        self.tenant = tenant
        self.kind = kind
        self.window = window
        self.everyone: Cap | None = None
        self.named: Mapping[str, Cap] = {}
        self.spans: TimeWindows = {}
        self.asked_until = _NEVER
        self.shelf = WindowBucket(_NOT_YET)
        self.in_use = self.shelf.in_use
        self.others: dict[str, WindowBucket] = {}

    @property
    def shelves(self) -> list[WindowBucket]:
        """All that there are."""
        return [self.shelf, *self.others.values()]

    def turn_to(self, spans: TimeWindows) -> None:
        """Have the span of this minute asked for from now on; its accounts, if it was asked for before, are found again."""
        self.spans = spans
        self.asked_until = spans[Window.MINUTE].over_by or _NEVER
        span = spans[self.window]
        if span.id == self.shelf.span.id:
            return
        if self.shelf:
            self.others[self.shelf.span.id] = self.shelf
        self.shelf = self.others.pop(span.id) if span.id in self.others else WindowBucket(span)
        self.in_use = self.shelf.in_use

    def open(self, id_: str) -> WindowCounter | None:
        """Return an account of the present span that was not in use, or None for who is not counted here."""
        most = self.named.get(id_, self.everyone)
        if most is None:
            return None
        account = self.in_use[id_] = WindowCounter(self, id_, self.shelf.span, most)
        at_rest = self.shelf.at_rest
        if id_ in at_rest:
            account.go_on(*at_rest.pop(id_))
        return account

    def touch(self, account: WindowCounter) -> None:
        """Note that an account in use is asked for in another minute than the last time."""
        account.spans = self.spans
        account.asked_until = max(account.asked_until, self.asked_until)

    def seen(self, shelf: WindowBucket, id_: str) -> WindowCounter | None:
        """Return an account to be read, in use or at rest, or None if it is gone."""
        account = shelf.in_use.get(id_)
        if account is None and id_ in shelf.at_rest:
            most = self.named.get(id_, self.everyone) or _OPEN
            account = WindowCounter(self, id_, shelf.span, most)
            account.go_on(*shelf.at_rest[id_])
        return account

    def count_everyone(self) -> None:
        """Count everyone from now on, without a cap who has none: an ask's own limit wants to know what was before."""
        self._is_wanted = True
        self.everyone = self.everyone or _OPEN

    def follow(self, rules: LimitSet) -> None:
        """Count by these rules from now on, and go on counting, without a cap, who is counted already."""
        everyone, named = rules.caps(self.kind, self.window)
        if everyone is None and (self._is_wanted or (self._is_short_lived and self.everyone is not None)):
            everyone = _OPEN
        if everyone is None:
            known = chain(self.named, *self.shelves)
            named = {**dict.fromkeys(known, _OPEN), **named}
        self.everyone, self.named = everyone, named
        others = everyone or _OPEN
        for shelf in self.shelves:
            for id_, account in shelf.in_use.items():
                account.allow(named.get(id_, others))

    def let_go(self, account: WindowCounter) -> None:
        """Take an account out of use that no call and nobody in the line counts in; one that is not in use stays as it is."""
        span = account.span
        shelf = self.shelf if span.id == self.shelf.span.id else self.others.get(span.id)
        if shelf is None or shelf.in_use.get(account.id) is not account:
            return
        nusd, tokens, calls = account.spent_nusd, account.spent_tokens, account.spent_calls
        if not (calls or nusd or tokens):
            self._drop(shelf, account.id)
        elif self._is_short_lived:
            del shelf.in_use[account.id]
            shelf.at_rest[account.id] = account.asked_until, nusd, tokens, calls

    def forget(self, before: datetime, in_use: Collection[WindowCounter]) -> None:
        """Drop what is not in use and was over before a moment: spans, and of what never ends the calls and traces that were quiet."""
        for shelf in self.shelves:
            over_by = shelf.span.over_by
            over: Iterable[str] = ()
            if over_by is None:
                over = shelf.quiet(before) if self._is_short_lived else ()
            elif over_by <= before:
                over = shelf
            for id_ in list(over):
                if shelf.in_use.get(id_) not in in_use:
                    self._drop(shelf, id_)

    def _drop(self, shelf: WindowBucket, id_: str) -> None:
        """Forget an account: whoever asks for it again begins at nothing."""
        shelf.in_use.pop(id_, None)
        shelf.at_rest.pop(id_, None)
        if not shelf:
            self.others.pop(shelf.span.id, None)


_AT_ONCE = 250
_MINUTE = timedelta(minutes=1)
_KINDS = tuple(ScopeKind)

CountedIds = Mapping[CounterTable, tuple[bool, Collection[str]]]


class RetentionHorizon:
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


class TenantCounters:
    """All accounts of a tenant, and the rules by which an ask finds its own.

    Counters of a window are kept until the horizon has passed its end, those of a call or a trace without a window until
    it has rested for as long. What belongs to an agent, a workflow or a tenant and has no window stays. A counter that counted
    nothing may go. `let_go` are those of calls that are over and of asks in vain, since the last time it was tidied up.
    """

    def __init__(self, tenant: str, rules: LimitSet, horizon: RetentionHorizon) -> None:
        self._tenant = tenant
        self._rules = rules
        self._horizon = horizon
        self._newest: datetime | None = None
        self._spans: TimeWindows = {}
        self._tables: list[CounterTable] = []
        self.let_go: list[Sequence[WindowCounter]] = []
        self.follow(rules)

    def of(
        self, ask: ReservationRequest, at: datetime, tables: Iterable[CounterTable] | None = None
    ) -> list[WindowCounter]:
        """Return the accounts that `ask` is counted in, or those in some tables; those not kept begin at nothing."""
        spans = self._horizon.windows.at(at)
        if spans is not self._spans:
            self._turn_to(spans)
        id_of = ask.scope_ids.get
        found: list[WindowCounter] = []
        for table in self._tables if tables is None else tables:
            id_ = id_of(table.kind, "")
            account = table.in_use.get(id_)
            if account is None:
                account = table.open(id_) if id_ else None
                if account is None:
                    continue
            elif account.spans is not spans:
                table.touch(account)
            found.append(account)
        return found

    def anew(self) -> "TenantCounters":
        """Return accounts by the same rules that know of no call."""
        return TenantCounters(self._tenant, self._rules, self._horizon)

    def move_to(self, at: datetime) -> None:
        """Note that something was reserved for a moment."""
        if self._newest is None or at > self._newest:
            self._newest = at
            if at > self._horizon.newest:
                self._horizon.newest = at

    def follow(self, rules: LimitSet) -> None:
        """Count by these rules from now on, and go on counting what was counted before."""
        self._rules = rules
        for kind in ScopeKind:
            for window in rules.windows(kind):
                self._table(kind, window)
        for table in self._tables:
            table.follow(rules)

    def lack(self, limit: Limit) -> bool:
        """Whether not everyone is counted where an ask's own limit needs it."""
        return self._table(limit.scope, limit.window).everyone is None

    def count_everyone(self, limit: Limit) -> None:
        """Count everyone, from now on, where a limit is about."""
        self._table(limit.scope, limit.window).count_everyone()

    def counted(self) -> CountedIds:
        """Return who is counted where, for `new_since`."""
        return {table: (table.everyone is not None, table.named) for table in self._tables}

    def new_since(self, before: CountedIds) -> dict[CounterTable, Collection[str]]:
        """Return the tables that count more than before, each with those whom it counted before; where it is everyone, none."""
        nobody: tuple[bool, Collection[str]] = (False, ())
        found = {table: before.get(table, nobody) for table in self._tables}
        return {
            table: named
            for table, (everyone, named) in found.items()
            if not everyone and (table.everyone is not None or table.named.keys() - named)
        }

    def take_back(self, accounts: Iterable[WindowCounter]) -> None:
        """Note that these were asked for in vain: for a moment to come that is no use, and keeps nothing."""
        until = self._horizon.newest + _MINUTE
        for account in accounts:
            account.asked_until = min(account.asked_until, until)

    def tidy(self, in_use: Collection[WindowCounter]) -> None:
        """Lay aside what was let go of since the last time and is not in use: that is for calls in flight and in doubt, and the line."""
        for account in set(chain.from_iterable(self.let_go)).difference(in_use):
            account.table.let_go(account)
        self.let_go.clear()

    def forget(self, in_use: Collection[WindowCounter]) -> None:
        """Drop the counters whose time is over, but for those that are still in use."""
        for table in self._tables:
            table.forget(self._horizon.oldest, in_use)

    def pieces(self, *, limited: bool) -> Iterator[list[WindowCounter]]:
        """Yield all accounts, so many at once; with `limited`, those with a ceiling of what lasts, in the newest windows."""
        tables = [table for table in self._tables if not (limited and table.kind in SHORT_LIVED)]
        places = [(table, shelf, id_) for table in tables for shelf in table.shelves for id_ in shelf]
        spans = self._horizon.windows.at(self._newest) if limited and self._newest is not None else {}
        ids = {window: span.id for window, span in spans.items()}
        for start in range(0, len(places), _AT_ONCE):
            found = (table.seen(shelf, id_) for table, shelf, id_ in places[start : start + _AT_ONCE])
            yield [
                account
                for account in found
                if account is not None
                and (not limited or (account.is_limited and account.span.id == ids.get(account.table.window)))
            ]

    def _turn_to(self, spans: TimeWindows) -> None:
        self._spans = spans
        for table in self._tables:
            table.turn_to(spans)

    def _table(self, kind: ScopeKind, window: Window) -> CounterTable:
        for table in self._tables:
            if table.kind is kind and table.window is window:
                return table
        table = CounterTable(self._tenant, kind, window)
        if self._spans:
            table.turn_to(self._spans)
        self._tables.append(table)
        self._tables.sort(key=_by_kind)
        return table


def _by_kind(table: CounterTable) -> int:
    return _KINDS.index(table.kind)
