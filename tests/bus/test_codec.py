"""Messages carry what they were made from, and nothing unreadable gets through."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.bus.codec import (
    ReplyHead,
    dead_letter_message,
    envelope_message,
    event_message,
    read_dead_letter,
    read_envelope,
    read_event,
    read_interaction,
    reply_address,
    reply_head,
    reply_message,
)
from agentic_trading.bus.errors import UnreadableMessageError
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.signing import Signer
from agentic_trading.bus.topic import DeadLetter
from agentic_trading.llm.envelope import LLMEnvelope
from tests.build import NOW, envelope, event, interaction

ADDRESS = "5f0e6c1e-6a1c-4c0e-9d0f-8f5b6f3f8a11"
TRACE = "0b7c6c1e-6a1c-5c0e-9d0f-8f5b6f3f8a11"
ASKED = envelope(envelope_id="e-1", trace_id=TRACE, retrieved_evidence=[
    {"evidence_id": "E1", "source": "bars", "content": {"close": 1.5, "none": None}, "retrieved_at": NOW}
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def delivery(value: bytes, headers: dict[str, str] | None = None) -> Delivery:
    return Delivery("llm.envelopes.general", 0, Message(TRACE, value, headers or {}), 1)


def sent(message: Message) -> Message:
    """Return a message as another process is handed it."""
    return Message(message.key, message.value, message.headers)


def refusal(value: bytes, headers: dict[str, str] | None = None, **options: Any) -> UnreadableMessageError:
    """Return why a message is refused as an envelope."""
    with pytest.raises(UnreadableMessageError) as caught:
        read_envelope(delivery(value, headers), **options)
    return caught.value


def changed(**changes: Any) -> bytes:
    """Return the wire of an envelope with fields changed after it was sealed."""
    return orjson.dumps(orjson.loads(ASKED.wire) | changes)


def test_envelope_round_trips_unchanged() -> None:
    read = read_envelope(delivery(envelope_message(ASKED).value))

    assert read == ASKED
    assert read.wire == ASKED.wire


def test_envelope_message_has_cloudevents_headers() -> None:
    asked = envelope(
        envelope_id="11111111-2222-4333-8444-555555555555", trace_id=TRACE, causation_id="trigger-1",
        tenant_id="acme", subject="BTCUSDT", deadline=NOW + timedelta(seconds=90),
    )  # fmt: skip

    message = envelope_message(asked)

    assert message.key == TRACE
    assert message.headers == {
        "ce_specversion": "1.0",
        "ce_id": "11111111-2222-4333-8444-555555555555",
        "ce_source": "/agentic-trading/acme/agents/analyst-1",
        "ce_type": "io.agentic_trading.llm.envelope.requested.v1",
        "ce_subject": "BTCUSDT",
        "ce_time": "2026-01-02T00:00:00Z",
        "ce_expirytime": "2026-01-02T00:01:30Z",
        "ce_correlationid": TRACE,
        "ce_causationid": "trigger-1",
        "ce_partitionkey": TRACE,
        "ce_dataschema": "urn:agentic-trading:schema:llm_envelope.v1",
        "content-type": "application/json",
        "traceparent": "00-0b7c6c1e6a1c5c0e9d0f8f5b6f3f8a11-8444555555555555-01",
    }


def test_interaction_round_trips_and_names_envelope() -> None:
    recorded = interaction(envelope=ASKED, parsed_output={"price": Decimal("1.50"), "size": 3})

    message = reply_message(recorded, ADDRESS, final=True)

    assert read_interaction(sent(message)) == recorded
    assert (message.key, message.headers["ce_id"]) == (ADDRESS, recorded.interaction_id)
    assert message.headers["ce_partitionkey"] == ADDRESS
    assert reply_head(message) == ReplyHead(
        is_attempt=True,
        is_dead_letter=False,
        envelope_id="e-1",
        envelope_hash=ASKED.envelope_hash,
        is_final=True,
    )
    assert not reply_head(reply_message(recorded, ADDRESS, final=False)).is_final


def test_event_round_trips_with_kind_header() -> None:
    recorded = event("order.fill", trace_id=TRACE, causation_id="e-1")

    message = event_message(recorded)

    assert read_event(sent(message)) == recorded
    assert message.headers["ce_type"] == "io.agentic_trading.llm.event.recorded.v1"
    assert (message.headers["ce_subject"], message.headers["ce_causationid"]) == ("order.fill", "e-1")


def test_dead_letter_names_failed_envelope() -> None:
    letter = DeadLetter.of(
        delivery(ASKED.wire), reason="checksum", detail="", time=NOW, envelope_id="e-1", trace_id=TRACE
    )

    message = dead_letter_message(letter)

    head = reply_head(message)
    assert (message.key, head.envelope_id, head.is_dead_letter) == (TRACE, "e-1", True)
    assert message.headers["ce_subject"] == "checksum"


def test_dead_letter_reply_is_keyed_by_address() -> None:
    letter = DeadLetter.of(delivery(ASKED.wire), reason="checksum", detail="", time=NOW, envelope_id="e-1")

    message = dead_letter_message(letter, address=ADDRESS)

    assert (message.key, message.headers["ce_partitionkey"]) == (ADDRESS, ADDRESS)
    assert read_dead_letter(message) == letter


def test_envelope_message_carries_reply_address() -> None:
    assert reply_address(envelope_message(ASKED, reply_to=ADDRESS)) == ADDRESS
    assert reply_address(envelope_message(ASKED)) == ""


@pytest.mark.parametrize("odd", ["", "a b", "a" * 65, "../x", "a:b", "é", "%41"])
def test_invalid_reply_address_reads_as_empty(odd: str) -> None:
    assert reply_address(Message(TRACE, b"", {"at_reply_to": odd})) == ""


def test_local_message_returns_the_same_object() -> None:
    attempt, fact = interaction(envelope=ASKED), event()

    assert read_envelope(Delivery("llm.envelopes.general", 0, envelope_message(ASKED), 1)) is ASKED
    assert read_interaction(reply_message(attempt, ADDRESS, final=True)) is attempt
    assert read_event(event_message(fact)) is fact


@pytest.mark.parametrize("change", [
    lambda message: replace(message, value=bytes(bytearray(message.value))),
    lambda message: Signer("desk", b"k" * 32).sign(message),
], ids=["other bytes", "signed"])  # fmt: skip
def test_changed_or_signed_message_is_parsed(
    change: Callable[[Message], Message],
) -> None:
    message = change(envelope_message(ASKED))

    read = read_envelope(Delivery("llm.envelopes.general", 0, message, 1))

    assert read == ASKED
    assert read is not ASKED


@pytest.mark.parametrize("name", ["request_hash", "envelope_hash"])
def test_forged_hash_of_local_envelope_is_refused(name: str) -> None:
    forged = envelope(**{name: "rk1:" + "0" * 64})

    with pytest.raises(UnreadableMessageError, match="checksum"):
        read_envelope(Delivery("llm.envelopes.general", 0, envelope_message(forged), 1))


def test_field_values_cannot_inject_headers() -> None:
    headers = envelope_message(envelope(subject="x\r\nce_id: forged", tenant_id="a\nb")).headers

    assert all(value.isprintable() and value.isascii() for value in headers.values())


def test_oversized_envelope_is_refused_before_parsing() -> None:
    e = refusal(b"{" * 101, {"ce_id": "e-9", "ce_correlationid": "t-9"}, max_bytes=100)

    assert (e.reason, e.envelope_id, e.trace_id) == ("too_large", "e-9", "t-9")
    assert "Allowed: at most 100" in e.detail


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b'{"instructions":1}', b"[" * 100_000]
)
def test_malformed_envelope_is_refused(raw: bytes) -> None:
    assert refusal(raw).reason == "decode"


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_non_json_number_is_refused(number: bytes) -> None:
    raw = ASKED.wire.replace(b"1.5", number)

    assert refusal(raw).reason in {"decode", "checksum"}


@pytest.mark.parametrize(
    "changes",
    [{"subject": "ETHUSDT"}, {"new_field": 1}, {"envelope_hash": "0" * 16}, {"envelope_hash": ""}],
    ids=str,
)
def test_envelope_changed_after_sealing_is_refused(changes: dict[str, Any]) -> None:
    e = refusal(changed(**changes))

    assert (e.reason, e.envelope_id, e.trace_id) == ("checksum", "e-1", TRACE)


@pytest.mark.parametrize("name", ["as_of", "deadline"])
@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_timestamp_outside_utc_range_is_refused(name: str, moment: str) -> None:
    fields = orjson.loads(ASKED.wire) | {name: moment}
    del fields["request_hash"], fields["envelope_hash"]

    assert refusal(orjson.dumps(fields)).reason == "decode"


def test_excessive_nesting_is_refused() -> None:
    deep = b'{"a":' * 2_000 + b"1.5" + b"}" * 2_000
    raw = interaction(envelope=ASKED, parsed_output={"a": 1}).wire.replace(b'{"a":1}', deep)

    with pytest.raises(UnreadableMessageError, match="decode"):
        read_interaction(Message(TRACE, raw, {}))


def test_envelope_without_checksum_is_refused() -> None:
    fields = orjson.loads(ASKED.wire)
    del fields["envelope_hash"]

    assert refusal(orjson.dumps(fields)).reason == "checksum"


def test_mismatched_request_hash_is_refused() -> None:
    other = envelope(instructions="Something else.")
    forged = LLMEnvelope(**ASKED.model_dump(exclude={"envelope_hash"}) | {"request_hash": other.request_hash})
    assert forged.is_intact

    e = refusal(forged.wire)

    assert (e.reason, e.envelope_id) == ("checksum", "e-1")
    assert "request_hash" in e.detail


@pytest.mark.parametrize("number", [b"NaN", b"1e999", b"12345678901234567890123456"])
def test_event_with_unloggable_number_is_refused(number: bytes) -> None:
    raw = event(body={"close": 42}, trace_id=TRACE).wire.replace(b"42", number)

    with pytest.raises(UnreadableMessageError) as caught:
        read_event(Message(TRACE, raw, {"ce_correlationid": TRACE}))

    assert (caught.value.reason, caught.value.trace_id) == ("decode", TRACE)


@given(st.data())
def test_any_changed_byte_is_refused(data: st.DataObject) -> None:
    raw = bytearray(ASKED.wire)
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))

    refusal(bytes(raw))


def test_reformatted_envelope_is_accepted() -> None:
    spelled = json.dumps(json.loads(ASKED.wire), indent=1, sort_keys=False).encode()

    assert read_envelope(delivery(spelled)) == ASKED


def test_unknown_envelope_field_is_kept() -> None:
    newer = LLMEnvelope.model_validate({**ASKED.model_dump(exclude={"envelope_hash"}), "mood": "calm"})

    assert read_envelope(delivery(newer.wire)).model_extra == {"mood": "calm"}


@pytest.mark.parametrize("version", ["2.0", "0.9", "", 2, None, []])
def test_another_major_version_is_refused(version: Any) -> None:
    assert refusal(changed(schema_version=version)).reason == "schema_version"


def test_newer_minor_version_is_read() -> None:
    assert read_envelope(delivery(envelope(schema_version="1.7").wire)).schema_version == "1.7"


@pytest.mark.parametrize("part", ["budget", "safety_constraints", "output_policy"])
def test_unknown_restriction_is_refused(part: str) -> None:
    e = refusal(changed(**{part: orjson.loads(ASKED.wire)[part] | {"max_risk": 1}}))

    assert (e.reason, e.envelope_id, e.trace_id) == ("unknown_restriction", "e-1", TRACE)
    assert f"{part}.max_risk" in e.detail


def test_unknown_must_understand_field_is_refused() -> None:
    e = refusal(envelope(must_understand=["deadline", "hedge"]).wire)

    assert e.reason == "must_understand"
    assert "hedge" in e.detail
    assert "deadline" not in e.detail


def test_known_must_understand_field_is_accepted() -> None:
    read = read_envelope(delivery(envelope(must_understand=["deadline", "budget"]).wire))

    assert read.must_understand == ["deadline", "budget"]


def test_refusal_detail_omits_envelope_contents() -> None:
    e = refusal(changed(instructions=["my secret"], temperature="my secret"))

    assert e.reason == "decode"
    assert "secret" not in str(e)
    assert "(and 1 more)" in e.detail


@given(path=st.lists(st.integers(0, 60), min_size=1, max_size=3), value=JSON, sealed=st.booleans())
def test_altered_envelope_raises_only_unreadable_error(*, path: list[int], value: Any, sealed: bool) -> None:
    fields = _put(json.loads(ASKED.wire), path, value)
    if not sealed:
        fields.pop("envelope_hash", None)
        fields.pop("request_hash", None)

    read = _outcome(lambda: read_envelope(delivery(json.dumps(fields).encode())))

    assert isinstance(read, UnreadableMessageError) or read == ASKED


@pytest.mark.parametrize(
    ("read", "wire"),
    [
        (read_interaction, interaction(envelope=ASKED).wire),
        (read_event, event(body={"a": {"b": [1]}}).wire),
        (read_dead_letter, DeadLetter.of(delivery(b"x"), reason="r", detail="", time=NOW).wire),
    ],
    ids=["interaction", "event", "dead letter"],
)
@given(path=st.lists(st.integers(0, 60), max_size=3), value=JSON)
def test_altered_message_raises_only_unreadable_error(
    read: Callable[[Message], object], wire: bytes, path: list[int], value: Any
) -> None:
    fields = _put(json.loads(wire), path, value) if path else value

    e = _outcome(lambda: read(Message("key", json.dumps(fields).encode(), {"ce_correlationid": TRACE})))

    assert not isinstance(e, UnreadableMessageError) or (e.reason, e.trace_id) == ("decode", TRACE)


def _outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except UnreadableMessageError as e:
        return e


def _put(fields: Any, path: list[int], value: Any) -> Any:
    """Put `value` at a place that `path` chooses, and return the whole."""
    place = fields
    for step in path[:-1]:
        inner = list(place.values() if isinstance(place, dict) else place)[step % len(place)]
        if not inner or not isinstance(inner, dict | list):
            break
        place = inner
    key = path[-1] % len(place)
    place[list(place)[key] if isinstance(place, dict) else key] = value
    return fields
