"""The counters of a request on the server: names, ceilings and retention. Also balances."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta, tzinfo
from heapq import merge
from struct import Struct
from typing import NamedTuple, Self

from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.ledger import Balance, ReservationRequest
from agentic_trading.governance.ledgers.counters import Ceilings, LimitSet
from agentic_trading.governance.ledgers.scripts.redis import ScriptServer
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.redis import LedgerKeys

_COUNTER = Struct("<12d")
_RULE = Struct("<5d")
_OWN = Struct("<4d")
_MINUTE_MS = 60_000

PlannedWindows = Mapping[limit_types.Window, limit_types.TimeWindow]


class CounterKey(NamedTuple):
    """One scope in one window."""

    kind: limit_types.ScopeKind
    window: limit_types.Window
    window_id: str
    id: str

    @classmethod
    def named(cls, name: str) -> Self:
        """Parse the name of a counter."""
        kind, window, window_id, id_ = name.split("/", 3)
        return cls(
            limit_types.ScopeKind(kind),
            limit_types.Window(window),
            window_id,
            id_.replace("%0A", "\n").replace("%25", "%"),
        )

    @property
    def name(self) -> str:
        """Its name on the server, without line breaks."""
        return _prefix_of(self.kind, self.window, self.window_id) + _one_line(self.id)


def _prefix_of(kind: limit_types.ScopeKind, window: limit_types.Window, window_id: str) -> str:
    return f"{kind}/{window}/{window_id}/"


def _one_line(id_: str) -> str:
    return id_.replace("%", "%25").replace("\n", "%0A")


class ReservationPlan(NamedTuple):
    """The arguments of `reserve.lua` about counters.

    `names` has one name per line. `times` are since, until and at, in ms.
    """

    names: str
    rules: bytes
    own: bytes
    times: tuple[float, float, float]


class _Counters(NamedTuple):
    """The name prefixes and rules of a scope's counters, one per window."""

    prefixes: tuple[str, ...]
    rules: bytes


class ReservationPlanner:
    """Plans the counters of one tenant's requests.

    Scopes with equal ceilings are planned once a minute.
    """

    def __init__(self, zone: tzinfo, keep: timedelta, call_keep: timedelta) -> None:
        self.zone = str(zone)
        self._windows = limit_types.Windows(zone)
        self._keep_ms = _ms(keep)
        self._call_keep_ms = _ms(call_keep)
        self._time_windows: PlannedWindows = {}
        self._planned: dict[tuple[limit_types.ScopeKind, str, tuple[limit_types.Window, ...]], _Counters] = {}
        self.limits = LimitSet()

    def apply_limits(self, limits: LimitSet) -> None:
        """Count by these limits from now on."""
        self.limits = limits
        self._planned.clear()

    def limited_totals(self) -> str:
        """Return the names of totals with a ceiling, for `forget.lua`, which keeps them.

        `*` means every id.
        """
        return "\n".join(
            CounterKey(kind, limit_types.Window.NONE, "", id_).name
            for kind in sorted(limit_types.NAMED_BY_CALLERS)
            for id_, window in self.limits.limited(kind)
            if window is limit_types.Window.NONE
        )

    def moment_of(self, counters: Iterable[CounterKey]) -> datetime | None:
        """Return the start of the shortest window of these counters, or None if all are endless."""
        ids = {counter.window: counter.window_id for counter in counters}
        for window in (
            limit_types.Window.MINUTE,
            limit_types.Window.HOUR,
            limit_types.Window.DAY,
            limit_types.Window.MONTH,
        ):
            if window in ids:
                return self._windows.start_of(window, ids[window])
        return None

    def other_moment_of(self, counters: Collection[CounterKey], at: datetime | None) -> datetime | None:
        """Return a time in the windows of these counters, or None if `at` is in all of them."""
        spans = None if at is None else self._windows.at(at)
        if spans is not None and all(spans[one.window].id == one.window_id for one in counters):
            return None
        return self.moment_of(counters)

    def missing(self, request: ReservationRequest) -> list[tuple[limit_types.ScopeKind, limit_types.Window]]:
        """Return the windows of the request's own limits that are not counted yet."""
        return [
            (limit.scope, limit.window)
            for limit in request.limits
            if limit.scope is not limit_types.ScopeKind.CALL
            and limit.window not in self.limits.of(limit.scope, request.scope_ids[limit.scope])
        ]

    def plan(self, request: ReservationRequest, present: datetime) -> ReservationPlan:
        """Return the counters of `request`, in the windows of its `at` or of `present`."""
        time_windows = self._windows.at(request.at or present)
        if time_windows is not self._time_windows:
            self._time_windows = time_windows
            self._planned.clear()
        own: dict[limit_types.ScopeKind, tuple[limit_types.Window, ...]] = {}
        for limit in request.limits:
            own[limit.scope] = (*own.get(limit.scope, ()), limit.window)
        names: list[str] = []
        rules: list[bytes] = []
        for kind, id_ in request.scope_ids.items():
            counters = self._counters_of(kind, id_, own.get(kind, ()))
            end = _one_line(id_)
            names += [prefix + end for prefix in counters.prefixes]
            rules.append(counters.rules)
        return ReservationPlan(
            "\n".join(names), b"".join(rules), self._own(request, names), self._times(request)
        )

    def _times(self, request: ReservationRequest) -> tuple[float, float, float]:
        if request.at is not None:
            return 0, 0, request.at.timestamp() * 1000
        over_by = self._time_windows[limit_types.Window.MINUTE].over_by
        until = 0.0 if over_by is None else over_by.timestamp() * 1000
        return until - _MINUTE_MS, until, -1

    def _counters_of(
        self, kind: limit_types.ScopeKind, id_: str, own: tuple[limit_types.Window, ...]
    ) -> _Counters:
        is_named = self.limits.is_named(kind, id_)
        key = kind, id_ if is_named else limit_types.ANY, own
        found = self._planned.get(key)
        if found is None:
            found = self._planned[key] = self._plan_counters(kind, self.limits.of(kind, id_), own)
        return found

    def _plan_counters(
        self, kind: limit_types.ScopeKind, ceilings: Ceilings, own: tuple[limit_types.Window, ...]
    ) -> _Counters:
        if own or kind in limit_types.SHORT_LIVED:
            ceilings = dict.fromkeys(own, limit_types.UNLIMITED) | dict(ceilings)
        prefixes = (_prefix_of(kind, window, self._time_windows[window].id) for window in ceilings)
        rules = (
            _RULE.pack(
                *self._ends(kind, window, is_open=ceiling == limit_types.UNLIMITED and window not in own),
                *_most(ceiling),
            )
            for window, ceiling in ceilings.items()
        )
        return _Counters(tuple(prefixes), b"".join(rules))

    def _ends(
        self, kind: limit_types.ScopeKind, window: limit_types.Window, *, is_open: bool
    ) -> tuple[float, float]:
        """Return the end of a counter's window and how long it is kept after that, in ms.

        0 means never, and forever.
        """
        if kind in limit_types.SHORT_LIVED:
            return 0, self._call_keep_ms
        over_by = self._time_windows[window].over_by
        if over_by is not None:
            return over_by.timestamp() * 1000, self._keep_ms
        # Totals are kept forever, except those that callers can create under any name. These would otherwise
        # pile up.
        return 0, self._keep_ms if is_open and kind in limit_types.NAMED_BY_CALLERS else 0

    def _own(self, request: ReservationRequest, names: list[str]) -> bytes:
        found = []
        for limit in request.limits:
            counter = CounterKey(
                limit.scope, limit.window, self._time_windows[limit.window].id, request.scope_ids[limit.scope]
            )
            found.append(_OWN.pack(names.index(counter.name) + 1, *_most(limit.ceiling)))
        return b"".join(found)


