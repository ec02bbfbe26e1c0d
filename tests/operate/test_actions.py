"""What an operator does from Python: halts, limits, status and the log of a place."""

from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import BaseModel

import agentic_trading as at
from agentic_trading import operate
from agentic_trading.platform.errors import OptionError
from agentic_trading.testing import ScriptedProvider

MODEL = "scripted/scripted-1"


class Sum(BaseModel):
    """The answer of the tests."""

    total: int


async def test_python_halt_stops_calls_until_resume(tmp_path: Path) -> None:
    provider = ScriptedProvider(lambda _request: '{"total":3}')
    async with at.local_gateway(provider, budget_usd=Decimal(1), folder=tmp_path) as gateway:
        halted = await operate.halt(tmp_path, "it drifts")
        refused = await gateway.decide("Add.", output=Sum, model=MODEL)
        seen = await operate.status(str(tmp_path))
        resumed = await operate.resume(tmp_path, "seen to")
        answered = await gateway.decide("Add.", output=Sum, model=MODEL)

    assert halted.is_complete
    assert refused.failure is not None
    assert refused.failure.category is at.FailureKind.HALTED
    assert [halt.why for halt in seen.controls.halts] == ["it drifts"]
    assert resumed.is_complete
    assert answered


async def test_python_limit_holds_and_spend_is_logged(tmp_path: Path) -> None:
    provider = ScriptedProvider(lambda _request: '{"total":3}')
    async with at.local_gateway(provider, budget_usd=Decimal(1), folder=tmp_path) as gateway:
        first = await gateway.decide("Add.", output=Sum, model=MODEL)
        await operate.set_limit(tmp_path, "tenant", "default", per="day", calls=1, why="enough")
        second = await gateway.decide("Add more.", output=Sum, model=MODEL)
        await operate.set_limit(tmp_path, "tenant", "default", per="day", remove=True, why="go on")
        third = await gateway.decide("Add more again.", output=Sum, model=MODEL)

    assert [bool(first), bool(second), bool(third)] == [True, False, True]
    report = await operate.spend(tmp_path, "tenant")
    rebuilt = await operate.rebuild(tmp_path)
    settled = [
        each.charged.nusd for each in rebuilt.entries() if each.state is operate.ReservationState.SETTLED
    ]
    assert report.total.cost_nusd == first.outcome.usage.cost_nusd + third.outcome.usage.cost_nusd
    assert sum(settled) == report.total.cost_nusd
    async with operate.open_log(tmp_path) as log:
        assert (await log.verify()).reason == ""


@pytest.mark.parametrize("place", ["nowhere", "http://127.0.0.1:1"])
async def test_location_without_log_is_refused(tmp_path: Path, place: str) -> None:
    named = place if "://" in place else tmp_path / place

    with pytest.raises(OptionError):
        await operate.halt(named, "it drifts")
