"""The published JSON Schemas and the AsyncAPI document: generated from the code, and compared with the files in the repository."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, Field, create_model

from agentic_trading.app.asyncapi import bus_document
from agentic_trading.app.options import OptionError
from agentic_trading.bus.log_stream import LogHead
from agentic_trading.bus.topic import DeadLetter
from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT_SCHEMA
from agentic_trading.desk.events import KINDS as DESK
from agentic_trading.desk.execution.strategy import FILL_STRATEGY_SCHEMA
from agentic_trading.governance.events import KINDS as GOVERNANCE
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import Event, EventBody
from agentic_trading.llm.events import KINDS as LOG
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import LLMResult
from agentic_trading.structured.response import ANSWER_SCHEMA

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

EVENT_BODIES: Final[tuple[type[EventBody], ...]] = (*DESK.bodies, *GOVERNANCE.bodies, *LOG.bodies)
"""What the events of each kind say, in the order in which a decision makes them."""

ANSWERS: Final = (CMT_ASSESSMENT_SCHEMA, FILL_STRATEGY_SCHEMA, ANSWER_SCHEMA)
"""What a model must answer."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A file that is not what the models say; `what` names the first place where they differ."""

    file: Path
    what: str


def published() -> dict[str, dict[str, Any]]:
    """Return every schema by the name of its file.

    A schema of a message says what a reader takes; fields with a default may be absent, unknown ones are kept.
    """
    models = {**MESSAGES, **{f"{body.KIND}.v1": _event_model(body) for body in EVENT_BODIES}}
    messages = {
        name: {"$id": name, **model.model_json_schema(mode="serialization")} for name, model in models.items()
    }
    answers = {schema["$id"]: dict(schema) for schema in ANSWERS}
    return {f"{name}.json": {"$schema": DIALECT, **schema} for name, schema in (messages | answers).items()}


def published_files() -> dict[str, dict[str, Any]]:
    """Return every file that is published, by its name: the schemas, and the document of the bus that refers to them."""
    return {**published(), ASYNCAPI: bus_document()}


def _event_model(body: type[EventBody]) -> type[BaseModel]:
    """Return the model of an event of one kind, with the body that it must have."""
    kind = (str, Field(json_schema_extra={"const": body.KIND}))
    return create_model(body.KIND, __base__=Event, __doc__=body.__doc__, kind=kind, body=(body, ...))


def write_schemas(folder: Path) -> list[Path]:
    """Write all schemas, and the document of the bus, into `folder`, made if need be; returns the files.

    Raises `OptionError` if they cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_write(folder / name, schema) for name, schema in published_files().items()]
    except OSError as e:
        raise OptionError("--dir", f"{folder} ({e.strerror})", "a folder that can be written") from e


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
