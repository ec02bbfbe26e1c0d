"""A limit on what a scope may use: money, tokens and calls, within a window."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from agentic_trading.governance.errors import LimitError
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.limits import NANO


class Window(StrEnum):
    """For how long spending adds up; `none` is for ever."""

    NONE = "none"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """One window: its id, and the moment (UTC) from which on it is surely over; None if it never is."""

    id: str
    over_by: datetime | None


_FOREVER = TimeWindow("", None)
_MINUTE = timedelta(minutes=1)


class Windows:
    """Windows of one time zone.

    A day lasts from local midnight to the next: 23 or 25 hours where clocks change. An hour and a minute carry their
    offset from UTC, so that an hour that comes twice is two hours.
    """

    def __init__(self, zone: tzinfo = UTC) -> None:
        self.zone = zone
        self._since = self._until = datetime.min.replace(tzinfo=UTC)
        self._spans: Mapping[Window, TimeWindow] = {}

    def at(self, moment: datetime) -> Mapping[Window, TimeWindow]:
        """Return the windows of `moment`; within one minute it is the same object again.

        Raises `ValueError` for a moment without a time zone.
        """
        if moment.tzinfo is None:
            raise ValueError(f"{moment.isoformat()} has no time zone; allowed are aware datetimes")
        if not self._since <= moment < self._until:  # every offset in use changes at a full minute
            self._since = moment.astimezone(UTC).replace(second=0, microsecond=0)
            self._until = self._since + _MINUTE
            self._spans = self._spans_from(self._since)
        return self._spans

    def start_of(self, window: Window, window_id: str) -> datetime:
        """Return when the window with this id begins; raises `ValueError` for `Window.NONE`, and for no such id."""
        first = datetime.fromisoformat(window_id + ("-01" if window is Window.MONTH else ""))
        return (first if first.tzinfo else first.replace(tzinfo=self.zone)).astimezone(UTC)

    def _spans_from(self, minute: datetime) -> Mapping[Window, TimeWindow]:
        local = minute.astimezone(self.zone)
        day = local.replace(hour=0, minute=0, fold=0)
        next_day = (day + timedelta(days=1)).astimezone(UTC)
        next_month = (day.replace(day=1) + timedelta(days=32)).replace(day=1).astimezone(UTC)
        spelled = local.isoformat(timespec="minutes")
        offset = spelled[16:].replace(":", "")
        return {
            Window.NONE: _FOREVER,
            Window.MINUTE: TimeWindow(spelled[:16] + offset, minute + _MINUTE),
            Window.HOUR: TimeWindow(spelled[:13] + offset, minute + timedelta(minutes=60 - local.minute)),
            Window.DAY: TimeWindow(spelled[:10], next_day),
            Window.MONTH: TimeWindow(spelled[:7], next_month),
        }


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
    PRINCIPAL = "principal"
    TENANT = "tenant"


SHORT_LIVED = frozenset({ScopeKind.CALL, ScopeKind.TRACE})
"""Scopes that are over soon: their counters are not kept for ever, and have no pace."""

NAMED_BY_CALLERS = frozenset({ScopeKind.AGENT, ScopeKind.PRINCIPAL})
"""Scopes of which callers can make ever new ones: without a ceiling, their totals are kept while they are used."""


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


UNLIMITED = Ceiling()


@dataclass(frozen=True, slots=True)
class Limit:
    """A ceiling on what a scope may use within each window: nano-dollars, tokens, calls; at least one of them.

    `id` names the scope; `*` is every one of the kind by itself. A named limit goes before the `*` one of the same
    kind and window, unit by unit. `rule` says who set it and where it is changed, where that is not the operators'
    limits. Raises `LimitError`.
    """

    scope: ScopeKind
    id: str
    window: Window
    nusd: int | None = None
    tokens: int | None = None
    calls: int | None = None
    rule: str | None = field(default=None, compare=False)

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


COUNTED_BY_CALL = Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=LARGEST)
"""In place of a past call's own limits where they are not kept. The call is counted, so its charge limits the next attempt."""


