"""Runs that ask a model, of which a test says only what matters to it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agentic_trading.app import trading
from agentic_trading.app.options import RunOptions
from agentic_trading.platform.settings import Settings
from agentic_trading.platform.tables import Tables

OWN_MODEL = "own-model"

HELD = ZoneInfo("UTC")
"""The zone that settings name unless told otherwise: looked up here once, as a look at the disk would block the loop."""


def settings(**fields: Any) -> Settings:
    """Return settings in which the environment has no say about keys, addresses and folders."""
    blank = {
        "ANTHROPIC_API_KEY": None,
        "ANTHROPIC_BASE_URL": None,
        "OPENAI_API_KEY": None,
        "OPENAI_BASE_URL": None,
        "secrets_dir": None,
    }
    return Settings(**{**blank, **fields})


def options(out: Path = Path("out"), **changes: Any) -> RunOptions:
    """Return the options of a short run that may ask over a network; `changes` are fields of `RunOptions`."""
    fields = {"data": ("btcusdt-5m",), "out": out, "bars": 450, "record": True, "settings": settings()}
    return RunOptions(**{**fields, **changes})


def own_rows(folder: Path, names: Sequence[str] = (OWN_MODEL,), **fields: Any) -> tuple[Path, Path]:
    """Write rows for models of one's own, and their prices; return both files."""
    row = {
        "provider": "openai",
        "sampling": True,
        "native_schema": True,
        "context_tokens": 32_000,
        "max_output_tokens": 16_000,
        "overhead_tokens": 64,
        "source": "a test",
        "checked_on": "2026-11-22",
    }
    price = {
        "provider": "openai",
        "valid_from": "2026-01-01",
        "input": 1000,
        "output": 2000,
        "cache_read": 100,
        "cache_write_5m": 1000,
        "cache_write_1h": 1000,
        "inference_geo": {},
        "speed": {},
        "service_tier": {},
        "source": "a test",
        "checked_on": "2026-11-22",
    }
    models, prices = folder / "models.json", folder / "prices.json"
    models.write_text(json.dumps({"rows": [{**row, "model": name, **fields} for name in names]}))
    prices.write_text(json.dumps({"name": "own", "rows": [{**price, "model": name} for name in names]}))
    return models, prices


def own_tables(folder: Path, names: Sequence[str] = (OWN_MODEL,)) -> Tables:
    """Return the shipped tables with rows for models of one's own."""
    return trading.load_tables(*own_rows(folder, names))
