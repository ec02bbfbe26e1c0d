"""Lanes: one position of a key at a time, keys independent of each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.bus.keyed_queues import KeyedQueues


def lanes(*keys: str) -> KeyedQueues:
    """Return lanes with a position for each key, counted from 0."""
    made = KeyedQueues()
    for position, key in enumerate(keys):
        made.add(key, position)
    return made


def test_keys_do_not_wait_for_each_other() -> None:
    made = lanes("a", "a", "b")

    assert [made.take(), made.take()] == [0, 2]
    assert not made.has_ready


def test_next_position_is_ready_after_finish() -> None:
    made = lanes("a", "a")
    made.take()

    assert made.finish("a")
    assert made.take() == 1
    assert not made.finish("a")


def test_key_in_flight_holds_new_position() -> None:
    made = lanes("a")
    made.take()

    assert not made.add("a", 1)
    assert not made.has_ready


def test_returned_position_precedes_rest_of_key() -> None:
    made = lanes("a", "a", "b")

    made.put_back("a", made.take())

    assert [made.take(), made.take()] == [2, 0]


def test_waiting_counts_positions_not_handed_out() -> None:
    made = lanes("a", "a", "b")
    made.take()

    assert made.waiting == 2


def test_take_from_empty_queues_raises() -> None:
    with pytest.raises(IndexError):
        lanes().take()


@given(st.lists(st.sampled_from("abc"), max_size=30), st.data())
def test_key_order_survives_any_finish_order(keys: list[str], data: st.DataObject) -> None:
    made = lanes(*keys)
    held: list[int] = []
    finished: list[int] = []

    while made.has_ready or held:
        if made.has_ready and (not held or data.draw(st.booleans())):
            held.append(made.take())
        else:
            position = held.pop(data.draw(st.integers(0, len(held) - 1)))
            finished.append(position)
            made.finish(keys[position])
        assert len({keys[position] for position in held}) == len(held)

    assert [[p for p in finished if keys[p] == key] for key in "abc"] == [
        [p for p in range(len(keys)) if keys[p] == key] for key in "abc"
    ]
    assert made.waiting == 0
