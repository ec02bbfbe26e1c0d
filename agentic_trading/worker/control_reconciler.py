"""Follows what operators order: halts reach the gate, limits the ledger, and every order the log."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from agentic_trading.governance.controls_document import (
    KEPT_ACTIONS,
    PLATFORM,
    AppliedCommand,
    ControlStore,
    TenantControls,
    event_of,
)
from agentic_trading.governance.errors import ControlsUnreadableError
from agentic_trading.governance.halt_registry import HaltRegistry
from agentic_trading.governance.ledger import Ledger
from agentic_trading.worker.error_boundary import log_and_continue
from agentic_trading.worker.recorder import Recorder

log = structlog.get_logger()


@dataclass(slots=True)
class ControlReconciler:
    """Knows the orders that were last seen, and has new ones done.

    Until a tenant's orders were read once, and whenever something stands there that cannot be read, nothing of it
    runs: an order that is not known may be a halt. While the board is only away, what was read last holds.

    A board that was lost begins anew with version 1. Such orders are followed as any new ones: what the operators see
    there is what holds. An empty board, or an older copy of it, takes nothing back: what was seen last holds until
    somebody orders anew.
    """

    board: ControlStore
    halts: HaltRegistry
    ledger: Ledger
    recorder: Recorder
    _seen: dict[str, TenantControls] = field(default_factory=dict)
    _adopted: dict[str, int] = field(default_factory=dict)

    def version(self, tenant: str) -> int:
        """Return the version of a tenant's orders that is followed."""
        return self._seen.get(tenant, TenantControls()).version

    async def follow(self, tenant: str) -> bool:
        """See what stands on the board, have it done and put it on record; returns whether it was new.

        Raises what the board and the ledger raise; then all of it is to be tried again.
        """
        controls = await self._read(tenant)
        seen = self._seen.get(tenant)
        if seen is not None and not _is_news(controls, seen):
            self.halts.open(tenant)
            if controls != seen:
                log.error("orders_went_back", tenant=tenant, seen=seen.version, found=controls.version)
            return False
        self.halts.update(tenant, controls)
        if tenant != PLATFORM and controls.speaks_of_limits:
            await self._adopt(tenant, controls)
        _say_if_begun_anew(tenant, controls, seen)
        for action in _new_actions(controls, seen):
            with log_and_continue("order_not_on_record", tenant=tenant, version=action.version):
                await self.recorder.keep_event(event_of(tenant, action))
        self._seen[tenant] = controls
        return True

    async def _read(self, tenant: str) -> TenantControls:
        try:
            return await self.board.read(tenant)
        except Exception as e:
            if isinstance(e, ControlsUnreadableError) or not self.halts.knows(tenant):
                self.halts.close(tenant, str(e))
            raise

    async def _adopt(self, tenant: str, controls: TenantControls) -> None:
        """Hand limits to the ledger, under a number that is larger than any before: an older one changes nothing there.

        The serial is the same in every process that follows the board, and outlives the orders that it comes from.
        """
        number = max(controls.serial, self._adopted.get(tenant, 0) + 1)
        await self.ledger.adopt(tenant, controls.limits, version=number)
        self._adopted[tenant] = number


def _is_news(controls: TenantControls, seen: TenantControls) -> bool:
    """Whether a document was written after another one: it is a later version, or its last order is not known there.

    Moments are not compared, as operators' clocks differ; only what is older than all that is still known counts as
    an old copy.
    """
    if controls.version > seen.version:
        return True
    if not controls.actions or controls.actions[-1] in seen.actions:
        return False
    is_all_known = len(seen.actions) < KEPT_ACTIONS
    return is_all_known or controls.actions[-1].at >= seen.actions[0].at


def _new_actions(controls: TenantControls, seen: TenantControls | None) -> Sequence[AppliedCommand]:
    known = seen.actions if seen is not None else ()
    return [action for action in controls.actions if action not in known]


def _say_if_begun_anew(tenant: str, controls: TenantControls, seen: TenantControls | None) -> None:
    if seen is None or controls.version > seen.version:
        return
    gone = [f"{halt.scope} {halt.id}" for halt in seen.halts if controls.halt(halt.scope, halt.id) is None]
    log.error(
        "orders_began_anew", tenant=tenant, seen=seen.version, found=controls.version, no_longer_halted=gone
    )
