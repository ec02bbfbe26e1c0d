"""Files that a platform reads: tables of models and prices, the policy, and keys."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self
from zoneinfo import ZoneInfo

from agentic_trading.bus.signing import Verifier
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.prices import PACKAGED_PRICES, ModelPrice, PriceBook
from agentic_trading.llm import models as model_types
from agentic_trading.platform.adapters import Factory, explained, factory_of
from agentic_trading.platform.config import ModelConfig, PlatformConfig
from agentic_trading.platform.signing_keys import PrincipalKeys, signing_keys_in


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of models and prices."""

    capabilities: model_types.Capabilities
    prices: PriceBook


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """The contents of all files, read before a port is opened."""

    factories: Mapping[str, Factory]
    tables: Tables
    policy: Policy | None
    signing: PrincipalKeys | None
    zone: ZoneInfo

    @classmethod
    def read(cls, config: PlatformConfig, given: frozenset[str], tables: Tables | None) -> Self:
        """Read tables, policy and keys. Blocks.

        Args:
            config: The configuration.
            given: Providers that are given as ports. Their adapters are not loaded.
            tables: Tables that are loaded already, or None.

        """
        factories = factories_of(config, given)
        tables = tables or Tables(*tables_of(config, factories))
        policy = Policy.load(config.policy) if config.policy is not None else None
        signing = signing_keys_in(config.principals_folder, policy)
        return cls(factories, tables, policy, signing, ZoneInfo(config.zone))

    @property
    def verifier(self) -> Verifier | None:
        """The verifier of signatures, or None if messages are not signed."""
        return None if self.signing is None else self.signing.verifier


def factories_of(config: PlatformConfig, given: frozenset[str] = frozenset()) -> dict[str, Factory]:
    """Return the adapter of each provider that is not in `given`. Raises as `factory_of` does."""
    return {
        name: factory_of(name, row, origin=config.origin_of(f"providers.{name}.adapter"))
        for name, row in config.providers.items()
        if name not in given
    }


RowOrigin = Literal["shipped", "adapter", "file", "config"]
"""The origin of a row: our package, an adapter, a file, or the configuration. Later ones take precedence."""


@dataclass(frozen=True, slots=True)
class TableLayers:
    """Tables by origin. If several have a row for a model, the last one takes precedence."""

    models: Mapping[RowOrigin, model_types.DatedTable[model_types.Capability]]
    prices: Mapping[RowOrigin, model_types.DatedTable[ModelPrice]]

    @classmethod
    def read(cls, config: PlatformConfig, factories: Mapping[str, Factory]) -> Self:
        """Read files, and the rows of adapters. Raises the errors of `tables_of`."""
        given = {name: row.models for name, row in config.providers.items()}
        brought = {name: _rows_of(config, name, factory) for name, factory in factories.items()}
        models: dict[RowOrigin, model_types.DatedTable[model_types.Capability]] = {
            "shipped": model_types.read_table(model_types.PACKAGED_MODELS, model_types.Capability),
            **_layer("adapter", "adapters", _capabilities(brought)),
        }
        prices: dict[RowOrigin, model_types.DatedTable[ModelPrice]] = {
            "shipped": model_types.read_table(PACKAGED_PRICES, ModelPrice),
            **_layer("adapter", "adapters", _prices(brought)),
        }
        if config.models_file is not None:
            models["file"] = model_types.read_table(config.models_file, model_types.Capability)
        if config.prices_file is not None:
            prices["file"] = model_types.read_table(config.prices_file, ModelPrice)
        return cls(
            models | _layer("config", "config", _capabilities(given)),
            prices | _layer("config", "config", _prices(given)),
        )

    def tables(self) -> Tables:
        """Return the merged tables of models and prices."""
        rows = (row for table in self.models.values() for row in table.rows)
        return Tables(model_types.Capabilities(rows), PriceBook(*self.prices.values()))


def tables_of(
    config: PlatformConfig, factories: Mapping[str, Factory]
) -> tuple[model_types.Capabilities, PriceBook]:
    """Return the tables of models and prices. Blocks, because it reads files.

    For the same model, a row of the configuration takes precedence over `models_file` and `prices_file`,
    these over an adapter's row, and that over a shipped row.

    Raises:
        TableError: If a file is invalid. The error contains file, row and field.
        ConfigError: If the rows of an adapter are invalid.

    """
    tables = TableLayers.read(config, factories).tables()
    return tables.capabilities, tables.prices


def _rows_of(config: PlatformConfig, name: str, factory: Factory) -> tuple[ModelConfig, ...]:
    models = getattr(factory, "models", None)
    if not callable(models):
        return ()
    place = f"providers.{name}.adapter"
    with explained(config.origin_of(place), place, name):
        return tuple(map(ModelConfig.model_validate, models()))


def _capabilities(rows: Mapping[str, Iterable[ModelConfig]]) -> Iterator[model_types.Capability]:
    return (row.capability_of(name) for name, models in rows.items() for row in models)


def _prices(rows: Mapping[str, Iterable[ModelConfig]]) -> Iterator[ModelPrice]:
    return (
        price for name, models in rows.items() for row in models if (price := row.price_of(name)) is not None
    )


def _layer(
    origin: RowOrigin, name: str, rows: Iterable[model_types.Row]
) -> dict[RowOrigin, model_types.DatedTable[model_types.Row]]:
    """Return these rows as a table, or an empty mapping without rows."""
    kept = tuple(rows)
    digest = model_types.sha256_of_rows([row.model_dump(mode="json") for row in kept])
    return {origin: model_types.DatedTable(Path(name), kept, {"name": name}, digest)} if kept else {}


def load_tables(models_file: Path | None = None, prices_file: Path | None = None) -> Tables:
    """Read the shipped tables, and these files in addition. Rows of the files take precedence. Blocks."""
    return Tables(*tables_of(PlatformConfig(models_file=models_file, prices_file=prices_file), {}))
