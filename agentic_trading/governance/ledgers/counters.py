"""The counters of one tenant in the memory ledger, its limits, and the check for headroom."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import chain

from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.ledger import Blocked, Declined, ReservationRequest
from agentic_trading.governance.prices import NOTHING, Amount

_ENDLESS = 1 << 200


@dataclass(frozen=True, slots=True)
class Cap:
    """A ceiling in which missing units are huge numbers, so that a check needs no branch."""

    ceiling: limit_types.Ceiling
    nusd: int
    tokens: int
    calls: int


CountedWindows = Collection[tuple[limit_types.ScopeKind, limit_types.Window]]
Ceilings = Mapping[limit_types.Window, limit_types.Ceiling]


@dataclass(frozen=True, slots=True)
class _Rule:
    """The ceilings of one kind of scope by window, for all ids and for named ids."""

    default: dict[limit_types.Window, limit_types.Ceiling] = field(default_factory=dict)
    named: dict[str, dict[limit_types.Window, limit_types.Ceiling]] = field(default_factory=dict)


class LimitSet:
    """The ceilings of all scopes, merged from limits.

    If several limits apply to the same scope and window, the lowest is used, unit by unit. A named limit
    takes precedence over the limit for every id. `counted` windows without a limit are counted without a
    ceiling.
    """

    def __init__(self, limits: Iterable[limit_types.Limit] = (), counted: CountedWindows = ()) -> None:
        self._ceilings: dict[limit_types.ScopeKind, _Rule] = {kind: _Rule() for kind in limit_types.ScopeKind}
        for kind, window in counted:
            self._ceilings[kind].default[window] = limit_types.UNLIMITED
        for limit in limits:
            rule = self._ceilings[limit.scope]
            ceilings = rule.default if limit.id == limit_types.ANY else rule.named.setdefault(limit.id, {})
            ceilings[limit.window] = ceilings.get(limit.window, limit_types.UNLIMITED).tighter(limit.ceiling)
        for rule in self._ceilings.values():
            for named in rule.named.values():
                for window, ceiling in rule.default.items():
                    named[window] = named.get(window, limit_types.UNLIMITED).or_else(ceiling)

    def of(self, kind: limit_types.ScopeKind, id_: str) -> Ceilings:
        """Return the windows of a scope, each with its ceiling, which may be unlimited."""
        rule = self._ceilings[kind]
        return rule.named.get(id_, rule.default)

    def is_named(self, kind: limit_types.ScopeKind, id_: str) -> bool:
        """Whether a scope has a limit by its name."""
        return id_ in self._ceilings[kind].named

    def limited(self, kind: limit_types.ScopeKind) -> Iterator[tuple[str, limit_types.Window]]:
        """Yield the scopes of a kind that have a ceiling, each with its window.

        `*` means every scope.
        """
        rule = self._ceilings[kind]
        for id_, ceilings in ((limit_types.ANY, rule.default), *rule.named.items()):
            for window, ceiling in ceilings.items():
                if ceiling != limit_types.UNLIMITED:
                    yield id_, window

    def windows(self, kind: limit_types.ScopeKind) -> list[limit_types.Window]:
        """Return all windows in which scopes of a kind are counted."""
        rule = self._ceilings[kind]
        return list(dict.fromkeys(chain(rule.default, *rule.named.values())))

    def caps(
        self, kind: limit_types.ScopeKind, window: limit_types.Window
    ) -> tuple[Cap | None, Mapping[str, Cap]]:
        """Return the default cap of a kind in a window, or None if it is not counted, and the named caps."""
        rule = self._ceilings[kind]
        default = cap(rule.default[window]) if window in rule.default else None
        return default, {id_: cap(own[window]) for id_, own in rule.named.items() if window in own}


def cap(ceiling: limit_types.Ceiling) -> Cap:
    """Return a ceiling as a cap."""
    return Cap(ceiling, *(_ENDLESS if most is None else most for most in ceiling.units))


_OPEN = cap(limit_types.UNLIMITED)
_NOT_YET = limit_types.TimeWindow("", None)
_NEVER = datetime.max.replace(tzinfo=UTC)

TimeWindows = Mapping[limit_types.Window, limit_types.TimeWindow]


class WindowCounter:
    """The use of one scope in one window.

    `left` is the cap minus spent and held, and may be below zero. Spent includes charges in doubt.
    `time_windows` are those of the last request. No request has used the counter in a minute that ended after
    `asked_until`.
    """

    __slots__ = (
        "asked_until", "cap", "id", "in_doubt", "left_calls", "left_nusd", "left_tokens", "spent_calls",
        "spent_nusd", "spent_tokens", "table", "time_window", "time_windows",
    )  # fmt: skip

    def __init__(
        self, table: "CounterTable", id_: str, time_window: limit_types.TimeWindow, most: Cap
    ) -> None:
        self.table = table
        self.id = id_
        self.time_window = time_window
        self.time_windows = table.time_windows
        self.asked_until = table.asked_until
        self.cap = most
        self.left_nusd = most.nusd
        self.left_tokens = most.tokens
        self.left_calls = most.calls
        self.spent_nusd = self.spent_tokens = self.spent_calls = 0
        self.in_doubt = NOTHING

    @property
    def used(self) -> tuple[int, int, int]:
        """Nano-dollars, tokens and calls: spent plus held."""
        cap = self.cap
        return cap.nusd - self.left_nusd, cap.tokens - self.left_tokens, cap.calls - self.left_calls

    @property
    def spent(self) -> Amount:
        """The charged amount, including charges in doubt."""
        return Amount(self.spent_nusd, self.spent_tokens, self.spent_calls)

    @property
    def held(self) -> Amount:
        """The amount reserved by calls in flight."""
        nusd, tokens, calls = self.used
        return Amount(nusd - self.spent_nusd, tokens - self.spent_tokens, calls - self.spent_calls)

    @property
    def is_limited(self) -> bool:
        """Whether it has a ceiling."""
        return self.cap.ceiling != limit_types.UNLIMITED

    def go_on(self, asked_until: datetime, nusd: int, tokens: int, calls: int) -> None:
        """Add amounts that were spent before the counter was compacted."""
        self.asked_until = max(self.asked_until, asked_until)
        self.spent_nusd, self.spent_tokens, self.spent_calls = nusd, tokens, calls
        self.left_nusd -= nusd
        self.left_tokens -= tokens
        self.left_calls -= calls

    def allow(self, most: Cap) -> None:
        """Replace the cap."""
        was, self.cap = self.cap, most
        self.left_nusd += most.nusd - was.nusd
        self.left_tokens += most.tokens - was.tokens
        self.left_calls += most.calls - was.calls


class WindowBucket:
    """The counters of one time window by id.

    A compacted one is a tuple of `asked_until` and the spent amounts. Compacted counters are roughly ordered
    by `asked_until`. Requests whose times jump back and forth leave exceptions.
    """

    # Compacted counters are tuples of plain values, because the garbage collector does not walk through them.
    # As objects, 30,000 remembered calls would cost every other call 40 % more (decision 18).
    __slots__ = ("active", "compacted", "time_window")

    def __init__(self, time_window: limit_types.TimeWindow) -> None:
        self.time_window = time_window
        self.active: dict[str, WindowCounter] = {}
        self.compacted: dict[str, tuple[datetime, int, int, int]] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self.active
        yield from self.compacted

    def __len__(self) -> int:
        return len(self.active) + len(self.compacted)

    def quiet(self, before: datetime) -> Iterator[str]:
        """Yield ids that were last used before a time.

        Compacted ones are listed up to the first later one.
        """
        for id_, counter in self.active.items():
            if counter.asked_until <= before:
                yield id_
        for id_, (asked_until, *_) in self.compacted.items():
            if asked_until > before:
                break
            yield id_


class CounterTable:
    """All counters of one kind of scope and window: those of the present time window, and `others`.

    Every id is counted up to the cap `default`. If `default` is None, only `named` ids are counted, each with
    its own cap.
    """

    __slots__ = (
        "_is_short_lived", "_is_wanted", "active", "asked_until", "bucket", "default", "kind", "named", "others",
        "tenant", "time_windows", "window",
    )  # fmt: skip

    def __init__(self, tenant: str, kind: limit_types.ScopeKind, window: limit_types.Window) -> None:
        self._is_short_lived = kind in limit_types.SHORT_LIVED
        self._is_wanted = False
        self.tenant = tenant
        self.kind = kind
        self.window = window
        self.default: Cap | None = None
        self.named: Mapping[str, Cap] = {}
        self.time_windows: TimeWindows = {}
        self.asked_until = _NEVER
        self.bucket = WindowBucket(_NOT_YET)
        self.active = self.bucket.active
        self.others: dict[str, WindowBucket] = {}

    @property
    def buckets(self) -> list[WindowBucket]:
        """All buckets."""
        return [self.bucket, *self.others.values()]

    def turn_to(self, time_windows: TimeWindows) -> None:
        """Make the time window of this minute the present one.

        Earlier counters of that window are reused.
        """
        self.time_windows = time_windows
        self.asked_until = time_windows[limit_types.Window.MINUTE].over_by or _NEVER
        time_window = time_windows[self.window]
        if time_window.id == self.bucket.time_window.id:
            return
        if self.bucket:
            self.others[self.bucket.time_window.id] = self.bucket
        self.bucket = (
            self.others.pop(time_window.id) if time_window.id in self.others else WindowBucket(time_window)
        )
        self.active = self.bucket.active

    def open(self, id_: str) -> WindowCounter | None:
        """Activate a counter of the present time window.

        Return None if the id is not counted here.
        """
        most = self.named.get(id_, self.default)
        if most is None:
            return None
        counter = self.active[id_] = WindowCounter(self, id_, self.bucket.time_window, most)
        compacted = self.bucket.compacted
        if id_ in compacted:
            counter.go_on(*compacted.pop(id_))
        return counter

    def touch(self, counter: WindowCounter) -> None:
        """Note that an active counter is used in another minute than the last time."""
        counter.time_windows = self.time_windows
        counter.asked_until = max(counter.asked_until, self.asked_until)

    def seen(self, bucket: WindowBucket, id_: str) -> WindowCounter | None:
        """Return a counter for reading, or None if it is gone."""
        counter = bucket.active.get(id_)
        if counter is None and id_ in bucket.compacted:
            most = self.named.get(id_, self.default) or _OPEN
            counter = WindowCounter(self, id_, bucket.time_window, most)
            counter.go_on(*bucket.compacted[id_])
        return counter

    def count_all(self) -> None:
        """Count every id from now on, for requests that bring their own limit."""
        self._is_wanted = True
        self.default = self.default or _OPEN

    def apply_limits(self, limits: LimitSet) -> None:
        """Count by these limits from now on.

        Ids that are already counted stay counted, without a cap.
        """
        default, named = limits.caps(self.kind, self.window)
        # Counting must not stop, because a later limit would then start below the actual use.
        if default is None and (self._is_wanted or (self._is_short_lived and self.default is not None)):
            default = _OPEN
        if default is None:
            known = chain(self.named, *self.buckets)
            named = {**dict.fromkeys(known, _OPEN), **named}
        self.default, self.named = default, named
        others = default or _OPEN
        for bucket in self.buckets:
            for id_, counter in bucket.active.items():
                counter.allow(named.get(id_, others))

    def deactivate(self, counter: WindowCounter) -> None:
        """Compact a counter without open calls and queued requests.

        An inactive one stays as it is.
        """
        time_window = counter.time_window
        bucket = (
            self.bucket if time_window.id == self.bucket.time_window.id else self.others.get(time_window.id)
        )
        if bucket is None or bucket.active.get(counter.id) is not counter:
            return
        nusd, tokens, calls = counter.spent_nusd, counter.spent_tokens, counter.spent_calls
        if not (calls or nusd or tokens):
            self._drop(bucket, counter.id)
        elif self._is_short_lived:
            del bucket.active[counter.id]
            bucket.compacted[counter.id] = counter.asked_until, nusd, tokens, calls

    def forget(self, before: datetime, active: Collection[WindowCounter]) -> None:
        """Drop inactive counters that were over before a time.

        These are counters of ended windows, and endless ones of calls and traces that are no longer used.
        """
        for bucket in self.buckets:
            over_by = bucket.time_window.over_by
            over: Iterable[str] = ()
            if over_by is None:
                over = bucket.quiet(before) if self._is_short_lived else ()
            elif over_by <= before:
                over = bucket
            for id_ in list(over):
                if bucket.active.get(id_) not in active:
                    self._drop(bucket, id_)

    def _drop(self, bucket: WindowBucket, id_: str) -> None:
        """Forget a counter. Its next use begins at zero."""
        bucket.active.pop(id_, None)
        bucket.compacted.pop(id_, None)
        if not bucket:
            self.others.pop(bucket.time_window.id, None)


_AT_ONCE = 250
_MINUTE = timedelta(minutes=1)
_KINDS = tuple(limit_types.ScopeKind)

CountedIds = Mapping[CounterTable, tuple[bool, Collection[str]]]


class RetentionHorizon:
    """How far back requests may go, for all tenants: `keep` before the newest time that was reserved for.

    Requests that are not reserved do not advance it.
    """

    def __init__(self, zone: tzinfo, keep: timedelta) -> None:
        self.windows = limit_types.Windows(zone)
        self.keep = keep
        self.newest = datetime.min.replace(tzinfo=UTC) + keep

    @property
    def oldest(self) -> datetime:
        """The oldest time that can still be reserved for."""
        return self.newest - self.keep


class TenantCounters:
    """All counters of a tenant, and the limits that select a request's counters.

    Counters of a window are kept until the horizon has passed its end. Counters of calls and traces without a
    window are kept until they were unused for that long. Counters of agents, workflows, principals and
    tenants without a window are kept. An empty counter may be dropped. `to_deactivate` are the counters of
    ended calls and of requests that were not reserved, since the last `tidy`.
    """

    def __init__(self, tenant: str, limits: LimitSet, horizon: RetentionHorizon) -> None:
        self._tenant = tenant
        self._limits = limits
        self._horizon = horizon
        self._newest: datetime | None = None
        self._time_windows: TimeWindows = {}
        self._tables: list[CounterTable] = []
        self.to_deactivate: list[Sequence[WindowCounter]] = []
        self.apply_limits(limits)

    def of(
        self, request: ReservationRequest, at: datetime, tables: Iterable[CounterTable] | None = None
    ) -> list[WindowCounter]:
        """Return the counters of `request`, or those in some tables.

        New counters begin at zero.
        """
        time_windows = self._horizon.windows.at(at)
        if time_windows is not self._time_windows:
            self._time_windows = time_windows
            for table in self._tables:
                table.turn_to(time_windows)
        id_of = request.scope_ids.get
        found: list[WindowCounter] = []
        for table in self._tables if tables is None else tables:
            id_ = id_of(table.kind, "")
            counter = table.active.get(id_)
            if counter is None:
                counter = table.open(id_) if id_ else None
                if counter is None:
                    continue
            elif counter.time_windows is not time_windows:
                table.touch(counter)
            found.append(counter)
        return found

    def empty_copy(self) -> "TenantCounters":
        """Return empty counters with the same limits."""
        return TenantCounters(self._tenant, self._limits, self._horizon)

    def move_to(self, at: datetime) -> None:
        """Note the time of a reservation."""
        if self._newest is None or at > self._newest:
            self._newest = at
            if at > self._horizon.newest:
                self._horizon.newest = at

    def apply_limits(self, limits: LimitSet) -> None:
        """Count by these limits from now on. Ids that are already counted stay counted."""
        self._limits = limits
        for kind in limit_types.ScopeKind:
            for window in limits.windows(kind):
                self._table(kind, window)
        for table in self._tables:
            table.apply_limits(limits)

    def lack(self, limit: limit_types.Limit) -> bool:
        """Whether some ids are not counted where a request's own limit needs them."""
        return self._table(limit.scope, limit.window).default is None

    def count_all(self, limit: limit_types.Limit) -> None:
        """Count every id in a limit's table from now on."""
        self._table(limit.scope, limit.window).count_all()

    def counted(self) -> CountedIds:
        """Return the counted ids of each table, for `new_since`."""
        return {table: (table.default is not None, table.named) for table in self._tables}

    def new_since(self, before: CountedIds) -> dict[CounterTable, Collection[str]]:
        """Return the tables that count more ids than `before`, with the ids that they counted then."""
        not_counted: tuple[bool, Collection[str]] = (False, ())
        found = {table: before.get(table, not_counted) for table in self._tables}
        return {
            table: named
            for table, (default, named) in found.items()
            if not default and (table.default is not None or table.named.keys() - named)
        }

    def take_back(self, counters: Iterable[WindowCounter]) -> None:
        """Undo the look-up of a request that was not reserved, so that a future time keeps no counter."""
        until = self._horizon.newest + _MINUTE
        for counter in counters:
            counter.asked_until = min(counter.asked_until, until)

    def tidy(self, active: Collection[WindowCounter]) -> None:
        """Compact the counters in `to_deactivate` that are not active."""
        for counter in set(chain.from_iterable(self.to_deactivate)).difference(active):
            counter.table.deactivate(counter)
        self.to_deactivate.clear()

    def forget(self, active: Collection[WindowCounter]) -> None:
        """Drop inactive counters whose time is over."""
        for table in self._tables:
            table.forget(self._horizon.oldest, active)

    def pages(self, *, limited: bool, at: datetime | None = None) -> Iterator[list[WindowCounter]]:
        """Yield all counters, page by page.

        With `limited`, only counters of lasting scopes with a ceiling, in the newest windows. With `at`,
        windows that are over at that time are left out too.
        """
        tables = [table for table in self._tables if not (limited and table.kind in limit_types.SHORT_LIVED)]
        places = [(table, bucket, id_) for table in tables for bucket in table.buckets for id_ in bucket]
        time_windows = self._horizon.windows.at(self._newest) if limited and self._newest is not None else {}
        ids = {
            window: time_window.id
            for window, time_window in time_windows.items()
            if at is None or time_window.over_by is None or at < time_window.over_by
        }
        for start in range(0, len(places), _AT_ONCE):
            found = (table.seen(bucket, id_) for table, bucket, id_ in places[start : start + _AT_ONCE])
            yield [
                counter
                for counter in found
                if counter is not None
                and (
                    not limited
                    or (counter.is_limited and counter.time_window.id == ids.get(counter.table.window))
                )
            ]

    def _table(self, kind: limit_types.ScopeKind, window: limit_types.Window) -> CounterTable:
        for table in self._tables:
            if table.kind is kind and table.window is window:
                return table
        table = CounterTable(self._tenant, kind, window)
        if self._time_windows:
            table.turn_to(self._time_windows)
        self._tables.append(table)
        self._tables.sort(key=lambda table: _KINDS.index(table.kind))
        return table


