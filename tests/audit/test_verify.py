"""A log is checked whole: every hash, and every cause."""

from pathlib import Path

import pytest

from agentic_trading.audit.verify import MissingCause, verify_log
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import RunStarted
from agentic_trading.llm.interaction import LLMInteraction, interaction_id
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import InteractionStore
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore, JsonlRecords
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.build import envelope, event, interaction


async def keep_a_trace(store: InteractionStore) -> None:
    """Keep bar → call → assessment, with the call's dispatch kept before the call itself."""
    asked = envelope(envelope_id="asked", causation_id="bar", trace_id="t")
    await store.record(event("bar.closed", id="bar", trace_id="t"))
    await store.record(event("attempt.dispatched", id="dispatched", causation_id="asked", trace_id="t"))
    await store.store(interaction(envelope=asked))
    await store.record(
        event("assessment", id="assessment", causation_id=interaction_id("asked", 1), trace_id="t")
    )


def change_a_letter_of_line_2(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"attempt.dispatched", b"attempt.dispatcheD"))


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """Return a log of four lines."""
    path = tmp_path / "log.jsonl"
    store = JsonFileInteractionStore(path)
    await keep_a_trace(store)
    await store.aclose()
    return path


async def test_complete_log_passes_verification() -> None:
    store = MemoryInteractionStore()
    await keep_a_trace(store)

    report = await verify_log(store)

    assert report.is_whole
    assert report.finding == "all 4 lines are as they were written, and every cause is on record"


async def test_log_file_is_verified_without_writer(file: Path) -> None:
    records = JsonlRecords(file)

    report = await verify_log(records)
    await records.aclose()

    assert report.is_whole
    assert report.verification.lines == 4


async def test_first_changed_line_is_named(file: Path) -> None:
    change_a_letter_of_line_2(file)
    records = JsonlRecords(file)

    report = await verify_log(records)
    await records.aclose()

    assert not report.is_whole
    assert report.verification.broken_line == 2
    assert report.finding.startswith("line 2 is not as it was written: ")
    assert report.missing_causes == ()


async def test_missing_cause_is_named_once() -> None:
    store = MemoryInteractionStore()
    lost = envelope(envelope_id="lost", causation_id="gone", trace_id="t")
    await keep_a_trace(store)
    await store.store(interaction(envelope=lost, attempt_number=1))
    await store.store(interaction(envelope=lost, attempt_number=2))

    report = await verify_log(store)

    assert report.missing_causes == (MissingCause(5, "lost", "t", "gone"),)
    assert not report.is_whole
    assert report.finding == "line 5 (lost) names a cause that is not in its trace: gone"


async def test_attempt_of_a_killed_process_is_counted_and_no_fault() -> None:
    store = MemoryInteractionStore()
    killed = event("attempt.dispatched", id="sent", causation_id="killed", trace_id="t")
    answered = interaction(envelope=envelope(envelope_id="answered", trace_id="t"))
    await store.record(killed)
    await store.record(event("attempt.dispatched", id="again", causation_id="answered", trace_id="t"))
    await store.store(answered)

    report = await verify_log(store)

    assert report.is_whole
    assert report.in_flight == 1


async def test_cause_in_another_trace_is_missing() -> None:
    store = MemoryInteractionStore()
    await keep_a_trace(store)
    await store.record(event("late", id="late", causation_id="bar", trace_id="other"))

    report = await verify_log(store)

    assert [missing.record_id for missing in report.missing_causes] == ["late"]


async def test_shared_trace_cause_may_be_elsewhere() -> None:
    store = MemoryInteractionStore()
    started = RunStarted(session_id="w1", mode="paper", package="0", shares_traces=True)
    await store.record(
        event(RunStarted.KIND, id="start", trace_id="start", body=started.model_dump(mode="json"))
    )
    await store.store(interaction(envelope=envelope(causation_id="gone", trace_id="t")))

    report = await verify_log(store)

    assert report.is_whole
    assert report.causes_elsewhere == 1
    assert report.finding.endswith("and 1 causes are in logs of other workers")


async def test_empty_log_passes_verification() -> None:
    assert (await verify_log(MemoryInteractionStore())).is_whole


@pytest.mark.parametrize("field", ["request_hash", "envelope_hash", "output_hash"])
async def test_wrong_hash_is_named_with_line(field: str) -> None:
    store = MemoryInteractionStore()
    await keep_a_trace(store)
    honest = interaction(trace_id="t")
    asked, answered = honest.envelope.model_dump(), honest.result.model_dump()
    forged = "rk1:" + "0" * 64 if field == "request_hash" else "0" * 16
    if field == "output_hash":
        answered[field] = forged
    else:
        asked = {name: value for name, value in asked.items() if name != "envelope_hash"} | {field: forged}
    await store.store(LLMInteraction(envelope=LLMEnvelope(**asked), result=LLMResult(**answered)))

    report = await verify_log(store)

    (wrong,) = report.wrong_hashes
    assert (wrong.line, wrong.field) == (5, field)
    assert not report.is_whole
    assert report.finding.startswith("line 5 (")
    assert field in report.finding
