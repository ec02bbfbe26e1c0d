"""The budgets of a place, and operator commands to its controls."""

import asyncio
import shlex
import shutil
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final, TypeVar

from agentic_trading.clock import SystemClock
from agentic_trading.governance import limits as limit_types
from agentic_trading.governance import status_feed as status_api
from agentic_trading.governance.burn_rate import Alerts, warning_event
from agentic_trading.governance.commands import (
    AddHalt,
    OperatorCommand,
    RemoveHalt,
    RemoveLimit,
    SetLimit,
    execute_command,
)
from agentic_trading.governance.controls_document import ControlStore, HaltScope, TenantControls
from agentic_trading.governance.ledger import Ledger
from agentic_trading.llm.event import PLATFORM, Event
from agentic_trading.llm.limits import NANO
from agentic_trading.operate import choices
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import boards_of, ledger_of
from agentic_trading.platform.settings import user_name


@dataclass(frozen=True, slots=True)
class BudgetLocationOptions:
    """A place of budgets: the folder of a session, or a server, which takes precedence.

    Attributes:
        folder: The folder of a session.
        ledger_url: The server.
        log: A log of calls at this place, if any.

    """

    folder: Path | None
    ledger_url: str | None = None
    log: Path | None = None

    @property
    def name(self) -> str:
        """The place as text, without secrets of the URL."""
        return choices.host_of(self.ledger_url) if self.ledger_url else str(self.folder)


@dataclass(frozen=True, slots=True)
class BudgetLocation:
    """An open place: its controls, statuses, and its ledger if it is on a server."""

    name: str
    controls: ControlStore
    statuses: status_api.StatusFeed
    ledger: Ledger | None = None


@dataclass(frozen=True, slots=True)
class BudgetView:
    """A tenant's budgets at one time.

    Attributes:
        place: The place as text.
        tenant: The tenant.
        controls: The limits and halts of the tenant.
        platform: The limits and halts of all tenants.
        counters: The counters with a limit.
        parked: Requests that wait for budget.
        workers: The last report of each worker.

    """

    place: str
    tenant: str
    controls: TenantControls
    platform: TenantControls
    counters: tuple[status_api.CounterStatus, ...]
    parked: tuple[status_api.QueuedStatus, ...]
    workers: tuple[status_api.BudgetStatus, ...]


@asynccontextmanager
async def open_location(where: BudgetLocationOptions) -> AsyncGenerator[BudgetLocation]:
    """Open a place while the block runs."""
    place = await asyncio.to_thread(_open, where)
    try:
        yield place
    finally:
        await place.controls.aclose()
        await place.statuses.aclose()
        if place.ledger is not None:
            await place.ledger.aclose()


def _open(where: BudgetLocationOptions) -> BudgetLocation:
    if where.ledger_url is None:
        return BudgetLocation(where.name, *boards_of(None, where.folder or Path()))
    boards = boards_of(where.ledger_url, Path())
    return BudgetLocation(where.name, *boards, ledger_of(where.ledger_url))


async def read_status(where: BudgetLocationOptions, tenant: str) -> BudgetView:
    """Open a place, read a tenant's budgets once, and close it. Raises the errors of `read_view`."""
    async with open_location(where) as place:
        return await read_view(place, tenant)


async def read_view(place: BudgetLocation, tenant: str) -> BudgetView:
    """Return the current limited counters of a tenant, with its controls, queue and workers.

    A server's ledger is read directly. The ledger of another process, forecasts and exhausted counters are
    those of the last report of a worker. Without a running worker, windows on a server are those of the
    current time.

    Raises:
        LedgerUnavailableError: If the ledger's server is unreachable.
        ControlsUnavailableError: If the controls are unreachable.

    """
    controls = await place.controls.read(tenant)
    platform = await place.controls.read(PLATFORM)
    workers = tuple(await place.statuses.read(tenant))
    newest = max(workers, key=lambda status: status.time, default=None)
    reported = newest.counters if newest is not None else ()
    if place.ledger is None:
        queued = newest.parked if newest is not None else ()
        return BudgetView(place.name, tenant, controls, platform, reported, queued, workers)
    balances = await place.ledger.balances(tenant, limited=True, at=_present(workers))
    queued = status_api.parked(await place.ledger.waiting(tenant))
    shown = _joined(status_api.counters(balances, ()), reported, workers)
    return BudgetView(place.name, tenant, controls, platform, shown, queued, workers)


async def read_views(place: BudgetLocation) -> list[BudgetView]:
    """Return `read_view` of every tenant that a worker has reported, sorted by name. Raises its errors."""
    return [await read_view(place, tenant) for tenant in await reporting_tenants(place)]


async def reporting_tenants(place: BudgetLocation) -> Sequence[str]:
    """Return every tenant that a worker has reported, sorted.

    Raises:
        ControlsUnavailableError: If the server is unreachable.

    """
    tenants = await place.statuses.tenants()
    if not tenants:
        # A feed has no tenants too if its server is away, and then the controls on this server are too.
        await place.controls.read(PLATFORM)
    return tenants


