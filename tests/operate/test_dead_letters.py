"""Dead letters are found once each, published again as they were or as new envelopes, and deleted from the start."""

import re
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import dead_letter_message, envelope_message, event_message, read_envelope
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.signing import REPLAYED_HEADER, Signer, Verifier
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, DeadLetter, Topic, lane_topic
from agentic_trading.canonical import utc_text
from agentic_trading.clock import SimClock
from agentic_trading.governance.ledger import SENT_WITHIN
from agentic_trading.operate.dead_letters import (
    LetterFilter,
    LetterScan,
    ListedLetter,
    Purge,
    Replay,
    ReplayError,
    ReplayPlan,
    UnknownLetterError,
    letter_of,
)
from agentic_trading.worker.delivery import SendAge
from tests.build import NOW, envelope, event

SIGNER = Signer("desk-a", b"k" * 32)
VERIFIER = Verifier({"desk-a": (b"k" * 32,)})
ASKED = envelope(idempotency_key="order-7")
LANE = ENVELOPES[ASKED.workflow]
POSITIONS = iter(range(10_000))
AGE = SendAge(SimClock(NOW))


def replaying(**given: Any) -> Replay:
    """Return a replay on the day on which the envelopes were created."""
    return Replay(age=AGE, **given)


def letter(message: Message | None = None, *, topic: str = LANE.name, **changes: Any) -> DeadLetter:
    """Give up a message, each in a place of its own."""
    delivery = Delivery(topic, next(POSITIONS), message or envelope_message(ASKED), 1)
    return DeadLetter.of(delivery, **{"reason": "decode", "detail": "", "time": NOW, **changes})


async def bus_with(*letters: DeadLetter) -> MemoryBroker:
    broker = MemoryBroker()
    await broker.publish_all(DEAD_LETTERS, [dead_letter_message(each) for each in letters])
    return broker


async def ids_of(broker: MemoryBroker, meant: LetterFilter, scan: LetterScan | None = None) -> list[str]:
    async with aclosing((scan or LetterScan()).letters(broker, meant)) as letters:
        return [each.id async for each in letters]


async def published(broker: MemoryBroker, topic: Topic[Any] = LANE) -> list[Message]:
    return [delivery.message async for delivery in broker.scan(topic)]


async def test_duplicate_letter_is_listed_once() -> None:
    first, second = letter(), letter()
    broker = await bus_with(first, second, first)
    await broker.publish(DEAD_LETTERS, Message("k", b"no letter", {}))
    scan = LetterScan()

    assert await ids_of(broker, LetterFilter(), scan) == [first.id, second.id]
    assert (scan.copies[first.id], scan.unreadable) == (2, 1)
    assert await letter_of(broker, first.id) == (first, 2)


async def test_letters_are_selected_by_filter_fields() -> None:
    old = letter(time=NOW - timedelta(hours=1))
    forged = letter(reason="signature")
    other = letter(event_message(event()), topic="llm.events")
    broker = await bus_with(old, forged, other)

    for meant, found in (
        (LetterFilter(ids=[other.id, old.id]), [old, other]),
        (LetterFilter(reason="signature"), [forged]),
        (LetterFilter(topic="llm.events"), [other]),
        (LetterFilter(since=NOW), [forged, other]),
        (LetterFilter(reason="signature", topic="llm.events"), []),
    ):
        assert await ids_of(broker, meant) == [each.id for each in found]


async def test_unknown_letter_id_suggests_nearest() -> None:
    kept = letter()
    broker = await bus_with(kept)

    with pytest.raises(UnknownLetterError, match=f"no dead letter has the id .*. The nearest are {kept.id}"):
        await letter_of(broker, kept.id[1:])
    with pytest.raises(UnknownLetterError, match=r"\. `dlq list` shows all letters"):
        await letter_of(broker, "no-such-id")
    with pytest.raises(UnknownLetterError, match="There are no dead letters"):
        await letter_of(await bus_with(), "id")


async def test_unique_id_prefix_finds_the_letter() -> None:
    first = letter()
    second = letter().model_copy(update={"id": f"{first.id[:-1]}!"})
    broker = await bus_with(first, second)

    assert (await letter_of(broker, first.id))[0] == first
    assert (await letter_of(await bus_with(first), first.id[:8]))[0] == first
    for beginning, near in (
        (first.id[:8], f"The nearest are {', '.join(sorted((first.id, second.id)))}"),
        (first.id[:7], "`dlq list` shows all letters"),
    ):
        with pytest.raises(UnknownLetterError, match=near):
            await letter_of(broker, beginning)


