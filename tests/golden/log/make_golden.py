"""Write the golden logs: calls.jsonl, events.jsonl with one event of every kind, and the log of a folder in 0.1.0.

Run by hand until release 0.1.0: python -m tests.golden.log.make_golden, and put the printed head of the calls into
expected.py. From 0.1.0 on the files are only read.

The folder 0.1.0 has the log of a desk's session and of other agents: compressed segments, a plain one and the active
one, their seals, checkpoints, an export, and expected.json. Only `plain_values` makes expected.json: it parses the
lines without the package.
"""

import asyncio
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from agentic_trading.client.frames import KINDS as RECURSION
from agentic_trading.desk.decisions import KINDS as DESK
from agentic_trading.ids import derived_id
from agentic_trading.llm import (
    DeterminismLevel,
    EnvelopeBuilder,
    Event,
    FailureKind,
    FailureReason,
    JsonFileInteractionStore,
    LLMInteraction,
    LLMProvider,
)
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.store import LOG_NAME, Record
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.record_codec import identity_of
from agentic_trading.platform import Platform, PlatformConfig, Ports, TenantConfig
from agentic_trading.platform.log_segments import export_at, options_of
from tests.build import NOW, event, interaction
from tests.event_bodies import BODIES, as_event, dispatched_body
from tests.golden.log.expected import RECORDS
from tests.llm.stores.jsonl_logs import plain_bytes
from tests.worker_processes import PROGRAM

FOLDER: Final = Path(__file__).parent / "0.1.0"
TENANTS: Final = ("default", "fund")
AGENTS: Final = ("news-1", "risk-1")
LOST_NUSD: Final = 50_000
_SESSION: Final = (
    "run", "--data", "btcusdt-5m", "--bars", "180", "--provider", "rules", "--seed", "7",
    "--inject", "malformed=10%,timeout=10%,refusal=5%,truncated=10%",
)  # fmt: skip
_TRACE: Final = derived_id("golden", "trace")


def write(path: Path, records: Iterable[Record]) -> str:
    """Write these records into a new log and return the hash of its head."""
    path.unlink(missing_ok=True)
    file = LogFile(path, Disk())
    file.append([(identity_of(record), record.wire) for record in records], sync=True)
    file.close()
    return file.position.head.hash


