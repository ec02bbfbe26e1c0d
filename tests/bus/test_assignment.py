"""A partition of one reader: keys in their order, and a watermark that passes nothing which is not done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.bus.assignment import AssignedPartitions, Assignment, Watermark
from agentic_trading.bus.message import Delivery, Message

OFFSETS = st.lists(st.integers(1, 4), min_size=1, max_size=30)
"""Steps from one offset to the next: more than one is a gap."""


def offsets_of(start: int, steps: list[int]) -> list[int]:
    """Return growing offsets from `start` on."""
    found, at = [], start - 1
    for step in steps:
        at += step
        found.append(at)
    return found


def filled(*keys: str, start: int = 0) -> Assignment:
    """Return a partition with a message for each key, in offsets from `start` on."""
    made = Assignment("topic", 3, start)
    for offset, key in enumerate(keys, start):
        made.add(offset, Message(key, b"", {}))
    return made


@given(st.integers(0, 1000), OFFSETS, st.data())
def test_watermark_is_monotonic_and_below_in_flight(
    start: int, steps: list[int], data: st.DataObject
) -> None:
    watermark = Watermark(start)
    coming, in_flight, before = offsets_of(start, steps), set[int](), start

    while coming or in_flight:
        if coming and (not in_flight or data.draw(st.booleans())):
            offset = coming.pop(0)
            assert watermark.track(offset)
            in_flight.add(offset)
        else:
            offset = data.draw(st.sampled_from(sorted(in_flight)))
            in_flight.remove(offset)
            watermark.finish(offset)
        assert watermark.position >= before
        assert watermark.position <= min(in_flight, default=watermark.next_offset)
        before = watermark.position

    assert watermark.position == offsets_of(start, steps)[-1] + 1


@given(st.integers(0, 100), OFFSETS, st.integers(0, 400))
def test_watermark_refuses_seen_offset(start: int, steps: list[int], again: int) -> None:
    watermark = Watermark(start)
    offsets = offsets_of(start, steps)
    for offset in offsets:
        watermark.track(offset)

    assert watermark.track(again) == (again > offsets[-1])


def test_watermark_starts_at_first_offset() -> None:
    assert Watermark(7).position == 7


@given(st.lists(st.sampled_from("abc"), max_size=12), st.data())
def test_key_order_survives_give_back(keys: list[str], data: st.DataObject) -> None:
    made = filled(*keys, start=10)
    held: list[Delivery] = []
    finished: list[int] = []
    to_give_back = data.draw(st.integers(0, 20))

    while made.has_ready or held:
        if made.has_ready and (not held or data.draw(st.booleans())):
            held.append(made.take())
        else:
            delivery = held.pop(data.draw(st.integers(0, len(held) - 1)))
            if to_give_back and data.draw(st.booleans()):
                made.give_back(delivery)
                to_give_back -= 1
            else:
                made.finish(delivery)
                finished.append(delivery.position)
        assert len({each.message.key for each in held}) == len(held)
        assert made.in_flight == len(held)
        assert made.position == min(set(range(10, 10 + len(keys))) - set(finished), default=10 + len(keys))

    for key in "abc":
        done = [position for position in finished if keys[position - 10] == key]
        assert done == sorted(done)
    assert made.unfinished == 0


def test_delivery_carries_source_and_attempt_count() -> None:
    made = filled("a")

    first = made.take()
    made.give_back(first)
    second = made.take()

    assert (first.topic, first.partition, first.position) == ("topic", 3, 0)
    assert (first.deliveries, second.deliveries) == (1, 2)
    assert (made.holds(first), made.holds(second)) == (False, True)


def test_revoked_assignment_stops_but_finishes_held_messages() -> None:
    made = filled("a", "a", "b")
    held = made.take()

    made.revoke()

    assert not made.has_ready
    assert not made.finish(held)
    assert made.position == 1
    assert not made.add(3, Message("c", b"", {}))


def test_message_returned_after_revocation_is_not_redelivered() -> None:
    made = filled("a")
    held = made.take()
    made.revoke()

    made.give_back(held)

    assert (made.in_flight, made.position, made.has_ready) == (0, 0, False)


def test_duplicate_offset_is_ignored() -> None:
    made = filled("a", "b")

    assert not made.add(1, Message("b", b"copy", {}))
    assert made.unfinished == 2


@pytest.mark.parametrize(("end", "waiting"), [(None, 1), (2, 1), (5, 4)])
def test_waiting_counts_queued_and_unfetched_messages(end: int | None, waiting: int) -> None:
    made = filled("a", "b")
    made.take()

    assert made.waiting(end) == waiting


def test_small_partition_has_room_in_full_topic() -> None:
    made = AssignedPartitions[Assignment](["topic"], buffer=8)
    full, other = Assignment("topic", 0, 0), Assignment("topic", 1, 0)
    made.begin(full)
    made.begin(other)
    at_first = made.with_room(), made.most
    for offset in range(8):
        full.add(offset, Message("key", b"", {}))

    with_nothing = made.with_room(), made.most
    for offset in range(2):
        other.add(offset, Message("other", b"", {}))

    assert at_first == ([full, other], 4)
    assert with_nothing == ([other], 2)
    assert made.with_room() == []


def test_full_topic_has_room_when_half_done() -> None:
    made = AssignedPartitions[Assignment](["full", "other"], buffer=4)
    full, other = Assignment("full", 0, 0), Assignment("other", 0, 0)
    made.begin(full)
    made.begin(other)

    rooms = []
    for offset in range(4):
        rooms.append(full in made.with_room())
        full.add(offset, Message(str(offset), b"", {}))
    for _ in range(3):
        rooms.append(full in made.with_room())
        full.finish(full.take())

    assert rooms == [True] * 4 + [False, False, True]
    assert other in made.with_room()
    assert not made.is_any_full


def test_ending_assignment_twice_keeps_the_successor() -> None:
    made = AssignedPartitions[Assignment](["topic"], buffer=4)
    first, second = filled("a"), filled("a")
    made.begin(first)

    made.end(first)
    made.begin(second)
    made.end(first)

    assert (first.is_revoked, second.is_revoked) == (True, False)
    assert [*made] == [second]
