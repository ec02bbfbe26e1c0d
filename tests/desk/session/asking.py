"""Runs that ask a model, of which a test says only what matters to it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from agentic_trading.desk.session.options import RunOptions
from agentic_trading.platform.config import LedgerConfig, LoadedFrom, PlatformConfig, ProviderConfig
from agentic_trading.platform.tables import Tables, load_tables

OWN_MODEL = "own-model"

CONFIGURED = {"mode": "mode", "workers": "concurrency", "models_file": "models_file", "prices_file": "prices_file",
              "policy_file": "policy", "principal": "sign_as", "weights_folder": "weights_folder",
              "secrets_folder": "secrets_folder", "tenants": "tenants"}  # fmt: skip
"""What a run's configuration says, by the names that these tests have for it."""


def run_options(**changes: Any) -> RunOptions:
    """Return the options of a run; `changes` are fields of `RunOptions`, or what its configuration says.

    `keys` are those that the environment would have, by provider.
    """
    config: dict[str, Any] = {"mode": "backtest"}
    config |= {field: changes.pop(name) for name, field in CONFIGURED.items() if name in changes}
    if (url := changes.pop("ledger_url", None)) is not None:
        config["ledger"] = LedgerConfig(url=url)
    if (address := changes.pop("base_url", None)) is not None:
        config["providers"] = {changes["provider"]: ProviderConfig(base_url=address)}
    keys = {name: SecretStr(key) for name, key in changes.pop("keys", {}).items()}
    loaded = PlatformConfig.model_validate(config, context=LoadedFrom(secrets=keys))
    return RunOptions(**{"config": loaded, **changes})


def options(out: Path = Path("out"), **changes: Any) -> RunOptions:
    """Return the options of a short run that may ask over a network."""
    return run_options(**{"data": ("btcusdt-5m",), "out": out, "bars": 450, "record": True, **changes})


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
    return load_tables(*own_rows(folder, names))
