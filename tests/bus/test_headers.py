"""CloudEvents headers and trace context."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_trading.bus.message import (
    EVENT_RECORDED,
    Message,
    escape_header,
    event_headers,
    header,
    source,
    traceparent,
)

TRACE = "0b7c6c1e-6a1c-5c0e-9d0f-8f5b6f3f8a11"
SPAN = "11111111-2222-4333-8444-555555555555"
ANY_TEXT = st.text(st.characters(exclude_categories=()))


def test_traceparent_uses_uuid_bytes() -> None:
    expected = "00-0b7c6c1e6a1c5c0e9d0f8f5b6f3f8a11-8444555555555555-01"

    assert traceparent(TRACE, SPAN) == expected
    assert traceparent(TRACE.upper(), SPAN.upper()) == expected


def test_traceparent_of_other_id_uses_sha256() -> None:
    # printf %s btc-2026 | sha256sum
    assert traceparent("btc-2026", SPAN).split("-")[1] == "858d9be2fbc4bc80e634640c7dbadb4d"


@given(ANY_TEXT, ANY_TEXT)
@example("00000000-0000-0000-0000-000000000000", "11111111-1111-1111-0000-000000000000")
@example("", "")
def test_traceparent_is_always_valid_w3c(trace_id: str, span_id: str) -> None:
    context = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01", traceparent(trace_id, span_id))

    assert context
    assert int(context[1], 16)
    assert int(context[2], 16)


@given(st.text())
@example("a\nb: c\r\n")
@example("100%")
def test_escaped_text_round_trips(text: str) -> None:
    assert header(Message("", b"", {"name": escape_header(text)}), "name") == text


@given(ANY_TEXT)
@example("Müller\ud800")
def test_escaped_header_is_printable_ascii(text: str) -> None:
    assert escape_header(text).isascii()
    assert escape_header(text).isprintable()


def test_invalid_escape_reads_as_encodable_text() -> None:
    value = header(Message("", b"", {"name": "%ED%A0%80%FF"}), "name")

    assert value.encode()


@pytest.mark.parametrize("plain", ["analyst-1", "BTC/USDT", "a b", "x+y=z&", '"quoted"'])
def test_ordinary_text_is_not_escaped(plain: str) -> None:
    assert escape_header(plain) == plain


def test_missing_header_is_empty() -> None:
    assert header(Message("", b"", {}), "ce_id") == ""


def test_source_is_an_escaped_uri_reference() -> None:
    assert source("tenant a/b", "agents", "ü?") == "/agentic-trading/tenant%20a%2Fb/agents/%C3%BC%3F"


def test_empty_attribute_is_left_out() -> None:
    headers = event_headers(EVENT_RECORDED, "1", source="/s", key="", trace_id="", time="t")

    assert set(headers) == {
        "ce_specversion",
        "ce_id",
        "ce_source",
        "ce_type",
        "ce_time",
        "ce_dataschema",
        "content-type",
        "traceparent",
    }


@given(st.text(), st.text(), st.text(), st.text())
def test_attribute_names_are_valid_cloudevents_names(
    event_id: str, key: str, cause: str, subject: str
) -> None:
    headers = event_headers(
        EVENT_RECORDED, event_id, source="/s", key=key, trace_id=key, time="t", cause=cause, subject=subject,
        expires="t",
    )  # fmt: skip

    attributes = [name for name in headers if name not in {"content-type", "traceparent"}]
    assert all(re.fullmatch(r"ce_[a-z0-9]{1,20}", name) for name in attributes)