def write_folder(folder: Path) -> None:
    """Write the log of a session and of other agents, with all files that later releases must read."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with TemporaryDirectory() as temporary:
        log = _played(Path(temporary), folder / "checkpoints.jsonl")
        asyncio.run(_continued(log, folder / "checkpoints.jsonl"))
        # The other files of the folder can be deleted at any time, or belong to the session.
        kept = [*log.parent.glob("interactions-*"), log.with_name("interactions.seals.jsonl"), log]
        for file in kept:
            shutil.copy(file, folder)
    options = options_of("parquet", "", "fund", with_lines=True, with_proofs=True)
    export_at(folder / LOG_NAME, folder / "export", options, include_active=True)
    expected = json.dumps(plain_values(folder), indent=2, sort_keys=True)
    (folder / "expected.json").write_text(f"{expected}\n", encoding="utf-8")


def _played(temporary: Path, checkpoints: Path) -> Path:
    """Play a session of the desk, and return its log."""
    config = temporary / "session.toml"
    config.write_text(
        f'[log]\nsegment_bytes = 65536\ncompress = true\ncheckpoint_file = "{checkpoints}"\n',
        encoding="utf-8",
    )
    subprocess.run([PROGRAM, *_SESSION, "--config", config, "--out", temporary / "run"], check=True)
    return temporary / "run" / LOG_NAME


async def _continued(log: Path, checkpoints: Path) -> None:
    """Add records of each kind and failure, two starts of a gateway with other agents, and killed calls."""
    of_each_kind: list[Record] = [*_events(), *_failures()]
    for records in (of_each_kind, []):
        async with _opened(log, checkpoints, segment_bytes=64 << 10, compress=True) as store:
            await _asked(store)
            for record in records:
                await (store.store(record) if isinstance(record, LLMInteraction) else store.record(record))
    # The small limits end the compressed segments here, so that the plain one has few records.
    for number, (segment_bytes, compress) in enumerate(((8 << 10, True), (1 << 10, False), (1 << 10, False))):
        async with _opened(log, checkpoints, segment_bytes=segment_bytes, compress=compress) as store:
            for each in _lost(number):
                await store.record(each)


@asynccontextmanager
async def _opened(
    log: Path, checkpoints: Path, *, segment_bytes: int, compress: bool
) -> AsyncGenerator[JsonFileInteractionStore]:
    store = JsonFileInteractionStore(
        log, segment_bytes=segment_bytes, compress=compress, checkpoint_file=checkpoints
    )
    async with aclosing(store):
        yield store


async def _asked(store: JsonFileInteractionStore) -> None:
    """Ask as each agent of each tenant. The platform records its run, the calls and snapshots of its ledger."""
    config = PlatformConfig(tenants={tenant: TenantConfig(budget_usd=Decimal(1)) for tenant in TENANTS})
    ports = Ports(providers={"scripted": ScriptedProvider(lambda _request: '{"risk":"low"}')}, store=store)
    async with Platform(config, ports) as platform:
        for tenant in TENANTS:
            for agent in AGENTS:
                builder = EnvelopeBuilder().for_general().with_agent(agent).with_tenant(tenant)
                builder = builder.with_provider(LLMProvider.SCRIPTED, "scripted-1").with_instructions(
                    "Advise."
                )
                builder = builder.with_determinism(DeterminismLevel.GREEDY)
                await platform.ask(builder.with_context({"of": agent, "for": tenant}).build())


def _events() -> Iterable[Event]:
    """Yield an event of each kind of the desk and of questions in parts, each caused by the one before."""
    cause = ""
    for body in BODIES:
        if type(body) in {*DESK.bodies, *RECURSION.bodies}:
            told = body.as_event(
                event_id=derived_id("golden", body.KIND), trace_id=_TRACE, tenant_id="default", time=NOW,
                causation_id=cause, as_of=NOW,
            )  # fmt: skip
            cause = told.id
            yield told


def _lost(number: int) -> tuple[Event, Event]:
    """Return an event of another package, and the dispatch of an attempt without an end, as after a kill."""
    read = event(
        "news.read", id=derived_id("golden", "news", number), trace_id=_TRACE, time=NOW,
        body={"headline": "A rate is kept", "of_a_package": {"of": "yours", "kept": [1, "2", None]}},
    )  # fmt: skip
    sent = event(
        "attempt.dispatched", id=derived_id("golden", "sent", number), trace_id=_TRACE, time=NOW,
        causation_id=read.id, body=dispatched_body(derived_id("golden", "lost", number), nusd=LOST_NUSD),
    )  # fmt: skip
    return read, sent


def _failures() -> Iterable[LLMInteraction]:
    """Yield an attempt that failed in each way."""
    for kind in FailureKind:
        yield interaction(
            interaction_id=derived_id("golden", kind, "attempt"), envelope_id=derived_id("golden", kind),
            result_id=derived_id("golden", kind, "result"), trace_id=derived_id("golden", kind, "trace"),
            agent_id="failing-1", success=False, actionable=False, validation_passed=False, error=kind,
            failure=FailureReason(category=kind, description=f"It failed by {kind}."),
            raw_output="", parsed_output={}, cost_nusd=0, input_tokens=0, output_tokens=0,
        )  # fmt: skip


def plain_values(folder: Path) -> dict[str, Any]:
    """Return the values that readers of the log must find."""
    files = [*sorted(folder.glob("interactions-*")), folder / LOG_NAME]
    raw = [line for file in files for line in plain_bytes(file).splitlines()]
    lines = [json.loads(line, parse_float=Decimal) for line in raw]
    calls = [line for line in lines if "interaction_id" in line]
    snapshots = [
        line for line in lines if line.get("kind") == "ledger.checkpointed" and "snapshot" in line["body"]
    ]
    fill = next(line for line in lines if line.get("kind") == "order.filled" and line["trace_id"] != _TRACE)
    results = [line["result"] for line in calls]
    return {
        "lines": len(lines),
        "head": lines[-1]["hash"],
        "segments": [file.name for file in files],
        "kinds": Counter(line.get("kind", "interaction") for line in lines),
        "failures": Counter(one["failure"]["category"] for one in results if one["failure"]),
        "packages": sorted({line["body"]["package"] for line in lines if line.get("kind") == "run.started"}),
        "nusd_by_agent": _cost_by_agent(calls),
        "snapshot_line": snapshots[-1]["body"]["snapshot"]["line"],
        "fill": fill["id"],
        "causes": _causes(fill, lines),
        "in_doubt": sum(one["in_doubt"] for one in results),
        "answers_sha256": sha256("\n".join(one["raw_output"] for one in results).encode()).hexdigest(),
    }


def _cost_by_agent(calls: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the cost of all calls in nano-dollars, by tenant and agent."""
    costs = Counter[str]()
    for call in calls:
        costs[f"{call['envelope']['tenant_id']} {call['envelope']['agent_id']}"] += int(
            call["result"]["cost_usd"] * 10**9
        )
    return dict(costs)


def _causes(record: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of records from the first cause to this one."""
    known = dict[str, tuple[str, str]]()
    for line in lines:
        asked = line.get("envelope")
        if asked is None:
            known[line["id"]] = line["kind"], line["causation_id"]
        else:
            call = f"call.{asked['workflow']}", asked["causation_id"]
            known |= {line["interaction_id"]: call, asked["envelope_id"]: call}
    path, cause = list[str](), record["id"]
    while cause:
        kind, cause = known[cause]
        path.insert(0, kind)
    return path


if __name__ == "__main__":
    folder = Path(__file__).parent
    print(write(folder / "calls.jsonl", RECORDS))
    write(folder / "events.jsonl", map(as_event, BODIES))
    write_folder(FOLDER)
