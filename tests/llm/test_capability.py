"""The table of models: what stands in it, how it is extended, how a bad row is named."""

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.errors import LLMError, UnknownModelError
from agentic_trading.llm.models import Capabilities, Capability, TableError
from agentic_trading.structured.strict_schema import choice_for
from tests.build import envelope
from tests.structured.asking import ANSWER

ROW: dict[str, Any] = {
    "provider": "scripted",
    "model": "mine-1",
    "sampling": True,
    "native_schema": False,
    "context_tokens": 1000,
    "max_output_tokens": 100,
    "overhead_tokens": 0,
    "source": "a test",
    "checked_on": "2026-01-02",
}


def table(folder: Path, *rows: object, name: str = "models.json") -> Path:
    path = folder / name
    path.write_bytes(orjson.dumps({"rows": rows}))
    return path


@pytest.fixture(scope="module")
def packaged() -> Capabilities:
    return Capabilities.load()


def test_every_row_has_source_and_date(packaged: Capabilities) -> None:
    for row in packaged:
        assert row.source
        assert date(2026, 11, 1) <= row.checked_on
        assert row.max_output_tokens <= row.context_tokens


@pytest.mark.parametrize("preset", PRESETS.values(), ids=[str(workflow) for workflow in PRESETS])
def test_each_preset_model_is_known(packaged: Capabilities, preset: Any) -> None:
    found = packaged.of(LLMProvider.ANTHROPIC, preset.model)

    assert found.max_output_tokens >= preset.budget.max_output_tokens


@pytest.mark.parametrize(
    "model", ["claude-sonnet-5-5", "claude-opus-5-5", "claude-haiku-5-5", "claude-fable-5-1"]
)
def test_current_model_takes_schema_not_temperature(packaged: Capabilities, model: str) -> None:
    found = packaged.of(LLMProvider.ANTHROPIC, model)

    assert found.native_schema
    assert not found.sampling
    assert not found.forced_tool
    assert "enabled" not in found.thinking
    assert "high" in found.effort


def test_only_anthropic_limits_strict_schemas(packaged: Capabilities) -> None:
    limits = {row.provider: (row.most_optional, row.most_unions) for row in packaged}

    assert limits.pop(LLMProvider.ANTHROPIC) == (24, 16)
    assert set(limits.values()) == {(None, None)}


def test_transports_are_in_order_of_choice(packaged: Capabilities) -> None:
    easy = envelope(expected_output_schema=ANSWER)

    assert packaged.of(LLMProvider.SCRIPTED, "scripted-1").transports == (
        "native_schema",
        "strict_tool",
        "json_mode",
        "prompted",
    )
    for row in packaged:
        for offered in product((True, False), repeat=3):
            less = row.model_copy(
                update=dict(zip(("native_schema", "strict_tool", "json_mode"), offered, strict=True))
            )
            assert choice_for(easy, less).transport == less.transports[0]


def test_seed_model_takes_temperature_and_retires(packaged: Capabilities) -> None:
    found = packaged.of(LLMProvider.ANTHROPIC, "claude-sonnet-4-5-20250929")

    assert found.sampling
    assert found.thinking == ("enabled", "disabled")
    assert found.retires_on == date(2026, 11, 30)


def test_offline_models_cover_native_and_prompted(packaged: Capabilities) -> None:
    rules = packaged.of(LLMProvider.RULES, "rules-1")
    native = packaged.of(LLMProvider.SCRIPTED, "scripted-1")
    prompted = packaged.of(LLMProvider.SCRIPTED, "scripted-prompted-1")

    assert (rules.native_schema, native.native_schema, prompted.native_schema) == (False, True, False)
    assert (rules.sampling, rules.training_cutoff, rules.retires_on) == (False, None, None)


def test_unknown_model_error_lists_known_models(packaged: Capabilities) -> None:
    with pytest.raises(UnknownModelError) as e:
        packaged.of(LLMProvider.RULES, "claude-sonnet-5-5")

    assert e.value.model == "rules/claude-sonnet-5-5"
    assert "rules/rules-1" in str(e.value)


def test_file_adds_and_replaces_rows(tmp_path: Path) -> None:
    more = table(tmp_path, ROW, {**ROW, "provider": "rules", "model": "rules-1", "max_output_tokens": 7})

    found = Capabilities.load(more)

    assert found.of(LLMProvider.SCRIPTED, "mine-1").sampling
    assert found.of(LLMProvider.RULES, "rules-1").max_output_tokens == 7
    assert found.of(LLMProvider.SCRIPTED, "scripted-1").native_schema


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"most_optional": -1}, "most_optional"),
        ({"provider": "No Provider"}, "provider"),
        ({"thinking": ["sometimes"]}, "thinking.0"),
        ({"samplings": True}, "samplings"),
        ({"retires_on": "soon"}, "retires_on"),
    ],
)
def test_bad_row_error_gives_exact_location(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = table(tmp_path, ROW, {**ROW, **change})

    with pytest.raises(TableError) as e:
        Capabilities.load(path)

    assert (e.value.path, e.value.row, e.value.field) == (path, 2, field)
    assert str(e.value).startswith(f"{path}, row 2, {field}: ")
    assert isinstance(e.value, LLMError)


def test_missing_field_error_names_field(tmp_path: Path) -> None:
    path = table(tmp_path, {name: value for name, value in ROW.items() if name != "source"})

    with pytest.raises(TableError, match="row 1, source"):
        Capabilities.load(path)


def test_non_object_row_error_names_row(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="row 1, row: "):
        Capabilities.load(table(tmp_path, "claude"))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rows":{}}'])
def test_invalid_table_error_names_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(TableError) as e:
        Capabilities.load(path)

    assert (e.value.path, e.value.row) == (path, 0)
    assert "It must be a" in str(e.value)


def test_missing_table_error_names_file(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"models\.json: cannot be read"):
        Capabilities.load(tmp_path / "models.json")


def test_knowledge_ends_with_last_training_day(packaged: Capabilities) -> None:
    model = packaged.of(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")
    last = datetime(2026, 6, 30, 23, 59, 59, tzinfo=UTC)

    assert packaged.knowledge(model, last) == "in_sample"
    assert packaged.knowledge(model, last + timedelta(seconds=1)) == "post_cutoff"
    assert (
        packaged.knowledge(model, datetime(2026, 7, 1, 1, tzinfo=timezone(timedelta(hours=2)))) == "in_sample"
    )


def test_knowledge_unknown_without_cutoff_or_timestamp(packaged: Capabilities) -> None:
    dated = packaged.of(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")
    undated = packaged.of(LLMProvider.RULES, "rules-1")

    assert packaged.knowledge(dated, None) == "unknown"
    assert packaged.knowledge(undated, datetime(2026, 1, 2, tzinfo=UTC)) == "unknown"


def test_minimal_row_has_conservative_defaults() -> None:
    row = Capability.model_validate(ROW)

    assert (row.thinking, row.effort, row.served_as, row.training_cutoff) == ((), (), (), None)
    assert (row.forced_tool, row.logprobs, row.min_bytes_per_token) == (False, False, 1)
    assert (row.most_optional, row.most_unions, row.transports) == (None, None, ("prompted",))
