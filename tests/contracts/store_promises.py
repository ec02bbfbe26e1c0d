"""What every interaction store promises: one function a promise."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.llm import (
    Event,
    LLMInteraction,
    RecordConflictError,
    RecordError,
    StoreError,
)
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import ChainedRecord, Record, Verification
from agentic_trading.llm.stores.record_codec import id_of, record_of
from tests.build import NOW, event, interaction
from tests.contracts.store_subject import Subject, all_of, kept, put

ALLOWED_S = 2.0


async def keeps_records_in_the_order_given(subject: Subject) -> None:
    given: list[Record] = [interaction(), event(), interaction(), event(), interaction()]

    for record in given:
        await put(subject.store, record)

    assert await kept(subject.store) == given
    assert [entry.seq for entry in await all_of(subject.store.scan())] == [1, 2, 3, 4, 5]


async def keeps_the_order_of_calls_that_wait_together(subject: Subject) -> None:
    given = [interaction() for _ in range(64)]

    async with asyncio.TaskGroup() as group:
        for record in given:
            group.create_task(subject.store.store(record))

    assert await kept(subject.store) == given


async def keeps_a_record_once_and_as_it_was_first_given(subject: Subject) -> None:
    first = interaction(latency_ms=1.0)
    again = LLMInteraction(
        envelope=first.envelope, result=first.result.model_copy(update={"latency_ms": 2.0})
    )
    trigger = event()

    for record in (first, trigger, again, first, trigger):
        await put(subject.store, record)

    assert again.interaction_id == first.interaction_id
    assert await kept(subject.store) == [first, trigger]


async def keeps_a_record_once_when_it_is_given_twice_at_once(subject: Subject) -> None:
    first, other = interaction(), interaction()

    async with asyncio.TaskGroup() as group:
        for record in (first, other, first, first):
            group.create_task(subject.store.store(record))

    assert await kept(subject.store) == [first, other]


async def says_where_a_record_stands(subject: Subject) -> None:
    attempts = [interaction() for _ in range(8)]
    events = [event() for _ in range(8)]
    given: list[Record] = [*attempts, *events]

    async with asyncio.TaskGroup() as group:
        stored = [group.create_task(subject.store.store(each)) for each in attempts]
        recorded = [group.create_task(subject.store.record(each)) for each in events]
        again = [group.create_task(subject.store.store(each)) for each in attempts]
    late = [await subject.store.record(each) for each in [events[3], event(), events[5]]]

    lines = {id_of(read.record): read.seq for read in await all_of(subject.store.scan())}
    assert [task.result() for task in [*stored, *recorded]] == [lines[id_of(each)] for each in given]
    assert [task.result() for task in again] == [task.result() for task in stored]
    assert late == [recorded[3].result(), 17, recorded[5].result()]


async def has_made_safe_what_it_acknowledged(subject: Subject) -> None:
    for record in (interaction(), event(), interaction()):
        await put(subject.store, record)
        await subject.acknowledged()

        assert (await subject.found_by_others())[-1] == record


async def gives_back_equal_records(subject: Subject) -> None:
    numbers = {
        "price": Decimal("42000.10"),
        "tiny": Decimal("1E-30"),
        "size": 10**30,
        "ok": True,
        "none": None,
    }
    answered = interaction(
        raw_output='a\u2028b\u2029c\x85d\r\ne\0 "quoted" \\ ,"seq":1,"prev":"',
        parsed_output=numbers,
        context={"text": "\u2028 \U0001f4c8", "n": 2**53, "f": 0.1},
        stored_by={"a newer": "release", "n": [1, 2.5]},
    )
    told = event(body={"qty": Decimal("0.10"), "seq": 7, "hash": "none", "text": "\u2028"}, seen_by=["risk"])

    for record in (answered, told):
        await put(subject.store, record)

    assert await kept(subject.store) == [answered, told]
    found = await subject.store.get_by_envelope_id(answered.envelope.envelope_id)
    assert found == answered
    assert found is not None
    assert repr(found.result.parsed_output) == repr(numbers)


async def is_not_changed_by_changes_to_what_it_was_given(subject: Subject) -> None:
    answered = interaction(parsed_output={"action": "buy"})
    await put(subject.store, answered)

    answered.result.parsed_output["action"] = "sell"

    (kept_interaction,) = await kept(subject.store)
    assert isinstance(kept_interaction, LLMInteraction)
    assert kept_interaction.result.parsed_output == {"action": "buy"}


async def refuses_an_answer_to_another_envelope(subject: Subject) -> None:
    first, other = interaction(), interaction()
    mixed = LLMInteraction(envelope=first.envelope, result=other.result)

    with pytest.raises(RecordError, match=f"of envelope {other.envelope.envelope_id}, .*its envelope is"):
        await subject.store.store(mixed)
    await subject.store.store(first)

    assert await kept(subject.store) == [first]


async def finds_the_last_attempt_at_an_envelope(subject: Subject) -> None:
    asked = interaction().envelope
    attempts = [interaction(envelope=asked, attempt_number=number) for number in (1, 2, 3)]
    others = interaction(envelope=asked.model_copy(update={"tenant_id": "other"}))
    for attempt in (*attempts, interaction(), others):
        await subject.store.store(attempt)

    assert await subject.store.get_by_envelope_id(asked.envelope_id, tenant="default") == attempts[-1]
    assert await subject.store.get_by_envelope_id("of nobody") is None
    assert [await subject.store.has_attempt(asked, number) for number in (1, 2, 3, 4)] == [True] * 3 + [False]
    assert [await subject.store.has_attempt(others.envelope, number) for number in (1, 2)] == [True, False]


async def finds_the_attempts_of_a_trace_oldest_first(subject: Subject) -> None:
    first, second = interaction(trace_id="a"), interaction(trace_id="a")
    for record in (first, interaction(trace_id="b"), event(trace_id="a"), second):
        await put(subject.store, record)

    assert await subject.store.get_by_trace_id("a") == [first, second]
    assert await subject.store.get_by_trace_id("c") == []


async def gives_the_newest_attempts_newest_first(subject: Subject) -> None:
    given = [interaction() for _ in range(12)]
    for attempt in given:
        await subject.store.store(attempt)
        await subject.store.record(event())

    assert await subject.store.recent(limit=3) == [given[11], given[10], given[9]]
    assert await subject.store.recent() == given[:1:-1]
    assert await subject.store.recent(limit=0) == []


async def answers_an_empty_log_with_nothing(subject: Subject) -> None:
    assert await kept(subject.store) == []
    assert await subject.store.recent() == []
    assert await subject.store.get_by_trace_id("a") == []
    assert await subject.store.verify() == Verification(lines=0, head="0" * 64)


async def scans_what_stands_behind_a_number_and_ends(subject: Subject) -> None:
    given = [event() for _ in range(5)]
    for record in given:
        await subject.store.record(record)

    assert [entry.record for entry in await all_of(subject.store.scan(after=3))] == given[3:]
    assert await all_of(subject.store.scan(after=5)) == []
    assert await all_of(subject.store.scan(after=9)) == []


async def scans_a_long_log_whole(subject: Subject) -> None:
    given = [event() for _ in range(600)]
    async with asyncio.TaskGroup() as group:
        for record in given:
            group.create_task(subject.store.record(record))

    assert await kept(subject.store) == given
    assert [entry.seq for entry in await all_of(subject.store.scan(after=300))] == list(range(301, 601))


async def follows_what_is_there_and_what_comes_until_it_is_closed(subject: Subject) -> None:
    given = [event() for _ in range(20)]
    seen: list[ChainedRecord] = []
    three_are_seen, all_are_seen = asyncio.Event(), asyncio.Event()

    async def follower() -> None:
        async with aclosing(subject.store.follow(after=2)) as batches:
            async for batch in batches:
                seen.extend(batch)
                if len(seen) >= 3:
                    three_are_seen.set()
                if len(seen) >= 18:
                    all_are_seen.set()
        all_are_seen.set()

    async with asyncio.timeout(ALLOWED_S), asyncio.TaskGroup() as group:
        for record in given[:5]:
            await subject.store.record(record)
        group.create_task(follower())
        await three_are_seen.wait()
        for record in given[5:]:
            await subject.store.record(record)
        await all_are_seen.wait()
        await subject.store.aclose()

    assert [record_of(line.record) for line in seen] == given[2:]
    assert [line.seq for line in seen] == list(range(3, 21))
    assert [read_line(line.line) for line in seen] == seen


async def lets_a_follower_finish_when_it_is_closed(subject: Subject) -> None:
    given = [event() for _ in range(10)]
    seen: list[Record] = []

    async def follower() -> None:
        seen.extend([record_of(line.record) async for batch in subject.store.follow() for line in batch])

    async with asyncio.timeout(ALLOWED_S), asyncio.TaskGroup() as group:
        group.create_task(follower())
        for record in given:
            await subject.store.record(record)
        await subject.store.aclose()

    assert seen == given


async def verifies_what_it_holds(subject: Subject) -> None:
    for _ in range(3):
        await subject.store.store(interaction())

    entries = await all_of(subject.store.scan())
    verified = await subject.store.verify()

    assert verified == Verification(lines=3, head=entries[-1].hash)
    assert verified.is_intact


async def names_the_first_broken_line(subject: Subject) -> None:
    for _ in range(4):
        await subject.store.record(event())
    await subject.acknowledged()
    intact = await all_of(subject.store.scan())

    await asyncio.to_thread(subject.damage, 3)
    verified = await subject.store.verify()

    assert not verified.is_intact
    assert (verified.broken_line, verified.lines, verified.head) == (3, 2, intact[1].hash)
    assert verified.reason


async def refuses_what_it_cannot_spell_and_goes_on(subject: Subject) -> None:
    before, after = event(), event()
    await subject.store.record(before)

    with pytest.raises(RecordError, match="cannot be written as JSON") as e:
        await subject.store.store(interaction(context={}, parsed_output={"text": "\ud800"}))
    with pytest.raises(RecordError, match=r"kkk…: kind has 257 bytes.*id has 900 bytes"):
        await subject.store.record(event(kind="k" * 257, id="k" * 900))
    for raw in (b"NaN", b"1" * 26):
        forged = event().wire.replace(b'"BTCUSDT"', raw)
        with pytest.raises(RecordError, match="cannot be written as JSON"):
            await subject.store.record(Event.from_wire(forged))
    await subject.store.record(after)

    assert not isinstance(e.value, StoreError)
    assert await kept(subject.store) == [before, after]


async def refuses_another_event_under_a_known_id_and_goes_on(subject: Subject) -> None:
    first, after = event(as_of=NOW), event()
    await subject.store.record(first)
    others: dict[str, Any] = {
        "kind": "fill",
        "trace_id": "other",
        "causation_id": "other",
        "tenant_id": "other",
        "as_of": None,
        "body": {"symbol": "ETHUSDT"},
    }

    for name, value in others.items():
        with pytest.raises(RecordConflictError, match=f"{first.id}: .*differs in {name}:") as e:
            await subject.store.record(first.model_copy(update={name: value}))
        assert (e.value.record_id, e.value.differs) == (first.id, name)
    await subject.store.record(first.model_copy(update={"time": NOW + timedelta(hours=1)}))
    await subject.store.record(after)

    assert await kept(subject.store) == [first, after]


async def refuses_another_answer_under_a_known_attempt_and_goes_on(subject: Subject) -> None:
    first = interaction(raw_output="first")
    second = first.model_copy(update={"result": first.result.model_copy(update={"raw_output": "second"})})
    await subject.store.store(first)

    with pytest.raises(RecordConflictError, match=r"differs in output_hash: .* its own attempt_number"):
        await subject.store.store(second)
    numbered = second.result.model_copy(update={"attempt_number": 2})
    await subject.store.store(second.model_copy(update={"result": numbered}))

    found = await subject.store.get_by_trace_id(first.trace_id)
    assert [each.result.raw_output for each in found] == ["first", "second"]


async def refuses_another_record_under_an_id_that_is_given_at_once(subject: Subject) -> None:
    first = event()
    refused: list[RecordConflictError] = []

    async def give(told: Event) -> None:
        try:
            await subject.store.record(told)
        except RecordConflictError as e:
            refused.append(e)

    async with asyncio.TaskGroup() as group:
        for told in (first, first, first.model_copy(update={"trace_id": "other"})):
            group.create_task(give(told))

    assert [e.record_id for e in refused] == [first.id]
    assert await kept(subject.store) == [first]


async def keeps_an_event_and_an_interaction_with_the_same_id(subject: Subject) -> None:
    answered = interaction()
    given: list[Record] = [event(id=answered.interaction_id), answered]

    for record in given:
        await put(subject.store, record)

    assert await kept(subject.store) == given
    assert await subject.store.get_by_envelope_id(answered.envelope.envelope_id) == answered


async def takes_nothing_once_it_is_closed(subject: Subject) -> None:
    await subject.store.record(event())
    await subject.store.aclose()
    await subject.store.aclose()

    with pytest.raises(StoreError, match="closed"):
        await subject.store.record(event())


PROMISES = [
    keeps_records_in_the_order_given,
    keeps_the_order_of_calls_that_wait_together,
    keeps_a_record_once_and_as_it_was_first_given,
    keeps_a_record_once_when_it_is_given_twice_at_once,
    says_where_a_record_stands,
    has_made_safe_what_it_acknowledged,
    gives_back_equal_records,
    is_not_changed_by_changes_to_what_it_was_given,
    refuses_an_answer_to_another_envelope,
    finds_the_last_attempt_at_an_envelope,
    finds_the_attempts_of_a_trace_oldest_first,
    gives_the_newest_attempts_newest_first,
    answers_an_empty_log_with_nothing,
    scans_what_stands_behind_a_number_and_ends,
    scans_a_long_log_whole,
    follows_what_is_there_and_what_comes_until_it_is_closed,
    lets_a_follower_finish_when_it_is_closed,
    verifies_what_it_holds,
    names_the_first_broken_line,
    refuses_what_it_cannot_spell_and_goes_on,
    refuses_another_event_under_a_known_id_and_goes_on,
    refuses_another_answer_under_a_known_attempt_and_goes_on,
    refuses_another_record_under_an_id_that_is_given_at_once,
    keeps_an_event_and_an_interaction_with_the_same_id,
    takes_nothing_once_it_is_closed,
]
