"""What a platform reads from files: tables of models and prices, a policy, the keys of principals."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agentic_trading.bus.signing import Verifier
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.prices import PACKAGED_PRICES, ModelPrice, PriceBook
from agentic_trading.llm.models import (
    PACKAGED_MODELS,
    Capabilities,
    Capability,
    DatedTable,
    read_table,
    sha256_of_rows,
)
from agentic_trading.platform.adapters import Factory, explained, factory_of, signing_keys_of
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.provider_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Tables:
    """What is known of models and prices."""

    capabilities: Capabilities
    prices: PriceBook


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """What was read from files before anything is opened."""

    factories: Mapping[str, Factory]
    tables: Tables
    policy: Policy | None
    signing: Mapping[str, tuple[bytes, ...]] | None

    @classmethod
    def read(cls, config: PlatformConfig, given: frozenset[str], tables: Tables | None) -> Self:
        """Read tables, unless they are read already, policy and keys.

        The adapters of providers that are `given` are not loaded.
        """
        factories = {
            name: factory_of(name, row, origin=config.origin_of(f"providers.{name}.adapter"))
            for name, row in config.providers.items()
            if name not in given
        }
        tables = tables or Tables(*tables_of(config, factories))
        policy = Policy.load(config.policy) if config.policy is not None else None
        signing = signing_keys_of(config.principals_folder, policy)
        return cls(factories, tables, policy, signing)

    @property
    def verifier(self) -> Verifier | None:
        """What proves senders, where messages are signed."""
        return None if self.signing is None else Verifier(self.signing)


def tables_of(config: PlatformConfig, factories: Mapping[str, Factory]) -> tuple[Capabilities, PriceBook]:
    """Return what is known of models and prices; reads files.

    A row of the configuration goes before one of `models_file` and `prices_file`, that before one that an adapter
    brings, and that before a shipped one. Raises `TableError` that names file, row and field, `ConfigError` for an
    adapter whose rows are none.
    """
    brought = {name: _rows_of(name, factory) for name, factory in factories.items()}
    given = {name: row.models for name, row in config.providers.items()}
    models = [
        *read_table(PACKAGED_MODELS, Capability).rows,
        *_capabilities(brought),
        *(read_table(config.models_file, Capability).rows if config.models_file else ()),
        *_capabilities(given),
    ]
    prices = [
        read_table(PACKAGED_PRICES, ModelPrice),
        *_prices("adapters", brought),
        *([read_table(config.prices_file, ModelPrice)] if config.prices_file else []),
        *_prices("config", given),
    ]
    return Capabilities(models), PriceBook(*prices)


def _rows_of(name: str, factory: Factory) -> tuple[ModelConfig, ...]:
    models = getattr(factory, "models", None)
    if not callable(models):
        return ()
    with explained("code", f"providers.{name}.adapter", name):
        return tuple(map(ModelConfig.model_validate, models()))


def _capabilities(rows: Mapping[str, Iterable[ModelConfig]]) -> Iterator[Capability]:
    return (row.capability_of(name) for name, models in rows.items() for row in models)


def _prices(book: str, rows: Mapping[str, Iterable[ModelConfig]]) -> Iterator[DatedTable[ModelPrice]]:
    """Yield the prices of these rows as a table, if there are any."""
    prices = tuple(price for name, models in rows.items() for row in models if (price := row.price_of(name)))
    if prices:
        digest = sha256_of_rows([price.model_dump(mode="json") for price in prices])
        yield DatedTable(Path(book), prices, {"name": book}, digest)