async def test_replayed_letter_is_skipped_unless_named() -> None:
    first, cut = letter(), letter(Message("k", b"x" * (1 << 21), {}))
    second = letter(replaying().message(first))
    third = letter(replaying().message(second), reason="signature")
    broker = await bus_with(third, first, second)  # partitions are scanned one after the other, in any order
    await broker.publish(replace(DEAD_LETTERS, room=5), dead_letter_message(cut))

    every = await ReplayPlan.of(broker, replaying(), LetterFilter())
    decode = await ReplayPlan.of(broker, replaying(), LetterFilter(reason="decode"))
    named = await ReplayPlan.of(broker, replaying(), LetterFilter(ids=[first.id]))

    assert ([*every.letters], every.came_back, len(every.refused)) == ([third.id], 2, 1)
    assert ([*decode.letters], decode.came_back) == ([], 2)
    assert ([*named.letters], named.came_back) == ([first.id], 0)
    assert ListedLetter.of(second, AGE).replay_of == first.id


async def test_forged_replay_header_hides_no_letter() -> None:
    first, second = letter(), letter()
    other = envelope_message(envelope(idempotency_key="order-8"))
    forged = letter(Message(other.key, other.value, {**other.headers, REPLAYED_HEADER: first.id}))
    again = letter(SIGNER.sign(replaying(again=True).message(second)))
    broker = await bus_with(forged, first, again, second)

    every = await ReplayPlan.of(broker, replaying(), LetterFilter())

    assert ({*every.letters}, every.came_back) == ({forged.id, first.id, again.id}, 1)


async def test_replayed_message_keeps_content_and_signature() -> None:
    signed = SIGNER.sign(envelope_message(ASKED, reply_to="address-1"))
    given_up = letter(signed, reason="schema_version")
    broker = await bus_with(given_up, letter(reason="signature"))

    plan = await ReplayPlan.of(broker, replaying(), LetterFilter(reason="schema_version"))
    done = await plan.publish(broker)

    (message,) = await published(broker)
    assert message == replace(signed, headers={**signed.headers, REPLAYED_HEADER: given_up.id})
    assert VERIFIER.signer_of(message).principal == "desk-a"
    assert (done.letters, done.refused) == ({given_up.id: LANE.name}, ())


LATER = SendAge(SimClock(NOW + SENT_WITHIN + timedelta(days=2)))
NEEDS_AGAIN = "more than 8 days ago: .* Use --again to make a new envelope, which is charged again"


@pytest.mark.parametrize(
    "message",
    [
        lambda: envelope_message(ASKED, sent_at=NOW),
        lambda: envelope_message(ASKED),
        lambda: SIGNER.sign(envelope_message(ASKED, sent_at=NOW)),
        lambda: replace(envelope_message(ASKED, sent_at=NOW), value=b"of a newer release"),
    ],
    ids=["sent", "created", "signed", "unreadable"],
)
async def test_old_envelope_replay_requires_again(message: Callable[[], Message]) -> None:
    given_up = letter(message())
    broker = await bus_with(given_up)

    plan = await ReplayPlan.of(broker, Replay(age=LATER), LetterFilter(ids=[given_up.id]))

    assert plan.letters == {}
    (refused,) = plan.refused
    assert re.search(NEEDS_AGAIN, str(refused))
    assert ListedLetter.of(given_up, LATER).problem == refused.problem
    assert ListedLetter.of(given_up, AGE).problem == ""


async def test_simulated_envelope_replay_has_no_age_limit() -> None:
    given_up = letter(envelope_message(ASKED))
    age = SendAge(LATER.wall, is_created_at_simulated=True)

    assert Replay(age=age).message(given_up).value == ASKED.wire


async def test_again_sends_old_envelope_now() -> None:
    given_up = letter(envelope_message(ASKED, sent_at=NOW))
    message = Replay(again=True, age=LATER).message(given_up)

    assert message.headers["at_sent"] == utc_text(LATER.wall.now())
    assert LATER.refusal(message, NOW) is None


async def test_event_replay_has_no_age_limit() -> None:
    given_up = letter(event_message(event()), topic="llm.events")

    assert Replay(age=LATER).message(given_up).value == given_up.raw


