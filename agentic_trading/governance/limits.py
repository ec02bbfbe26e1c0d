"""Limits on the money, tokens and calls that a scope may use within a window."""

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
    """The period over which spending adds up. `none` is without end."""

    NONE = "none"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """One window: its id, and the UTC time by which it is surely over.

    None if it never ends.
    """

    id: str
    over_by: datetime | None


_FOREVER = TimeWindow("", None)
_MINUTE = timedelta(minutes=1)


class Windows:
    """The windows of one time zone.

    A day lasts from local midnight to the next: 23 or 25 hours when clocks change. The ids of hours and
    minutes contain their UTC offset, so that a repeated hour counts as two hours.
    """

    def __init__(self, zone: tzinfo = UTC) -> None:
        self.zone = zone
        self._since = self._until = datetime.min.replace(tzinfo=UTC)
        self._spans: Mapping[Window, TimeWindow] = {}

    def at(self, moment: datetime) -> Mapping[Window, TimeWindow]:
        """Return the windows of `moment`.

        Calls within the same minute return the same object.

        Raises:
            ValueError: If `moment` has no time zone.

        """
        if moment.tzinfo is None:
            raise ValueError(f"{moment.isoformat()} has no time zone. Pass an aware datetime")
        if not self._since <= moment < self._until:  # every offset in use changes at a full minute
            self._since = moment.astimezone(UTC).replace(second=0, microsecond=0)
            self._until = self._since + _MINUTE
            self._spans = self._spans_from(self._since)
        return self._spans

    def start_of(self, window: Window, window_id: str) -> datetime:
        """Return the start of the window with this id.

        Raises `ValueError` for an invalid id and for `Window.NONE`.
        """
        first = datetime.fromisoformat(window_id + ("-01" if window is Window.MONTH else ""))
        return (first if first.tzinfo else first.replace(tzinfo=self.zone)).astimezone(UTC)

    def _spans_from(self, minute: datetime) -> Mapping[Window, TimeWindow]:
        # Midnights are computed in local time, because a day would otherwise end an hour off when clocks
        # change.
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
"""The order of units in amounts and ceilings."""

LARGEST = 2**53
"""The largest sum that every ledger counts exactly: 9 million dollars in nano-dollars."""

ANY = "*"
"""As the id of a limit: the limit applies to every scope of that kind separately."""


class ScopeKind(StrEnum):
    """The kinds of scopes that spending is counted for.

    Counters are kept per tenant: tenants never share one.
    """

    CALL = "call"
    TRACE = "trace"
    AGENT = "agent"
    WORKFLOW = "workflow"
    PRINCIPAL = "principal"
    TENANT = "tenant"


SHORT_LIVED = frozenset({ScopeKind.CALL, ScopeKind.TRACE})
"""Scopes that end soon. Their counters are not kept forever and have no burn rate."""

NAMED_BY_CALLERS = frozenset({ScopeKind.AGENT, ScopeKind.PRINCIPAL})
"""Scopes that callers can name freely. Totals without a ceiling are dropped when they are no longer used."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The maximum of each unit, or the rest of it. None means unlimited."""

    nusd: int | None = None
    tokens: int | None = None
    calls: int | None = None

    @property
    def units(self) -> tuple[int | None, int | None, int | None]:
        """The values in the order of `UNITS`."""
        return self.nusd, self.tokens, self.calls

    def tighter(self, other: "Ceiling") -> "Ceiling":
        """Return the lower of both ceilings, unit by unit."""
        return Ceiling(*map(_lower, self.units, other.units))

    def or_else(self, other: "Ceiling") -> "Ceiling":
        """Return this ceiling, with missing units taken from `other`."""
        return Ceiling(*(
            mine if mine is not None else theirs for mine, theirs in zip(self.units, other.units, strict=True)
        ))  # fmt: skip


UNLIMITED = Ceiling()


