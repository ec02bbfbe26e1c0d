"""The golden log of calls is read into the objects that were stored, and written as it is."""

import json
from contextlib import aclosing
from pathlib import Path
from shutil import copy

from agentic_trading.llm import JsonFileInteractionStore, LLMInteraction
from agentic_trading.llm.store import Verification
from tests.build import event
from tests.golden.log.expected import ANSWERED, ASKED, HEAD, NOTED, RECORDS, REFUSED, TRIGGER
from tests.golden.log.make_golden import write
from tests.llm.stores.jsonl_logs import kept, records_in, verified

GOLDEN = Path(__file__).parents[2] / "golden" / "log" / "calls.jsonl"


def test_golden_records_equal_stored_objects() -> None:
    assert records_in(GOLDEN) == RECORDS


def test_golden_log_is_rewritten_identically(tmp_path: Path) -> None:
    write(tmp_path / "log.jsonl", RECORDS)

    assert (tmp_path / "log.jsonl").read_bytes() == GOLDEN.read_bytes()


def test_golden_numbers_keep_written_digits() -> None:
    answered = records_in(GOLDEN)[1]

    assert isinstance(answered, LLMInteraction)
    assert repr(answered.result.parsed_output) == repr(ANSWERED.result.parsed_output)


def test_golden_chain_is_intact() -> None:
    assert verified(GOLDEN) == Verification(lines=len(RECORDS), head=HEAD)


def test_golden_log_is_plain_json() -> None:
    lines = [json.loads(line) for line in GOLDEN.read_bytes().split(b"\n")[:-1]]

    assert [line["seq"] for line in lines] == [1, 2, 3, 4]
    assert [line.get("kind") for line in lines] == ["bar.closed", None, None, "budget.refused"]
    assert [line.get("interaction_id") for line in lines] == [
        None,
        ANSWERED.interaction_id,
        REFUSED.interaction_id,
        None,
    ]
    assert lines[1]["result"]["cost_usd"] == 0.004376


async def test_golden_log_is_queryable_and_appendable(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    copy(GOLDEN, path)
    after = event()

    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.store(ANSWERED)
        await store.record(after)

        assert await kept(store) == [*RECORDS, after]
        assert await store.get_by_envelope_id(ASKED.envelope_id) == REFUSED
        assert await store.records.trace(TRIGGER.trace_id) == RECORDS
        assert await store.records.find(NOTED.id) == NOTED
        (spent,) = await store.records.spend("tenant", "workflow", "day")
        assert (spent.key, spent.attempts, spent.failed, spent.refused) == (
            ("fund", "analysis", "2026-01-02"), 1, 0, 1,
        )  # fmt: skip
