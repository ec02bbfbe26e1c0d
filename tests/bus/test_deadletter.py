"""Dead letters keep the message byte for byte, as far as they can."""

import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.bus.codec import dead_letter_message, read_dead_letter
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import DEAD_LETTERS, MAX_DETAIL, MAX_HEAD_BYTES, MAX_RAW_BYTES, DeadLetter
from tests.build import NOW


def letter(value: bytes = b"{broken", **changes: Any) -> DeadLetter:
    """Give up a delivery of `value`."""
    delivery = Delivery("llm.envelopes.execution", 7, Message("trace-1", value, {"ce_id": "1"}), 3)
    return DeadLetter.of(delivery, **{"reason": "decode", "detail": "no JSON", "time": NOW, **changes})


@given(st.binary(max_size=300))
def test_message_round_trips_byte_for_byte(value: bytes) -> None:
    message = dead_letter_message(letter(value, envelope_id="e", trace_id="t"))

    read = read_dead_letter(message)

    assert read == letter(value, envelope_id="e", trace_id="t")
    assert read.message() == Message("trace-1", value, {"ce_id": "1"})


def test_letter_records_source_and_reason() -> None:
    made = letter()

    assert (made.source_topic, made.position, made.deliveries) == ("llm.envelopes.execution", 7, 3)
    assert (made.reason, made.detail, made.time) == ("decode", "no JSON", NOW)


def test_raw_bytes_are_standard_base64() -> None:
    raw = json.loads(letter(b"\xfb\xff\xfe").wire)["raw"]

    assert (raw, b64decode(raw)) == ("+//+", b"\xfb\xff\xfe")


def test_unencodable_detail_does_not_block_letter() -> None:
    made = letter(detail="\ud800" * 5000)

    assert read_dead_letter(dead_letter_message(made)).detail == "?" * MAX_DETAIL


def test_letter_id_depends_on_message_not_reason() -> None:
    assert letter().id == letter(reason="checksum").id
    assert letter().id != letter(b"other").id


def test_letter_id_depends_on_partition() -> None:
    first, second = (
        DeadLetter.of(
            Delivery("llm.envelopes.execution", 7, Message("k", b"{broken", {}), 1, partition),
            reason="decode", detail="", time=NOW,
        )
        for partition in (0, 1)
    )  # fmt: skip

    assert (first.source_partition, second.source_partition) == (0, 1)
    assert first.id != second.id


def test_oversized_message_is_truncated_with_location() -> None:
    value = b"x" * (MAX_RAW_BYTES + 1)

    made = letter(value)

    assert (len(made.raw), made.raw_size, made.is_replayable) == (MAX_RAW_BYTES, len(value), False)
    with pytest.raises(ValueError, match=r"from llm\.envelopes\.execution, partition 0, at position 7"):
        made.message()


def test_letter_with_changed_bytes_is_not_replayable() -> None:
    changed = json.loads(letter(b"abc").wire) | {"raw": "YWJk"}

    assert not DeadLetter.from_wire(json.dumps(changed).encode()).is_replayable


def test_letter_of_largest_message_fits_topic() -> None:
    largest = letter(b"\xff" * MAX_RAW_BYTES)

    assert len(largest.wire) <= MAX_RAW_BYTES * DEAD_LETTERS.room


def test_letter_with_large_head_fits_topic() -> None:
    long = "é" * 150_000
    head = Message(long, b"\xff" * MAX_RAW_BYTES, {"ce_id": "%C3" * 1_000_000})

    made = DeadLetter.of(
        Delivery("llm.envelopes.execution", 7, head, 1),
        reason="decode", detail=long, time=NOW, envelope_id=long, trace_id=long,
    )  # fmt: skip

    message = dead_letter_message(made)
    assert len(message.value) <= MAX_RAW_BYTES * DEAD_LETTERS.room
    assert message.head_size <= MAX_HEAD_BYTES * DEAD_LETTERS.room
    assert not made.is_replayable


def test_letter_with_unencodable_key_is_not_replayable() -> None:
    made = DeadLetter.of(
        Delivery("llm.envelopes.execution", 7, Message("\udcff", b"{}", {}), 1),
        reason="decode", detail="", time=NOW,
    )  # fmt: skip

    assert read_dead_letter(dead_letter_message(made)) == made
    assert not made.is_replayable


def test_small_letter_keeps_identity_and_hash() -> None:
    large = letter(b"x" * 10_000, envelope_id="e")

    assert len(large.wire) > 10_000

    small = large.small()

    assert len(small.wire) < 10_000
    assert (small.id, small.reason, small.envelope_id) == (large.id, large.reason, "e")
    assert (small.raw_size, small.raw_sha256) == (10_000, large.raw_sha256)
    assert not small.is_replayable


def test_unknown_letter_field_is_kept() -> None:
    newer = json.loads(letter().wire) | {"worker": "w-3"}

    read = DeadLetter.from_wire(json.dumps(newer).encode())

    assert json.loads(read.wire)["worker"] == "w-3"


@pytest.mark.parametrize("raw", ["not base64!", 7, None])
def test_letter_with_invalid_raw_is_refused(raw: Any) -> None:
    broken = json.loads(letter().wire) | {"raw": raw}

    with pytest.raises(ValueError, match="raw"):
        DeadLetter.from_wire(json.dumps(broken).encode())
