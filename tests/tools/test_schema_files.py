"""The published schemas are those of the models, and what we write fits them."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from agentic_trading.bus.topic import DeadLetter
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from tests.build import NOW, envelope, event, interaction, result
from tools.schemas import (
    check_schemas,
    first_schema_difference,
    published,
    write_schemas,
)

ROOT = Path(__file__).parents[2]


def dead_letter() -> DeadLetter:
    """Return a letter whose message was not even text."""
    return DeadLetter(
        id="d-1",
        reason="decode",
        source_topic="llm.events",
        position=3,
        key="t-1",
        raw=b"\xff\x00",
        raw_size=2,
        raw_sha256="0" * 64,
        time=NOW,
    )


def no_decision() -> NoDecision:
    """Return a decision that was not made."""
    reason = FailureReason(category=FailureKind.REFUSAL, description="the model refused")
    return NoDecision(reason=reason, envelope_id="e-1", as_of=NOW)


ON_THE_WIRE = {
    "llm_envelope.v1": envelope(as_of=NOW, temperature=0.5).wire,
    "llm_result.v1": result(parsed_output={"price": 0.1, "n": 3}).wire,
    "llm_interaction.v1": interaction(attempt_number=2).wire,
    "event.v1": event("order.filled", as_of=NOW).wire,
    "no_decision.v1": no_decision().model_dump_json().encode(),
    "dead_letter.v1": dead_letter().wire,
}


def test_repository_schemas_match_the_models() -> None:
    assert check_schemas(ROOT / "schemas") == []


@pytest.mark.parametrize("name", ON_THE_WIRE)
def test_written_records_match_the_schemas(name: str) -> None:
    written = json.loads(ON_THE_WIRE[name])

    jsonschema_rs.validate(published()[f"{name}.json"], written, validate_formats=True)


def test_schemas_are_valid_and_correctly_named() -> None:
    for file, schema in published().items():
        jsonschema_rs.meta.validate(schema)
        assert f"{schema['$id']}.json" == file


def test_dead_letter_bytes_are_base64() -> None:
    assert json.loads(dead_letter().wire)["raw"] == b64encode(b"\xff\x00").decode()


def test_writing_twice_gives_equal_bytes(tmp_path: Path) -> None:
    first = {file.name: file.read_bytes() for file in write_schemas(tmp_path / "a")}

    assert {file.name: file.read_bytes() for file in write_schemas(tmp_path / "b")} == first


def changed(file: Path, change: dict[str, Any]) -> None:
    """Put `change` over the keys of a JSON file."""
    fields = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**fields, **change}), encoding="utf-8")


def test_changed_schema_is_named_with_path(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    changed(tmp_path / "event.v1.json", {"required": ["kind"]})

    [drift] = check_schemas(tmp_path)

    assert drift.file.name == "event.v1.json"
    assert drift.what == "differs at $.required"


def test_missing_broken_stray_files_are_named(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    (tmp_path / "event.v1.json").unlink()
    (tmp_path / "no_decision.v1.json").write_text("{", encoding="utf-8")
    (tmp_path / "llm_result.v1.json").write_bytes(b"\xff")
    (tmp_path / "order.v1.json").write_text("{}", encoding="utf-8")

    told = {drift.file.name: drift.what for drift in check_schemas(tmp_path)}

    assert told["event.v1.json"] == "is missing"
    assert "not JSON" in told["no_decision.v1.json"]
    assert told["llm_result.v1.json"].startswith("cannot be read")
    assert told["order.v1.json"] == "belongs to no model"


def test_layout_difference_is_reported(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    changed(tmp_path / "event.v1.json", {})

    [drift] = check_schemas(tmp_path)

    assert "white space" in drift.what


@pytest.mark.parametrize(
    ("written", "meant", "place"),
    [
        ({"a": 1}, {"a": 1}, ""),
        ({"a": {"b": [1]}}, {"a": {"b": [2]}}, "$.a.b"),
        ({"a": 1, "b": 2}, {"a": 1}, "$.b"),
        ({}, {"a": 1}, "$.a"),
        ({"a": 1}, {"a": True}, "$.a"),
        ([], {}, "$"),
    ],
)
def test_first_difference_is_named_by_path(written: Any, meant: Any, place: str) -> None:
    assert first_schema_difference(written, meant) == place
