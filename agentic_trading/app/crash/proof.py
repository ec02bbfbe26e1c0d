"""Kill a worker in the middle of its calls, and compare its log with the invoice."""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from agentic_trading.app import wire
from agentic_trading.app.crash.stub import InvoicingStub
from agentic_trading.clock import SystemClock
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.rebuild import LedgerRebuild

KILLED_AT_REQUEST = 7


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What both sides know after the kill, in nano-dollars by call.

    `settled` is what the log charged for answered calls, `in_doubt` what it charges for those that were sent and of
    which nothing is known: their whole reservations.
    """

    invoice: dict[str, int]
    settled: dict[str, int]
    in_doubt: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether the invoice is what was settled, to the nano-dollar, and calls that are listed in doubt; nothing else."""
        unsettled = {name: nusd for name, nusd in self.invoice.items() if name not in self.settled}
        return (
            all(self.invoice.get(name) == nusd for name, nusd in self.settled.items())
            and unsettled.keys() <= self.in_doubt.keys()
            and all(nusd <= self.in_doubt[name] for name, nusd in unsettled.items())
            and bool(unsettled)
        )


async def killed_in_mid_call(folder: Path) -> CrashReport:
    """Run the program of `calls` against a stub, kill it as it waits for answers, and read its log."""
    tables = await asyncio.to_thread(wire.load_tables)
    is_time = asyncio.Event()

    def on_request(number: int) -> bool:
        if number >= KILLED_AT_REQUEST:
            is_time.set()
        return is_time.is_set()

    stub = InvoicingStub(tables.prices, SystemClock(), on_request)
    async with stub.serving():
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agentic_trading.app.crash.calls", str(folder), stub.url,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(60):
            await is_time.wait()
        child.kill()
        await child.wait()
    return CrashReport(dict(stub.invoice), *await _booked(folder / "interactions.jsonl"))


async def _booked(log: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return what a log says was charged, and what is in doubt, by idempotency key."""
    reading = LedgerRebuild(wire.DEFAULT_TENANT, "paper")
    async with aclosing(wire.records_of(log)) as records:
        async for entry in records.scan():
            reading.read(entry.record)
    bookings = reading.entries()
    settled = {one.request.key: one.charged.nusd for one in bookings if one.state is ReservationState.SETTLED}
    in_doubt = {
        one.request.key: one.charged.nusd for one in bookings if one.state is ReservationState.IN_DOUBT
    }
    return settled, in_doubt
