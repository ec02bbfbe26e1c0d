"""The published JSON Schemas and the AsyncAPI document: `python -m tools.schemas write` or `check`.

`write` generates the files from the code. `check` compares them with the code and exits with 1 if a file differs.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, create_model

from agentic_trading.bus.codec import ENVELOPE_HASH_HEADER, FINAL_HEADER, REPLY_TO, SENT_HEADER
from agentic_trading.bus.log_stream import HASH_HEADER, LOG_HEADER, NUMBER_HEADER, LogHead
from agentic_trading.bus.message import (
    DEAD_LETTER_RECORDED,
    ENVELOPE_REQUESTED,
    EVENT_RECORDED,
    INTERACTION_RECORDED,
    LOG_ENDED,
    Kind,
    event_headers,
)
from agentic_trading.bus.signing import PRINCIPAL_HEADER, REPLAYED_HEADER, SIGNATURE_HEADER
from agentic_trading.bus.topic import (
    DEAD_LETTERS,
    ENVELOPES,
    EVENTS,
    HEADS,
    MAX_MESSAGE_BYTES,
    RECORDS,
    REPLIES,
    DeadLetter,
    Topic,
    lane_topic,
)
from agentic_trading.client.frame_calls import ASK_SCHEMA, JOIN_SCHEMA
from agentic_trading.client.frames import KINDS as RECURSION
from agentic_trading.client.response import ANSWER_SCHEMA
from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT_SCHEMA
from agentic_trading.desk.decisions import KINDS as DESK
from agentic_trading.desk.execution.strategy import FILL_STRATEGY_SCHEMA
from agentic_trading.desk.planning.schema import FAMILY_SCHEMAS, STRATEGY_PARAMS_SCHEMA
from agentic_trading.governance.events import KINDS as GOVERNANCE
from agentic_trading.governance.ledger import CLOCKS_DIFFER, SENT_WITHIN
from agentic_trading.llm.envelope import SCHEMA_VERSION, LLMEnvelope
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import KINDS as LOG
from agentic_trading.llm.event import Event, EventBody
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import LLMResult

ASYNCAPI: Final = "asyncapi.yaml"
"""It is written as JSON, which every reader of YAML reads."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

MESSAGES: Final[Mapping[str, type[BaseModel]]] = MappingProxyType({
    "llm_envelope.v1": LLMEnvelope,
    "llm_result.v1": LLMResult,
    "llm_interaction.v1": LLMInteraction,
    "event.v1": Event,
    "no_decision.v1": NoDecision,
    "dead_letter.v1": DeadLetter,
    "log_head.v1": LogHead,
})
"""What crosses a process or a disk, by the `$id` of its schema."""

EVENT_BODIES: Final[tuple[type[EventBody], ...]] = (
    *DESK.bodies, *RECURSION.bodies, *GOVERNANCE.bodies, *LOG.bodies,
)  # fmt: skip
"""What the events of each kind say, in the order in which a decision makes them."""

ANSWERS: Final = (
    CMT_ASSESSMENT_SCHEMA,
    FILL_STRATEGY_SCHEMA,
    ANSWER_SCHEMA,
    ASK_SCHEMA,
    JOIN_SCHEMA,
    STRATEGY_PARAMS_SCHEMA,
    *FAMILY_SCHEMAS,
)
"""What a model must answer, and the parts of it that stand in files of their own."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A file that is not what the models say; `what` names the first place where they differ."""

    file: Path
    what: str


def published() -> dict[str, dict[str, Any]]:
    """Return every schema by the name of its file.

    A schema of a message says what a reader takes; fields with a default may be absent, unknown fields and words are kept.
    """
    models = {**MESSAGES, **{f"{body.KIND}.v1": _event_model(body) for body in EVENT_BODIES}}
    messages = {
        name: {"$id": name, **model.model_json_schema(mode="serialization")} for name, model in models.items()
    }
    requests = {"llm_envelope.v1"}  # a worker does not run an envelope with an unknown word
    messages = {
        name: schema if name in requests else _record_schema(schema) for name, schema in messages.items()
    }
    answers = {schema["$id"]: dict(schema) for schema in ANSWERS}
    return {f"{name}.json": {"$schema": DIALECT, **schema} for name, schema in (messages | answers).items()}


