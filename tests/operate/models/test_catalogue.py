"""The catalogue has a model's row, its price of the day, and where both came from."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.models import TableError
from agentic_trading.operate.models.catalogue import PACKAGED
from agentic_trading.platform.errors import OptionError
from tests.operate.models.tables import catalogue, model_row, models_file, price_row, prices_file


def test_packaged_model_has_origin_and_daily_price() -> None:
    before = catalogue(now=datetime(2026, 11, 1, tzinfo=UTC)).of("claude-sonnet-5-5")
    today = catalogue().of("claude-sonnet-5-5")

    assert (today.origin, today.price_origin, today.transport) == (PACKAGED, PACKAGED, "native_schema")
    assert before.price is not None
    assert today.price is not None
    assert (before.price.cache_read, today.price.cache_read) == (200, 100)


def test_own_model_names_source_files(tmp_path: Path) -> None:
    models, prices = models_file(tmp_path, model_row()), prices_file(tmp_path, price_row())

    entry = catalogue(models, prices).of("house-8b")

    assert (entry.name, entry.origin, entry.price_origin) == ("openai/house-8b", str(models), str(prices))


def test_own_row_takes_precedence_over_packaged(tmp_path: Path) -> None:
    own = model_row(provider="anthropic", model="claude-haiku-5-5", native_schema=False)

    entry = catalogue(models_file(tmp_path, own)).of("claude-haiku-5-5")

    assert (entry.transport, entry.origin != PACKAGED, entry.price_origin) == ("prompted", True, PACKAGED)


def test_unpriced_model_is_listed_without_price(tmp_path: Path) -> None:
    entry = catalogue(models_file(tmp_path, model_row())).of("house-8b")

    assert (entry.price, entry.price_origin) == (None, "")


@pytest.mark.parametrize(("day", "left", "retired"), [(29, 1, False), (30, 0, False), (31, -1, True)])
def test_model_retires_after_last_day(day: int, left: int, *, retired: bool) -> None:
    month, day = (12, 1) if day == 31 else (11, day)

    entry = catalogue(now=datetime(2026, month, day, tzinfo=UTC)).of("claude-sonnet-4-5-20250929")

    assert (entry.days_left, entry.retired) == (left, retired)


def test_ambiguous_model_name_needs_provider(tmp_path: Path) -> None:
    models = models_file(tmp_path, model_row(model="claude-opus-5-5"))

    with pytest.raises(UnknownModelError) as caught:
        catalogue(models).of("claude-opus-5-5")

    assert caught.value.known == ("anthropic/claude-opus-5-5", "openai/claude-opus-5-5")
    assert catalogue(models).of("openai/claude-opus-5-5").capability.provider == "openai"


def test_unknown_provider_error_lists_known_providers() -> None:
    with pytest.raises(OptionError) as caught:
        catalogue().entries("acme")

    assert caught.value.allowed == "anthropic, local, rules, scripted"


def test_file_with_wrong_row_is_named(tmp_path: Path) -> None:
    models = models_file(tmp_path, model_row(), model_row(context_tokens=0))

    with pytest.raises(TableError) as caught:
        catalogue(models)

    assert (caught.value.path, caught.value.row, caught.value.field) == (models, 2, "context_tokens")
