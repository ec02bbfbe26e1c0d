"""Builders for tests of models: table files of a user, rows of which a test says only what matters."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentic_trading.operate.models.catalogue import Catalogue
from agentic_trading.platform import PlatformConfig

TODAY = datetime(2026, 11, 22, tzinfo=UTC)


def model_row(**changes: Any) -> dict[str, Any]:
    """Return a row of the table of models."""
    row = {
        "provider": "openai",
        "model": "house-8b",
        "sampling": True,
        "native_schema": True,
        "context_tokens": 32_768,
        "max_output_tokens": 4_096,
        "overhead_tokens": 64,
        "source": "our own server",
        "checked_on": "2026-11-20",
    }
    return row | changes


def price_row(**changes: Any) -> dict[str, Any]:
    """Return a row of the price book; nano-USD per token."""
    rates = dict.fromkeys(("input", "output", "cache_read", "cache_write_5m", "cache_write_1h"), 150)
    row = {"provider": "openai", "model": "house-8b", "valid_from": "2026-01-01", "checked_on": "2026-11-20"}
    return row | rates | {"source": "what an hour of the machine costs"} | changes


def models_file(folder: Path, *rows: dict[str, Any]) -> Path:
    """Write a table of models and return its path."""
    path = folder / "models.json"
    path.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    return path


def prices_file(folder: Path, *rows: dict[str, Any]) -> Path:
    """Write a price book and return its path."""
    path = folder / "prices.json"
    path.write_text(json.dumps({"name": "house", "rows": rows}), encoding="utf-8")
    return path


def catalogue(models: Path | None = None, prices: Path | None = None, *, now: datetime = TODAY) -> Catalogue:
    """Return the catalogue of 22 November 2026, or of `now`."""
    return Catalogue.load(PlatformConfig(models_file=models, prices_file=prices), now=now)