Denial = tuple[Declined | Blocked, Sequence[WindowCounter]]
"""The reason why a request is not reserved, and the counters without headroom."""


def fits_own_limits(request: ReservationRequest, counters: Sequence[WindowCounter]) -> bool:
    """Return whether `request` fits under its own ceilings."""
    return not any(
        _over(request.amount, counter, ceiling) for counter, ceiling in _own_ceilings(request, counters)
    )


def denial(request: ReservationRequest, counters: Sequence[WindowCounter]) -> Denial | None:
    """Return why `request` does not fit, or None.

    The answer is final if the request can never fit into one of the counters.
    """
    found = list(_shortages(request, counters))
    if not found:
        return None
    # A final shortage wins, because waiting for the others would not help.
    final = next((shortage for shortage in found if shortage.is_final), None)
    answer = found[0].blocked() if final is None else final.declined()
    return answer, [shortage.counter for shortage in found]


def behind(request: ReservationRequest, held: Blocked) -> Blocked:
    """Return the answer for a request that fits, but is behind a `held` one on the same counter."""
    return replace(held, asked=request.amount.units[limit_types.UNITS.index(held.unit)])


@dataclass(frozen=True, slots=True)
class InsufficientHeadroom:
    """A request does not fit into one counter.

    `used` is spent plus held, `held` may be returned.
    """

    counter: WindowCounter
    unit: limit_types.Unit
    asked: int
    most: int
    used: int
    held: int

    @property
    def is_final(self) -> bool:
        """Whether the request would not fit even if all held amounts were returned."""
        return self.used - self.held + self.asked > self.most

    def declined(self) -> Declined:
        """Return the final answer."""
        table = self.counter.table
        left = max(0, self.most - self.used + self.held)
        return Declined(table.kind, self.counter.id, table.window, self.unit, self.asked, left)

    def blocked(self) -> Blocked:
        """Return the answer for now."""
        table = self.counter.table
        left = max(0, self.most - self.used)
        return Blocked(table.kind, self.counter.id, table.window, self.unit, self.asked, left)


def _shortages(
    request: ReservationRequest, counters: Sequence[WindowCounter]
) -> Iterator[InsufficientHeadroom]:
    """Yield every counter and unit in which `request` exceeds a ceiling, the counter's or its own."""
    ceilings = [(counter, counter.cap.ceiling) for counter in counters]
    for counter, ceiling in [*ceilings, *_own_ceilings(request, counters)]:
        for unit, asked, most, used, back in zip(
            limit_types.UNITS,
            request.amount.units,
            ceiling.units,
            counter.used,
            counter.held.units,
            strict=True,
        ):
            if most is not None and used + asked > most:
                yield InsufficientHeadroom(counter, unit, asked, most, used, back)


def _own_ceilings(
    request: ReservationRequest, counters: Sequence[WindowCounter]
) -> Iterator[tuple[WindowCounter, limit_types.Ceiling]]:
    for limit in request.limits:
        for counter in counters:
            if counter.table.window is limit.window and counter.table.kind is limit.scope:
                yield counter, limit.ceiling


def _over(amount: Amount, counter: WindowCounter, ceiling: limit_types.Ceiling) -> bool:
    for asked, most, used in zip(amount.units, ceiling.units, counter.used, strict=True):
        if most is not None and used + asked > most:
            return True
    return False
