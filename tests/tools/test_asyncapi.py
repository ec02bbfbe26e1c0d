"""The AsyncAPI document says what is published: every topic, every header, and references that lead somewhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from agentic_trading.bus.brokers.kafka.admin import planned_topics
from agentic_trading.bus.codec import dead_letter_message, envelope_message, event_message, reply_message
from agentic_trading.bus.log_stream import LogHead, StreamedLine
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.signing import REPLAYED_HEADER, Signer
from agentic_trading.bus.topic import DeadLetter
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import ChainHead, Record
from agentic_trading.llm.stores.record_codec import write_line
from tests.build import NOW, envelope, event, interaction
from tools.schemas import (
    ASYNCAPI,
    CHANNELS,
    HEADERS,
    bus_document,
    check_schemas,
    published_files,
    write_schemas,
)

DOCUMENT = bus_document()
FILES = published_files()
SIGNER = Signer("desk-a", b"k" * 32)


def references(part: Any) -> Iterator[str]:
    """Yield every `$ref` in a document."""
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        for each in part.values():
            yield from references(each)
    elif isinstance(part, list):
        for each in part:
            yield from references(each)


def found(reference: str) -> Any:
    """Return what a reference leads to; raises `KeyError` where that is nothing."""
    file, _, pointer = reference.partition("#")
    part: Any = FILES[file.removeprefix("./")] if file else DOCUMENT
    for step in filter(None, pointer.split("/")):
        part = part[step]
    return part


def letter() -> Message:
    message = Message("t-1", b"?", {"ce_id": "e-1"})
    return dead_letter_message(
        DeadLetter.of(
            Delivery("llm.events", 3, message, 1),
            reason="decode", detail="", time=NOW, envelope_id="e-1", trace_id="t-1",
        )
    )  # fmt: skip


def line(record: Record) -> Message:
    written, _ = write_line(record.wire, ChainHead(6, "a" * 64))
    return StreamedLine(read_line(written), "log-1").message()


PUBLISHED = {
    "envelope": envelope_message(envelope(deadline=NOW, causation_id="c-1"), reply_to="a-1"),
    "event": event_message(event("order.filled")),
    "attempt": reply_message(interaction(), "a-1", final=True),
    "dead_letter": letter(),
    "interaction_line": line(interaction()),
    "event_line": line(event("order.filled")),
    "log_head": LogHead.now("log-1", (3, "0" * 64), NOW).message(),
}
NOT_SIGNED = {"interaction_line", "event_line", "log_head"}


def test_document_is_valid_asyncapi_yaml(tmp_path: Path) -> None:
    written = {file.name: file for file in write_schemas(tmp_path)}[ASYNCAPI].read_text("utf-8")

    assert yaml.safe_load(written) == json.loads(written) == DOCUMENT
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= set(DOCUMENT["info"])
    assert all(each["address"] and each["messages"] for each in DOCUMENT["channels"].values())
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] in {"send", "receive"}
        of_channel = found(operation["channel"]["$ref"])["messages"].values()
        assert [found(each["$ref"]) for each in operation["messages"]] == list(of_channel)


def test_every_reference_can_be_resolved() -> None:
    named = set(references(DOCUMENT))

    assert {reference.partition("#")[0] for reference in named} > {"", "./llm_envelope.v1.json"}
    for reference in named:
        assert found(reference)


def test_every_topic_is_a_channel() -> None:
    planned = [plan.name for plan in planned_topics(lanes=["{lane}"])]

    assert sorted(each["address"] for each in DOCUMENT["channels"].values()) == sorted(planned)
    assert [each for each in DOCUMENT["channels"].values() if "{" in each["address"]] == [
        each for each in DOCUMENT["channels"].values() if "parameters" in each
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_messages_match_the_document(name: str) -> None:
    signed = PUBLISHED[name] if name in NOT_SIGNED else SIGNER.sign(PUBLISHED[name])
    message = DOCUMENT["components"]["messages"][name]
    said = {**message["headers"], "additionalProperties": False}

    jsonschema_rs.validate(said, dict(signed.headers))
    jsonschema_rs.validate(found(message["payload"]["$ref"]), json.loads(signed.value))
    assert not jsonschema_rs.is_valid(said, {**signed.headers, "at_other": "1"})
    assert not jsonschema_rs.is_valid(said, {**signed.headers, "ce_type": "another"})
    replayed = {**signed.headers, REPLAYED_HEADER: "d-1"}
    assert jsonschema_rs.is_valid(said, replayed) is (name in {"envelope", "event"})


def test_only_used_headers_are_documented() -> None:
    messages = DOCUMENT["components"]["messages"].values()

    assert {name for each in messages for name in each["headers"]["properties"]} == set(HEADERS)
    assert {name for each in CHANNELS for name in each.carries} == set(DOCUMENT["components"]["messages"])


def test_changed_document_is_named_with_path(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    file = tmp_path / ASYNCAPI
    file.write_text(file.read_text("utf-8").replace("3.0.0", "3.0.1"), encoding="utf-8")

    [drift] = check_schemas(tmp_path)

    assert (drift.file.name, drift.what) == (ASYNCAPI, "differs at $.asyncapi")
