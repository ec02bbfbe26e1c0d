"""A model that bills more than was reserved is halted, whatever the control store does."""

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from agentic_trading.governance.admission import Charge
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import HaltScope, TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError
from agentic_trading.worker.sent_attempt import ChargeWatch
from tests.gateway import MemoryGateway, asking, gateway
from tests.governance.gates import admitted
from tests.governance.requests import request
from tests.worker.ticking import events, upkeep

OVERBILLED = Charge(2_000_000_000, bill_nusd=2_000_000_000, overbilled=True)
MODEL = "scripted/scripted-1"


class Away(MemoryControlStore):
    """A control store that cannot be reached at first."""

    is_away = True

    @override
    async def read(self, tenant: str) -> TenantControls:
        if self.is_away:
            raise ControlsUnavailableError("the store", "connection refused")
        return await super().read(tenant)


async def note(desk: MemoryGateway, store: MemoryControlStore, times: int = 1) -> None:
    watch = ChargeWatch(desk.gate.halts, store, desk.recorder)
    admission = await admitted(desk.gate, request())
    for _ in range(times):
        await watch.note(asking().build(), admission, OVERBILLED)


@pytest.mark.parametrize("ends", [False, True])
async def test_halt_is_stored_after_store_recovers(*, ends: bool) -> None:
    store, desk = Away(), gateway()

    with capture_logs() as logs:
        await note(desk, store, times=2)
    assert [line["event"] for line in logs] == ["model_halted", "halt_not_stored"]
    assert desk.gate.halts.problem(asking().build()) is not None

    store.is_away = False
    housekeeper = upkeep(desk, board=store)
    await (housekeeper.end() if ends else housekeeper.reconcile())

    (halt,) = (await store.read("default")).halts
    assert (halt.scope, halt.id, halt.by, halt.spares_in_flight) == (HaltScope.MODEL, MODEL, "gateway", True)
    assert desk.gate.halts.raised("default") == ()
    assert desk.gate.halts.problem(asking().build()) is not None
    assert [event.kind for event in await events(desk)] == ["operator.commanded"]


async def test_watch_and_reconciler_record_halt_once() -> None:
    store, desk = MemoryControlStore(), gateway()

    await note(desk, store)
    await upkeep(desk, board=store).reconcile()

    assert [event.kind for event in await events(desk)] == ["operator.commanded"]
