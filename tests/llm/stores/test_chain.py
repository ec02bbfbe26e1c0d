"""A line holds the record's own bytes, and shows every change to itself and to what came before it."""

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm import LLMEnvelope, LLMInteraction
from agentic_trading.llm.log_line import BrokenRecordError, check_link, holds_whole_line, read_line
from agentic_trading.llm.store import GENESIS, ChainHead
from agentic_trading.llm.stores.record_codec import record_of, write_line
from tests.build import event, interaction

RECORD = b'{"kind":"bar.closed","id":"1"}'

plain_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


def lines_of(*records: bytes) -> list[bytes]:
    head, lines = ChainHead(), []
    for record in records:
        line, head = write_line(record, head)
        lines.append(line)
    return lines


@settings(max_examples=30)
@given(body=st.dictionaries(st.text(), plain_json, max_size=3))
def test_record_round_trips_through_line(body: dict[str, Any]) -> None:
    record = canonical_bytes({"kind": "k", "body": body})

    line, head = write_line(record, ChainHead(41, "a" * 64))
    read = read_line(line)

    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert (read.record, read.seq, read.prev, read.head) == (record, 42, "a" * 64, head)


@settings(max_examples=30)
@given(body=st.dictionaries(st.text(), plain_json, max_size=3))
def test_event_round_trips_through_line(body: dict[str, Any]) -> None:
    recorded = event(body=body)

    line, _ = write_line(recorded.wire, ChainHead())

    assert record_of(read_line(line).record) == recorded


def test_log_line_is_plain_json() -> None:
    answered = interaction()

    (line,) = lines_of(answered.wire)
    fields = json.loads(line)

    assert list(fields) == ["interaction_id", "envelope", "result", "stored_at", "seq", "prev", "hash"]
    assert (fields["seq"], fields["prev"]) == (1, GENESIS)
    assert fields["result"]["raw_output"] == answered.result.raw_output


def test_line_hash_covers_tag_and_prefix() -> None:
    (line,) = lines_of(RECORD)

    before, _, digest = line.rpartition(b',"hash":')

    assert json.loads(b'{"hash":' + digest)["hash"] == sha256(b"agentic/log/v1\0" + before).hexdigest()


def test_multiline_record_becomes_single_line() -> None:
    pretty = json.dumps({"instructions": "Judge\nthe market."}, indent=1).encode()
    asked = LLMEnvelope.from_wire(pretty)
    answered = interaction(envelope=asked)

    (line,) = lines_of(answered.wire.replace(b",", b",\n"))

    assert line.count(b"\n") == 1
    assert LLMInteraction.from_wire(read_line(line).record) == answered


def test_every_changed_byte_is_detected() -> None:
    (line,) = lines_of(RECORD)

    for place in range(len(line)):
        for change in (1, 32, 128):
            changed = bytearray(line)
            changed[place] ^= change
            with pytest.raises(BrokenRecordError):
                check_link(read_line(bytes(changed)), ChainHead())


def test_every_truncation_is_detected() -> None:
    (line,) = lines_of(RECORD)

    for length in range(len(line) - 1):
        with pytest.raises(BrokenRecordError, match="does not end in seq, prev and hash"):
            read_line(line[:length])


def test_misplaced_line_is_detected() -> None:
    first, second, third = map(read_line, lines_of(RECORD, RECORD, RECORD))
    after_first = check_link(first, ChainHead())

    for stray, head, reason in (
        (second, ChainHead(), "it is number 2 at the position of number 1"),
        (first, after_first, "it is number 1 at the position of number 2"),
        (third, after_first, "it is number 3 at the position of number 2"),
    ):
        with pytest.raises(BrokenRecordError, match=reason):
            check_link(stray, head)


def test_line_of_another_log_is_detected() -> None:
    (first,) = lines_of(RECORD)
    _, stranger = lines_of(b'{"kind":"other"}', RECORD)

    head = check_link(read_line(first), ChainHead())
    with pytest.raises(BrokenRecordError, match="does not continue the line before it"):
        check_link(read_line(stranger), head)


def test_joined_lines_differ_from_unfinished_line() -> None:
    first, second = lines_of(RECORD, RECORD)

    assert holds_whole_line(first.replace(b"\n", b" ") + second)
    assert holds_whole_line(first[:-1] + b"\0\0\0")
    assert not holds_whole_line(first)
    assert not any(holds_whole_line(second[:length]) for length in range(len(second)))
