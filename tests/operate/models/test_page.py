"""The examples on the pages about models and prices are ones that work."""

import re
from datetime import UTC, datetime
from pathlib import Path

from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.models import Capability
from agentic_trading.operate.models.catalogue import check_tables
from tests.operate.models.tables import catalogue

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference" / "models.md").read_text(encoding="utf-8")
OWN = (DOCS / "how-to" / "use-your-own-model.md").read_text(encoding="utf-8")


def test_own_model_example_passes_the_check(tmp_path: Path) -> None:
    models, prices = tmp_path / "models.json", tmp_path / "prices.json"
    examples = re.findall(r"```json\n(.*?)```", OWN, re.DOTALL)
    for path, text in zip((models, prices), examples, strict=True):
        path.write_text(text, encoding="utf-8")

    tables = catalogue(models, prices, now=datetime(2026, 11, 22, tzinfo=UTC))

    assert tables.of("qwen3-8b").transport == "native_schema"
    assert check_tables(tables, old_after_days=90, only=["openai/qwen3-8b"]) == []


def test_every_table_field_is_explained() -> None:
    table = PAGE.split("## The table of models")[1].split("Prices are in")[0]

    assert set(Capability.model_fields) <= set(re.findall(r"`(\w+)`", table))


def test_price_change_example_takes_effect_later(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "change-a-price.md").read_text(encoding="utf-8")
    example = re.findall(r"```json\n(.*?)```", page, re.DOTALL)[-1]
    path = tmp_path / "prices.json"
    path.write_text(example, encoding="utf-8")
    before, since = (datetime(2026, month, day, tzinfo=UTC) for month, day in ((11, 30), (12, 1)))

    own, packaged = PriceBook.load(None, path), PriceBook.load()
    old, new = (own.price(LLMProvider.ANTHROPIC, "claude-opus-5-5", at=at) for at in (before, since))

    kept = packaged.price(LLMProvider.ANTHROPIC, "claude-opus-5-5", at=before)
    assert old == kept.model_copy(update={"source": old.source})
    assert (new.output, new.inference_geo, new.speed) == (15_000, kept.inference_geo, kept.speed)
