"""The golden log of calls is read into the objects that were stored, and written as it is. Logs of 0.1.0a1 are used on."""

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from shutil import copy

import pytest

from agentic_trading.llm import JsonFileInteractionStore, LLMInteraction
from agentic_trading.llm.store import Verification
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.record_codec import id_of
from tests.build import event
from tests.golden.log.expected import ANSWERED, ASKED, HEAD, NOTED, RECORDS, REFUSED, TRIGGER
from tests.golden.log.make_golden import write
from tests.llm.stores.jsonl_logs import HastyDisk, kept, plain_bytes, records_in, verified

GOLDEN = Path(__file__).parents[2] / "golden" / "log" / "calls.jsonl"

SESSION_OF_0_1_0A1 = GOLDEN.with_name("0.1.0a1.jsonl")
"""The log of a session that release 0.1.0a1 has written.

agentic-trading run --data btcusdt-5m --bars 70 --provider rules --seed 7
--inject malformed=10%,timeout=10%,refusal=5%,truncated=10%
"""

SESSION_LINES = 50
SESSION_HEAD = "01648c7a3ff2bf7ddb6983e4746e2fa9c2815f8e2fb207f2f90a8b54462bd580"


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


def test_log_of_0_1_0a1_is_read_and_rewritten_identically(tmp_path: Path) -> None:
    records = records_in(SESSION_OF_0_1_0A1)
    write(tmp_path / "log.jsonl", records)

    assert verified(SESSION_OF_0_1_0A1).head == SESSION_HEAD
    assert (tmp_path / "log.jsonl").read_bytes() == SESSION_OF_0_1_0A1.read_bytes()
    answered = [record for record in records if isinstance(record, LLMInteraction)]
    assert Counter(each.result.failure.category if each.result.failure else "" for each in answered) == {
        "": 3, "refusal": 1, "timeout": 1, "truncated": 1,
    }  # fmt: skip


@pytest.mark.parametrize("compress", [False, True])
def test_log_of_0_1_0a1_is_continued_in_segments(tmp_path: Path, *, compress: bool) -> None:
    path = tmp_path / "log.jsonl"
    copy(SESSION_OF_0_1_0A1, path)
    records, after = records_in(path), [event() for _ in range(3)]

    async def write_on() -> None:
        async with aclosing(
            JsonFileInteractionStore(path, segment_bytes=1, compress=compress, disk=HastyDisk())
        ) as store:
            for record in [*records, *after]:
                await (store.store(record) if isinstance(record, LLMInteraction) else store.record(record))

            assert await kept(store) == [*records, *after]
            found = await store.verify()
            assert (found.is_intact, found.lines) == (True, SESSION_LINES + 3)
            (spent,) = await store.records.spend("agent", "day")
            assert (spent.attempts, spent.failed) == (6, 2)  # as `spend` of 0.1.0a1 answers
            for record in records:
                assert await store.records.find(id_of(record)) == record

    asyncio.run(write_on())

    assert LogFiles(path).sealed_firsts() == [1, SESSION_LINES + 1, SESSION_LINES + 2]
    sealed = LogFiles(path).find_sealed(1)
    assert sealed is not None
    assert plain_bytes(sealed) == SESSION_OF_0_1_0A1.read_bytes()
    assert verified(path).is_intact
