"""No known secret comes out of a redaction, whatever stands around it; ordinary texts stay as they are."""

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.event import Event
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.redaction import MARK, MOST_KNOWN, Redaction
from agentic_trading.llm.result import Usage

KEY = "sk-ant-Ab0/+c9_x-41"
VISIBLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=60)
DISTINCT = VISIBLE.map(lambda text: f"{text}aA9")
ANY = st.text(max_size=80)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def basic(secret: str) -> str:
    return b64encode(f"user:{secret}".encode()).decode()


def event(**body: object) -> Event:
    return Event(kind="note.taken", id="e-1", trace_id="t-1", tenant_id="default", time=NOW, body=body)


@given(DISTINCT, ANY, ANY)
def test_secret_is_redacted_anywhere_in_text(secret: str, before: str, after: str) -> None:
    redaction = Redaction(secret)

    for spelled in (secret, json.dumps(secret)[1:-1], quote(secret, safe="")):
        text = redaction.text(before + spelled + after)

        assert spelled not in text
        assert MARK in text


@given(DISTINCT, st.binary(max_size=20), st.binary(max_size=20))
def test_secret_in_base64_is_redacted(secret: str, before: bytes, after: bytes) -> None:
    text = Redaction(secret).text(b64encode(before + secret.encode() + after).decode())

    assert MARK in text
    left = max(map(len, text.split(MARK)))
    assert len(text.replace(MARK, "")) <= len(b64encode(before + after)) + 8, left


@given(DISTINCT, ANY, st.data())
def test_truncated_secret_at_end_is_redacted(secret: str, before: str, data: st.DataObject) -> None:
    length = data.draw(st.integers(8, len(secret) - 1))

    text = Redaction(secret).text(before + secret[:length])

    assert text.endswith(MARK)


@given(DISTINCT, st.data())
def test_json_escaped_secret_is_redacted(secret: str, data: st.DataObject) -> None:
    escaped = "".join(f"\\u{ord(c):04x}" if c in '"\\' or data.draw(st.booleans()) else c for c in secret)

    text = Redaction(secret).text(f'{{"a": "{escaped}"}}')

    assert json.loads(text) == {"a": MARK}


@given(DISTINCT, ANY, ANY, st.floats(allow_nan=False, allow_infinity=False))
def test_record_fields_contain_no_secret(secret: str, before: str, after: str, number: float) -> None:
    held = event(text=before + secret + after, deep=[{secret: [number]}], auth=basic(secret), number=number)

    kept = Redaction(secret).record(held)

    assert json.dumps(secret)[1:-1].encode() not in kept.wire
    assert kept.body["number"] == held.body["number"]
    assert Redaction(secret).record(kept) is kept


def test_secret_free_objects_keep_identity() -> None:
    redaction = Redaction(KEY)
    response = ModelResponse("buy", "end_turn", Usage(input_tokens=3), "m-1")
    held, text = event(text="buy"), 'all "\\u00e9" right'

    assert redaction.record(held) is held
    assert redaction.response(response) is response
    assert redaction.text(text) is text


def test_every_answer_field_is_redacted() -> None:
    usage = Usage.model_validate({"input_tokens": 3, "service_tier": KEY, "note": KEY})
    response = ModelResponse(
        text=f"you sent {KEY}",
        stop_reason=KEY,
        usage=usage,
        model=KEY,
        provider_request_id=KEY,
        provider_response_id=KEY,
        structured={"a": [KEY]},
        beside=basic(KEY),
    )

    kept = Redaction(KEY).response(response)

    assert KEY not in repr(kept)
    assert (kept.text, kept.structured, kept.usage.input_tokens) == (f"you sent {MARK}", {"a": [MARK]}, 3)


def test_error_text_and_cause_are_redacted() -> None:
    error = ProviderError(FailureKind.SERVER_ERROR, f"no {KEY}", sent=True, provider_request_id=KEY, text=KEY)
    error.__cause__ = ValueError(KEY)

    kept = Redaction(KEY).error(error)

    assert KEY not in f"{kept} {kept.args} {kept.message} {kept.text} {kept.provider_request_id}"
    assert kept.__cause__ is None


@pytest.mark.parametrize("short", ["none", "sk-1234", "password", "20260101", "ANALYSIS", "interaction"])
def test_common_short_words_are_not_redacted(short: str) -> None:
    assert Redaction(short).text(f"none, password {short}") == f"none, password {short}"


@pytest.mark.parametrize("distinct", ["sk-12345", "Passwords", "abcdefghijklmnop", "1234567890123456"])
def test_distinctive_secret_is_redacted(distinct: str) -> None:
    assert Redaction(distinct).text(f"is {distinct}?") == f"is {MARK}?"


def test_random_byte_key_found_in_base64() -> None:
    key = bytes(range(128, 160))

    assert Redaction(key).text(b64encode(key).decode()) == MARK + "8="


def test_longer_overlapping_secret_is_redacted_first() -> None:
    assert Redaction("sk-12345", "sk-12345-678").text("sk-12345-678") == MARK


def test_oldest_secrets_are_forgotten_until_readded() -> None:
    redaction = Redaction(*(f"sk-{number:09}" for number in range(MOST_KNOWN + 1)))
    assert redaction.text("sk-000000000") == "sk-000000000"

    redaction.add("sk-000000000")

    assert redaction.text("sk-000000000") == MARK


def test_mark_completing_a_secret_is_redacted() -> None:
    assert Redaction("sk-12345", "aB9***cD8").text("is aB9sk-12345cD8") == MARK


def test_error_without_secret_keeps_cause() -> None:
    error, cause = ProviderError(FailureKind.TIMEOUT, "late", sent=True), ValueError("late")
    error.__cause__ = cause

    assert Redaction(KEY).error(error).__cause__ is cause


@pytest.mark.parametrize("changed", [{"structured": {"a": 1}}, {"beside": "well"}])
def test_unusual_secret_free_answer_keeps_identity(changed: dict[str, Any]) -> None:
    response = ModelResponse("buy", "end_turn", Usage(input_tokens=3), "m-1", **changed)

    assert Redaction(KEY).response(response) is response


def test_record_without_bytes_is_passed_through() -> None:
    held = event().model_copy(update={"odd": object()})

    assert Redaction(KEY).record(held) is held


def test_redaction_repr_shows_no_secret() -> None:
    assert repr(Redaction(KEY)) == "Redaction(1 secrets)"
