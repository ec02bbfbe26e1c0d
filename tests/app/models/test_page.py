"""The examples on the page about models are ones that work."""

import re
from datetime import UTC, datetime
from pathlib import Path

from agentic_trading.app.models.table_lint import inspect
from agentic_trading.llm.models import Capability
from tests.app.models.tables import catalogue

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_example_of_a_model_of_ones_own_passes_the_check(tmp_path: Path) -> None:
    models, prices = tmp_path / "models.json", tmp_path / "prices.json"
    examples = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    for path, text in zip((models, prices), examples, strict=True):
        path.write_text(text, encoding="utf-8")

    tables = catalogue(models, prices, now=datetime(2026, 11, 22, tzinfo=UTC))

    assert tables.of("qwen3-8b").transport == "native_schema"
    assert inspect(tables, old_after_days=90, only=["openai/qwen3-8b"]) == []


def test_every_field_of_the_table_is_explained() -> None:
    table = PAGE.split("## The table of models")[1].split("Prices are in")[0]

    assert set(Capability.model_fields) <= set(re.findall(r"`(\w+)`", table))