@dataclass(frozen=True, slots=True)
class Limit:
    """A ceiling on the use of a scope within each window.

    At least one of the three units must be set. A limit on a named scope takes precedence over the `*` limit
    of the same kind and window, unit by unit.

    Attributes:
        scope: The kind of scope.
        id: The id of the scope, or `*` for every scope of the kind separately.
        window: The period over which spending adds up.
        nusd: The ceiling in nano-dollars.
        tokens: The ceiling in tokens.
        calls: The ceiling in calls.
        rule: Who set this limit and where to change it. None for a limit of the operators.

    Raises:
        LimitError: If the id is empty, no unit is set, or a ceiling is out of range.

    """

    scope: ScopeKind
    id: str
    window: Window
    nusd: int | None = None
    tokens: int | None = None
    calls: int | None = None
    rule: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raises `LimitError` if the id is empty, no unit is set, or a ceiling is out of range."""
        span = "in all" if self.window is Window.NONE else f"per {self.window}"
        subject = f"{self.scope} {self.id!r} {span}"
        given = {"nusd": self.nusd, "tokens": self.tokens, "calls": self.calls}
        if not self.id:
            raise LimitError(subject, "has no id. Allowed: the id of a scope, or '*'")
        if all(value is None for value in given.values()):
            raise LimitError(subject, "has no ceiling. Set at least one of nusd, tokens and calls")
        for unit, value in given.items():
            if value is not None and not 0 <= value <= LARGEST:
                raise LimitError(subject, f"{unit} is {value}. Allowed: 0 (stops all calls) to {LARGEST}")

    @property
    def ceiling(self) -> Ceiling:
        """The three ceilings as one value."""
        return Ceiling(self.nusd, self.tokens, self.calls)


COUNTED_BY_CALL = Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=LARGEST)
"""Replaces own limits of a past call that were not kept. Its charge still limits the next attempt."""


def _lower(one: int | None, other: int | None) -> int | None:
    given = [value for value in (one, other) if value is not None]
    return min(given, default=None)


UNNAMED = "unnamed"
"""The agent of an envelope without an agent id and type."""


def agent_of(envelope: LLMEnvelope) -> str:
    """Return the agent that the call is counted for: its id, otherwise its type."""
    return envelope.agent_id or envelope.agent_type or UNNAMED


def limits_of(envelope: LLMEnvelope) -> tuple[Limit, ...]:
    """Return the limits that an envelope sets itself: on its attempts, its agent's day, and its trace."""
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
"""Seconds by which executions go ahead of other requests that arrived earlier."""


def queue_priority(envelope: LLMEnvelope) -> int:
    """Return by how many seconds a request of this envelope goes before others.

    This is its priority, at most 60, plus 3,600 for an execution. So a waiting request is never overtaken by
    a request that arrived more than two minutes later, or by an execution that arrived more than 62 minutes
    later.
    """
    own = max(-MOST_PRIORITY, min(envelope.priority, MOST_PRIORITY))
    return own + (EXECUTION_AHEAD if envelope.workflow is EnvelopeWorkflow.EXECUTION else 0)


NO_LIMIT = "no limit"


def usd_text(nusd: int) -> str:
    """Return nano-dollars as dollars, to the last digit: `25 USD`, `0.000000005 USD`."""
    return f"{(Decimal(nusd) / NANO).normalize():f} USD"


def amount_text(value: int, unit: Unit) -> str:
    """Return an amount with its unit, with money in dollars: `0.5 USD`, `1 call`, `30 tokens`."""
    return usd_text(value) if unit == "nano-USD" else _counted(value, unit.removesuffix("s"))


def ceiling_text(ceiling: Ceiling) -> str:
    """Return the text of a ceiling: `25 USD, 1000 calls`."""
    parts = []
    if ceiling.nusd is not None:
        parts.append(usd_text(ceiling.nusd))
    if ceiling.tokens is not None:
        parts.append(_counted(ceiling.tokens, "token"))
    if ceiling.calls is not None:
        parts.append(_counted(ceiling.calls, "call"))
    return ", ".join(parts) or NO_LIMIT


def limited_text(scope: ScopeKind, id_: str, window: Window) -> str:
    """Return the scope and window of a limit: `tenant * per day`, `trace * in all`."""
    return f"{scope} {id_} in all" if window is Window.NONE else f"{scope} {id_} per {window}"


def limit_text(limit: Limit) -> str:
    """Return a limit in one line: `tenant * per day: 25 USD, 1000 calls`."""
    return f"{limited_text(limit.scope, limit.id, limit.window)}: {ceiling_text(limit.ceiling)}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def rules_text(limits: Iterable[Limit], scope: ScopeKind, window: Window, unit: Unit) -> str:
    """Return the rules behind the ceilings on a unit of a scope, or an empty text without rules."""
    text = ""
    for limit in limits:
        ceiling = limit.ceiling.units[UNITS.index(unit)]
        if limit.rule and (limit.scope, limit.window) == (scope, window) and ceiling is not None:
            text += f" (a ceiling there, {amount_text(ceiling, unit)}, is {limit.rule})"
    return text