def published_files() -> dict[str, dict[str, Any]]:
    """Return every file that is published, by its name: the schemas, and the document of the bus that refers to them."""
    return {**published(), ASYNCAPI: bus_document()}


def _record_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a record: all sets of words are open but the kind of an event, which is its name."""
    opened: dict[str, Any] = _opened(schema)
    if "kind" in schema["properties"]:
        opened["properties"]["kind"] = schema["properties"]["kind"]
    return opened


def _opened(schema: Any) -> Any:
    """Return a schema with each set of words as examples of a text: a newer release may write another word."""
    if isinstance(schema, list):
        return [_opened(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    opened = {name: _opened(part) for name, part in schema.items()}
    words = opened.get("enum", [opened.get("const")])
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        opened.pop("enum", opened.pop("const", None))
        opened |= {"type": "string", "examples": words}
    return opened


def _event_model(body: type[EventBody]) -> type[BaseModel]:
    """Return the model of an event of one kind, with the body that it must have."""
    kind = (str, Field(json_schema_extra={"const": body.KIND}))
    return create_model(body.KIND, __base__=Event, __doc__=body.__doc__, kind=kind, body=(body, ...))


def write_schemas(folder: Path) -> list[Path]:
    """Write all schemas and the document of the bus into `folder`, made if need be. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / name, schema) for name, schema in published_files().items()]


def _write(file: Path, schema: dict[str, Any]) -> Path:
    file.write_text(_spelled(schema), encoding="utf-8")
    return file


