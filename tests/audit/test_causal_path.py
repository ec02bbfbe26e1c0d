"""Why something was done: from any id back to the beginning."""

import pytest

from agentic_trading.audit.trace import AmbiguousIdError, CallNode, UnknownRecordError, why
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import interaction_id
from agentic_trading.llm.store import Records
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.build import envelope, event, interaction


def step(kind: str, cause: str = "", *, name: str = "") -> Event:
    return event(kind, id=name or kind, causation_id=cause, trace_id="t")


@pytest.fixture
async def records() -> Records:
    """Return what a log knows of an order: bar → assessment → intent → fill strategy → order → two fills."""
    store = MemoryInteractionStore()
    judged = envelope(envelope_id="judge", causation_id="bar", trace_id="t")
    filled = envelope(envelope_id="how", causation_id="intent", trace_id="t")
    await store.record(event("bar.closed", trace_id="another"))
    await store.record(step("bar"))
    await store.store(interaction(envelope=judged, attempt_number=1, success=False))
    await store.store(interaction(envelope=judged, attempt_number=2))
    await store.record(step("assessment", interaction_id("judge", 2)))
    await store.record(step("intent", "assessment"))
    await store.store(interaction(envelope=filled))
    await store.record(step("strategy", interaction_id("how", 1)))
    await store.record(step("order", "strategy"))
    await store.record(step("fill", "order", name="fill-1"))
    await store.record(step("fill", "order", name="fill-2"))
    await store.record(step("stray", "gone"))
    return store.records


async def test_fill_leads_back_to_first_bar(records: Records) -> None:
    answer = await why(records, "fill-1")

    assert [node.id for node in answer.path] == [
        "bar", "judge", "assessment", "intent", "how", "strategy", "order", "fill-1",
    ]  # fmt: skip
    assert [node.id for node in answer.siblings] == ["fill-2"]
    assert (answer.effects, answer.trace_id, answer.missing_cause) == ((), "t", "")


async def test_call_on_path_shows_all_attempts(records: Records) -> None:
    call = (await why(records, "assessment")).path[1]

    assert isinstance(call, CallNode)
    assert [attempt.result.success for attempt in call.attempts] == [False, True]


@pytest.mark.parametrize("record_id", ["judge", interaction_id("judge", 1), interaction_id("judge", 2)])
async def test_call_is_found_by_every_id(records: Records, record_id: str) -> None:
    answer = await why(records, record_id)

    assert [node.id for node in answer.path] == ["bar", "judge"]
    assert [node.id for node in answer.effects] == ["assessment"]


async def test_root_has_no_siblings(records: Records) -> None:
    answer = await why(records, "bar")

    assert ([node.id for node in answer.path], answer.siblings) == (["bar"], ())


async def test_broken_path_names_missing_cause(records: Records) -> None:
    assert (await why(records, "stray")).missing_cause == "gone"


async def test_other_tenants_records_are_hidden() -> None:
    store = MemoryInteractionStore()
    for name, tenant, cause in [
        ("bar", "theirs", ""),
        ("order", "mine", "bar"),
        ("fill", "mine", "order"),
        ("spy", "theirs", "order"),
        ("echo", "theirs", "fill"),
    ]:
        await store.record(event(id=name, tenant_id=tenant, causation_id=cause, trace_id="t"))

    answer = await why(store.records, "fill", tenant="mine")

    assert [node.id for node in answer.path] == ["order", "fill"]
    assert (answer.siblings, answer.effects, answer.missing_cause) == ((), (), "bar")
    for theirs in ("bar", "spy", "echo"):
        with pytest.raises(UnknownRecordError) as unknown:
            await why(store.records, theirs, tenant="mine")
        assert str(unknown.value) == str(UnknownRecordError(theirs))
    assert len((await why(store.records, "fill")).path) == 3


async def test_unknown_id_is_named(records: Records) -> None:
    with pytest.raises(UnknownRecordError, match="id of an event, an envelope or an interaction") as unknown:
        await why(records, "nothing")

    assert unknown.value.record_id == "nothing"


async def prefixed() -> Records:
    store = MemoryInteractionStore()
    await store.store(interaction(envelope=envelope(envelope_id="a5d04832-asked", trace_id="t")))
    for name, tenant in [("a5d04832-fill", "mine"), ("a5d04833-fill", "mine"), ("a5d04833-late", "theirs")]:
        await store.record(event(id=name, tenant_id=tenant, trace_id="t"))
    return store.records


async def test_why_prefix_finds_the_only_record() -> None:
    records = await prefixed()

    assert (await why(records, "a5d04833-f")).record_id == "a5d04833-fill"
    assert (await why(records, "a5d04833", tenant="mine")).record_id == "a5d04833-fill"


async def test_why_ambiguous_prefix_lists_the_matches() -> None:
    records = await prefixed()

    with pytest.raises(AmbiguousIdError, match=r"'a5d04833'.*a5d04833-fill, a5d04833-late. Give more"):
        await why(records, "a5d04833")
    with pytest.raises(AmbiguousIdError) as several:
        await why(records, "a5d04832")

    assert several.value.matches == ("a5d04832-asked", "a5d04832-fill")


async def test_why_exact_id_beats_longer_ids() -> None:
    store = MemoryInteractionStore()
    for name in ("session-1", "session-10"):
        await store.record(event(id=name, trace_id="t"))

    assert (await why(store.records, "session-1")).record_id == "session-1"


async def test_why_seven_characters_are_refused() -> None:
    with pytest.raises(UnknownRecordError, match="first 8 or more characters"):
        await why(await prefixed(), "a5d0483")


async def test_ambiguous_matches_are_limited_to_twenty() -> None:
    store = MemoryInteractionStore()
    for number in range(30):
        await store.record(event(id=f"a5d04833-{number:02}", trace_id="t"))

    with pytest.raises(AmbiguousIdError, match="a5d04833-19 and others") as several:
        await why(store.records, "a5d04833")

    assert len(several.value.matches) == 20
