"""Time the rebuild of an emptied Redis ledger from a log of a million records, limits and halts included.

Run: python benchmarks/rebuild.py [--quick] [--records N] [--keep FOLDER]. Writes a log of N records (default 1,000,000):
a dispatch and an interaction for each call, a command of an operator among each thousand records. Then it rebuilds the ledger of
an empty server with `appendfsync always`, by `agentic-trading budget rebuild` in a process of its own. Exits with 1 if a charge, a limit or a halt differs, or if N records take longer than
five minutes in proportion to a million. The log is reused if FOLDER has one of this size.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import orjson

from agentic_trading.governance.admission import reservation_id_of
from agentic_trading.governance.commands import AddHalt, RemoveHalt, SetLimit, apply_command
from agentic_trading.governance.control_stores.redis import RedisControlStore
from agentic_trading.governance.controls_document import HaltScope, TenantControls, event_of
from agentic_trading.governance.events import AttemptDispatched
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, agent_of
from agentic_trading.llm import (
    Durability,
    EnvelopeBuilder,
    JsonFileInteractionStore,
    LLMInteraction,
    LLMResult,
)
from agentic_trading.llm.event import Event
from benchmarks.overspend import a_server

RECORDS = 1_000_000
QUICK = 20_000
MOST_S = 300.0
"""For a million records."""
TENANT = "default"
AGENTS = 50
COMMAND_EACH = 1_000
RESERVED_NUSD, MOST_COST_NUSD = 5_000_000, 4_000_000
STARTED = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass
class Written:
    """A log, and what a ledger has to hold after it."""

    path: Path
    calls: int = 0
    charged_nusd: int = 0
    controls: TenantControls = field(default_factory=TenantControls)


def call_of(number: int, cost_nusd: int) -> tuple[Event, LLMInteraction]:
    """Return the records of one call: its dispatch, and how it ended."""
    at = STARTED + timedelta(seconds=number)
    builder = EnvelopeBuilder().for_general().with_instructions("Advise.").with_context({"n": number})
    envelope = builder.with_agent(f"agent-{number % AGENTS}", "adviser").with_tenant(TENANT).build()
    scopes = {
        ScopeKind.TRACE: envelope.trace_id,
        ScopeKind.AGENT: agent_of(envelope),
        ScopeKind.WORKFLOW: str(envelope.workflow),
    }
    id_ = reservation_id_of(envelope, 0)
    body = AttemptDispatched(
        attempt=0, request_hash="", provider=str(envelope.provider), model=envelope.model, reservation_id=id_,
        scopes=scopes, reserved_nusd=RESERVED_NUSD, reserved_tokens=1_000,
    )  # fmt: skip
    dispatch = body.as_event(
        event_id=f"dispatch-{number}", trace_id=envelope.trace_id, tenant_id=TENANT, time=at,
        causation_id=envelope.envelope_id,
    )  # fmt: skip
    result = LLMResult(
        envelope_id=envelope.envelope_id, raw_output="{}", model=envelope.model, reservation_id=id_,
        reserved_nusd=RESERVED_NUSD, reserved_tokens=1_000, cost_nusd=cost_nusd,
        dispatched_at=at, timestamp=at + timedelta(seconds=1),
    )  # fmt: skip
    return dispatch, LLMInteraction(envelope=envelope, result=result)


def commanded(controls: TenantControls, number: int) -> TenantControls:
    """Return the controls after one more command: limits that change, and a halt that comes and goes."""
    commands = (
        SetLimit(Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=10**15 - number)),
        SetLimit(Limit(ScopeKind.AGENT, f"agent-{number % AGENTS}", Window.DAY, calls=10**6 + number)),
        RemoveHalt(HaltScope.AGENT, "agent-1")
        if controls.halt(HaltScope.AGENT, "agent-1")
        else AddHalt(HaltScope.AGENT, "agent-1"),
        AddHalt(HaltScope.MODEL, f"model-{number}"),
    )
    at = STARTED + timedelta(seconds=number)
    return apply_command(controls, commands[number % 4], by="ann", why="", at=at)


async def write(path: Path, records: int, *, is_there: bool) -> Written:
    """Write a log of so many records, or return what an earlier run wrote there."""
    written, random = Written(path), Random(7)  # noqa: S311 - costs of a benchmark
    store = None if is_there else JsonFileInteractionStore(path, durability=Durability.RELAXED)
    number = commands = 0
    while number < records:
        if number >= commands * COMMAND_EACH:
            commands += 1
            written.controls = commanded(written.controls, commands)
            if store is not None:
                await store.record(event_of(TENANT, written.controls.actions[-1]))
            number += 1
        cost_nusd = random.randrange(MOST_COST_NUSD)
        written.calls += 1
        written.charged_nusd += cost_nusd
        if store is not None:
            dispatch, end = call_of(number, cost_nusd)
            await store.record(dispatch)
            await store.store(end)
        number += 2
    if store is not None:
        await store.aclose()
    return written


async def problems_of(written: Written, report: Mapping[str, Any], url: str) -> list[str]:
    """Return what differs between a log and the server after the rebuild."""
    store = await asyncio.to_thread(RedisControlStore, url)
    async with aclosing(store):
        found = await store.read(TENANT)
    pairs = {
        "calls": (report["calls"], written.calls),
        "charged": (report["charged_nusd"], written.charged_nusd),
        "limits": (set(found.limits), set(written.controls.limits)),
        "halts": (set(found.halts), set(written.controls.halts)),
    }
    return [f"{name}: {is_now}, not {wanted}" for name, (is_now, wanted) in pairs.items() if is_now != wanted]


def rebuild(path: Path, url: str) -> tuple[Mapping[str, Any], float]:
    """Run the command, and return its report and the CPU that it took."""
    program = Path(sys.executable).with_name("agentic-trading")
    command = [
        str(program),
        "budget",
        "rebuild",
        "--ledger",
        url,
        "--store",
        str(path),
        "--tenant",
        TENANT,
        "--json",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - ours
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return orjson.loads(done.stdout), cpu_s


async def measure(path: Path, records: int, url: str) -> Sequence[str]:
    """Write a log, rebuild a ledger from it and print what that took; return what does not hold."""
    started = time.perf_counter()
    written = await write(path, records, is_there=await asyncio.to_thread(path.exists))
    wrote_s = time.perf_counter() - started
    started = time.perf_counter()
    report, cpu_s = await asyncio.to_thread(rebuild, path, url)
    took_s = time.perf_counter() - started
    most_s = MOST_S * records / RECORDS
    size = (await asyncio.to_thread(path.stat)).st_size / 1e6
    print(f"log: {records:,} records, {size:,.0f} MB, written in {wrote_s:,.0f} s")
    print(f"rebuilt: {report['calls']:,} calls, {len(report['limits'])} limits, {len(report['halts'])} halts")
    print(
        f"took: {took_s:,.1f} s ({cpu_s:,.1f} s of CPU), {records / took_s:,.0f} records/s; at most {most_s:,.1f} s"
    )
    problems = await problems_of(written, report, url)
    if took_s > most_s:
        problems.append(f"{took_s:,.1f} s, at most {most_s:,.1f} s")
    return problems


def main() -> int:
    """Print the figures; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help=f"{QUICK:,} records")
    arguments.add_argument("--records", type=int, default=RECORDS, metavar="N", help="records of the log")
    arguments.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where the log is kept for the next run"
    )
    asked = arguments.parse_args()
    records = QUICK if asked.quick else asked.records
    with a_server() as (_, url), tempfile.TemporaryDirectory() as folder:
        path = (asked.keep or Path(folder)) / f"{records}" / "interactions.jsonl"
        problems = asyncio.run(measure(path, records, url))
    for problem in problems:
        print(f"NOT HELD: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
