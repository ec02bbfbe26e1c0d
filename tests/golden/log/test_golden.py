"""The folder 0.1.0 is read by every reader of a log, with the values that are in its lines."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from agentic_trading.audit.export_check import check_export
from agentic_trading.audit.records import open_records
from agentic_trading.audit.spend import spend_report
from agentic_trading.audit.trace import why
from agentic_trading.client.frames import KINDS as RECURSION
from agentic_trading.desk.decisions import KINDS as DESK
from agentic_trading.governance.events import KINDS as GOVERNANCE
from agentic_trading.llm import (
    EnvelopeBuilder,
    FailureKind,
    JsonFileInteractionStore,
    LLMInteraction,
    LLMProvider,
)
from agentic_trading.llm.event import KINDS as LOG
from agentic_trading.llm.event import Event
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.llm.store import LOG_NAME
from agentic_trading.llm.stores.jsonl.reader import LogReader
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.operate.log_check import audit_log
from agentic_trading.platform import local_gateway
from agentic_trading.platform.ledger_snapshots import LedgerRebuilds
from agentic_trading.platform.log_segments import export_at, options_of, trusted_seals
from tests.build import event

FOLDER: Final = Path(__file__).parent / "0.1.0"
CHECKPOINTS: Final = FOLDER / "checkpoints.jsonl"
EXPECTED: Final[dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
COSTS: Final[dict[str, int]] = EXPECTED["nusd_by_agent"]
LOST_NUSD: Final = 50_000
LOST: Final = 3
CALL_RESERVES_USD: Final = Decimal("0.05")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a copy of the log, next to which readers may write."""
    return shutil.copytree(FOLDER, tmp_path / "session") / LOG_NAME


@pytest.fixture
async def records(log: Path) -> AsyncIterator[JsonlRecords]:
    async with aclosing(JsonlRecords(log)) as opened:
        yield opened


def test_folder_has_compressed_plain_and_active_segments() -> None:
    sealed = [name for name in EXPECTED["segments"] if name != LOG_NAME]

    assert sorted(each.name for each in FOLDER.glob("interactions-*")) == sealed
    assert {Path(name).suffix for name in sealed} == {".zst", ".jsonl"}
    assert EXPECTED["kinds"]["ledger.checkpointed"] == 4


async def test_lines_of_0_1_0_are_intact(records: JsonlRecords) -> None:
    found = await records.verify()

    assert (found.is_intact, found.lines, found.head) == (True, EXPECTED["lines"], EXPECTED["head"])


async def test_audit_verify_finds_log_whole(log: Path) -> None:
    found = await audit_log(log, checkpoint_file=CHECKPOINTS)

    assert (found.verdict, found.lines, found.head) == ("whole", EXPECTED["lines"], EXPECTED["head"])
    assert found.findings == ()


def test_checkpoints_show_lines_cut_off(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]))

    assert asyncio.run(audit_log(log)).verdict == "whole"
    assert asyncio.run(audit_log(log, checkpoint_file=CHECKPOINTS)).verdict == "cut off"


async def test_records_are_read_and_written_identically(log: Path, records: JsonlRecords) -> None:
    lines = await asyncio.to_thread(lambda: [line.record for line, _ in LogReader(log).walk()])

    assert [entry.record.wire async for entry in records.scan()] == lines
    assert len(lines) == EXPECTED["lines"]


async def test_kinds_of_0_1_0_have_bodies(records: JsonlRecords) -> None:
    events = [entry.record async for entry in records.scan() if isinstance(entry.record, Event)]

    without_body = {
        each.kind
        for each in events
        if all(kinds.of(each) is None for kinds in (DESK, RECURSION, GOVERNANCE, LOG))
    }
    assert without_body == {"news.read"}  # of another package


def test_failures_of_0_1_0_are_known() -> None:
    assert set(EXPECTED["failures"]) <= set(FailureKind)


def test_records_are_counted_by_kind_and_failure(log: Path) -> None:
    with open_records(log) as reader:
        kinds = {row.key[0]: row.records for row in reader.sums("kind")}
        failures = {
            row.key[0]: row.records for row in reader.sums("failure", kind="interaction", failure="*")
        }
        costs = {
            " ".join(row.key): row.cost_nusd for row in reader.sums("tenant", "agent", kind="interaction")
        }

    assert kinds == EXPECTED["kinds"]
    assert failures == EXPECTED["failures"]
    assert costs == COSTS