def uncounted_limits(view: BudgetView) -> list[limit_types.Limit]:
    """Return the limits that no counter shows yet, because no worker has applied them."""
    named = {(limit.scope, limit.id, limit.window) for limit in view.controls.limits}
    return [
        limit
        for limit in view.controls.limits
        if not any(_shows(counter, limit, named) for counter in view.counters)
    ]


def _shows(
    counter: status_api.CounterStatus, limit: limit_types.Limit, named: Collection[tuple[str, str, str]]
) -> bool:
    """Return whether this limit applies to a counter. A limit on its own id takes precedence over `*`."""
    if (counter.scope, counter.window) != (limit.scope, limit.window) or limit.id not in {
        counter.id,
        limit_types.ANY,
    }:
        return False
    if limit.id == limit_types.ANY and (counter.scope, counter.id, counter.window) in named:
        return True
    return all(
        ceiling in {None, most} for ceiling, most in zip(limit.ceiling.units, counter.most, strict=True)
    )


def _present(workers: Sequence[status_api.BudgetStatus]) -> datetime | None:
    """Return the current time of the running workers for windows. None if each call has its own time."""
    running = [status.windows_at for status in workers if status.is_running]
    return max((at for at in running if at is not None), default=None if running else SystemClock().now())


def _joined(
    now: Iterable[status_api.CounterStatus],
    reported: Iterable[status_api.CounterStatus],
    workers: Iterable[status_api.BudgetStatus],
) -> tuple[status_api.CounterStatus, ...]:
    """Return the current counters with the reported forecasts and exhausted units."""
    forecasts = {_key(one): one for one in reported}
    running = (one for status in workers if status.is_running for one in status.counters)
    # Only workers know a counter that refuses all calls, because nothing was booked in it.
    exhausted = {_key(one): one for one in running if one.exhausted}
    found = {_key(one): one for one in now}
    for key, counter in found.items():
        known, refusing = forecasts.get(key, counter), exhausted.get(key, counter).exhausted
        units = tuple(unit for unit in limit_types.UNITS if unit in {*counter.exhausted, *refusing})
        names = ("nusd_per_hour", "exhausted_at", "exhausted_unit")
        forecast = {name: getattr(known, name) for name in names}
        found[key] = counter.model_copy(update={"exhausted": units, **forecast})
    return tuple((exhausted | found).values())


def _key(counter: status_api.CounterStatus) -> tuple[str, ...]:
    return counter.scope, counter.id, counter.window, counter.window_id


ALERT_COMMAND_WITHIN_S: Final = 30.0
_MOST_SENT: Final = 10_000


class AlertCommand:
    """A command that is run for each new warning, with the event as a line of JSON on its standard input.

    The event is the one that workers record, with the same id. A warning is sent once, even if
    the run fails, and again by another process.

    Args:
        text: The command and its arguments, with the quotes of a shell. No shell runs it.
        within_s: Time limit of a run, in seconds. The program is then killed.

    Raises:
        OptionError: If the text has no command, or its program does not exist.

    """

    def __init__(self, text: str, *, within_s: float = ALERT_COMMAND_WITHIN_S) -> None:
        self._within_s = within_s
        try:
            self._words = shlex.split(text)
        except ValueError as e:
            raise OptionError("--on-alert", f"{text!r} ({e})", "a command with closed quotes") from None
        if not self._words or shutil.which(self._words[0]) is None:
            found = "empty" if not self._words else f"{self._words[0]!r}, which is no program"
            raise OptionError(
                "--on-alert", found, "a program on PATH, or the path of a program, and its arguments"
            )
        self._alerts = Alerts()
        self._sent: dict[str, None] = {}

    async def note(self, views: Iterable[BudgetView]) -> list[str]:
        """Run the command for each new warning of these budgets. Return a text for each run that failed."""
        forecasts = [
            status_api.forecast_of(view.tenant, counter)
            for view in views
            for counter in view.counters
            if counter.scope not in limit_types.SHORT_LIVED
        ]
        failures = []
        for alert in self._alerts.new(forecasts):
            event = warning_event(alert, SystemClock().now())
            if event.id in self._sent:
                continue
            self._sent[event.id] = None
            if len(self._sent) > _MOST_SENT:  # because every minute may have new windows
                del self._sent[next(iter(self._sent))]
            if problem := await self._run(event):
                failures.append(f"--on-alert {self._words[0]} {problem} (event {event.id}, {event.kind})")
        return failures

    async def _run(self, event: Event) -> str:
        """Run the command for an event. Return why it failed, or an empty text."""
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(*self._words, stdin=pipe, stdout=null, stderr=pipe)
        except OSError as e:
            return f"cannot be started ({e.strerror})"
        try:
            async with asyncio.timeout(self._within_s):
                _, said = await process.communicate(event.wire + b"\n")
        except TimeoutError:
            return f"has not ended within {self._within_s:g} s and was killed"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"ended with exit code {process.returncode}: {last}" if process.returncode else ""


