"""The counters of one tenant in the memory ledger: one a scope and window, found fast, forgotten when they are over."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import chain

from agentic_trading.governance.ledger import ReservationRequest
from agentic_trading.governance.ledgers.limit_set import LimitSet
from agentic_trading.governance.ledgers.counter_table import SHORT_LIVED, WindowCounter, TimeWindows, CounterTable
from agentic_trading.governance.limit import Limit, ScopeKind
from agentic_trading.governance.windows import Window, Windows

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

    def of(self, ask: ReservationRequest, at: datetime, tables: Iterable[CounterTable] | None = None) -> list[WindowCounter]:
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
