"""Commands of operators at a place: for known names, and until the workers there have acknowledged them."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.commands import OperatorCommand, execute_command, validate_command
from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.status_feed import BudgetStatus
from agentic_trading.llm.event import PLATFORM
from agentic_trading.operate.budgets import BudgetLocation, BudgetLocationOptions, open_location
from agentic_trading.operate.known_names import KnownNames
from agentic_trading.operate.live_places import is_locked
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.settings import user_name

ACKNOWLEDGED_WITHIN_S = 3.0
"""Workers apply a command within a second, and report it within half a second more."""

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class CommandReach:
    """The workers of a place by name: those that have acknowledged a command, and running ones that have not.

    `known_from` is the source that knows the name in the command (empty: none was asked), `in_flight` are the workers'
    calls, as they last reported.
    """

    place: str
    known_from: str
    acknowledged: tuple[str, ...]
    missing: tuple[str, ...]
    in_flight: int

    @property
    def is_complete(self) -> bool:
        """Whether some worker runs, and every one has acknowledged the command."""
        return bool(self.acknowledged) and not self.missing

    @property
    def text(self) -> str:
        """The reach as an operator reads it."""
        known = f"; the name is known from {self.known_from}" if self.known_from else ""
        if not self.acknowledged and not self.missing:
            return f"no worker runs here{known}"
        workers = (
            f"{len(self.acknowledged):,} of {len(self.acknowledged) + len(self.missing):,} running workers"
        )
        return f"acknowledged by {workers}, with {self.in_flight:,} calls in flight{known}"

    @property
    def problem(self) -> str:
        """Why a halt cannot be relied on yet."""
        if not self.acknowledged and not self.missing:
            return (
                f"the halt is set at {self.place}, and no running process acknowledged it: no worker reports there;"
                " name the place where it runs with --store or --ledger (a worker that starts there obeys the halt)"
            )
        return (
            f"the halt is set at {self.place}, and {', '.join(self.missing)} did not acknowledge it within"
            f" {ACKNOWLEDGED_WITHIN_S:g} s: its process has ended without a report, or hangs; end it if it still runs"
        )


async def execute_acknowledged(
    where: BudgetLocationOptions,
    tenant: str,
    wanted: OperatorCommand,
    why: str,
    *,
    config: PlatformConfig | None = None,
    clock: Clock | None = None,
) -> tuple[TenantControls, CommandReach]:
    """Apply a command at a place, and wait until the workers that run there have acknowledged it.

    Args:
        where: The place.
        tenant: The tenant, or `*` for all.
        wanted: The command.
        why: A reason, kept with the command.
        config: With a configuration, the names in a halt or a new limit must be known at the place.
        clock: The clock of the wait.

    Returns:
        The controls from now on, and the workers that have acknowledged them within three seconds.

    Raises:
        CommandError: If the command changes nothing, is not allowed, or names something unknown.
        ControlError: If the controls cannot be used.

    """
    async with open_location(where) as place:
        validate_command(tenant, wanted)
        await place.controls.read(tenant)  # the first error is that of controls that cannot be read
        known_from = ""
        if config is not None:
            known_from = await KnownNames(place, where.log, config).require_for(tenant, wanted)
        controls = await execute_command(
            place.controls, tenant, wanted, by=user_name(), why=why, at=SystemClock().now()
        )
        reach = await _acknowledged(place, where, tenant, known_from, clock or SystemClock())
        return controls, reach


def command_values(controls: TenantControls, reach: CommandReach) -> dict[str, Any]:
    """Return the place, the controls and the reach, for JSON."""
    reached = {name: value for name, value in asdict(reach).items() if name != "place"}
    return {"place": reach.place, **controls.model_dump(mode="json"), "reached": reached}


async def _acknowledged(
    place: BudgetLocation, where: BudgetLocationOptions, tenant: str, known_from: str, clock: Clock
) -> CommandReach:
    """Wait until every running worker has applied the controls of now, or the time is over."""
    started = clock.monotonic()
    while True:
        serial = (await place.controls.read(tenant)).serial
        has_process = where.folder is None or await asyncio.to_thread(is_locked, where.folder)
        reports = await _reports(place, tenant)
        done = [one for one in reports if _has_applied(one, tenant, serial)]  # it may have ended since
        waiting = [one for one in reports if one not in done and one.is_running and has_process]
        has_begun = where.folder is not None and has_process and not reports  # its first report comes soon
        is_over = clock.monotonic() - started >= ACKNOWLEDGED_WITHIN_S
        if is_over or not (waiting or has_begun):
            break
        await clock.sleep(_LOOK_EVERY_S)
    names, missing = (tuple(_name(one, tenant) for one in those) for those in (done, waiting))
    in_flight = sum(one.calls.in_flight for one in (*done, *waiting) if one.is_running)
    return CommandReach(place.name, known_from, names, missing, in_flight)


async def _reports(place: BudgetLocation, tenant: str) -> Sequence[BudgetStatus]:
    tenants = [tenant] if tenant != PLATFORM else await place.statuses.tenants()
    return [status for each in tenants for status in await place.statuses.read(each)]


def _has_applied(status: BudgetStatus, tenant: str, serial: int) -> bool:
    return (status.platform_serial if tenant == PLATFORM else status.controls_serial) == serial


def _name(status: BudgetStatus, tenant: str) -> str:
    return status.worker if tenant != PLATFORM else f"{status.worker} ({status.tenant})"