def _most(ceiling: limit_types.Ceiling) -> tuple[int, int, int]:
    nusd, tokens, calls = (limit_types.LARGEST if most is None else most for most in ceiling.units)
    return nusd, tokens, calls


def _ms(time_window: timedelta) -> int:
    return time_window // timedelta(milliseconds=1)


def read_balance(tenant: str, name: bytes, packed: bytes, limits: LimitSet) -> Balance:
    """Parse a counter."""
    of = CounterKey.named(name.decode())
    numbers = [int(number) for number in _COUNTER.unpack(packed)[:9]]
    return Balance(
        tenant=tenant,
        scope=of.kind,
        id=of.id,
        window=of.window,
        window_id=of.window_id,
        ceiling=limits.of(of.kind, of.id).get(of.window, limit_types.UNLIMITED),
        spent=Amount(*numbers[:3]),
        held=Amount(*numbers[3:6]),
        in_doubt=Amount(*numbers[6:]),
    )


_AT_ONCE = 250


async def every_balance(
    server: ScriptServer, tenant: str, keys: LedgerKeys, limits: LimitSet
) -> list[Balance]:
    """Return all counters in the order of their names."""
    pages = [sorted(page) async for page in server.pages(keys.counters)]
    found: list[Balance] = []
    # HSCAN may return an entry twice, so that equal names are skipped.
    last = b""
    for number, (name, packed) in enumerate(merge(*pages), start=1):
        if name != last:
            found.append(read_balance(tenant, name, packed, limits))
        last = name
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


async def limited_balances(
    server: ScriptServer,
    tenant: str,
    keys: LedgerKeys,
    limits: LimitSet,
    newest: Mapping[limit_types.Window, str],
) -> list[Balance]:
    """Return the counters of lasting scopes that have a ceiling, in the newest windows."""
    names: set[str] = set()
    for kind in limit_types.ScopeKind:
        if kind not in limit_types.SHORT_LIVED:
            names |= await _names(server, keys, kind, limits, newest)
    return [
        read_balance(tenant, name, packed, limits)
        async for page in server.values(keys.counters, sorted(names))
        for name, packed in page
    ]


async def _names(
    server: ScriptServer,
    keys: LedgerKeys,
    kind: limit_types.ScopeKind,
    limits: LimitSet,
    newest: Mapping[limit_types.Window, str],
) -> set[str]:
    names: set[str] = set()
    for id_, window in limits.limited(kind):
        window_id = newest.get(window)
        if window_id is None:
            continue
        if id_ != limit_types.ANY:
            names.add(CounterKey(kind, window, window_id, id_).name)
        else:
            prefix = f"{kind}/{window}/"
            members = await server.members(keys.index, prefix)
            names |= {f"{prefix}{window_id}/{member[len(prefix) :]}" for member in members}
    return names
