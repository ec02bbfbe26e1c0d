"""Logs to select records from."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.llm.store import Record
from tests.build import NOW, event, interaction
from tests.contracts.records_opening import put


def write(path: Path, *records: Record, **options: Any) -> Path:
    """Write records to the log at `path`, and return it."""

    async def written() -> None:
        async with aclosing(JsonFileInteractionStore(path, **options)) as store:
            await put(store, records)

    asyncio.run(written())
    return path


def call(minutes: float = 0, **changes: Any) -> Record:
    """Return an attempt that was sent and recorded so many minutes after `NOW`."""
    at = NOW + timedelta(minutes=minutes)
    return interaction(**{"stored_at": at, "dispatched_at": at, **changes})


def step(kind: str, minutes: float = 0, **changes: Any) -> Record:
    """Return an event, recorded so many minutes after `NOW`."""
    return event(kind, **{"time": NOW + timedelta(minutes=minutes), **changes})


REFUSAL = {"category": "budget_exhausted", "description": "the budget is used up"}


def desk(tenant: str = "fund") -> list[Record]:
    """Return a decision chain from a bar to a fill, a refused call, and a call on the day after."""
    of = {"tenant_id": tenant, "trace_id": f"chain-of-{tenant}"}
    asked = f"envelope-{tenant}"
    return [
        step("bar.closed", 0, id=f"bar-{tenant}", **of),
        call(
            1, envelope_id=asked, causation_id=f"bar-{tenant}", agent_id="analyst", subject="BTCUSDT", model="m-1",
            latency_ms=100.0, cost_nusd=7, **of,
        ),
        step(
            "analysis.assessed", 2, id=f"assessed-{tenant}", causation_id=asked,
            body={"symbol": "BTCUSDT", "verdict": "long"}, **of,
        ),
        step("order.filled", 3, id=f"fill-{tenant}", causation_id=f"assessed-{tenant}", body={"symbol": "ETHUSDT"}, **of),
        call(
            4, tenant_id=tenant, agent_id="trader", workflow="execution", provider="openai", model="m-2", success=False,
            failure=REFUSAL, cost_nusd=0, dispatched_at=None, raw_output="", trace_id=f"refused-{tenant}",
        ),
        call(24 * 60, tenant_id=tenant, agent_id="analyst", model="m-2", latency_ms=300.0, cost_nusd=5, raw_output="“stop”"),
    ]  # fmt: skip