def _lower(one: int | None, other: int | None) -> int | None:
    given = [value for value in (one, other) if value is not None]
    return min(given, default=None)


UNNAMED = "unnamed"
"""The agent of an envelope that names none."""


def agent_of(envelope: LLMEnvelope) -> str:
    """Return the agent that the call is counted for: its id, else its type."""
    return envelope.agent_id or envelope.agent_type or UNNAMED


def limits_of(envelope: LLMEnvelope) -> tuple[Limit, ...]:
    """Return the limits that an envelope sets on itself: on its attempts, the day of its agent, and its trace."""
    budget = envelope.budget
    asked = (
        ("max_cost_nusd", ScopeKind.CALL, Window.NONE, "nusd"),
        ("max_calls_per_day", ScopeKind.AGENT, Window.DAY, "calls"),
        ("max_trace_cost_nusd", ScopeKind.TRACE, Window.NONE, "nusd"),
        ("max_trace_calls", ScopeKind.TRACE, Window.NONE, "calls"),
    )
    return tuple(
        Limit(scope, ANY, window, rule=f"{name} of the envelope's budget", **{unit: most})
        for name, scope, window, unit in asked
        if (most := getattr(budget, name)) is not None
    )


MOST_PRIORITY = 60
EXECUTION_AHEAD = 3600
"""How many seconds earlier others may have come, and an execution goes before them all the same."""


def queue_priority(envelope: LLMEnvelope) -> int:
    """Return by how many seconds a request of this envelope goes before others.

    That is its priority, at most 60, and of an execution 3,600 more. So nothing that waits is overtaken by what came
    more than two minutes after it, or by an execution that came more than 62 minutes after it.
    """
    own = max(-MOST_PRIORITY, min(envelope.priority, MOST_PRIORITY))
    return own + (EXECUTION_AHEAD if envelope.workflow is EnvelopeWorkflow.EXECUTION else 0)


NO_LIMIT = "no limit"


def usd_text(nusd: int) -> str:
    """Return nano-dollars in dollars, to the last digit: `25 USD`, `0.000000005 USD`."""
    return f"{(Decimal(nusd) / NANO).normalize():f} USD"


def amount_text(value: int, unit: Unit) -> str:
    """Return an amount with its unit; money is spelled in dollars: `0.5 USD`, `1 call`, `30 tokens`."""
    return usd_text(value) if unit == "nano-USD" else _counted(value, unit.removesuffix("s"))


def ceiling_text(ceiling: Ceiling) -> str:
    """Return what a ceiling allows: `25 USD, 1000 calls`."""
    parts = []
    if ceiling.nusd is not None:
        parts.append(usd_text(ceiling.nusd))
    if ceiling.tokens is not None:
        parts.append(_counted(ceiling.tokens, "token"))
    if ceiling.calls is not None:
        parts.append(_counted(ceiling.calls, "call"))
    return ", ".join(parts) or NO_LIMIT


def limited_text(scope: ScopeKind, id_: str, window: Window) -> str:
    """Return what a limit is on: `tenant * per day`, `trace * in all`."""
    return f"{scope} {id_} in all" if window is Window.NONE else f"{scope} {id_} per {window}"


def limit_text(limit: Limit) -> str:
    """Return a limit in one line: `tenant * per day: 25 USD, 1000 calls`."""
    return f"{limited_text(limit.scope, limit.id, limit.window)}: {ceiling_text(limit.ceiling)}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def rules_text(limits: Iterable[Limit], scope: ScopeKind, window: Window, unit: Unit) -> str:
    """Return what set the ceilings on a unit of a scope, of those limits that have a rule; empty where none has."""
    text = ""
    for limit in limits:
        ceiling = limit.ceiling.units[UNITS.index(unit)]
        if limit.rule and (limit.scope, limit.window) == (scope, window) and ceiling is not None:
            text += f" (a ceiling there, {amount_text(ceiling, unit)}, is {limit.rule})"
    return text