@pytest.mark.parametrize(
    ("refused", "problem"),
    [
        (lambda: letter(Message("k", b"x" * (1 << 21), {})), "it holds 1048576 of 2097152 bytes"),
        (lambda: letter().small(), "or not its whole key and headers"),
        (lambda: letter(topic="llm.replies"), "no worker reads its topic, 'llm.replies'"),
    ],
    ids=["cut", "small", "topic"],
)
async def test_unreplayable_letter_is_refused_with_reason(refused: Any, problem: str) -> None:
    bad, good = refused(), letter()
    broker = await bus_with(good)
    await broker.publish(replace(DEAD_LETTERS, room=5), dead_letter_message(bad))

    plan = await ReplayPlan.of(broker, replaying(), LetterFilter())

    assert [*plan.letters] == [good.id]
    assert [problem in str(each) for each in plan.refused] == [True]


async def test_oversized_replay_is_refused_and_rest_published() -> None:
    large, good = letter(Message("k", b"x" * 2000, {})), letter(Message("k", b"x", {}))
    broker = MemoryBroker(max_message_bytes=1000)
    await broker.publish_all(replace(DEAD_LETTERS, room=9), [*map(dead_letter_message, (large, good))])

    done = await (await ReplayPlan.of(broker, replaying(), LetterFilter())).publish(broker)

    assert [*done.letters] == [good.id]
    assert [each.letter_id for each in done.refused] == [large.id]
    assert "Allowed: at most 1000 bytes" in str(done.refused[0])


async def test_replay_returns_message_to_source_lane() -> None:
    gpu = lane_topic(ASKED.workflow, "gpu")
    broker = await bus_with(letter(topic=gpu.name), letter(topic=f"{gpu.name}.x"))

    done = await (await ReplayPlan.of(broker, replaying(), LetterFilter())).publish(broker)

    assert [*done.letters.values()] == [gpu.name]
    assert len(await published(broker, gpu)) == len(done.refused) == 1


async def test_again_creates_a_deterministic_child_envelope() -> None:
    signed = SIGNER.sign(envelope_message(ASKED, reply_to="address-1"))
    given_up = letter(signed, reason="crash_loop")
    replay = replaying(again=True, signer=SIGNER)

    message = replay.message(given_up)

    made = read_envelope(Delivery(LANE.name, 0, message, 1))
    assert made.envelope_id == made.idempotency_key != ASKED.envelope_id
    assert made.parent_envelope_id == made.causation_id == ASKED.envelope_id
    assert (made.trace_id, made.request_hash) == (ASKED.trace_id, ASKED.request_hash)
    assert "at_reply_to" not in message.headers
    assert VERIFIER.signer_of(message).principal == "desk-a"
    assert message == replay.message(given_up)
    assert message.value != replay.message(letter(signed)).value


@pytest.mark.parametrize(
    ("message", "topic", "problem"),
    [
        (Message("k", b"{broken", {}), LANE.name, "it contains no readable envelope .decode: "),
        (event_message(event()), "llm.events", "it contains an event, which runs nothing"),
        (
            SIGNER.sign(envelope_message(ASKED)),
            LANE.name,
            "'desk-a' has signed it, .* Use --sign-as PRIN",
        ),
    ],
)
def test_letter_unfit_for_again_is_refused(message: Message, topic: str, problem: str) -> None:
    with pytest.raises(ReplayError, match=problem):
        replaying(again=True).message(letter(message, topic=topic))


def test_unsigned_envelope_needs_no_signer() -> None:
    assert "at_signature" not in replaying(again=True).message(letter()).headers


async def test_purge_stops_at_first_later_letter() -> None:
    hours = [letter(time=NOW + timedelta(hours=hour)) for hour in (0, 1, 3, 2, 4)]
    broker = await bus_with(*hours)

    purge = await Purge.before(broker, NOW + timedelta(hours=2, minutes=30))
    await broker.publish(DEAD_LETTERS, dead_letter_message(last := letter()))
    await purge.run(broker)

    assert (purge.messages, purge.stays) == (2, 1)
    assert await ids_of(broker, LetterFilter()) == [*(each.id for each in hours[2:]), last.id]


async def test_purge_all_keeps_later_letters() -> None:
    broker = await bus_with(letter(), letter())
    await broker.publish(DEAD_LETTERS, Message("k", b"no letter", {}))

    purge = await Purge.before(broker, None)
    await broker.publish(DEAD_LETTERS, dead_letter_message(later := letter()))
    await purge.run(broker)

    assert (purge.messages, purge.stays) == (3, 0)
    assert await ids_of(broker, LetterFilter()) == [later.id]