Word = TypeVar("Word", limit_types.ScopeKind, limit_types.Window)


def halt_command(tenant: str, *, agent: str | None, workflow: str | None, model: str | None) -> AddHalt:
    """Return the command to halt one scope. Raises `OptionError` for more than one."""
    return AddHalt(*_scope(tenant, agent, workflow, model))


def resume_command(
    tenant: str, *, agent: str | None, workflow: str | None, model: str | None, entries: str | None = None
) -> RemoveHalt:
    """Return the command to lift a halt. Raises `OptionError` for more than one scope."""
    return RemoveHalt(*_scope(tenant, agent, workflow, model, entries))


def limit_command(
    scope: str, id_: str, window: str, *, usd: str | None, tokens: int | None, calls: int | None, remove: bool
) -> SetLimit | RemoveLimit:
    """Return the command to set or remove a limit.

    Raises:
        OptionError: If the scope or window is unknown, or a ceiling is out of range.

    """
    kind = _word(limit_types.ScopeKind, scope, "SCOPE")
    per = _word(limit_types.Window, window, "--per")
    if remove:
        if (usd, tokens, calls) != (None, None, None):
            raise OptionError("--remove", "given together with a ceiling", "one or the other")
        return RemoveLimit(kind, id_, per)
    if (usd, tokens, calls) == (None, None, None):
        raise OptionError("the ceiling", "left out", "--usd, --tokens or --calls, one at least, or --remove")
    if not id_:
        raise OptionError("ID", "empty", f"the id of one {kind}, or {limit_types.ANY!r} for each of them")
    _check_range("--tokens", tokens)
    _check_range("--calls", calls)
    nusd = None if usd is None else _nusd(usd)
    return SetLimit(limit_types.Limit(kind, id_, per, nusd=nusd, tokens=tokens, calls=calls))


async def execute(
    where: BudgetLocationOptions, tenant: str, wanted: OperatorCommand, why: str
) -> TenantControls:
    """Apply a command to the controls of a place. Workers follow within a second.

    Raises:
        CommandError: If the command changes nothing or is not allowed.
        ControlError: If the controls cannot be used.

    """
    async with open_location(where) as place:
        return await execute_command(
            place.controls, tenant, wanted, by=user_name(), why=why, at=SystemClock().now()
        )


def _scope(
    tenant: str, agent: str | None, workflow: str | None, model: str | None, entries: str | None = None
) -> tuple[HaltScope, str]:
    named = [
        (scope, id_)
        for scope, id_ in (
            (HaltScope.AGENT, agent),
            (HaltScope.WORKFLOW, workflow),
            (HaltScope.MODEL, model),
            (HaltScope.ENTRIES, entries),
        )
        if id_ is not None
    ]
    if len(named) > 1:
        (first, _), *others = named
        rest = " and ".join(f"--{scope}" for scope, _ in others)
        raise OptionError(
            f"--{first}", f"given together with {rest}", "one of them. Halts of several scopes apply together"
        )
    if not named:
        return HaltScope.TENANT, tenant
    _refuse_pattern(*named[0])
    return named[0]


def _refuse_pattern(scope: HaltScope, id_: str) -> None:
    # A pattern would be taken for a name, and the halt would stop nothing.
    is_whole = id_ == limit_types.ANY or (scope is HaltScope.MODEL and id_.endswith(f"/{limit_types.ANY}"))
    if limit_types.ANY in (id_[:-1] if is_whole else id_):
        every = f"a whole name, or {limit_types.ANY!r} for every {scope}"
        allowed = f"{every}, or PROVIDER/{limit_types.ANY}" if scope is HaltScope.MODEL else every
        raise OptionError(f"--{scope}", repr(id_), allowed)


def _word(words: type[Word], word: str, option: str) -> Word:
    try:
        return words(word)
    except ValueError:
        raise OptionError(option, repr(word), ", ".join(words)) from None


def _check_range(option: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= limit_types.LARGEST:
        raise OptionError(option, value, f"0 (nothing may run) to {limit_types.LARGEST}")


def _nusd(usd: str) -> int:
    try:
        amount = Decimal(usd)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise OptionError("--usd", repr(usd), "an amount of dollars, such as 25 or 0.5")
    if not 0 <= amount <= Decimal(limit_types.LARGEST) / NANO:
        raise OptionError(
            "--usd", usd, f"0 (nothing that costs may run) to {limit_types.usd_text(limit_types.LARGEST)}"
        )
    nusd = int(amount * NANO)
    if nusd != amount * NANO:
        raise OptionError("--usd", repr(usd), "whole nano-dollars: at most nine decimals")
    return nusd