def _spelled(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def check_schemas(folder: Path) -> list[Drift]:
    """Compare the files of `folder` with the models: one that differs, is missing, or belongs to no model."""
    expected = published_files()
    drifts = [_drift(folder / name, schema) for name, schema in expected.items()]
    strays = [
        Drift(file, "belongs to no model")
        for file in sorted(folder.glob("*.json"))
        if file.name not in expected
    ]
    return [drift for drift in drifts if drift is not None] + strays


def _drift(file: Path, schema: dict[str, Any]) -> Drift | None:
    try:
        written = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Drift(file, "is missing")
    except (OSError, UnicodeDecodeError) as e:
        return Drift(file, f"cannot be read: {e}")
    if written == _spelled(schema):
        return None
    try:
        place = first_schema_difference(json.loads(written), schema)
    except json.JSONDecodeError as e:
        place = f"line {e.lineno}: not JSON"
    return Drift(file, f"differs at {place or 'its white space or the order of its keys'}")


def first_schema_difference(written: Any, meant: Any, path: str = "$") -> str:
    """Return the path of the first value that differs, or nothing if all are equal."""
    if isinstance(written, dict) and isinstance(meant, dict):
        for key in [*meant, *(key for key in written if key not in meant)]:
            if key not in written or key not in meant:
                return f"{path}.{key}"
            if place := first_schema_difference(written[key], meant[key], f"{path}.{key}"):
                return place
        return ""
    return "" if type(written) is type(meant) and written == meant else path


# --- the bus ----------------------------------------------------------------------------------------------

_SIGNED: Final = (PRINCIPAL_HEADER, SIGNATURE_HEADER)
_LINE: Final = (LOG_HEADER, NUMBER_HEADER, HASH_HEADER)
_TRACE: Final = "the trace: its messages keep their order"
_ABOUT: Final = (
    "Written by `python -m tools.schemas write`; JSON, which is YAML. Servers are those of a deployment. Where a bus has a "
    "namespace, topics and groups begin with it and a dot. On a Redis each topic is a set of streams, with the same keys and "
    "headers. Delivery is at least once: de-duplicate on `ce_id`. Header values are printable ASCII, anything else and % "
    "percent-encoded; the CloudEvents are in binary mode."
)

HEADERS: Final[Mapping[str, str]] = MappingProxyType({
    "ce_specversion": "the version of CloudEvents",
    "ce_id": "the id of what the message carries; the same one is the same message",
    "ce_source": "where it comes from: the tenant, and who wrote it",
    "ce_type": "what has happened",
    "ce_time": "when, ISO 8601 in UTC",
    "ce_dataschema": "the schema of the body",
    "ce_partitionkey": "the key of the message",
    "ce_correlationid": "the trace",
    "ce_causationid": "what caused it: for an attempt and a dead letter the envelope",
    "ce_subject": "what it is about: of an event its kind, of a dead letter the reason",
    "ce_expirytime": "the deadline, ISO 8601 in UTC",
    "content-type": "how the body is spelled",
    "traceparent": "the W3C trace context",
    REPLY_TO: "the address for replies; without it nothing answers on the bus",
    SENT_HEADER: (
        f"when it was published, ISO 8601 in UTC; without it, the body's created_at. Workers refuse an envelope that was "
        f"published more than {SENT_WITHIN.days} days ago, or more than {CLOCKS_DIFFER.days} day ahead of their clock"
    ),
    FINAL_HEADER: "whether it is the last attempt",
    ENVELOPE_HASH_HEADER: "the hash of the envelope that is answered",
    PRINCIPAL_HEADER: "who sent it",
    SIGNATURE_HEADER: "the proof: an HMAC-SHA256 over key, value and headers",
    REPLAYED_HEADER: "the dead letter from which it was published again; not signed",
    LOG_HEADER: "the log in which the line stands",
    NUMBER_HEADER: "the number of the line in its log",
    HASH_HEADER: "the hash of the line; the body has that of the line before, too",
})
"""What each header says."""


@dataclass(frozen=True, slots=True)
class BusMessage:
    """A message: its kind, and headers that it has beside those of every message of the kind, always or at times."""

    kind: Kind
    title: str
    always: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()


BUS_MESSAGES: Final[Mapping[str, BusMessage]] = MappingProxyType({
    "envelope": BusMessage(
        ENVELOPE_REQUESTED,
        "a call that is asked for",
        sometimes=(REPLY_TO, SENT_HEADER, REPLAYED_HEADER, *_SIGNED),
    ),
    "event": BusMessage(
        EVENT_RECORDED, "a fact that a client puts on record", sometimes=(REPLAYED_HEADER, *_SIGNED)
    ),
    "attempt": BusMessage(
        INTERACTION_RECORDED,
        "an attempt at a call",
        always=(FINAL_HEADER, ENVELOPE_HASH_HEADER),
        sometimes=_SIGNED,
    ),
    "dead_letter": BusMessage(
        DEAD_LETTER_RECORDED, "a message that was given up, and why", sometimes=_SIGNED
    ),
    "interaction_line": BusMessage(
        INTERACTION_RECORDED,
        "a line of a log, byte for byte: an attempt, with seq, prev and hash",
        always=_LINE,
    ),
    "event_line": BusMessage(
        EVENT_RECORDED, "a line of a log, byte for byte: an event, with seq, prev and hash", always=_LINE
    ),
    "log_head": BusMessage(LOG_ENDED, "where the log of the archive ended"),
})


@dataclass(frozen=True, slots=True)
class BusChannel:
    """A topic as those who serve the bus see it: what its key is, what it carries, and whether they receive or send it."""

    topic: Topic[Any]
    key: str
    carries: tuple[str, ...]
    action: Literal["receive", "send"]

    @property
    def id(self) -> str:
        """The name of the channel in the document."""
        return self.topic.name.replace("{lane}", "LANE")

    def references(self) -> list[dict[str, str]]:
        """Return where the document has the messages of the channel."""
        return [{"$ref": f"#/channels/{self.id}/messages/{name}"} for name in self.carries]


_REPLIES: Final = BusChannel(
    REPLIES, "the address that the envelope gave", ("attempt", "dead_letter"), "send"
)
_REPLY: Final = {"channel": {"$ref": f"#/channels/{_REPLIES.id}"}, "messages": _REPLIES.references()}

CHANNELS: Final = (
    *(BusChannel(topic, _TRACE, ("envelope",), "receive") for topic in ENVELOPES.values()),
    *(BusChannel(lane_topic(each, "{lane}"), _TRACE, ("envelope",), "receive") for each in ENVELOPES),
    BusChannel(EVENTS, _TRACE, ("event",), "receive"),
    _REPLIES,
    BusChannel(DEAD_LETTERS, "that of the message", ("dead_letter",), "send"),
    BusChannel(RECORDS, _TRACE, ("interaction_line", "event_line"), "send"),
    BusChannel(HEADS, "the log of the archive", ("log_head",), "send"),
)
"""Every topic of the bus, and for each workflow that of a provider with a lane of its own."""


def bus_document() -> dict[str, Any]:
    """Return the document; its messages refer to the JSON Schemas beside it."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "agentic_trading: the bus, as those who serve it see it",
            "version": SCHEMA_VERSION,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {each.id: _channel(each) for each in CHANNELS},
        "operations": {f"{each.action}.{each.id}": _operation(each) for each in CHANNELS},
        "components": {"messages": {name: _message(each) for name, each in BUS_MESSAGES.items()}},
    }


def _channel(channel: BusChannel) -> dict[str, Any]:
    lane = {"lane": {"description": "the lane of a provider, as the configuration names it"}}
    most = channel.topic.room * MAX_MESSAGE_BYTES
    return {
        "address": channel.topic.name,
        "description": f"Key: {channel.key}. At most {most} bytes a value, where max_message_bytes is {MAX_MESSAGE_BYTES}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in channel.carries},
        **({"parameters": lane} if channel.id != channel.topic.name else {}),
    }


def _operation(channel: BusChannel) -> dict[str, Any]:
    return {
        "action": channel.action,
        "channel": {"$ref": f"#/channels/{channel.id}"},
        "messages": channel.references(),
        **({"reply": _REPLY} if channel.carries == ("envelope",) else {}),
    }


def _message(message: BusMessage) -> dict[str, Any]:
    one, other, least = (_sample_headers(message.kind, text) for text in ("1", "2", ""))
    properties = {
        name: {
            **({"const": value} if other[name] == value else {"type": "string"}),
            "description": HEADERS[name],
        }
        for name, value in one.items()
    }
    for name in (*message.always, *message.sometimes):
        properties[name] = {"type": "string", "description": HEADERS[name]}
    return {
        "title": message.title,
        "contentType": one["content-type"],
        "correlationId": {"location": "$message.header#/ce_correlationid"},
        "headers": {"type": "object", "required": [*least, *message.always], "properties": properties},
        "payload": {"$ref": f"./{message.kind.schema.rpartition(':')[2]}.json"},
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": "0.5.0"}},
    }


def _sample_headers(kind: Kind, text: str) -> dict[str, str]:
    """Return headers with `text` in all that messages of a kind may say otherwise; the empty one is left out where it can be."""
    return event_headers(
        kind, f"id-{text}", source=f"/{text}", key=text, trace_id=text, time=f"at {text}",
        cause=text, subject=text, expires=text,
    )  # fmt: skip


def main() -> None:
    """Write the files or compare them."""
    parser = argparse.ArgumentParser(prog="python -m tools.schemas", description=__doc__)
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("--dir", type=Path, default=Path("schemas"), help="the folder of the files")
    asked = parser.parse_args()
    if asked.action == "write":
        print(*write_schemas(asked.dir), sep="\n")
        return
    drifts = check_schemas(asked.dir)
    for drift in drifts:
        print(f"{drift.file} {drift.what}", file=sys.stderr)
    if drifts:
        sys.exit(f"{asked.dir} differs from the models. Run: python -m tools.schemas write --dir {asked.dir}")
    print(f"{len(published_files())} files in {asked.dir} are up to date")


if __name__ == "__main__":
    main()