async def test_spend_includes_attempts_in_doubt(records: JsonlRecords) -> None:
    report = await spend_report(records, "tenant")

    spent = {row.key[0]: (row.cost_nusd, row.in_doubt) for row in report.rows}
    assert spent == {
        "default": (cost_of("default") + LOST * LOST_NUSD, EXPECTED["in_doubt"] + LOST),
        "fund": (cost_of("fund"), 0),
    }


async def test_trace_why_leads_from_fill_to_trigger(records: JsonlRecords) -> None:
    found = await why(records, EXPECTED["fill"])

    assert [node.kind for node in found.path] == EXPECTED["causes"]
    assert found.missing_cause == ""


async def test_recorded_answers_are_served_unchanged(records: JsonlRecords) -> None:
    calls = [entry.record async for entry in records.scan() if isinstance(entry.record, LLMInteraction)]
    answers = RecordedAnswers(calls)

    found = [await answers.find(call.envelope, call.result.attempt_number) for call in calls]

    texts = "\n".join(result.raw_output for result in found if result is not None)
    assert [result and result.result_id for result in found] == [call.result.result_id for call in calls]
    assert sha256(texts.encode()).hexdigest() == EXPECTED["answers_sha256"]


async def test_ledger_restarts_from_its_snapshot(log: Path, records: JsonlRecords) -> None:
    ledgers = await LedgerRebuilds(log, records, ["default", "fund"], "paper", "UTC").open()

    assert ledgers.read_from == EXPECTED["snapshot_line"]
    charged = {
        tenant: sum(entry.charged.nusd for entry in ledger.entries())
        for tenant, ledger in ledgers.by_tenant.items()
    }
    assert charged == {"default": cost_of("default") + LOST * LOST_NUSD, "fund": cost_of("fund")}
    assert len(ledgers.by_tenant["default"].lost()) == LOST


@pytest.mark.parametrize(
    ("left_usd", "failed"), [(Decimal(0), FailureKind.BUDGET_EXHAUSTED), (CALL_RESERVES_USD, None)]
)
async def test_restarted_gateway_has_spent_its_budget(
    log: Path, left_usd: Decimal, failed: FailureKind | None
) -> None:
    budget = Decimal(cost_of("fund")) / 10**9 + left_usd
    builder = EnvelopeBuilder().for_general().with_tenant("fund").with_instructions("Advise.")
    asked = builder.with_provider(LLMProvider.SCRIPTED, "scripted-1").build()

    provider = ScriptedProvider(lambda _request: "{}")
    async with local_gateway(provider, folder=log.parent, budget_usd=budget, tenant="fund") as gateway:
        answer = await gateway.ask(asked)

    assert (None if answer.failure is None else answer.failure.category) == failed


def test_export_of_0_1_0_is_checked_with_its_seals() -> None:
    found = check_export(FOLDER / "export", trusted_seals(FOLDER / "interactions.seals.jsonl"))

    assert found.findings == ()
    assert found.records == len(rows_of(FOLDER / "export", "tenant = 'fund'")) > 0


def test_new_export_has_the_rows_of_the_old_one(log: Path, tmp_path: Path) -> None:
    options = options_of("parquet", "", None, with_lines=True, with_proofs=True)
    export_at(log, tmp_path / "export", options, include_active=True)

    assert len(rows_of(tmp_path / "export", "true")) == EXPECTED["lines"]
    old = rows_of(FOLDER / "export", "true")
    new = rows_of(tmp_path / "export", "tenant = 'fund'")
    assert [{name: row[name] for name in old[0]} for row in new] == [{**row, "log": "session"} for row in old]


async def test_log_of_0_1_0_is_continued(log: Path) -> None:
    before = {file: file.read_bytes() for file in log.parent.glob("interactions-*")}
    async with aclosing(JsonFileInteractionStore(log, segment_bytes=1, compress=False)) as store:
        await store.record(event())
        found = await store.verify()

    assert (found.is_intact, found.lines) == (True, EXPECTED["lines"] + 1)
    assert {file: file.read_bytes() for file in before} == before
    assert (await audit_log(log, checkpoint_file=CHECKPOINTS)).verdict == "whole"


def cost_of(tenant: str) -> int:
    return sum(nusd for key, nusd in COSTS.items() if key.startswith(f"{tenant} "))


def rows_of(folder: Path, condition: str) -> list[dict[str, Any]]:
    """Return the records of an export by line, as an auditor reads them."""
    with duckdb.connect() as db:
        found = db.read_parquet(f"{folder}/*.parquet").filter(condition).order("seq")
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
